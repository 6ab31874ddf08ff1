"""Extents read with ``preadv`` straight to the rows of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from iobench.files.reading import MAX_VIEWS
from iobench.recording.kinds import Kind
from iobench.stores.checksums import crc32c

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet, OpenFile
    from iobench.loaders.ring.checks import ExtentChecks
    from iobench.loaders.ring.laps import Laps
    from iobench.stores.extents import ExtentTable
    from iobench.stores.fields import FieldPart

__all__ = ["Octets", "Reads", "RowReads", "gap_nbytes"]

Octets = dict[str, "NDArray[np.uint8]"]
"""Bytes of each variable's rows: (samples, bytes), contiguous."""


def gap_nbytes(parts: Sequence[FieldPart]) -> int:
    """Return how many bytes of an extent are no variable's."""
    return sum(one.nbytes for one in parts if not one.name)


_Target = tuple[memoryview, int, int, int]
"""Where a part goes: view, pitch, start, bytes; row ``r`` from byte ``r * pitch + start``."""


class Reads(Protocol):
    """A way to fill rows of one thread from some of the extents of samples."""

    def read(
        self,
        samples: NDArray[np.int64],
        octets: Octets,
        gaps: Mapping[int, NDArray[np.uint8]],
        laps: Laps,
        expected: NDArray[np.uint32] | None = None,
    ) -> None:
        """Fill the rows of these samples.

        Parameters
        ----------
        samples : ndarray of int64
            Which samples.
        octets : mapping of str to ndarray of uint8
            Rows of each variable.
        gaps : mapping of int to ndarray of uint8
            By number of the extent: rows for the bytes of it that are no variable's.
        laps : Laps
            Notes what it took.
        expected : ndarray of uint32, (samples, extents), optional
            Checksums to compare.

        Raises
        ------
        StoreError
            Naming the file of the first extent that is not there or not as written.
        """
        ...


class RowReads:
    """Reads some of the extents of samples to their rows, in the order they lie in.

    Parameters
    ----------
    table : ExtentTable
        Where extents are.
    extents : mapping of int to tuple of FieldPart
        Which of a sample's extents, and what they are made of.
    files : FileSet
        Of the store.
    checks : ExtentChecks, optional
        Tell what is wrong where checksums differ.
    """

    def __init__(
        self,
        table: ExtentTable,
        extents: Mapping[int, Sequence[FieldPart]],
        files: FileSet,
        checks: ExtentChecks | None = None,
    ) -> None:
        self._table = table
        self._checks = checks
        self._numbers = np.array(list(extents))
        self._parts = list(extents.values())
        self._lengths = [sum(one.nbytes for one in parts) for parts in self._parts]
        self._files = files

    def read(
        self,
        samples: NDArray[np.int64],
        octets: Octets,
        gaps: Mapping[int, NDArray[np.uint8]],
        laps: Laps,
        expected: NDArray[np.uint32] | None = None,
    ) -> None:
        """Fill the rows of these samples; see `Reads`."""
        file, offset = self._table.file[samples], self._table.offset[samples]
        if file.shape[1] != len(self._numbers):
            file, offset = file[:, self._numbers], offset[:, self._numbers]
        file, offset = file.reshape(-1), offset.reshape(-1)
        order = np.lexsort((offset, file))
        files, offsets = file[order].tolist(), offset[order].tolist()
        targets = [
            _targets(parts, octets, gaps.get(number))
            for number, parts in zip(self._numbers.tolist(), self._parts, strict=True)
        ]
        n_extents = len(targets)
        places = order.tolist()
        opened: OpenFile | None = None
        last, end, first = -1, -1, 0
        views: list[memoryview] = []
        laps.start()
        for at, place in enumerate(places):
            row, extent = divmod(place, n_extents)
            if files[at] != last or offsets[at] != end or len(views) >= MAX_VIEWS:
                if views and opened:
                    opened.fill_views(views, offsets[first], end)
                    if expected is not None:
                        laps.end(Kind.READ, end - offsets[first])
                        self._check(places[first:at], samples, targets, expected)
                        laps.end(Kind.VERIFY, end - offsets[first])
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
        if expected is None:
            laps.end(Kind.READ, sum(self._lengths) * len(samples))
        elif views:
            laps.end(Kind.READ, end - offsets[first])
            self._check(places[first:], samples, targets, expected)
            laps.end(Kind.VERIFY, end - offsets[first])

    def _check(
        self,
        places: list[int],
        samples: NDArray[np.int64],
        targets: list[list[_Target]],
        expected: NDArray[np.uint32],
    ) -> None:
        """Compare the checksums of extents that have just been read."""
        for place in places:
            row, extent = divmod(place, len(targets))
            crc = 0
            for view, pitch, start, nbytes in targets[extent]:
                start += row * pitch
                crc = crc32c(view[start : start + nbytes], crc)
            number = int(self._numbers[extent])
            if crc != expected[row, number] and self._checks is not None:
                self._checks.fail(int(samples[row]), number)


def _targets(
    parts: Sequence[FieldPart], octets: Octets, gaps: NDArray[np.uint8] | None
) -> list[_Target]:
    targets: list[_Target] = []
    at = 0
    for part in parts:
        if part.name:
            view = octets[part.name].reshape(-1).data
            targets.append((view, part.nbytes, 0, part.nbytes))
        else:
            assert gaps is not None
            pitch = gaps.shape[1]
            targets.append((gaps.reshape(-1).data, pitch, at, part.nbytes))
            at += part.nbytes
    return targets
