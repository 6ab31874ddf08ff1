"""Runs in Chrome's trace event format (a JSON object), for Perfetto and chrome://tracing."""

from __future__ import annotations

from contextlib import nullcontext
from gzip import GzipFile
from itertools import count, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.errors import ProfileError
from iobench.files.atomic import whole_file
from iobench.recording.kinds import WORKER_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag
from iobench.report.timeline.model import machine_of, sub_lanes, timeline_of, wall_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.analysis.placement import ProcessPlacement
    from iobench.analysis.run import RankRun, Run

Integers = NDArray[np.int64]
COMPRESSION: Final = 1
FIRST_NUMBER: Final = 10_000_000
"""Of new processes and threads: above any that Linux gives (at most 2**22)."""
EVENTS_AT_ONCE: Final = 16_384


class Event(msgspec.Struct, omit_defaults=True, gc=False):
    """An event that has a time, as Chrome's format has it: times in microseconds."""

    ph: str
    name: str
    pid: int
    tid: int
    ts: float
    cat: str | None = None
    dur: float | None = None
    args: Any = None
    id: int | None = None


class SpanArgs(msgspec.Struct, omit_defaults=True, gc=False, rename={"nbytes": "bytes"}):
    """What viewers show of a span or a read call; what is unknown is left out."""

    file: str | None = None
    detail: str | None = None
    batch: int | None = None
    sample: int | None = None
    epoch: int | None = None
    nbytes: int | None = None
    exposed_ns: int | None = None
    cpu_ns: int | None = None
    sum_of_samples: int | None = None


class TraceWriter:
    """Writes events; numbers processes, threads and pairs; a process keeps its pid if it can."""

    def __init__(self, file: BinaryIO, document: dict[str, Any]) -> None:
        self._file, self._encode = file, msgspec.json.Encoder().encode
        self._file.write(self._encode(document)[:-1] + b',"traceEvents":[\n')
        self._between = b""
        self._n_threads: dict[int, int] = {}
        self._numbers = count(FIRST_NUMBER + 1)
        self.ids = count(1)

    def add(self, events: Iterable[Event | dict[str, Any]]) -> None:
        """Write events, each as Chrome's format has them."""
        events = iter(events)
        while some := [*islice(events, EVENTS_AT_ONCE)]:
            self._file.write(self._between + self._encode(some)[1:-1])
            self._between = b",\n"

    def process(self, pid: int, name: str) -> int:
        """Return the number of a new process, with its name; they are shown in this order."""
        if pid <= 0 or pid in self._n_threads:
            pid = next(self._numbers)
        place = len(self._n_threads)
        self._n_threads[pid] = 0
        self._name(pid, 0, "process_name", {"name": name})
        self._name(pid, 0, "process_sort_index", {"sort_index": place})
        return pid

    def thread(self, pid: int, name: str, *, main: bool = False) -> int:
        """Return the number of a new thread of a process; the main one has that of the process."""
        tid = pid if main else next(self._numbers)
        self._name(pid, tid, "thread_name", {"name": name})
        self._name(pid, tid, "thread_sort_index", {"sort_index": self._n_threads[pid]})
        self._n_threads[pid] += 1
        return tid

    def _name(self, pid: int, tid: int, what: str, values: dict[str, Any]) -> None:
        self.add([{"ph": "M", "name": what, "pid": pid, "tid": tid, "args": values}])


def write_trace(path: Path | str, runs: Sequence[Run]) -> None:
    """Write runs as a trace, compressed if its name ends in ``.gz``."""
    parts = [part for run in runs for part in run.parts]
    offsets = wall_offsets(process for part in parts for process in part.processes)
    firsts = [_first_ns(part, offsets) for part in parts if len(part.spans)]
    if not firsts:
        names = ", ".join(dict.fromkeys(str(each.path) for each in runs)) or "no run"
        raise ProfileError(f"{names}: holds no span to write; expected a run that measured")
    base_ns = min(firsts)
    about = {
        "base_wall_ns": str(base_ns),
        "runs": [*dict.fromkeys(part.path.name for part in parts)],
    }
    document = {"displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns, "otherData": about}
    with whole_file(Path(path)) as plain:
        # Neither name nor time in it: the same runs make the same file.
        packs = str(path).lower().endswith(".gz")
        packed = GzipFile("", "wb", COMPRESSION, plain, mtime=0) if packs else nullcontext(plain)
        with packed as file:
            writer = TraceWriter(cast("BinaryIO", file), document)
            for part in parts:
                run = f"{part.path.name} " if len({each.path for each in parts}) > 1 else ""
                _write_rank(part, run, _moved(part, offsets) - base_ns, writer)
            file.write(b"\n]}\n")


def _moved(run: RankRun, offsets: Mapping[tuple[str, str], int]) -> NDArray[np.int64]:
    """Return what to add to the monotonic times of each process."""
    return np.array([offsets[machine_of(process)] for process in run.processes], dtype=np.int64)


def _first_ns(part: RankRun, offsets: Mapping[tuple[str, str], int]) -> int:
    """Return the first moment of a rank, wall clock; Darshan's calls may be earlier than spans."""
    moved, spans = _moved(part, offsets), part.spans
    moved_ns = moved[spans["process"]]
    lows = [int((spans["start_ns"] + moved_ns).min())]
    for one in part.placement.processes if part.placement is not None else ():
        start_ns = _calls_of(one)["start_ns"]
        lows += [int(start_ns.min() + moved[one.process])] if len(start_ns) else []
    return min(lows)


def _write_rank(part: RankRun, run: str, moved_ns: NDArray[np.int64], writer: TraceWriter) -> None:
    """Write all of one training process."""
    several = len(part.ranks) > 1 or len({each.rank for each in part.processes}) > 1
    pids = []
    for process in part.processes:
        name = f"{run}rank {process.rank} {process.name}" if several else f"{run}{process.name}"
        pids.append(writer.process(process.pid, name))
    spans = PlacedSpans(part, pids, moved_ns, writer)
    for low in range(0, len(spans.timeline), EVENTS_AT_ONCE):
        writer.add(spans.events(slice(low, low + EVENTS_AT_ONCE)))
    if part.placement is not None:
        for each in part.placement.processes:
            writer.add(_call_events(spans, each))


class PlacedSpans:
    """Spans of a training process in a trace: processes, threads, and times from its start."""

    def __init__(
        self, run: RankRun, pids: Sequence[int], moved_ns: NDArray[np.int64], writer: TraceWriter
    ) -> None:
        self.run, self.pids, self.moved_ns, self.writer = run, pids, moved_ns, writer
        self.timeline = run.cached(timeline_of)
        spans = self.timeline.spans
        self.start_ns = spans["start_ns"] + moved_ns[spans["process"]]
        self.end_ns = np.maximum(spans["end_ns"] + moved_ns[spans["process"]], self.start_ns)
        self.pid = np.array(pids, dtype=np.int64)[spans["process"]]
        self.tid = self._threads()

    def _threads(self) -> NDArray[np.int64]:
        """Give each lane its threads: one, and more where spans of it overlap."""
        # A batch in a queue takes no thread's time: such spans are pairs of their own.
        sub = np.where(self.timeline.queued, 0, self.timeline.sub)
        widest = int(sub.max(initial=0)) + 1
        keys, of_span = np.unique(self.timeline.lane * widest + sub, return_inverse=True)
        tids = []
        for number, other in (divmod(key, widest) for key in keys.tolist()):
            where = self.timeline.lanes[number]
            name = f"{where.name} (overlapping, {other})" if other else where.name
            main = not (other or where.is_device or where.thread)
            tids.append(self.writer.thread(self.pids[where.process], name, main=main))
        return np.array(tids, dtype=np.int64)[of_span]

    def events(self, rows: slice) -> Iterator[Event]:
        """Yield spans: complete events of threads, pairs of batches that queue."""
        timeline = self.timeline
        start, end, stage = self.start_ns[rows], self.end_ns[rows], timeline.stage[rows]
        names = np.array(timeline.stages, dtype=object)
        families = np.array([kind.family.value for kind in timeline.kinds], dtype=object)
        columns = (
            *(names[stage], self.pid[rows], self.tid[rows], start / 1000),
            *(families[stage], (end - start) / 1000),
        )
        spans = map(Event, repeat("X"), *(each.tolist() for each in columns), self._arguments(rows))
        until = (end / 1000).tolist()
        for span, is_queued, ts in zip(spans, timeline.queued[rows].tolist(), until, strict=True):
            if is_queued:
                span.ph, span.dur, span.id = "b", None, next(self.writer.ids)
            yield span
            if is_queued:
                yield Event("e", span.name, span.pid, span.tid, ts, span.cat, id=span.id)

    def _arguments(self, rows: slice) -> Iterator[SpanArgs]:
        spans, exposed = self.timeline.spans[rows], self.timeline.exposed_ns[rows]
        kind, nbytes = spans["kind"], spans["nbytes"]
        loads = is_one_of(kind, WORKER_KINDS)
        detailed = spans["detail"] != 0
        detail = np.array(self.run.strings, dtype=object)[spans["detail"]]
        # The sample of waits and rounds is the round's number.
        is_round = is_one_of(kind, (Kind.WAIT, Kind.OTHER))
        return map(
            SpanArgs,
            _known(detail, detailed & loads),
            _known(detail, detailed & ~loads),
            _known(spans["batch"]),
            _known(spans["sample"], (spans["sample"] >= 0) & ~is_round),
            _known(spans["epoch"]),
            _known(nbytes, (nbytes >= 0) & (kind != Kind.OTHER)),
            _known(exposed),
            _known(spans["cpu_ns"]),
            _known(spans["pieces"], (spans["flags"] & Flag.SUMMED) != 0),
        )


def _known(values: NDArray[Any], known: NDArray[np.bool_] | None = None) -> Iterable[Any]:
    """Return values, None where they are not known: below 0, if nothing else is said."""
    known = values >= 0 if known is None else known
    if not known.any():
        return repeat(None, len(known))
    unknown: Any = None
    return list((values if known.all() else np.where(known, values, unknown)).tolist())


def _calls_of(one: ProcessPlacement) -> NDArray[Any]:
    """Return the read calls of a process that Darshan saw, outer ones first."""
    calls = one.segments[~one.segments["stray"]]
    some: NDArray[Any] = calls[np.lexsort((-calls["end_ns"], calls["start_ns"]))]
    return some


def _call_events(placed: PlacedSpans, one: ProcessPlacement) -> Iterator[Event]:
    """Yield the calls of a process that Darshan saw, on threads of their own."""
    pid, calls = placed.pids[one.process], _calls_of(one)
    start_ns = calls["start_ns"] + placed.moved_ns[one.process]
    length_ns = np.maximum(calls["end_ns"] - calls["start_ns"], 0)
    lane = sub_lanes(np.zeros(len(calls), dtype=np.int64), start_ns, start_ns + length_ns)
    names = (
        f"Darshan {each}" if each else "Darshan" for each in range(int(lane.max(initial=-1)) + 1)
    )
    tids = [placed.writer.thread(pid, name) for name in names]
    files = [*one.files, ""]
    columns = (start_ns / 1000, length_ns / 1000, lane, calls["file"], calls["nbytes"])
    for ts, dur, number, file, nbytes in zip(*(each.tolist() for each in columns), strict=True):
        args = SpanArgs(files[file], nbytes=nbytes)
        yield Event("X", "read call", pid, tids[number], ts, "storage", dur, args)
