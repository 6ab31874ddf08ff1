"""Checksums of a store's extents, compared while their bytes are still in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.errors import StoreError
from iobench.files.crc32c import JoinedChecksum, crc32c
from iobench.stores.finished_store import read_checksums
from iobench.stores.verification import wrong_extent

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from iobench.stores.contract import Store


class ExtentChecks:
    """The checksums written with a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        n_extents = len(store.extents(0)) if len(store) else 1
        checksums = read_checksums(store.path, len(store) * n_extents)
        self._known: NDArray[np.uint32] = checksums.reshape(len(store), n_extents)
        self._joined: dict[int, JoinedChecksum] = {}

    def of(self, samples: NDArray[np.int64]) -> SampleChecks:
        """Return what the extents of these samples are compared with."""
        return SampleChecks(self, samples, self._known[samples])

    def joined(self, nbytes: int) -> JoinedChecksum:
        """Return what joins the checksums of rows of this length."""
        if nbytes not in self._joined:
            self._joined[nbytes] = JoinedChecksum(nbytes)
        return self._joined[nbytes]


class SampleChecks:
    """The checksums that some samples' extents shall have, row by row."""

    def __init__(
        self, checks: ExtentChecks, samples: NDArray[np.int64], expected: NDArray[np.uint32]
    ) -> None:
        self._checks = checks
        self._samples = samples
        self._expected = expected
        self._numbers: list[list[int]] = expected.tolist()

    def compare(self, row: int, number: int, views: Iterable[memoryview]) -> None:
        """Raise StoreError unless these bytes, in order, are the extent that was written."""
        crc = 0
        for view in views:
            crc = crc32c(view, crc)
        if crc != self._numbers[row][number]:
            raise StoreError(wrong_extent(self._checks.store, int(self._samples[row]), number))

    def compare_rows(
        self,
        rows: slice | NDArray[np.intp],
        number: int,
        piece: NDArray[np.uint8],
        columns: slice,
    ) -> None:
        """Raise StoreError unless these columns of a piece are those rows' extents."""
        data, pitch = piece.reshape(-1).data, piece.shape[1]
        if pitch == columns.stop - columns.start:
            joined = self._checks.joined(pitch).of(self._expected[rows, number])
            if crc32c(data) == joined:  # else somewhere among them
                return
        places = range(len(self._samples))[rows] if isinstance(rows, slice) else rows.tolist()
        for at, row in enumerate(places):
            start = at * pitch
            self.compare(row, number, [data[start + columns.start : start + columns.stop]])
