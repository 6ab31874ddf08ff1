"""The parts of a trace file: entries, numbers of processes and threads, times.

The format is Chrome's "Trace Event Format", as JSON object: what Perfetto, chrome://tracing and
torch's profiler read and write.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

__all__ = ["EntryFile", "TraceNumbers", "microseconds", "sub_lanes"]

FIRST_NUMBER: Final = 10_000_000
"""Of numbers given here: above any that Linux gives a process or thread (at most 2**22)."""
ENTRIES_IN_PART: Final = 8192


class EntryFile:
    """Writes entries of a trace one after the other, with what is said of all of them around."""

    def __init__(self, file: BinaryIO, about: dict[str, Any]) -> None:
        self._file = file
        head = json.dumps(about)[:-1]
        self._file.write(f'{head},"traceEvents":[\n'.encode())
        self._waiting: list[str] = []
        self._between = b""
        self.count = 0

    def add(self, *entries: str) -> None:
        """Add entries, each a JSON object."""
        self.add_all(entries)

    def add_all(self, entries: Iterable[str]) -> None:
        """Add entries of any number; they go to the file in parts."""
        for entry in entries:
            self._waiting.append(entry)
            if len(self._waiting) >= ENTRIES_IN_PART:
                self._write()

    def close(self) -> None:
        """Write what is left, and the end."""
        self._write()
        self._file.write(b"\n]}\n")

    def _write(self) -> None:
        if self._waiting:
            self._file.write(self._between + ",\n".join(self._waiting).encode())
            self.count += len(self._waiting)
            self._between = b",\n"
            self._waiting.clear()


class TraceNumbers:
    """Gives out numbers of processes, threads and arrows, none of them twice.

    A process keeps the number it had if no other has it already, so that it is found again in
    ``ps`` and in traces of other tools; of two machines, or two runs, it may be another's.
    """

    def __init__(self, entries: EntryFile) -> None:
        self._entries = entries
        self._taken: set[int] = set()
        self._threads: dict[int, int] = {}
        self._next = FIRST_NUMBER
        self._arrows = 0

    def process(self, wanted: int, name: str, labels: str = "") -> int:
        """Return the number of a new process, with its name; they are shown in this order."""
        pid = wanted if wanted > 0 and wanted not in self._taken else self._new()
        place = len(self._taken)
        self._taken.add(pid)
        self._threads[pid] = 0
        self._tell(pid, 0, "process_name", {"name": name})
        self._tell(pid, 0, "process_sort_index", {"sort_index": place})
        if labels:
            self._tell(pid, 0, "process_labels", {"labels": labels})
        return pid

    def thread(self, pid: int, name: str, *, main: bool = False) -> int:
        """Return the number of a new thread of a process; the main one has that of the process."""
        tid = pid if main else self._new()
        self._tell(pid, tid, "thread_name", {"name": name})
        self._tell(pid, tid, "thread_sort_index", {"sort_index": self._threads[pid]})
        self._threads[pid] += 1
        return tid

    def arrow(self) -> int:
        """Return the number of a new arrow, or of anything else that has a beginning and an end."""
        self._arrows += 1
        return self._arrows

    def _new(self) -> int:
        self._next += 1
        return self._next

    def _tell(self, pid: int, tid: int, what: str, values: dict[str, Any]) -> None:
        self._entries.add(
            f'{{"ph":"M","name":"{what}","pid":{pid},"tid":{tid},"args":{json.dumps(values)}}}'
        )


def microseconds(ns: int) -> str:
    """Return nanoseconds as a JSON number of microseconds, with all three decimals."""
    whole, rest = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:03d}"


def sub_lanes(
    lane: NDArray[Any], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Part spans of a lane that overlap without one containing the other.

    Parameters
    ----------
    lane, start_ns, end_ns : ndarray of int, shape (n_spans,)
        By lane and start, outer spans before those that begin with them.

    Returns
    -------
    ndarray of int32, shape (n_spans,)
        0 for what nests in what is open on its lane; else the first lane beside it where it does.
    """
    found = np.zeros(len(lane), dtype=np.int32)
    for index, number in _moved(lane, start_ns, end_ns):
        found[index] = number
    return found


def _moved(
    lane: NDArray[Any], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> Iterator[tuple[int, int]]:
    """Yield which spans cannot be on their lane itself, and where beside it they can be."""
    open_until: list[list[int]] = [[]]
    last = None
    rows = zip(lane.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True)
    for index, (number, start, end) in enumerate(rows):
        if number != last:
            open_until, last = [[]], number
        for ends in open_until:
            while ends and ends[-1] <= start:
                ends.pop()
        free = (n for n, ends in enumerate(open_until) if not ends or end <= ends[-1])
        place = next(free, len(open_until))
        if place == len(open_until):
            open_until.append([])
        open_until[place].append(end)
        if place:
            yield index, place
