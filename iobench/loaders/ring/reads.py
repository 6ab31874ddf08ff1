"""Extents read with ``preadv`` straight to the rows of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from iobench.files.open_files import MAX_VIEWS
from iobench.loaders.ring.read_ahead import ask_for_ranges
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet, OpenFile
    from iobench.loaders.ring.checks import SampleChecks
    from iobench.loaders.ring.log import StageStopwatch
    from iobench.stores.extents import ExtentTable
    from iobench.stores.fields import FieldPart

RowBytes = dict[str, "NDArray[np.uint8]"]
"""Bytes of each variable's rows: (samples, bytes), contiguous."""


Target = tuple[memoryview, int, int, int]
"""Where a part goes: view, pitch, start, bytes; row ``r`` from byte ``r * pitch + start``."""


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


class ExtentRows:
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


class RowReads:
    """Reads some of each sample's extents to rows, in the order they lie in."""

    def __init__(self, extents: ExtentRows, files: FileSet) -> None:
        self._extents = extents
        self._lengths = extents.lengths
        self._files = files

    def ask(self, samples: NDArray[np.int64]) -> None:
        """Have the system read all of these samples, and do not wait for it."""
        file, start = self._extents.places(samples)
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
        file, offset = self._extents.places(samples)
        file, offset = file.reshape(-1), offset.reshape(-1)
        order = np.lexsort((offset, file))
        files, offsets = file[order].tolist(), offset[order].tolist()
        targets = self._extents.targets(row_bytes, gaps)
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
        numbers = self._extents.numbers
        for place in places:
            row, extent = divmod(place, len(targets))
            checks.compare(
                row,
                numbers[extent],
                [
                    view[row * pitch + start : row * pitch + start + nbytes]
                    for view, pitch, start, nbytes in targets[extent]
                ],
            )
