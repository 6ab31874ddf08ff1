"""Runs in Chrome's trace event format (a JSON object), for Perfetto and chrome://tracing."""

from __future__ import annotations

from contextlib import contextmanager
from gzip import GzipFile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import numpy as np

from iobench.analysis.partition import leaf_pieces
from iobench.errors import FileFormatError, OptionError, ProfileError
from iobench.recording.kinds import (
    HANDOVER_KINDS,
    QUEUED_KINDS,
    WORKER_KINDS,
    Kind,
    is_one_of,
    stage_name,
)
from iobench.recording.span_file import Flag
from iobench.recording.span_keys import stages_of
from iobench.report import units
from iobench.report.timeline.machine_lanes import counter_entries, lanes_of_machine
from iobench.report.timeline.model import sub_lanes, timeline_of
from iobench.report.timeline.torch_trace import read_torch_trace
from iobench.report.timeline.trace_clock import machine_of, wall_offsets
from iobench.report.timeline.trace_deliveries import delivery_entries
from iobench.report.timeline.trace_writer import PlacedSpans, TraceWriter
from iobench.report.written import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.analysis.placement import ProcessPlacement
    from iobench.analysis.run import RankRun, Run
    from iobench.report.timeline.model import Timeline
    from iobench.report.timeline.torch_trace import TorchTrace
    from iobench.runs.contents import Process

TRACE_SUFFIXES: Final = (".json", ".json.gz")
COMPRESSION: Final = 3
ROWS_AT_ONCE: Final = 16_384
ABOUT: Final = (
    "Times are microseconds after base_wall_ns, exact to the nanosecond in runs of up to 50 days. "
    "Of a span's own time, without that of spans inside it, the training loop waited for "
    "exposed_ns, and hidden_ns is the rest; red (cat 'exposed') is at least half exposed, green "
    "('hidden') at most a hundredth. Spans of one thread that overlap without nesting are on a "
    "thread of their own; batches in queues are asynchronous pairs (b, e)."
)
COLOURS: Final = (("exposed", "terrible"), ("partly exposed", "bad"), ("hidden", "good"), ("", ""))
"""Categories, and reserved names of the format: red, amber, green; the viewer's own for unknown."""


def check_trace_name(path: Path | str) -> None:
    """Refuse a name that does not say which sort of file is to be written.

    Raises
    ------
    OptionError
        If it ends in none of `TRACE_SUFFIXES`.
    """
    if not str(path).lower().endswith(TRACE_SUFFIXES):
        raise OptionError(f"{path}: expected a name that ends in {' or '.join(TRACE_SUFFIXES)}")


def write_trace(
    path: Path | str,
    runs: Sequence[Run],
    torch_traces: Sequence[Path | str] = (),
) -> None:
    """Write runs as a trace.

    Parameters
    ----------
    path : Path or str
        Ends in ``.json``, or ``.json.gz`` for a compressed one.
    runs : sequence of Run
        Read one after the other; those of several runs are processes of their own.
    torch_traces : sequence of Path or str
        Files that torch's profiler wrote meanwhile, to be merged by wall time.

    Raises
    ------
    OptionError
        If the name ends in none of `TRACE_SUFFIXES`.
    ProfileError
        If there is nothing to write.
    FileFormatError
        If a trace of torch's profiler is none, is damaged, or is of another time than the runs.
    StorageError
        If a file cannot be read or written.
    """
    check_trace_name(path)
    parts = [part for run in runs for part in run.parts]
    offsets = wall_offsets(process for part in parts for process in part.processes)
    extents = [each for part in parts if (each := _extent(part, offsets)) is not None]
    if not extents:
        names = ", ".join(dict.fromkeys(str(each.path) for each in runs)) or "no run"
        raise ProfileError(f"{names}: holds no span to write; expected a run that measured")
    torch = [_of_this_time(read_torch_trace(each), extents) for each in torch_traces]
    base_ns = min(low for low, _ in [*extents, *((each.low_ns, 0) for each in torch)])
    several = len({part.path for part in parts}) > 1
    about: dict[str, Any] = {
        "made_by": "iobench",
        "base_wall_ns": str(base_ns),
        "runs": [*dict.fromkeys(part.path.name for part in parts)],
        "torch_traces": [each.path.name for each in torch],
        "about": ABOUT,
    }
    document = {"displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns, "otherData": about}
    with _opened(path) as file:
        writer = TraceWriter(file, document)
        known: list[tuple[Process, int]] = []
        machines: set[tuple[str, str]] = set()
        for part in parts:
            run = f"{part.path.name} " if several else ""
            moved = _moved(part, offsets) - base_ns
            known += _write_rank(part, run, moved, writer)
            if (machine := lanes_of_machine(part)) and (run, machine.host) not in machines:
                machines.add((run, machine.host))
                pid = writer.process(-1, f"{run}machine {machine.host}")
                moved_ns = offsets[machine.host, machine.boot_id] - base_ns
                writer.add(counter_entries(machine, pid, moved_ns))
        for each_torch in torch:
            writer.add(each_torch.merged(known, base_ns, writer))
        writer.close()


@contextmanager
def _opened(path: Path | str) -> Iterator[BinaryIO]:
    with whole_file(path) as file:
        if not str(path).lower().endswith(".gz"):
            yield file
            return
        # Neither name nor time in it: the same runs make the same file.
        with GzipFile("", "wb", COMPRESSION, file, mtime=0) as packed:
            yield cast("BinaryIO", packed)


def _moved(run: RankRun, offsets: Mapping[tuple[str, str], int]) -> NDArray[np.int64]:
    """Return what to add to the monotonic times of each process."""
    return np.array([offsets[machine_of(process)] for process in run.processes], dtype=np.int64)


def _extent(part: RankRun, offsets: Mapping[tuple[str, str], int]) -> tuple[int, int] | None:
    """Return the first and last moment of a rank, wall clock; a tracer's calls may be earlier."""
    moved, spans = _moved(part, offsets), part.spans
    if not len(spans):
        return None
    moved_ns = moved[spans["process"]]
    lows = [int((spans["start_ns"] + moved_ns).min())]
    for one in part.placement.processes if part.placement is not None else ():
        start = one.segments["start_ns"][~one.segments["stray"]]
        lows += [int(start.min() + moved[one.process])] if len(start) else []
    return min(lows), int((spans["end_ns"] + moved_ns).max())


def _of_this_time(trace: TorchTrace, extents: Sequence[tuple[int, int]]) -> TorchTrace:
    """Refuse a trace during which no run was recorded."""
    if any(trace.low_ns <= high and low <= trace.high_ns for low, high in extents):
        return trace
    low, high = min(low for low, _ in extents), max(high for _, high in extents)
    after = trace.low_ns > high
    apart = units.duration(trace.low_ns - high if after else low - trace.high_ns)
    when = "begins after the run ended" if after else "ended before the run began"
    raise FileFormatError(
        f"{trace.path}: {when}, by {apart}; expected a trace of torch.profiler of the same run"
    )


def _write_rank(
    part: RankRun, run: str, moved_ns: NDArray[np.int64], writer: TraceWriter
) -> list[tuple[Process, int]]:
    """Write all of one training process; return its processes and their numbers."""
    several = len(part.ranks) > 1 or len({each.rank for each in part.processes}) > 1
    pids = []
    for process in part.processes:
        name = f"{run}rank {process.rank} {process.name}" if several else f"{run}{process.name}"
        pids.append(writer.process(process.pid, name, f"pid {process.pid} on {process.host}"))
    placed = _placed(timeline_of(part), pids, writer, moved_ns)
    for low in range(0, len(placed.timeline), ROWS_AT_ONCE):
        rows = slice(low, low + ROWS_AT_ONCE)
        writer.add(_span_entries(placed, rows, part.strings, writer))
    # Not where waits overlap: nobody can say which work was waited for.
    if part.is_sound:
        writer.add(delivery_entries(part, placed, writer))
    if part.placement is not None:
        for each in part.placement.processes:
            writer.add(_call_entries(part, each, placed, writer))
    return list(zip(part.processes, pids, strict=True))


def _placed(
    timeline: Timeline, pids: Sequence[int], writer: TraceWriter, moved_ns: NDArray[np.int64]
) -> PlacedSpans:
    """Give each lane of a timeline its threads: one, and more where spans of it overlap."""
    spans, lane = timeline.spans, timeline.lane
    start = spans["start_ns"] + moved_ns[spans["process"]]
    end = np.maximum(spans["end_ns"] + moved_ns[spans["process"]], start)
    sub, own = np.zeros(len(spans), dtype=np.int64), end - start
    # A batch in a queue takes no thread's time: such spans are pairs of their own.
    on_thread = np.flatnonzero(~is_one_of(spans["kind"], QUEUED_KINDS))
    sub[on_thread] = sub_lanes(lane[on_thread], start[on_thread], end[on_thread])
    pieces = leaf_pieces(spans[on_thread], lane[on_thread])
    own[on_thread] = 0
    np.add.at(own, on_thread[pieces.span], pieces.duration_ns)
    widest = int(sub.max(initial=0)) + 1
    keys, of_span = np.unique(lane * np.int64(widest) + sub, return_inverse=True)
    tids = []
    for number, other in (divmod(key, widest) for key in keys.tolist()):
        where = timeline.lanes[number]
        name = f"{where.name} (overlapping, {other})" if other else where.name
        main = not (other or where.is_device or where.thread)
        tids.append(writer.thread(pids[where.process], name, main=main))
    return PlacedSpans(
        timeline=timeline,
        pids=tuple(pids),
        pid=np.array(pids, dtype=np.int64)[spans["process"]],
        tid=np.array(tids, dtype=np.int64)[of_span],
        start_ns=start,
        end_ns=end,
        own_ns=own,
        moved_ns=moved_ns,
    )


def _span_entries(
    placed: PlacedSpans, rows: slice, strings: Sequence[str], writer: TraceWriter
) -> Iterator[dict[str, Any]]:
    """Yield spans: complete entries of threads, pairs of batches that queue."""
    timeline = placed.timeline
    spans = timeline.spans[rows]
    start, end = placed.start_ns[rows], placed.end_ns[rows]
    exposed, own = timeline.exposed_ns[rows], placed.own_ns[rows]
    queued = is_one_of(spans["kind"], QUEUED_KINDS)
    columns = (
        timeline.stage[rows], _colours(exposed, own), queued, placed.pid[rows], placed.tid[rows],
        start / 1000, (end - start) / 1000, end / 1000,
    )  # fmt: skip
    arguments = _arguments(spans, exposed, own, strings)
    for *values, args in zip(*(each.tolist() for each in columns), arguments, strict=True):
        stage, colour, in_queue, pid, tid, ts, dur, until = values
        word, cname = COLOURS[colour]
        family = timeline.kinds[stage].family.value
        entry: dict[str, Any] = {
            "ph": "X",
            "name": timeline.stages[stage],
            "cat": f"{family},{word}" if word else family,
            "pid": pid,
            "tid": tid,
            "ts": ts,
        }
        if cname:
            entry["cname"] = cname
        if in_queue:
            entry["id"] = writer.id()
            yield {**entry, "ph": "b", "args": args}
            yield {**entry, "ph": "e", "ts": until}
        else:
            entry["dur"], entry["args"] = dur, args
            yield entry


def _arguments(
    spans: NDArray[Any],
    exposed_ns: NDArray[np.int64],
    own_ns: NDArray[np.int64],
    strings: Sequence[str],
) -> list[dict[str, Any]]:
    """Return what viewers show of each span beside its name and times; what is unknown is not."""
    kind, flags, nbytes = spans["kind"], spans["flags"], spans["nbytes"]
    loads = is_one_of(kind, WORKER_KINDS)
    working = loads | is_one_of(kind, HANDOVER_KINDS)
    # The sample of waits and rounds is the round's number.
    is_round = is_one_of(kind, (Kind.WAIT, Kind.OTHER))
    length_ns = spans["end_ns"] - spans["start_ns"]
    has_bytes = (nbytes >= 0) & (kind != Kind.OTHER)
    is_known = exposed_ns >= 0
    summed = (flags & Flag.SUMMED) != 0
    detail, has_detail = spans["detail"], spans["detail"] != 0
    columns: tuple[tuple[str, NDArray[Any], NDArray[np.bool_]], ...] = (
        ("file", detail, has_detail & loads),
        ("made_by", detail, has_detail & (kind == Kind.WAIT)),
        ("detail", detail, has_detail & ~loads & (kind != Kind.WAIT)),
        ("batch", spans["batch"], spans["batch"] >= 0),
        ("sample", spans["sample"], (spans["sample"] >= 0) & ~is_round),
        ("round", spans["sample"], (spans["sample"] >= 0) & is_round),
        ("epoch", spans["epoch"], spans["epoch"] >= 0),
        ("bytes", nbytes, has_bytes),
        ("GB/s", nbytes / np.maximum(length_ns, 1), has_bytes & working & (length_ns > 0)),
        ("exposed_ns", exposed_ns, is_known),
        ("hidden_ns", np.maximum(own_ns - exposed_ns, 0), is_known & working),
        ("cpu_ns", spans["cpu_ns"], spans["cpu_ns"] >= 0),
        ("sum_of_samples", spans["pieces"], summed),
        ("estimated", summed, (flags & Flag.ESTIMATED) != 0),
    )
    result: list[dict[str, Any]] = [{} for _ in range(len(spans))]
    for name, values, is_there in columns:
        rows = np.flatnonzero(is_there)
        for row, value in zip(rows.tolist(), values[rows].tolist(), strict=True):
            result[row][name] = strings[value] if values is detail else value
    return result


def _colours(exposed_ns: NDArray[np.int64], own_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each span in `COLOURS`."""
    result = np.ones(len(exposed_ns), dtype=np.int64)
    result[2 * exposed_ns >= own_ns] = 0
    result[100 * exposed_ns <= own_ns] = 2
    result[(exposed_ns < 0) | (own_ns <= 0)] = 3
    return result


def _call_entries(
    run: RankRun, one: ProcessPlacement, placed: PlacedSpans, writer: TraceWriter
) -> Iterator[dict[str, Any]]:
    """Yield the calls of a process that Darshan traced, on threads of their own."""
    calls, moved_ns = one.segments[~one.segments["stray"]], placed.moved_ns[one.process]
    calls = calls[np.lexsort((-calls["end_ns"], calls["start_ns"]))]
    start = calls["start_ns"] + moved_ns
    end = np.maximum(calls["end_ns"] + moved_ns, start)
    sub = sub_lanes(np.zeros(len(calls), dtype=np.int64), start, end)
    pid = placed.pids[one.process]
    tids = [
        writer.thread(pid, f"Darshan {number}" if number else "Darshan")
        for number in range(int(sub.max(initial=-1)) + 1)
    ]
    stages, stage = stages_of(run.spans[np.maximum(calls["span"], 0)], run.strings)
    columns = (
        start, end - start, sub, calls["file"], calls["offset"], calls["nbytes"],
        calls["exposed_ns"], _colours(calls["exposed_ns"], end - start), calls["span"] >= 0, stage,
    )  # fmt: skip
    for values in zip(*(each.tolist() for each in columns), strict=True):
        begin, length, thread, file, offset, nbytes, exposed, colour, inside, number = values
        args: dict[str, Any] = {"file": one.files[file], "offset": offset, "bytes": nbytes}
        if length > 0 and nbytes >= 0:
            args["GB/s"] = nbytes / length
        if inside:
            args["stage"] = stage_name(*stages[number])
        if exposed >= 0:
            args |= {"exposed_ns": exposed, "hidden_ns": length - exposed}
        entry = {
            "ph": "X",
            "name": "read call",
            "cat": "storage",
            "pid": pid,
            "tid": tids[thread],
            "ts": begin / 1000,
            "dur": length / 1000,
            "args": args,
        }
        if COLOURS[colour][1]:
            entry["cname"] = COLOURS[colour][1]
        yield entry
