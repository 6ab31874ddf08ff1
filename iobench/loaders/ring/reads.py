"""Extents read with ``preadv`` straight to the rows of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from iobench.files.ranges import MAX_VIEWS
from iobench.loaders.ring.read_ahead import ask_for_ranges
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.files.open_file import OpenFile
    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.checks import SampleChecks
    from iobench.loaders.ring.log import StageStopwatch
    from iobench.loaders.ring.range_plan import ExtentRange, RowPiece
    from iobench.stores.extents import ExtentTable

RowBytes = dict[str, "NDArray[np.uint8]"]
"""Bytes of each variable's rows: (samples, bytes), contiguous."""


Target = tuple[memoryview, int, int, int]
"""Where a piece goes: view, pitch, start, bytes; row ``r`` from byte ``r * pitch + start``."""


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
        """Fill the rows of these samples."""
        ...


class SampleRanges:
    """What is read of each sample, for one thread: where it lies, and where its pieces go."""

    def __init__(self, table: ExtentTable, ranges: Sequence[ExtentRange]) -> None:
        self.table = table
        self.extents = [one.extent for one in ranges]
        self.lengths = [one.nbytes for one in ranges]
        self._ranges = ranges
        self._numbers = np.array(self.extents, dtype=np.int64)
        self._starts = np.array([one.start for one in ranges], dtype=np.int64)
        self._is_all = bool(
            np.array_equal(self._numbers, np.arange(table.n_per_sample)) and not self._starts.any()
        )
        unwanted = (piece.nbytes for one in ranges for piece in one.pieces if piece.name is None)
        self._dropped = memoryview(bytearray(max(unwanted, default=0)))

    def places(self, samples: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the file of each range, by number, and where it begins: (samples, ranges)."""
        file, offset = self.table.file[samples], self.table.offset[samples]
        if self._is_all:
            return file, offset
        return file[:, self._numbers], offset[:, self._numbers] + self._starts

    def targets(
        self, row_bytes: RowBytes, gaps: Mapping[int, NDArray[np.uint8]]
    ) -> list[list[Target]]:
        """Return where the pieces of each range go."""
        views = {
            name: (array.reshape(-1).data, array.shape[1]) for name, array in row_bytes.items()
        }
        between = {
            number: (array.reshape(-1).data, array.shape[1]) for number, array in gaps.items()
        }

        def target(piece: RowPiece, extent: int) -> Target:
            if piece.name is None:
                return self._dropped, 0, 0, piece.nbytes
            view, pitch = views[piece.name] if piece.name else between[extent]
            return view, pitch, piece.at, piece.nbytes

        return [[target(piece, one.extent) for piece in one.pieces] for one in self._ranges]


class RowReads:
    """Reads some of each sample's extents, or parts of them, to rows, in the order they lie in."""

    def __init__(self, ranges: SampleRanges, files: FileSet) -> None:
        self._ranges = ranges
        self._lengths = ranges.lengths
        self._files = files

    def ask(self, samples: NDArray[np.int64]) -> None:
        """Have the system read all of these samples, and do not wait for it."""
        file, start = self._ranges.places(samples)
        end = (start + np.array(self._lengths, dtype=np.int64)).reshape(-1)
        ask_for_ranges(file.reshape(-1), start.reshape(-1), end, self._files)

    def read(
        self,
        samples: NDArray[np.int64],
        row_bytes: RowBytes,
        gaps: Mapping[int, NDArray[np.uint8]],
        watch: StageStopwatch,
        checks: SampleChecks | None = None,
    ) -> None:
        """Fill the rows of these samples; see `Reads`."""
        file, offset = self._ranges.places(samples)
        file, offset = file.reshape(-1), offset.reshape(-1)
        order = np.lexsort((offset, file))
        files, offsets = file[order].tolist(), offset[order].tolist()
        targets = self._ranges.targets(row_bytes, gaps)
        n_extents = len(targets)
        places = order.tolist()
        opened: OpenFile | None = None
        last, end, first = -1, -1, 0
        views: list[memoryview] = []
        watch.start()
        for at, place in enumerate(places):
            row, extent = divmod(place, n_extents)
            if files[at] != last or offsets[at] != end or len(views) >= MAX_VIEWS:
                if views and opened:
                    opened.fill_views(views, offsets[first], end)
                    if checks is not None:
                        watch.end(Kind.READ, end - offsets[first])
                        self._check(places[first:at], targets, checks)
                        watch.end(Kind.VERIFY, end - offsets[first])
                if files[at] != last:
                    last = files[at]
                    opened = self._files.opened(last)
                first, views = at, []
            end = offsets[at] + self._lengths[extent]
            for view, pitch, start, nbytes in targets[extent]:
                start += row * pitch
                views.append(view[start : start + nbytes])
        if views and opened:
            opened.fill_views(views, offsets[first], end)
        if checks is None:
            watch.end(Kind.READ, sum(self._lengths) * len(samples))
        elif views:
            watch.end(Kind.READ, end - offsets[first])
            self._check(places[first:], targets, checks)
            watch.end(Kind.VERIFY, end - offsets[first])

    def _check(self, places: list[int], targets: list[list[Target]], checks: SampleChecks) -> None:
        """Compare the checksums of extents that have just been read."""
        extents = self._ranges.extents
        for place in places:
            row, extent = divmod(place, len(targets))
            checks.compare(
                row,
                extents[extent],
                [
                    view[row * pitch + start : row * pitch + start + nbytes]
                    for view, pitch, start, nbytes in targets[extent]
                ],
            )
