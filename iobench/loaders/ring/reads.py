"""Extents of samples copied to the rows of a batch: from mappings of files, or with ``preadv``.

Extents at equal distances are the rows of an array, and NumPy takes any of them at the speed of
memory. Beyond some 64 KiB a call to ``preadv`` costs less than mapping the pages does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.log import StageStopwatch
    from iobench.stores.extents import ExtentTable

PIECE_NBYTES: Final = 512 << 10
"""Asked for at once: the system reads no more for one call than for its own read-ahead."""
NEAR_NBYTES: Final = 64 << 10
"""What lies between two extents that are asked for together."""
TAKEN_NBYTES: Final = 1 << 19
"""Taken at once where an extent is several variables: what the second-level cache holds."""
SHORT: Final = 1 << 10
"""Bytes of a variable that are taken as one item: a third less work than a row of bytes. NumPy
keeps Python's lock while it takes fewer than 500 items, so longer ones are rows."""
LONG: Final = 1 << 16
"""Bytes of a variable that are copied one by one, with nothing in between."""
MIN_RUN: Final = 4
"""Samples a file, below which mapping files costs more than it gains."""

_Rows: TypeAlias = "slice | NDArray[np.intp]"
Targets: TypeAlias = "Sequence[tuple[NDArray[np.uint8], slice]]"
"""Where the parts of an extent go: bytes by row of the batch, and which bytes of the extent."""


@dataclass(frozen=True, slots=True)
class ExtentGrid:
    """Extents of one number at equal distances: runs of samples, each in a file."""

    firsts: NDArray[np.int64]  # first sample of each run, and the number of samples as its last
    files: list[int]  # file of each run, by number
    starts: list[int]  # where a run begins in its file
    pitch: int  # from one extent to the next
    length: int  # bytes of an extent

    def copy(
        self,
        samples: NDArray[np.int64],
        targets: Targets,
        files: FileSet,
        watch: StageStopwatch,
    ) -> None:
        """Copy the extents of samples, from mappings."""
        for run, rows in self._groups(samples):
            places = samples[rows] - self.firsts[run]
            count = int(self.firsts[run + 1] - self.firsts[run])
            mapped = files.mapped(self.files[run])
            source: NDArray[np.uint8] = np.ndarray(
                (count, self.length), np.uint8, mapped, self.starts[run], (self.pitch, 1)
            )
            is_whole = source.flags.c_contiguous and isinstance(rows, slice)
            for target, part in targets:
                if is_whole and len(targets) == 1:
                    # "clip": with "raise" NumPy gathers into a copy first.
                    np.take(source, places, axis=0, out=target, mode="clip")
                else:
                    _take(source[:, part], places, target, rows)
            watch.end(Kind.READ, len(places) * self.length)

    def _groups(self, samples: NDArray[np.int64]) -> Iterator[tuple[int, _Rows]]:
        """Yield the runs these samples are of, and which of them are of each."""
        if len(self.files) == 1:
            yield 0, slice(0, len(samples))
            return
        runs = np.searchsorted(self.firsts, samples, side="right") - 1
        if (runs == runs[0]).all():
            yield int(runs[0]), slice(0, len(samples))
            return
        order = np.argsort(runs, kind="stable")
        edges = [0, *(np.flatnonzero(np.diff(runs[order])) + 1).tolist(), len(order)]
        for start, end in pairwise(edges):
            yield int(runs[order[start]]), order[start:end]


def find_grid(
    table: ExtentTable, number: int, length: int, sizes: Sequence[int]
) -> ExtentGrid | None:
    """Return how the extents of this number lie, None where there is no order to it."""
    file, offset = table.file[:, number], table.offset[:, number]
    changes = np.flatnonzero(file[1:] != file[:-1]) + 1
    firsts = np.concatenate(([0], changes, [len(file)])).astype(np.int64)
    if len(changes) * MIN_RUN > len(file):  # many small files
        return None
    inner = np.delete(np.diff(offset), changes - 1)
    pitch = int(inner[0]) if inner.size else length
    if pitch < length or (inner != pitch).any() or (table.length[:, number] != length).any():
        return None
    if (offset[firsts[1:] - 1] + length > np.array(sizes)[file[firsts[:-1]]]).any():
        return None
    runs = firsts[:-1]
    return ExtentGrid(firsts, file[runs].tolist(), offset[runs].tolist(), pitch, length)


def _take(
    source: NDArray[np.uint8], places: NDArray[np.int64], target: NDArray[np.uint8], rows: _Rows
) -> None:
    """Copy rows of a source to rows of a target, both at any distance."""
    nbytes = source.shape[1]
    if nbytes >= LONG:
        numbers = range(len(target)) if isinstance(rows, slice) else rows.tolist()
        for row, place in zip(numbers, places.tolist(), strict=True):
            target[row] = source[place]
        return
    if nbytes <= SHORT:
        item = f"V{nbytes}"
        source, target = source.view(item)[:, 0], target.view(item)[:, 0]
    step = TAKEN_NBYTES // nbytes
    for at in range(0, len(places), step):
        chosen = places[at : at + step]
        target[_cut(rows, at, len(chosen))] = source[chosen]


def _cut(rows: _Rows, at: int, count: int) -> _Rows:
    """Return so many of the rows; all of a batch are those from the first one on."""
    return slice(at, at + count) if isinstance(rows, slice) else rows[at : at + count]


def read_extents(
    table: ExtentTable,
    samples: NDArray[np.int64],
    targets: Mapping[int, Targets],
    files: FileSet,
    watch: StageStopwatch,
) -> None:
    """Read some of each sample's extents, by number, to rows; those side by side in one call."""
    numbers = np.array(list(targets))
    file, offset = (each[samples][:, numbers].reshape(-1) for each in (table.file, table.offset))
    end = offset + table.length[samples][:, numbers].reshape(-1)
    order = np.lexsort((offset, file))
    file, offset, end = file[order], offset[order], end[order]
    is_short = (end - offset)[1:] < LONG  # of long ones a call is nothing
    is_next = (file[1:] == file[:-1]) & (offset[1:] == end[:-1]) & is_short
    breaks = np.flatnonzero(~is_next) + 1
    places = order.tolist()
    for first, last in pairwise([0, *breaks.tolist(), len(places)]):
        begin, stop = int(offset[first]), int(end[last - 1])
        views = [
            target[row].data
            for row, column in (divmod(place, len(numbers)) for place in places[first:last])
            for target, _ in targets[int(numbers[column])]
        ]
        files.opened(int(file[first])).fill_views(views, begin, stop)
        watch.end(Kind.READ, stop - begin)


def is_cached(table: ExtentTable, samples: NDArray[np.int64], files: FileSet) -> bool:
    """Return whether the first bytes of the first and last of samples are in the page cache."""
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    buffer = bytearray(1)
    for sample in samples[[0, -1]].tolist():
        try:
            file = files.opened(int(table.file[sample, 0]))
            os.preadv(file.descriptor, [buffer], int(table.offset[sample, 0]), os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:  # a file system without it
            return True
    return True


def ask_for(table: ExtentTable, samples: NDArray[np.int64], files: FileSet) -> None:
    """Have the system read all extents of these samples, and do not wait for it."""
    file, start = table.file[samples].reshape(-1), table.offset[samples].reshape(-1)
    ask_for_ranges(file, start, start + table.length[samples].reshape(-1), files)


def ask_for_ranges(
    file: NDArray[np.integer[Any]],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    files: FileSet,
) -> None:
    """Have the system read ranges of files, by their numbers, and do not wait for it."""
    if not file.size:
        return
    # As `join_ranges`, but of the thousands of a batch while the loop may wait.
    order = np.lexsort((start, file))
    file, start, end = file[order], start[order], end[order]
    breaks = (file[1:] != file[:-1]) | (start[1:] > end[:-1] + NEAR_NBYTES)
    edges = np.flatnonzero(breaks) + 1
    firsts, lasts = np.concatenate(([0], edges)), np.concatenate((edges, [len(file)])) - 1
    for number, first, last in zip(
        file[firsts].tolist(), start[firsts].tolist(), end[lasts].tolist(), strict=True
    ):
        opened = files.opened(number)
        for at in range(first, last, PIECE_NBYTES):
            nbytes = min(PIECE_NBYTES, last - at)
            os.posix_fadvise(opened.descriptor, at, nbytes, os.POSIX_FADV_WILLNEED)
