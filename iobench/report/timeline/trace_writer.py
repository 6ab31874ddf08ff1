"""Events of a trace, and the numbers of its processes, threads and arrows."""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    s: str | None = None


class TraceWriter:
    """Writes events, and numbers processes, threads and arrows.

    A process keeps its pid if no other has it already, so that it is the same one in ``ps`` and in
    traces of other tools; of two machines, or two runs, it may be another's.
    """

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

    def process(self, pid: int, name: str, labels: str = "") -> int:
        """Return the number of a new process, with its name; they are shown in this order."""
        if pid <= 0 or pid in self._n_threads:
            pid = next(self._numbers)
        place = len(self._n_threads)
        self._n_threads[pid] = 0
        self._name(pid, 0, "process_name", {"name": name})
        self._name(pid, 0, "process_sort_index", {"sort_index": place})
        if labels:
            self._name(pid, 0, "process_labels", {"labels": labels})
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
