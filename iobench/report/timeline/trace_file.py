"""Runs as a trace that Perfetto and chrome://tracing open: who did what, when, and who waited."""

from __future__ import annotations

from contextlib import contextmanager
from gzip import GzipFile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import msgspec
import numpy as np

from iobench.errors import FileFormatError, OptionError, ProfileError
from iobench.report import units
from iobench.report.timeline.machine_lanes import counter_entries, lanes_of_machine
from iobench.report.timeline.model import timeline_of
from iobench.report.timeline.torch_trace import read_torch_trace, torch_entries
from iobench.report.timeline.trace_clock import machine_of, wall_offsets
from iobench.report.timeline.trace_flows import flow_entries
from iobench.report.timeline.trace_spans import call_entries, place_spans, span_entries
from iobench.report.timeline.trace_writer import TraceWriter
from iobench.report.written import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.analysis.run import RankRun, Run
    from iobench.report.timeline.torch_trace import TorchTrace
    from iobench.runs.contents import Process, RunData

TRACE_SUFFIXES: Final = (".json", ".json.gz")
COMPRESSION: Final = 3
COPIED_NBYTES: Final = 1 << 20
TOLD: Final = (
    "Times are microseconds after base_wall_ns, in decimals of a nanosecond; doubles hold them "
    "exactly for runs of up to 50 days. Of a span's own time, without that of spans inside it, "
    "the training loop waited for exposed_ns, and hidden_ns is the rest; red (cat 'exposed') is at "
    "least half exposed, green ('hidden') at most a hundredth. Spans of one thread that overlap "
    "without nesting are on a thread beside it; batches in queues are asynchronous pairs (b, e)."
)


def check_trace_name(path: Path | str) -> None:
    """Refuse a name that does not say which sort of file is wanted.

    Raises
    ------
    OptionError
        If it ends in none of `TRACE_SUFFIXES`.
    """
    if not str(path).lower().endswith(TRACE_SUFFIXES):
        raise OptionError(f"{path}: expected a name that ends in {' or '.join(TRACE_SUFFIXES)}")


class _Seen(msgspec.Struct, frozen=True):
    """What has to be known of all profiles before any is written; each may be read once more.

    Parameters
    ----------
    low_ns, high_ns : tuple of int
        Of each process the first and last moment of its spans; the last is before the first where
        it left none.
    """

    path: Path
    processes: tuple[Process, ...]
    low_ns: tuple[int, ...]
    high_ns: tuple[int, ...]

    @classmethod
    def of(cls, profile: RunData) -> _Seen:
        """Look at a profile."""
        limits = np.iinfo(np.int64)
        low = np.full(len(profile.processes), limits.max)
        high = np.full(len(profile.processes), limits.min)
        np.minimum.at(low, profile.spans["process"], profile.spans["start_ns"])
        np.maximum.at(high, profile.spans["process"], profile.spans["end_ns"])
        return cls(profile.path, profile.processes, tuple(low.tolist()), tuple(high.tolist()))

    def extents(self, offsets: Mapping[tuple[str, str], int]) -> Iterator[tuple[int, int]]:
        """Yield the first and last moment of each process that left spans, wall clock."""
        for who, low, high in zip(self.processes, self.low_ns, self.high_ns, strict=True):
            if low <= high:
                yield low + offsets[machine_of(who)], high + offsets[machine_of(who)]


def write_trace(
    path: Path | str,
    runs: Sequence[Run],
    torch_traces: Sequence[Path | str] = (),
) -> None:
    """Write runs as a trace: a JSON object of Chrome's trace event format.

    Parameters
    ----------
    path : Path or str
        Ends in ``.json``, or ``.json.gz`` for a compressed one.
    runs : sequence of Run
        Looked at one after the other; those of several runs are processes of their own.
    torch_traces : sequence of Path or str
        Files that torch's profiler wrote meanwhile, to be merged by wall time.

    Raises
    ------
    OptionError
        If the name says no sort of file.
    ProfileError
        If there is nothing to write.
    FileFormatError
        If a trace of torch's profiler is none, is damaged, or is of another time than the runs.
    StorageError
        If a file cannot be read or written.
    """
    check_trace_name(path)
    seen = [_Seen.of(part) for part in _parts(runs)]
    offsets = wall_offsets(who for each in seen for who in each.processes)
    ours = [extent for each in seen for extent in each.extents(offsets)]
    if not ours:
        names = ", ".join(dict.fromkeys(str(each.path) for each in runs)) or "no run"
        raise ProfileError(f"{names}: holds no span to write; expected a run that measured")
    torch = [_of_this_time(read_torch_trace(each), ours) for each in torch_traces]
    # Viewers drop what lies before 0: a tracer may have seen calls before there was a span.
    calls = [
        low
        for part in _parts([run for run in runs if run.trace is not None])
        for low in _first_calls(part, _moved(part, offsets))
    ]
    base_ns = min([*(low for low, _ in ours), *(each.low_ns for each in torch), *calls])
    with _opened(path) as file:
        writer = TraceWriter(file, _about(seen, base_ns, torch))
        known: list[tuple[Process, int]] = []
        hosts: set[tuple[str, str]] = set()
        several = len({each.path for each in seen}) > 1
        for part in _parts(runs):
            run = f"{part.path.name} " if several else ""
            moved = _moved(part, offsets) - base_ns
            known += _write_rank(part, run, moved, writer)
            if (machine := lanes_of_machine(part)) and (run, machine.host) not in hosts:
                hosts.add((run, machine.host))
                pid = writer.process(-1, f"{run}machine {machine.host}")
                moved_ns = offsets[machine.host, machine.boot_id] - base_ns
                writer.add(counter_entries(machine, pid, moved_ns))
        for each in torch:
            writer.add(torch_entries(each, known, base_ns, writer))
        writer.close()


@contextmanager
def _opened(path: Path | str) -> Iterator[BinaryIO]:
    with whole_file(path) as file:
        if not str(path).lower().endswith(".gz"):
            yield file
            return
        # Neither name nor time of it: the same runs make the same file.
        with GzipFile("", "wb", COMPRESSION, file, mtime=0) as packed:
            yield cast("BinaryIO", packed)


def _parts(runs: Sequence[Run]) -> Iterator[RankRun]:
    return (part for run in runs for part in run.parts)


def _moved(profile: RunData, offsets: Mapping[tuple[str, str], int]) -> NDArray[np.int64]:
    """Return what to add to the monotonic times of each process."""
    return np.array([offsets[machine_of(who)] for who in profile.processes], dtype=np.int64)


def _first_calls(part: RankRun, moved_ns: NDArray[np.int64]) -> Iterator[int]:
    """Yield when the first call of each process was that a tracer saw."""
    for one in part.placement.processes if part.placement is not None else ():
        start = one.segments["start_ns"][~one.segments["stray"]]
        if len(start):
            yield int(start.min() + moved_ns[one.process])


def _of_this_time(trace: TorchTrace, ours: Sequence[tuple[int, int]]) -> TorchTrace:
    """Refuse a trace that no run was recorded during."""
    if any(trace.low_ns <= high and low <= trace.high_ns for low, high in ours):
        return trace
    low, high = min(low for low, _ in ours), max(high for _, high in ours)
    after = trace.low_ns > high
    apart = units.duration(trace.low_ns - high if after else low - trace.high_ns)
    when = "begins after the run ended" if after else "ended before the run began"
    raise FileFormatError(
        f"{trace.path}: {when}, by {apart}; expected a trace of torch.profiler of the same run"
    )


def _about(seen: Sequence[_Seen], base_ns: int, torch: Sequence[TorchTrace]) -> dict[str, Any]:
    return {
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns,
        "otherData": {
            "made_by": "iobench",
            "base_wall_ns": str(base_ns),
            "runs": list(dict.fromkeys(each.path.name for each in seen)),
            "torch_traces": [each.path.name for each in torch],
            "about": TOLD,
        },
    }


def _write_rank(
    part: RankRun,
    run: str,
    moved_ns: NDArray[np.int64],
    writer: TraceWriter,
) -> list[tuple[Process, int]]:
    """Write all of one training process; return its processes and their numbers."""
    profile = part
    several = len(profile.ranks) > 1 or len({each.rank for each in profile.processes}) > 1
    pids = []
    for who in profile.processes:
        name = f"{run}rank {who.rank} {who.name}" if several else f"{run}{who.name}"
        pids.append(writer.process(who.pid, name, f"pid {who.pid} on {who.host}"))
    placed = place_spans(timeline_of(part), pids, writer, moved_ns)
    writer.add(span_entries(placed, profile.strings, writer))
    # Not where waits overlap: what ran is shown, who was waited for nobody can tell.
    if part.is_sound:
        writer.add(flow_entries(part, placed, writer))
    if part.placement is not None:
        for each in part.placement.processes:
            if len(each.segments):
                writer.add(call_entries(profile, each, placed, writer))
    return list(zip(profile.processes, pids, strict=True))
