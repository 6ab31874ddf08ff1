"""Runs as a trace that Perfetto and chrome://tracing open: who did what, when, and who waited."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import numpy as np

from iobench.analysis.run import Run
from iobench.analysis.timeline import timeline_of
from iobench.errors import FileFormatError, OptionError, ProfileError
from iobench.report import units
from iobench.report.trace_clock import machine_of, wall_offsets
from iobench.report.trace_entries import EntryFile, TraceNumbers
from iobench.report.trace_flows import write_flows
from iobench.report.trace_spans import place_spans, write_spans
from iobench.report.trace_storage import first_calls, write_storage
from iobench.report.trace_torch import read_torch_trace, write_torch_trace
from iobench.report.written import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.profiles.contents import Process, Profile
    from iobench.report.trace_torch import TorchTrace
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["TRACE_SUFFIXES", "check_trace_name", "write_trace"]

TRACE_SUFFIXES: Final = (".json", ".json.gz")
COMPRESSION: Final = 3
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


@dataclass(frozen=True, slots=True)
class _Seen:
    """What has to be known of all profiles before any is written; each may be read once more.

    Parameters
    ----------
    path : Path
    processes : tuple of Process
    low_ns, high_ns : tuple of int or None
        Of each process the first and last moment of its spans.
    """

    path: Path
    processes: tuple[Process, ...]
    low_ns: tuple[int | None, ...]
    high_ns: tuple[int | None, ...]

    @classmethod
    def of(cls, profile: Profile) -> _Seen:
        """Look at a profile."""
        spans = [
            profile.spans[profile.spans["process"] == n] for n in range(len(profile.processes))
        ]
        return cls(
            profile.path,
            profile.processes,
            tuple(int(each["start_ns"].min()) if len(each) else None for each in spans),
            tuple(int(each["end_ns"].max()) if len(each) else None for each in spans),
        )

    def extents(self, offsets: Mapping[tuple[str, str], int]) -> Iterator[tuple[int, int]]:
        """Yield the first and last moment of each process that left spans, wall clock."""
        for who, low, high in zip(self.processes, self.low_ns, self.high_ns, strict=True):
            if low is not None and high is not None:
                yield low + offsets[machine_of(who)], high + offsets[machine_of(who)]


def write_trace(
    path: Path | str,
    profiles: Sequence[Profile],
    traces: Mapping[Path, StorageTrace] | None = None,
    torch_traces: Sequence[Path | str] = (),
) -> None:
    """Write runs as a trace: a JSON object of Chrome's trace event format.

    Parameters
    ----------
    path : Path or str
        Ends in ``.json``, or ``.json.gz`` for a compressed one.
    profiles : sequence of Profile
        Looked at one after the other; those of several runs are processes of their own.
    traces : mapping of Path to StorageTrace, optional
        What a tracer saw of them, by run directory.
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
    seen = [_Seen.of(profile) for profile in profiles]
    offsets = wall_offsets(who for each in seen for who in each.processes)
    ours = [extent for each in seen for extent in each.extents(offsets)]
    if not ours:
        names = ", ".join(dict.fromkeys(str(each.path) for each in seen)) or "no run"
        raise ProfileError(f"{names}: holds no span to write; expected a run that measured")
    torch = [_of_this_time(read_torch_trace(each), ours) for each in torch_traces]
    # Viewers drop what lies before 0: a tracer may have seen calls before there was a span.
    calls = [
        low
        for profile in (_of_ranks(profiles) if traces else ())
        if (trace := (traces or {}).get(profile.path)) is not None
        for low in first_calls(profile, trace, _moved(profile, offsets))
    ]
    base_ns = min([*(low for low, _ in ours), *(each.low_ns for each in torch), *calls])
    with _opened(path) as file:
        entries = EntryFile(file, _about(seen, base_ns, torch))
        numbers = TraceNumbers(entries)
        known: list[tuple[Process, int]] = []
        several = len({each.path for each in seen}) > 1
        for profile in _of_ranks(profiles):
            trace = (traces or {}).get(profile.path)
            run = f"{profile.path.name} " if several else ""
            moved = _moved(profile, offsets) - base_ns
            known += _write_profile(profile, run, moved, trace, numbers, entries)
        for each in torch:
            write_torch_trace(each, known, base_ns, numbers, entries)
        entries.close()


@contextmanager
def _opened(path: Path | str) -> Iterator[BinaryIO]:
    with whole_file(path) as file:
        if not str(path).lower().endswith(".gz"):
            yield file
            return
        # Neither name nor time of it: the same runs make the same file.
        with GzipFile("", "wb", COMPRESSION, file, mtime=0) as packed:
            yield cast(BinaryIO, packed)


def _of_ranks(profiles: Sequence[Profile]) -> Iterator[Profile]:
    """Yield the profiles of single training processes."""
    for profile in profiles:
        if len(profile.ranks_read) < 2:
            yield profile
            continue
        for rank in profile.ranks_read:
            yield profile.of_rank(rank)


def _moved(profile: Profile, offsets: Mapping[tuple[str, str], int]) -> NDArray[np.int64]:
    """Return what to add to the monotonic times of each process."""
    return np.array([offsets[machine_of(who)] for who in profile.processes], dtype=np.int64)


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


def _write_profile(
    profile: Profile,
    run: str,
    moved_ns: NDArray[np.int64],
    trace: StorageTrace | None,
    numbers: TraceNumbers,
    entries: EntryFile,
) -> list[tuple[Process, int]]:
    """Write all of one training process; return its processes and their numbers."""
    pids = [numbers.process(who.pid, *_names(profile, who, run)) for who in profile.processes]
    # Nothing where waits overlap: what ran is shown, who was waited for nobody can tell.
    run_of = Run(profile)
    measured = [each for each in run_of.parts if each.is_sound]
    placed = place_spans(timeline_of(run_of), pids, numbers, moved_ns)
    write_spans(profile, placed, numbers, entries)
    for each in measured:
        write_flows(each, placed, numbers, entries)
    if trace is not None:
        share = next((each.share for each in measured), None)
        write_storage(profile, trace, share, placed, numbers, entries)
    return list(zip(profile.processes, pids, strict=True))


def _names(profile: Profile, who: Process, run: str) -> tuple[str, str]:
    several = len(profile.ranks) > 1 or len({each.rank for each in profile.processes}) > 1
    rank = f"rank {who.rank} " if several else ""
    return f"{run}{rank}{who.name}", f"pid {who.pid} on {who.host}"
