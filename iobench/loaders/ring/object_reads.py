"""Extents of stores elsewhere, read by requests for ranges to where their bytes shall be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from iobench.files.ranges import FileRange, join_ranges
from iobench.recording.kinds import Kind
from iobench.stores.extents import fill_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.loaders.ring.checks import SampleChecks
    from iobench.loaders.ring.log import StageStopwatch
    from iobench.loaders.ring.reads import ExtentRows, RowBytes
    from iobench.stores.extents import ExtentTable

REQUEST_NBYTES: Final = 512 << 10
"""What a request to a store of objects is worth: 1 ms of this process at 500 MB/s. How long it is
under way counts less, since others are meanwhile."""
IN_FLIGHT: Final = 16
"""Requests of a thread at once."""
_between: Final = memoryview(bytearray(REQUEST_NBYTES // 2))
"""What nobody wants goes here, from all threads."""


class RangeViews(NamedTuple):
    """Bytes of a file by its number, and the memory they go to, view after view."""

    range: FileRange[int]
    views: list[memoryview]


class ObjectReads:
    """Reads extents of objects to rows; see `Reads`."""

    def __init__(self, extents: ExtentRows) -> None:
        self._extents = extents

    def read(
        self,
        samples: NDArray[np.int64],
        row_bytes: RowBytes,
        gaps: Mapping[int, NDArray[np.uint8]],
        watch: StageStopwatch,
        checks: SampleChecks | None = None,
    ) -> None:
        """Fill the rows of these samples, then compare checksums of extents."""
        watch.start()
        targets, lengths = self._extents.targets(row_bytes, gaps), self._extents.lengths
        files, offsets = (each.tolist() for each in self._extents.places(samples))
        ranges = [
            RangeViews(
                FileRange(files[row][number], offsets[row][number], nbytes),
                [
                    view[row * pitch + start : row * pitch + start + length]
                    for view, pitch, start, length in targets[number]
                ],
            )
            for row in range(len(samples))
            for number, nbytes in enumerate(lengths)
        ]
        n_read = fill_objects(self._extents.table.files, ranges)
        watch.end(Kind.READ, n_read)
        if checks is None:
            return
        for place, (_, views) in enumerate(ranges):
            row, at = divmod(place, len(lengths))
            checks.compare(row, self._extents.numbers[at], views)
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
    """Read ranges of objects by requests, many at once; return how many bytes came in.

    Ranges that lie near each other are one, with what lies between.
    """
    whole = joined(ranges, _between)
    fill_ranges(
        [paths[one.file] for one, _ in whole],
        [one.offset for one, _ in whole],
        [views for _, views in whole],
        in_flight=IN_FLIGHT,
    )
    return sum(one.nbytes for one, _ in whole)


def joined(ranges: Sequence[RangeViews], dropped: memoryview) -> list[RangeViews]:
    """Return ranges in the order they lie in, those next to each other as one.

    ``dropped`` is memory for what lies between two, of which it decides how much that may be.
    """
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
