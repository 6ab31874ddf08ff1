"""Extents read to the rows of a batch with ``preadv``, and asked for ahead of that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.files.open_files import MAX_VIEWS
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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

RowBytes = dict[str, "NDArray[np.uint8]"]
"""Bytes of each variable's rows: (samples, bytes), contiguous."""
Target = tuple[memoryview, int, int, int]
"""Where a part goes: view, pitch, start, bytes; row ``r`` from byte ``r * pitch + start``."""


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
