"""The entries of a trace file, the numbers of its processes and threads, and its spans' places."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from iobench.report.timeline.model import Timeline

FIRST_NUMBER: Final = 10_000_000
"""Of new processes and threads: above any that Linux gives (at most 2**22)."""
ENTRIES_AT_ONCE: Final = 1000


class TraceWriter:
    """Writes entries of a trace, and numbers processes, threads and arrows.

    A process keeps its pid if no other has it already, so that it is the same one in ``ps`` and in
    traces of other tools; of two machines, or two runs, it may be another's.
    """

    def __init__(self, file: BinaryIO, document: dict[str, Any]) -> None:
        self._file, self._encode = file, msgspec.json.Encoder().encode
        self._file.write(self._encode(document)[:-1] + b',"traceEvents":[\n')
        self._between = b""
        self._n_threads: dict[int, int] = {}
        self._last = FIRST_NUMBER
        self._n_ids = 0

    def add(self, entries: Iterable[dict[str, Any]]) -> None:
        """Write entries, each as Chrome's format has them."""
        entries = iter(entries)
        while some := [*islice(entries, ENTRIES_AT_ONCE)]:
            self._file.write(self._between + self._encode(some)[1:-1])
            self._between = b",\n"

    def close(self) -> None:
        """Write the end."""
        self._file.write(b"\n]}\n")

    def process(self, pid: int, name: str, labels: str = "") -> int:
        """Return the number of a new process, with its name; they are shown in this order."""
        if pid <= 0 or pid in self._n_threads:
            pid = self._new()
        place = len(self._n_threads)
        self._n_threads[pid] = 0
        self._name(pid, 0, "process_name", {"name": name})
        self._name(pid, 0, "process_sort_index", {"sort_index": place})
        if labels:
            self._name(pid, 0, "process_labels", {"labels": labels})
        return pid

    def thread(self, pid: int, name: str, *, main: bool = False) -> int:
        """Return the number of a new thread of a process; the main one has that of the process."""
        tid = pid if main else self._new()
        self._name(pid, tid, "thread_name", {"name": name})
        self._name(pid, tid, "thread_sort_index", {"sort_index": self._n_threads[pid]})
        self._n_threads[pid] += 1
        return tid

    def id(self) -> int:
        """Return the number of a new arrow, or of anything else that has two ends."""
        self._n_ids += 1
        return self._n_ids

    def _new(self) -> int:
        self._last += 1
        return self._last

    def _name(self, pid: int, tid: int, what: str, values: dict[str, Any]) -> None:
        self.add([{"ph": "M", "name": what, "pid": pid, "tid": tid, "args": values}])


class PlacedSpans(msgspec.Struct, frozen=True):
    """The spans of a timeline, with their processes and threads in a trace.

    Parameters
    ----------
    pids : tuple of int
        Of each process of the run.
    pid, tid, start_ns, end_ns, own_ns : ndarray of int64, shape (n_spans,)
        Times after the beginning of the trace; ``own_ns`` is what lies in no span inside.
    moved_ns : ndarray of int64, shape (n_processes,)
        What was added to the monotonic times of each process.
    """

    timeline: Timeline
    pids: tuple[int, ...]
    pid: NDArray[np.int64]
    tid: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    own_ns: NDArray[np.int64]
    moved_ns: NDArray[np.int64]
