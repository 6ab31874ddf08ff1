"""Events of a trace: their writer, and arrows from work to waits."""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.recording.kinds import WORKER_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iobench.report.timeline.chrome_trace import PlacedSpans

Integers = NDArray[np.int64]
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
    bp: str | None = None


class TraceWriter:
    """Writes events; numbers processes, threads and arrows; a process keeps its pid if it can."""

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


def arrows(placed: PlacedSpans) -> Iterator[Event]:
    """Yield an arrow for each batch: from its first work by its last to the wait that got it."""
    spans, start, end = placed.timeline.spans, placed.start_ns, placed.end_ns
    deliveries = placed.run.deliveries
    if not len(deliveries):
        return
    in_loop = (spans["process"] == deliveries.process) & (spans["thread"] == deliveries.thread)
    waits = np.flatnonzero(in_loop & (spans["kind"] == Kind.WAIT) & (spans["flags"] == 0))
    wait_at = dict(zip(spans["start_ns"][waits].tolist(), waits.tolist(), strict=True))
    works = ~in_loop & (spans["batch"] >= 0) & is_one_of(spans["kind"], WORKER_KINDS)
    rows = np.flatnonzero(works & ((spans["flags"] & Flag.DEVICE) == 0) & (end > start))
    delivery = deliveries.of_batch(spans["batch"][rows])
    before = (delivery >= 0) & (spans["start_ns"][rows] < deliveries.delivered_ns[delivery])
    rows, delivery = rows[before], delivery[before]

    def firsts(by: Integers) -> Integers:
        order = np.lexsort((by, delivery))
        return rows[order][np.flatnonzero(np.diff(delivery[order], prepend=-1))]

    requested = deliveries.requested_ns[np.unique(delivery)].tolist()
    wait = np.array([wait_at.get(each, -1) for each in requested], dtype=np.int64)
    whole = (wait >= 0) & (start[wait] < end[wait])
    first, last, wait = firsts(start[rows])[whole], firsts(-end[rows])[whole], wait[whole]
    # Inside of spans, before their last moments, as viewers look for a span there.
    done = np.minimum(end[last], end[wait]) - 1
    apart, ids = last != first, np.array([*islice(placed.writer.ids, len(wait))], dtype=np.int64)
    for letter, rows, when, number in (
        ("s", first, start[first], ids),
        ("t", last[apart], done[apart], ids[apart]),
        ("f", wait, np.maximum(start[wait], done), ids),
    ):
        columns = placed.pid[rows], placed.tid[rows], when / 1000, number
        for pid, tid, ts, arrow in zip(*(each.tolist() for each in columns), strict=True):
            bind = "e" if letter == "f" else None
            yield Event(letter, "batch", pid, tid, ts, "batch", id=arrow, bp=bind)
