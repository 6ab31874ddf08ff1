"""Rows filled by decoding the extents of samples into them, each while it is in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.errors import StoreError
from iobench.loaders.ring.buffers import ScratchBytes
from iobench.loaders.ring.log import StageStopwatch
from iobench.loaders.ring.reads import ask_for, extents_of_objects, is_cached
from iobench.recording.kinds import Kind
from iobench.stores.extents import ExtentStore
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from iobench.loaders.ring.checks import SampleChecks
    from iobench.loaders.ring.contract import Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.store_access import StoreAccess
    from iobench.stores.extents import ExtentTable
    from iobench.stores.fields import RowDecoder


class DecodeReader:
    """Fills rows with what a store decodes: ``of_whole`` samples, or of each extent to its rows."""

    def __init__(self, source: StoreAccess, *, of_whole: bool = False) -> None:
        store = self._store = source.store
        self._checks, self._files = source.checks, source.files
        self._is_mapped, self._is_remote = source.can_be_mapped, source.is_remote
        self._table: ExtentTable | None = None
        self._decoder: RowDecoder | None = None
        if isinstance(store, ExtentStore):
            self._table = store.table
            self._decoder = None if of_whole else store.row_decoder
        packed = [v for v in store.manifest.spec if v.packed is not None]
        self._packed = {v.name: v.packed for v in packed if v.packed is not None}
        self._numbers = {v.name: np.empty(v.shape, v.dtype) for v in packed}
        self._scratch = ScratchBytes()

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill ``rows``; see `Reader`."""
        watch = StageStopwatch(log)
        self.fill_rows(samples, rows, watch)
        watch.emit()

    def fill_rows(self, samples: NDArray[np.int64], rows: Rows, watch: StageStopwatch) -> None:
        """Fill ``rows``; raise StoreError naming the sample."""
        checks = None if self._checks is None else self._checks.of(samples)
        for row, extents in self._extents(samples, watch):
            checked = extents if checks is None else _checked(extents, row, checks, watch)
            one = {name: values[row, ...] for name, values in rows.items()}
            if self._decoder is None:
                raw = list(checked)
                try:
                    arrays = self._store.decode(raw)
                except StoreError as error:
                    raise self._named(samples[row], error) from error
                for name, values in one.items():
                    values[...] = arrays[name]
                watch.end(Kind.DECODE, sum(map(len, raw)))
                continue
            stored = {**one, **self._numbers}
            for number, data in enumerate(checked):
                try:
                    self._decoder.decode_into(number, data, stored)
                except StoreError as error:
                    raise self._named(samples[row], error) from error
                watch.end(Kind.DECODE, len(data))
            for name, packed in self._packed.items():
                unpack(self._numbers[name], packed, one[name])
            watch.end(Kind.DECODE, 0)

    def _named(self, sample: np.int64, error: StoreError) -> StoreError:
        return StoreError(f"{self._store.path}: sample {sample}: {error}")

    def _extents(
        self, samples: NDArray[np.int64], watch: StageStopwatch
    ) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """Return for each row, in any order, the bytes of its extents; each until the next one."""
        if self._table is not None and self._files is None:
            return self._of_objects(self._table, samples, watch)
        if self._table is not None and self._decoder is not None:
            return self._of_files(self._table, samples, watch)
        return self._of_store(samples, watch)

    def _of_store(
        self, samples: NDArray[np.int64], watch: StageStopwatch
    ) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """Yield extents as any store reads them: of a remote one those of a batch together."""
        numbers = samples.tolist()
        at_once = max(1, len(numbers)) if self._is_remote else 1
        for first in range(0, len(numbers), at_once):
            watch.start()
            of_each = [self._store.extents(one) for one in numbers[first : first + at_once]]
            raw = self._store.read([extent for extents in of_each for extent in extents])
            watch.end(Kind.READ, sum(map(len, raw)))
            left = iter(raw)
            for row, extents in enumerate(of_each, first):
                yield row, [next(left) for _ in extents]

    def _of_objects(
        self, table: ExtentTable, samples: NDArray[np.int64], watch: StageStopwatch
    ) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """Read all of a batch by requests for ranges, many at once, then yield each row's."""
        watch.start()
        memory = self._scratch.take("batch", int(table.length[samples].sum())).data
        views, n_read = extents_of_objects(table, samples, memory)
        watch.end(Kind.READ, n_read)
        n_extents = table.n_per_sample
        for row in range(len(samples)):
            yield row, views[row * n_extents : (row + 1) * n_extents]

    def _of_files(
        self, table: ExtentTable, samples: NDArray[np.int64], watch: StageStopwatch
    ) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """Yield extents one after another, in the order they lie in."""
        assert self._files is not None
        is_mapped = self._is_mapped
        if not is_cached(table, samples, self._files):
            is_mapped = False
            ask_for(table, samples, self._files)
            watch.end(Kind.READ, 0)
        for row in np.lexsort((table.offset[samples, 0], table.file[samples, 0])).tolist():
            watch.start()
            yield row, self._each(table, int(samples[row]), is_mapped, watch)

    def _each(
        self, table: ExtentTable, sample: int, is_mapped: bool, watch: StageStopwatch
    ) -> Iterator[memoryview]:
        read = self._mapped if is_mapped else self._read
        for file, offset, nbytes in table.places(sample):
            data = read(file, offset, nbytes)
            watch.end(Kind.READ, nbytes)
            yield data

    def _mapped(self, file: int, offset: int, nbytes: int) -> memoryview:
        """Return the bytes of an extent where the page cache has them."""
        assert self._files is not None
        view = memoryview(self._files.mapped(file))[offset : offset + nbytes]
        if len(view) < nbytes:
            raise self._files.opened(file).ends_early(offset + len(view), offset + nbytes)
        return view

    def _read(self, file: int, offset: int, nbytes: int) -> memoryview:
        """Return the bytes of an extent, in memory that is used again."""
        assert self._files is not None
        view = self._scratch.take("extent", nbytes).data
        self._files.opened(file).fill(view, offset)
        return view

    def close(self) -> None:
        """Nothing: the store's files are shared."""


def _checked(
    extents: Iterable[memoryview], row: int, checks: SampleChecks, watch: StageStopwatch
) -> Iterator[memoryview]:
    for number, data in enumerate(extents):
        checks.compare(row, number, [data])
        watch.end(Kind.VERIFY, len(data))
        yield data
