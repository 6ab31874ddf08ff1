"""The parts of a trace file: entries, numbers of processes and threads, times.

The format is Chrome's "Trace Event Format", as JSON object: what Perfetto, chrome://tracing and
torch's profiler read and write.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

FIRST_NUMBER: Final = 10_000_000
"""Of numbers given here: above any that Linux gives a process or thread (at most 2**22)."""
ROWS_AT_ONCE: Final = 16_384


class TraceWriter:
    """Writes entries of a trace, and gives out numbers of processes, threads and arrows.

    A process keeps the number it had if no other has it already, so that it is found again in
    ``ps`` and in traces of other tools; of two machines, or two runs, it may be another's.

    Parameters
    ----------
    about : dict
        What is said of all entries.
    """

    def __init__(self, file: BinaryIO, about: dict[str, Any]) -> None:
        self._file = file
        self._file.write(f'{json.dumps(about)[:-1]},"traceEvents":[\n'.encode())
        self._between = b""
        self._n_threads: dict[int, int] = {}
        self._last = FIRST_NUMBER
        self._n_ids = 0

    def add(self, entries: Iterable[str]) -> None:
        """Add entries of any number, each a JSON object."""
        entries = iter(entries)
        while part := list(islice(entries, ROWS_AT_ONCE)):
            self._file.write(self._between + ",\n".join(part).encode())
            self._between = b",\n"

    def close(self) -> None:
        """Write the end."""
        self._file.write(b"\n]}\n")

    def process(self, wanted: int, name: str, labels: str = "") -> int:
        """Return the number of a new process, with its name; they are shown in this order."""
        pid = wanted if wanted > 0 and wanted not in self._n_threads else self._new()
        place = len(self._n_threads)
        self._n_threads[pid] = 0
        self._tell(pid, 0, "process_name", {"name": name})
        self._tell(pid, 0, "process_sort_index", {"sort_index": place})
        if labels:
            self._tell(pid, 0, "process_labels", {"labels": labels})
        return pid

    def thread(self, pid: int, name: str, *, main: bool = False) -> int:
        """Return the number of a new thread of a process; the main one has that of the process."""
        tid = pid if main else self._new()
        self._tell(pid, tid, "thread_name", {"name": name})
        self._tell(pid, tid, "thread_sort_index", {"sort_index": self._n_threads[pid]})
        self._n_threads[pid] += 1
        return tid

    def ids(self, count: int) -> NDArray[np.int64]:
        """Return numbers of new arrows, or of anything else that has a beginning and an end."""
        self._n_ids += count
        return np.arange(self._n_ids - count + 1, self._n_ids + 1)

    def _new(self) -> int:
        self._last += 1
        return self._last

    def _tell(self, pid: int, tid: int, what: str, values: dict[str, Any]) -> None:
        told = json.dumps(values)
        self.add([f'{{"ph":"M","name":"{what}","pid":{pid},"tid":{tid},"args":{told}}}'])


class TextPart(msgspec.Struct, frozen=True):
    """A part of the text of each row of a table.

    Parameters
    ----------
    text : str
        With a place for the row's value of each column, as ``%`` has them.
    columns : tuple of ndarray, shape (n_rows,)
    where : ndarray of bool, shape (n_rows,), optional
        Rows that have this part; by default all.
    """

    text: str
    columns: tuple[NDArray[Any], ...] = ()
    where: NDArray[np.bool_] | None = None


def texts_of_rows(n_rows: int, parts: Sequence[TextPart]) -> Iterator[str]:
    """Yield the text of each row: all its parts, one after the other.

    Rows that have the same parts are made together. A comma that would follow ``{`` is left out.
    """
    for low in range(0, n_rows, ROWS_AT_ONCE):
        yield from _texts(slice(low, min(low + ROWS_AT_ONCE, n_rows)), parts)


def _texts(some: slice, parts: Sequence[TextPart]) -> list[str]:
    shape = np.zeros(some.stop - some.start, dtype=np.int64)
    for bit, part in enumerate(parts):
        if part.where is not None:
            shape |= part.where[some].astype(np.int64) << bit
    texts = np.empty(len(shape), dtype=object)
    for bits in np.unique(shape).tolist():
        rows = np.flatnonzero(shape == bits)
        chosen = [each for n, each in enumerate(parts) if each.where is None or bits >> n & 1]
        template = "".join(each.text for each in chosen).replace("{,", "{")
        columns = [column[some][rows].tolist() for each in chosen for column in each.columns]
        texts[rows] = [template % values for values in zip(*columns, strict=True)]
    found: list[str] = texts.tolist()
    return found


def as_us(ns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what ``%d.%03d`` makes microseconds of; not for what is negative."""
    return ns // 1000, ns % 1000


def microseconds(ns: int) -> str:
    """Return nanoseconds as a JSON number of microseconds, with all three decimals."""
    whole, rest = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:03d}"
