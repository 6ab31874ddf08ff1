"""Ways to read extents to the rows of a batch: with ``preadv``, and by requests to objects."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from iobench.files.open_files import MAX_VIEWS
from iobench.files.ranges import FileRange, join_ranges
from iobench.recording.kinds import Kind
from iobench.stores.extents import fill_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

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
REQUEST_NBYTES: Final = 512 << 10
"""What a request to a store of objects is worth: 1 ms of this process at 500 MB/s. How long it is
under way counts less, since others are meanwhile."""
IN_FLIGHT: Final = 16
"""Requests of a thread at once."""
_between: Final = memoryview(bytearray(REQUEST_NBYTES // 2))
"""What nobody wants goes here, from all threads."""

RowBytes = dict[str, "NDArray[np.uint8]"]
"""Bytes of each variable's rows: (samples, bytes), contiguous."""
Target = tuple[memoryview, int, int, int]
"""Where a part goes: view, pitch, start, bytes; row ``r`` from byte ``r * pitch + start``."""


class RangeViews(NamedTuple):
    """Bytes of a file by its number, and the memory they go to, view after view."""

    range: FileRange[int]
    views: list[memoryview]


class Reads(Protocol):
    """A way to fill rows of one thread from some of the extents of samples."""

    def read(
        self,
        samples: NDArray[np.int64],
        row_bytes: RowBytes,
        gaps: Mapping[int, NDArray[np.uint8]],
        watch: StageStopwatch,
        checks: SampleChecks | None = None,
    ) -> None:
        """Fill the rows of these samples, and compare checksums of extents."""
        ...


class _ExtentRows:
    """Extents of samples by number, for one thread: where each lies, and where its parts go."""

    def __init__(self, table: ExtentTable, extents: Mapping[int, Sequence[FieldPart]]) -> None:
        self.table = table
        self.numbers = list(extents)
        self.lengths = [sum(part.nbytes for part in parts) for parts in extents.values()]
        self._extents = extents
        self._is_all = self.numbers == list(range(table.n_per_sample))

    def places(self, samples: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the file of each extent, by number, and where it begins: (samples, extents)."""
        file, offset = self.table.file[samples], self.table.offset[samples]
        return (file, offset) if self._is_all else (file[:, self.numbers], offset[:, self.numbers])

    def targets(
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


def _views(row: int, targets: Sequence[Target]) -> list[memoryview]:
    """Return where the parts of one extent go, in a row."""
    return [
        view[row * pitch + start : row * pitch + start + nbytes]
        for view, pitch, start, nbytes in targets
    ]


class RowReads(_ExtentRows):
    """Reads some of each sample's extents to rows, in the order they lie in."""

    def __init__(
        self, table: ExtentTable, extents: Mapping[int, Sequence[FieldPart]], files: FileSet
    ) -> None:
        super().__init__(table, extents)
        self._files = files

    def read(
        self,
        samples: NDArray[np.int64],
        row_bytes: RowBytes,
        gaps: Mapping[int, NDArray[np.uint8]],
        watch: StageStopwatch,
        checks: SampleChecks | None = None,
    ) -> None:
        """Fill the rows of these samples; see `Reads`."""
        file, offset = self.places(samples)
        file, offset = file.reshape(-1), offset.reshape(-1)
        order = np.lexsort((offset, file))
        files, offsets = file[order].tolist(), offset[order].tolist()
        targets, lengths = self.targets(row_bytes, gaps), self.lengths
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
                checks.compare(row, self.numbers[extent], _views(row, targets[extent]))
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


class ObjectReads(_ExtentRows):
    """Reads extents of objects to rows, by requests for ranges."""

    def read(
        self,
        samples: NDArray[np.int64],
        row_bytes: RowBytes,
        gaps: Mapping[int, NDArray[np.uint8]],
        watch: StageStopwatch,
        checks: SampleChecks | None = None,
    ) -> None:
        """Fill the rows of these samples; see `Reads`."""
        watch.start()
        targets, lengths = self.targets(row_bytes, gaps), self.lengths
        files, offsets = (each.tolist() for each in self.places(samples))
        ranges = [
            RangeViews(
                FileRange(files[row][at], offsets[row][at], nbytes), _views(row, targets[at])
            )
            for row in range(len(samples))
            for at, nbytes in enumerate(lengths)
        ]
        watch.end(Kind.READ, fill_objects(self.table.files, ranges))
        if checks is None:
            return
        for place, (_, views) in enumerate(ranges):
            row, at = divmod(place, len(lengths))
            checks.compare(row, self.numbers[at], views)
        watch.end(Kind.VERIFY, sum(one.nbytes for one, _ in ranges))


def extents_of_objects(
    table: ExtentTable, samples: NDArray[np.int64], memory: memoryview
) -> tuple[list[memoryview], int]:
    """Read all extents of samples to memory, one behind the other."""
    lengths = table.length[samples].reshape(-1)
    views = [
        memory[end - length : end]
        for end, length in zip(np.cumsum(lengths).tolist(), lengths.tolist(), strict=True)
    ]
    files, offsets = table.file[samples].reshape(-1), table.offset[samples].reshape(-1)
    ranges = [
        RangeViews(FileRange(file, offset, len(view)), [view])
        for file, offset, view in zip(files.tolist(), offsets.tolist(), views, strict=True)
        if len(view)
    ]
    return views, fill_objects(table.files, ranges)


def fill_objects(paths: Sequence[Path], ranges: Sequence[RangeViews]) -> int:
    """Read ranges of objects by requests, many at once; return how many bytes came in."""
    whole = joined(ranges, _between)
    fill_ranges(
        [paths[one.file] for one, _ in whole],
        [one.offset for one, _ in whole],
        [views for _, views in whole],
        in_flight=IN_FLIGHT,
    )
    return sum(one.nbytes for one, _ in whole)


def joined(ranges: Sequence[RangeViews], dropped: memoryview) -> list[RangeViews]:
    """Return ranges in the order they lie in, those next to each other as one."""
    parts = []
    places = [one.range for one in ranges]
    for whole, members in join_ranges(places, len(dropped), overlapping=False):
        views: list[memoryview] = []
        at = whole.offset
        for number in members:
            one = ranges[number]
            if one.range.offset > at:
                views.append(dropped[: one.range.offset - at])
            views += one.views
            at = one.range.end
        parts.append(RangeViews(whole, views))
    return parts


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
