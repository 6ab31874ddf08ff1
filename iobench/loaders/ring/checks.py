"""Checksums of a store's extents, compared while their bytes are still in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from iobench.errors import StoreError
from iobench.files.crc32c import crc32c
from iobench.files.joined_crc import JoinedChecksum
from iobench.files.ranges import FileRange
from iobench.stores.finished_store import CHECKSUMS_NAME, read_checksums
from iobench.stores.verification import array_of_extent, shard_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet
    from iobench.stores.contract import Store
    from iobench.stores.extents import ExtentTable

FOOTER_NBYTES: Final = 4
_MASK_DELTA: Final = np.uint32(0xA282EAD8)


class ExtentChecks:
    """Compares what was read with the checksums written with the store.

    They are those in ``iobench.crc32c``; of a TFRecord store without that file, those behind each
    record.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        n_extents = len(store.extents(0)) if len(store) else 1
        self._known: NDArray[np.uint32] | None = None
        self._joined: dict[int, JoinedChecksum] = {}
        has_own = store.manifest.format == "tfrecord"
        if not has_own or (store.path / CHECKSUMS_NAME).exists():
            checksums = read_checksums(store.path, len(store) * n_extents)
            self._known = checksums.reshape(len(store), n_extents)

    def of(
        self, samples: NDArray[np.int64], table: ExtentTable | None, files: FileSet | None
    ) -> SampleChecks:
        """Return what the extents of these samples are compared with.

        The table and the files are those of a store of this machine.
        """
        return SampleChecks(self, samples, self._expected(samples, table, files))

    def joined(self, nbytes: int) -> JoinedChecksum:
        """Return what joins the checksums of rows of this length."""
        found = self._joined.get(nbytes)
        if found is None:
            found = self._joined[nbytes] = JoinedChecksum(nbytes)
        return found

    def _expected(
        self, samples: NDArray[np.int64], table: ExtentTable | None, files: FileSet | None
    ) -> NDArray[np.uint32]:
        """Return the checksums of these samples' extents: (samples, extents)."""
        if self._known is not None:
            return self._known[samples]
        if table is None or files is None:
            return self._behind([self.store.extents(sample)[0] for sample in samples.tolist()])
        masked = np.empty(len(samples), dtype="<u4")
        rows = masked.view(np.uint8).reshape(-1, FOOTER_NBYTES)
        ends = (table.offset[samples, 0] + table.length[samples, 0]).tolist()
        for row, (file, end) in enumerate(zip(table.file[samples, 0].tolist(), ends, strict=True)):
            files.opened(file).fill(rows[row].data, end)
        return _unmasked(masked)

    def _behind(self, extents: Iterable[FileRange[Path]]) -> NDArray[np.uint32]:
        behind = [FileRange(extent.file, extent.end, FOOTER_NBYTES) for extent in extents]
        found = [int.from_bytes(data, "little") for data in self.store.read(behind)]
        return _unmasked(np.array(found, dtype=np.uint32))

    def fail(self, sample: int, number: int) -> NoReturn:
        """Raise StoreError: a checksum is not that of the bytes."""
        extents = self.store.extents(sample)
        extent = extents[number]
        array = array_of_extent(self.store, extent, number, len(extents))
        raise StoreError(
            f"{extent.file}: checksum of shard {shard_of(self.store, sample)}, sample {sample}, "
            f"{array} is wrong ({extent.nbytes} bytes from byte {extent.offset}); convert the "
            "store again"
        )


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
            self._checks.fail(int(self._samples[row]), number)

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


def _unmasked(masked: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return CRC-32C as they were before TFRecord's masking; see `iobench.stores.tfrecord`."""
    turned = masked - _MASK_DELTA
    return ((turned >> np.uint32(17)) | (turned << np.uint32(15))).reshape(-1, 1)
