"""Rows filled sample by sample, for stores whose extents have to be decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import StoreError
from iobench.loaders.ring.laps import Laps
from iobench.loaders.ring.read_ahead import ask_for, is_cached
from iobench.recording.kinds import Kind
from iobench.stores.checksums import crc32c
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.checks import ExtentChecks
    from iobench.loaders.ring.contract import Rows
    from iobench.loaders.ring.direct import AlignedReader
    from iobench.loaders.ring.log import BatchLog
    from iobench.stores.contract import Store
    from iobench.stores.extents import ExtentStore
    from iobench.stores.fields import RowDecoder

__all__ = ["DecodedFiller", "ExtentFiller"]


class DecodedFiller:
    """Fills rows with samples as the store decodes them, for any store.

    Parameters
    ----------
    store : Store
        Any, a remote one too: the extents of a batch are asked for together.
    checks : ExtentChecks, optional
        Compares what was read.
    """

    def __init__(self, store: Store, checks: ExtentChecks | None = None) -> None:
        self._store = store
        self._checks = checks
        self._is_local = hasattr(store.path, "__fspath__")

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill ``rows``; see `Filler`."""
        laps = Laps(log)
        if self._is_local:  # one after another, while each is in the cache
            for row in range(len(samples)):
                self.fill_rows(slice(row, row + 1), samples, rows, laps)
        else:
            self.fill_rows(slice(0, len(samples)), samples, rows, laps)
        laps.emit()

    def fill_rows(self, chosen: slice, samples: NDArray[np.int64], rows: Rows, laps: Laps) -> None:
        """Fill some rows; raise StoreError naming the sample."""
        laps.start()
        numbers = samples[chosen].tolist()
        wanted = [self._store.extents(sample) for sample in numbers]
        raw = self._store.read([extent for extents in wanted for extent in extents])
        nbytes = sum(map(len, raw))
        laps.end(Kind.READ, nbytes)
        if self._checks is not None:
            self._check(raw, numbers, self._checks.expected(samples[chosen], None, None))
            laps.end(Kind.VERIFY, nbytes)
        found = iter(raw)
        for row, (sample, extents) in enumerate(zip(numbers, wanted, strict=True), chosen.start):
            try:
                arrays = self._store.decode([next(found) for _ in extents])
            except StoreError as error:
                raise StoreError(f"sample {sample}: {error}") from error
            for name, values in rows.items():
                values[row, ...] = arrays[name]
        laps.end(Kind.DECODE, nbytes)

    def _check(self, raw: list[memoryview], samples: list[int], expected: Any) -> None:
        assert self._checks is not None
        n_extents = expected.shape[1]
        for place, data in enumerate(raw):
            row, number = divmod(place, n_extents)
            if crc32c(data) != expected[row, number]:
                self._checks.fail(samples[row], number)

    def close(self) -> None:
        """Nothing: the store's files are shared."""


class ExtentFiller:
    """Fills rows by decoding extents into them, each while it is in the cache.

    Parameters
    ----------
    store : ExtentStore
        A local one.
    decoder : RowDecoder
        Its decoder.
    files : FileSet
        Of the store.
    checks : ExtentChecks, optional
        Compares what was read.
    is_mapped : bool
        Whether what is in the page cache is decoded from there: reading it first would be a copy,
        half as dear as decoding is.
    aligned : AlignedReader, optional
        Reads around the page cache what is not in it, where ``is_direct`` says so.
    is_direct : callable, optional
        Called with ``files`` and ``aligned``.
    """

    def __init__(
        self,
        store: ExtentStore,
        decoder: RowDecoder,
        files: FileSet,
        checks: ExtentChecks | None = None,
        is_mapped: bool = False,
        aligned: AlignedReader | None = None,
        is_direct: Callable[[FileSet, AlignedReader], bool] | None = None,
    ) -> None:
        self._is_mapped = is_mapped
        self._aligned = aligned
        self._is_direct = is_direct
        self._store = store
        self._table = store.table
        self._decoder = decoder
        self._files = files
        self._checks = checks
        self._packed = {v.name: v for v in store.manifest.spec if v.packed is not None}
        self._numbers = {v.name: np.empty(v.shape, v.dtype) for v in self._packed.values()}
        self._raw = np.empty(0, dtype=np.uint8)

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill ``rows``; see `Filler`."""
        laps = Laps(log)
        table, checks = self._table, self._checks
        expected = None if checks is None else checks.expected(samples, table, self._files)
        read = self._held if self._is_mapped else self._read
        if not is_cached(table, samples[[0, -1]], 0, self._files):
            aligned, is_direct = self._aligned, self._is_direct
            if aligned is not None and is_direct is not None and is_direct(self._files, aligned):
                read = aligned.read
            else:
                read = self._read
                ask_for(table, samples, self._files)
            laps.end(Kind.READ, 0)
        for row in np.lexsort((table.offset[samples, 0], table.file[samples, 0])).tolist():
            sample = int(samples[row])
            one = {name: values[row, ...] for name, values in rows.items()}
            stored = {**one, **self._numbers}
            laps.start()
            for number, (file, offset, nbytes) in enumerate(
                zip(
                    table.file[sample].tolist(),
                    table.offset[sample].tolist(),
                    table.length[sample].tolist(),
                    strict=True,
                )
            ):
                data = read(file, offset, nbytes)
                laps.end(Kind.READ, nbytes)
                if expected is not None and checks is not None:
                    if crc32c(data) != expected[row, number]:
                        checks.fail(sample, number)
                    laps.end(Kind.VERIFY, nbytes)
                try:
                    self._decoder.decode_into(number, data, stored)
                except StoreError as error:
                    raise StoreError(f"{self._store.path}: sample {sample}: {error}") from error
                laps.end(Kind.DECODE, nbytes)
            for name, variable in self._packed.items():
                assert variable.packed is not None
                unpack(self._numbers[name], variable.packed, one[name])
            laps.end(Kind.DECODE, 0)
        laps.emit()

    def _held(self, file: int, offset: int, nbytes: int) -> memoryview:
        """Return the bytes of an extent where the page cache has them."""
        view = memoryview(self._files.mapped(file))[offset : offset + nbytes]
        if len(view) < nbytes:
            raise self._files.opened(file).ends_early(offset + len(view), offset + nbytes)
        return view

    def _read(self, file: int, offset: int, nbytes: int) -> memoryview:
        """Return the bytes of an extent, in memory that is used again."""
        if self._raw.size < nbytes:
            self._raw = np.empty(nbytes, dtype=np.uint8)
        view = self._raw[:nbytes].data
        self._files.opened(file).fill(view, offset)
        return view

    def close(self) -> None:
        """Let memory go."""
        self._raw = np.empty(0, dtype=np.uint8)
