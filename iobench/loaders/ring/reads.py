"""Extents of samples read to the rows of a batch: from mappings of their files, or with ``preadv``.

Extents that lie at equal distances are the rows of an array, and NumPy takes any of them at the
speed of memory. Beyond some 64 KiB a call to ``preadv`` costs less than mapping the pages does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.files.open_files import MAX_VIEWS
from iobench.loaders.ring.buffers import ScratchBytes
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet, OpenFile
    from iobench.loaders.ring.checks import SampleChecks
    from iobench.loaders.ring.log import StageStopwatch
    from iobench.stores.extents import ExtentTable
    from iobench.stores.fields import FieldPart

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

_Group = tuple[int, "slice | NDArray[np.intp]", "NDArray[np.int64]"]
"""Number of the run, rows of the batch, places in the run."""

RowBytes = dict[str, "NDArray[np.uint8]"]
"""Bytes of each variable's rows: (samples, bytes), contiguous."""
Target = tuple[memoryview, int, int, int]
"""Where a part goes: view, pitch, start, bytes; row ``r`` from byte ``r * pitch + start``."""


@dataclass(frozen=True, slots=True)
class ExtentGrid:
    """Extents of one number at equal distances: runs of samples, each in a file."""

    # first sample of each run, ascending, and the number of samples as its last
    firsts: NDArray[np.int64]
    files: list[int]  # file of each run, by number
    # where a run begins in its file: at most ``lead`` bytes before its first extent
    starts: list[int]
    # how far the extents are from the places of the grid, for its last one to end in the file
    leads: list[int]
    pitch: int  # from one extent to the next

    def groups(self, samples: NDArray[np.int64]) -> Iterator[_Group]:
        """Yield the samples of each run among these."""
        if len(self.files) == 1:
            yield 0, slice(0, len(samples)), samples
            return
        runs = np.searchsorted(self.firsts, samples, side="right") - 1
        if (runs == runs[0]).all():
            yield int(runs[0]), slice(0, len(samples)), samples - self.firsts[runs[0]]
            return
        order = np.argsort(runs, kind="stable")
        edges = [0, *(np.flatnonzero(np.diff(runs[order])) + 1).tolist(), len(order)]
        for start, end in pairwise(edges):
            rows = order[start:end]
            run = int(runs[rows[0]])
            yield run, rows, samples[rows] - self.firsts[run]


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
    files = file[firsts[:-1]].tolist()
    starts, leads = [], []
    for first, last, one in zip(firsts[:-1], firsts[1:], files, strict=True):
        base = int(offset[first])
        lead = max(0, base + int(last - first) * pitch - sizes[one])
        if lead > base:
            return None
        starts.append(base - lead)
        leads.append(lead)
    return ExtentGrid(firsts, files, starts, leads, pitch)


class MappedReads:
    """Copies some of the extents of samples from mappings of their files."""

    def __init__(
        self,
        extents: Mapping[int, tuple[ExtentGrid, Sequence[FieldPart]]],
        files: FileSet,
    ) -> None:
        self._extents = extents
        self._files = files
        self._scratch = ScratchBytes()

    def read(
        self,
        samples: NDArray[np.int64],
        row_bytes: RowBytes,
        gaps: Mapping[int, NDArray[np.uint8]],
        watch: StageStopwatch,
        checks: SampleChecks | None = None,
    ) -> None:
        """Fill the rows of these samples."""
        watch.start()
        for number, (grid, parts) in self._extents.items():
            length = sum(part.nbytes for part in parts)
            for run, rows, places in grid.groups(samples):
                source = self._mapped(grid, run)
                if len(parts) == 1 and grid.pitch == length and isinstance(rows, slice):
                    piece = row_bytes[parts[0].name]
                    np.take(source, places, axis=0, out=piece, mode="clip")
                    self._note(piece, slice(0, length), number, rows, checks, watch)
                    continue
                targets = _gathered_targets(parts, grid.leads[run], row_bytes, gaps.get(number))
                if checks is None:
                    for target, columns in targets:
                        _take(source[:, columns], places, target, rows)
                    watch.end(Kind.READ, len(places) * length)
                else:
                    columns = slice(grid.leads[run], grid.leads[run] + length)
                    group = source, places, rows
                    self._by_piece(group, targets, columns, number, checks, watch)

    def _by_piece(
        self,
        group: tuple[NDArray[np.uint8], NDArray[np.int64], slice | NDArray[np.intp]],
        targets: list[tuple[NDArray[np.uint8], slice]],
        columns: slice,
        number: int,
        checks: SampleChecks,
        watch: StageStopwatch,
    ) -> None:
        """Take whole extents, check them, and part them while they are in the cache."""
        source, places, rows = group
        pitch = source.shape[1]
        step = max(1, TAKEN_NBYTES // pitch)
        for at in range(0, len(places), step):
            chosen = places[at : at + step]
            if step == 1:  # too large for the cache: from the mapping itself
                piece = source[int(chosen[0])][None]
            else:
                piece = self._scratch.take("piece", len(chosen) * pitch).reshape(-1, pitch)
                np.take(source, chosen, axis=0, out=piece, mode="clip")
            here = _cut(rows, at, len(chosen))
            for target, part in targets:
                target[here] = piece[:, part]
            self._note(piece, columns, number, here, checks, watch)

    def _note(
        self,
        piece: NDArray[np.uint8],
        columns: slice,
        number: int,
        rows: slice | NDArray[np.intp],
        checks: SampleChecks | None,
        watch: StageStopwatch,
    ) -> None:
        """Note that extents were read, and compare their checksums where that is asked for."""
        nbytes = len(piece) * (columns.stop - columns.start)
        watch.end(Kind.READ, nbytes)
        if checks is not None:
            checks.compare_rows(rows, number, piece, columns)
            watch.end(Kind.VERIFY, nbytes)

    def _mapped(self, grid: ExtentGrid, run: int) -> NDArray[np.uint8]:
        count = int(grid.firsts[run + 1] - grid.firsts[run])
        mapped = self._files.mapped(grid.files[run])
        return np.ndarray(
            (count, grid.pitch), dtype=np.uint8, buffer=mapped, offset=grid.starts[run]
        )


def _take(
    source: NDArray[np.uint8],
    places: NDArray[np.int64],
    target: NDArray[np.uint8],
    rows: slice | NDArray[np.intp],
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


def _cut(rows: slice | NDArray[np.intp], at: int, count: int) -> slice | NDArray[np.intp]:
    """Return so many of the rows; all of a batch are those from the first one on."""
    return slice(at, at + count) if isinstance(rows, slice) else rows[at : at + count]


def _gathered_targets(
    parts: Sequence[FieldPart], lead: int, row_bytes: RowBytes, gaps: NDArray[np.uint8] | None
) -> list[tuple[NDArray[np.uint8], slice]]:
    """Return where each part of an extent goes, and in which columns of a piece it is."""
    targets = []
    at = 0
    for part in parts:
        columns = slice(lead + part.start, lead + part.start + part.nbytes)
        if part.name:
            targets.append((row_bytes[part.name], columns))
        elif gaps is not None:
            targets.append((gaps[:, at : at + part.nbytes], columns))
            at += part.nbytes
    return targets


class RowReads:
    """Reads some of each sample's extents, by number, to rows, in the order they lie in."""

    def __init__(
        self, table: ExtentTable, extents: Mapping[int, Sequence[FieldPart]], files: FileSet
    ) -> None:
        self._table, self._extents, self._files = table, extents, files
        self._numbers = list(extents)
        self._lengths = [sum(part.nbytes for part in parts) for parts in extents.values()]

    def read(
        self,
        samples: NDArray[np.int64],
        row_bytes: RowBytes,
        gaps: Mapping[int, NDArray[np.uint8]],
        watch: StageStopwatch,
        checks: SampleChecks | None = None,
    ) -> None:
        """Fill the rows of these samples."""
        file = self._table.file[samples][:, self._numbers].reshape(-1)
        offset = self._table.offset[samples][:, self._numbers].reshape(-1)
        order = np.lexsort((offset, file))
        files, offsets = file[order].tolist(), offset[order].tolist()
        targets, lengths = self._targets(row_bytes, gaps), self._lengths
        n_extents = len(targets)
        places = order.tolist()
        opened: OpenFile | None = None
        last, end, first = -1, -1, 0
        views: list[memoryview] = []

        def fill(upto: int) -> None:
            if opened is None or not views:
                return
            opened.fill_views(views, offsets[first], end)
            if checks is None:
                return
            watch.end(Kind.READ, end - offsets[first])
            for place in places[first:upto]:
                row, extent = divmod(place, n_extents)
                views_of = [
                    view[row * pitch + start : row * pitch + start + nbytes]
                    for view, pitch, start, nbytes in targets[extent]
                ]
                checks.compare(row, self._numbers[extent], views_of)
            watch.end(Kind.VERIFY, end - offsets[first])

        watch.start()
        for at, place in enumerate(places):
            row, extent = divmod(place, n_extents)
            if files[at] != last or offsets[at] != end or len(views) >= MAX_VIEWS:
                fill(at)
                if files[at] != last:
                    last = files[at]
                    opened = self._files.opened(last)
                first, views = at, []
            end = offsets[at] + lengths[extent]
            for view, pitch, start, nbytes in targets[extent]:
                start += row * pitch
                views.append(view[start : start + nbytes])
        fill(len(places))
        if checks is None:
            watch.end(Kind.READ, sum(lengths) * len(samples))

    def _targets(
        self, row_bytes: RowBytes, gaps: Mapping[int, NDArray[np.uint8]]
    ) -> list[list[Target]]:
        """Return where the parts of each extent go; those of no variable are the gaps."""
        views = {
            name: (array.reshape(-1).data, array.shape[1]) for name, array in row_bytes.items()
        }
        targets = []
        for number, parts in self._extents.items():
            of_extent: list[Target] = []
            at = 0
            for part in parts:
                if part.name:
                    view, pitch = views[part.name]
                    of_extent.append((view, pitch, 0, part.nbytes))
                else:
                    gap = gaps[number]
                    of_extent.append((gap.reshape(-1).data, gap.shape[1], at, part.nbytes))
                    at += part.nbytes
            targets.append(of_extent)
        return targets


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
