"""Extents read with ``preadv`` straight to the rows of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from iobench.files.crc32c import crc32c
from iobench.files.reading import MAX_VIEWS
from iobench.loaders.ring.read_ahead import ask_for_ranges
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.files.open_file import OpenFile
    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.checks import ExtentChecks
    from iobench.loaders.ring.laps import Laps
    from iobench.loaders.ring.range_plan import ExtentRange, RowPiece
    from iobench.stores.extents import ExtentTable

__all__ = ["Octets", "Reads", "RowReads", "Target", "dropped_memory", "targets_of"]

Octets = dict[str, "NDArray[np.uint8]"]
"""Bytes of each variable's rows: (samples, bytes), contiguous."""


Target = tuple[memoryview, int, int, int]
"""Where a piece goes: view, pitch, start, bytes; row ``r`` from byte ``r * pitch + start``."""


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
    """Reads some of each sample's extents, or parts of them, to rows, in the order they lie in.

    Parameters
    ----------
    table : ExtentTable
        Where extents are.
    ranges : sequence of ExtentRange
        What is read of a sample, and what it is made of; whole extents where there are checks.
    files : FileSet
        Of the store.
    checks : ExtentChecks, optional
        Tell what is wrong where checksums differ.
    """

    def __init__(
        self,
        table: ExtentTable,
        ranges: Sequence[ExtentRange],
        files: FileSet,
        checks: ExtentChecks | None = None,
    ) -> None:
        self._table = table
        self._checks = checks
        self._ranges = ranges
        self._numbers = np.array([one.extent for one in ranges], dtype=np.int64)
        self._starts = np.array([one.start for one in ranges], dtype=np.int64)
        self._is_all = bool(
            np.array_equal(self._numbers, np.arange(table.n_per_sample)) and not self._starts.any()
        )
        self._lengths = [one.nbytes for one in ranges]
        self._dropped = dropped_memory(ranges)
        self._files = files

    def ask(self, samples: NDArray[np.int64]) -> None:
        """Have the system read all of these samples, and do not wait for it."""
        file, start = self._places(samples)
        end = (start + np.array(self._lengths, dtype=np.int64)).reshape(-1)
        ask_for_ranges(file.reshape(-1), start.reshape(-1), end, self._files)

    def _places(self, samples: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        file, offset = self._table.file[samples], self._table.offset[samples]
        if self._is_all:
            return file, offset
        return file[:, self._numbers], offset[:, self._numbers] + self._starts

    def read(
        self,
        samples: NDArray[np.int64],
        octets: Octets,
        gaps: Mapping[int, NDArray[np.uint8]],
        laps: Laps,
        expected: NDArray[np.uint32] | None = None,
    ) -> None:
        """Fill the rows of these samples; see `Reads`."""
        file, offset = self._places(samples)
        file, offset = file.reshape(-1), offset.reshape(-1)
        order = np.lexsort((offset, file))
        files, offsets = file[order].tolist(), offset[order].tolist()
        targets = targets_of(self._ranges, octets, gaps, self._dropped)
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
        targets: list[list[Target]],
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


def dropped_memory(ranges: Sequence[ExtentRange]) -> memoryview:
    """Return memory for the longest of the pieces that nobody wants."""
    unwanted = (piece.nbytes for one in ranges for piece in one.pieces if piece.name is None)
    return memoryview(bytearray(max(unwanted, default=0)))


def targets_of(
    ranges: Sequence[ExtentRange],
    octets: Octets,
    gaps: Mapping[int, NDArray[np.uint8]],
    dropped: memoryview,
) -> list[list[Target]]:
    """Return where the pieces of each range go."""
    views = {name: (array.reshape(-1).data, array.shape[1]) for name, array in octets.items()}
    between = {number: (array.reshape(-1).data, array.shape[1]) for number, array in gaps.items()}

    def target(piece: RowPiece, extent: int) -> Target:
        if piece.name is None:
            return dropped, 0, 0, piece.nbytes
        view, pitch = views[piece.name] if piece.name else between[extent]
        return view, pitch, piece.at, piece.nbytes

    return [[target(piece, one.extent) for piece in one.pieces] for one in ranges]
