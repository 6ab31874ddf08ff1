"""Rows filled by decoding the extents of samples into them, each while it is in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from iobench.errors import StoreError
from iobench.files.atomic import is_local
from iobench.loaders.ring.log import Laps
from iobench.loaders.ring.object_reads import extents_of_objects
from iobench.loaders.ring.read_ahead import ask_for, is_cached
from iobench.recording.kinds import Kind
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.checks import ExtentChecks, SampleChecks
    from iobench.loaders.ring.contract import Rows
    from iobench.loaders.ring.direct import AlignedReader
    from iobench.loaders.ring.log import BatchLog
    from iobench.stores.contract import Store
    from iobench.stores.extents import ExtentStore
    from iobench.stores.fields import RowDecoder


class SampleExtents(Protocol):
    """What brings the extents of samples to memory, for one thread at a time."""

    @property
    def files(self) -> FileSet | None:
        """Where checksums behind extents are read from; None: from the store."""
        ...

    def of(
        self, samples: NDArray[np.int64], laps: Laps
    ) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """Yield for each row, in any order, the bytes of its extents; each until the next one."""
        ...


class DecodeFiller:
    """Fills rows with what a store decodes."""

    def __init__(
        self,
        store: Store,
        extents: SampleExtents,
        checks: ExtentChecks | None = None,
        decoder: RowDecoder | None = None,
    ) -> None:
        self._store = store
        self._extents = extents
        self._checks = checks
        self._decoder = decoder
        self._packed = {v.name: v for v in store.manifest.spec if v.packed is not None}
        self._numbers = {v.name: np.empty(v.shape, v.dtype) for v in self._packed.values()}

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill ``rows``; see `Filler`."""
        laps = Laps(log)
        self.fill_rows(samples, rows, laps)
        laps.emit()

    def fill_rows(self, samples: NDArray[np.int64], rows: Rows, laps: Laps) -> None:
        """Fill ``rows``; raise StoreError naming the sample."""
        checks = None
        if self._checks is not None:
            files = self._extents.files
            table = None if files is None else self._store.table  # type: ignore[attr-defined]
            checks = self._checks.of(samples, table, files)
        for row, extents in self._extents.of(samples, laps):
            sample = int(samples[row])
            checked = extents
            if checks is not None:
                checked = _checked(extents, row, checks, laps)
            one = {name: values[row, ...] for name, values in rows.items()}
            if self._decoder is None:
                self._decode(sample, list(checked), one, laps)
            else:
                self._decode_each(sample, checked, one, self._decoder, laps)

    def _decode(
        self, sample: int, raw: list[memoryview], row: dict[str, NDArray[Any]], laps: Laps
    ) -> None:
        try:
            arrays = self._store.decode(raw)
        except StoreError as error:
            raise self._named(sample, error) from error
        for name, values in row.items():
            values[...] = arrays[name]
        laps.end(Kind.DECODE, sum(map(len, raw)))

    def _decode_each(
        self,
        sample: int,
        extents: Iterable[memoryview],
        row: dict[str, NDArray[Any]],
        decoder: RowDecoder,
        laps: Laps,
    ) -> None:
        stored = {**row, **self._numbers}
        for number, data in enumerate(extents):
            try:
                decoder.decode_into(number, data, stored)
            except StoreError as error:
                raise self._named(sample, error) from error
            laps.end(Kind.DECODE, len(data))
        for name, variable in self._packed.items():
            assert variable.packed is not None
            unpack(self._numbers[name], variable.packed, row[name])
        laps.end(Kind.DECODE, 0)

    def _named(self, sample: int, error: StoreError) -> StoreError:
        return StoreError(f"{self._store.path}: sample {sample}: {error}")

    def close(self) -> None:
        """Nothing: the store's files are shared."""


def _checked(
    extents: Iterable[memoryview], row: int, checks: SampleChecks, laps: Laps
) -> Iterator[memoryview]:
    for number, data in enumerate(extents):
        checks.compare(row, number, [data])
        laps.end(Kind.VERIFY, len(data))
        yield data


class AnyExtents:
    """Extents as any store reads them: of a remote one those of a batch together."""

    files: FileSet | None = None

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_local = is_local(store.path)

    def of(
        self, samples: NDArray[np.int64], laps: Laps
    ) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """Yield the extents of each row in order; see `SampleExtents`."""
        numbers = samples.tolist()
        at_once = 1 if self._is_local else max(1, len(numbers))  # one while it is in the cache
        for first in range(0, len(numbers), at_once):
            laps.start()
            wanted = [self._store.extents(one) for one in numbers[first : first + at_once]]
            raw = self._store.read([extent for extents in wanted for extent in extents])
            laps.end(Kind.READ, sum(map(len, raw)))
            found = iter(raw)
            for row, extents in enumerate(wanted, first):
                yield row, [next(found) for _ in extents]


class ObjectExtents:
    """Extents of a store elsewhere: those of a batch by requests for ranges, many at once."""

    files: FileSet | None = None

    def __init__(self, store: ExtentStore, in_flight: Callable[[], int]) -> None:
        self._table = store.table
        self._in_flight = in_flight
        self._raw = np.empty(0, dtype=np.uint8)

    def of(
        self, samples: NDArray[np.int64], laps: Laps
    ) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """Read all, then yield the extents of each row in order; see `SampleExtents`."""
        laps.start()
        nbytes = int(self._table.length[samples].sum())
        if self._raw.size < nbytes:
            self._raw = np.empty(nbytes, dtype=np.uint8)
        views, n_read = extents_of_objects(
            self._table, samples, self._raw.data, in_flight=self._in_flight()
        )
        laps.end(Kind.READ, n_read)
        n_extents = self._table.n_per_sample
        for row in range(len(samples)):
            yield row, views[row * n_extents : (row + 1) * n_extents]


class LocalExtents:
    """Extents of files of this machine, one after another in the order they lie in."""

    def __init__(
        self,
        store: ExtentStore,
        files: FileSet,
        *,
        is_mapped: bool = False,
        aligned: AlignedReader | None = None,
        is_direct: Callable[[FileSet, AlignedReader], bool] | None = None,
    ) -> None:
        self.files = files
        self._table = store.table
        self._is_mapped = is_mapped
        self._aligned = aligned
        self._is_direct = is_direct
        self._raw = np.empty(0, dtype=np.uint8)

    def of(
        self, samples: NDArray[np.int64], laps: Laps
    ) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """Yield the extents of each row; see `SampleExtents`."""
        table = self._table
        read = self._held if self._is_mapped else self._read
        if not is_cached(table, samples[[0, -1]], 0, self.files):
            aligned, is_direct = self._aligned, self._is_direct
            if aligned is not None and is_direct is not None and is_direct(self.files, aligned):
                read = aligned.read
            else:
                read = self._read
                ask_for(table, samples, self.files)
            laps.end(Kind.READ, 0)
        for row in np.lexsort((table.offset[samples, 0], table.file[samples, 0])).tolist():
            laps.start()
            yield row, self._each(int(samples[row]), read, laps)

    def _each(
        self, sample: int, read: Callable[[int, int, int], memoryview], laps: Laps
    ) -> Iterator[memoryview]:
        for file, offset, nbytes in self._table.places(sample):
            data = read(file, offset, nbytes)
            laps.end(Kind.READ, nbytes)
            yield data

    def _held(self, file: int, offset: int, nbytes: int) -> memoryview:
        """Return the bytes of an extent where the page cache has them."""
        view = memoryview(self.files.mapped(file))[offset : offset + nbytes]
        if len(view) < nbytes:
            raise self.files.opened(file).ends_early(offset + len(view), offset + nbytes)
        return view

    def _read(self, file: int, offset: int, nbytes: int) -> memoryview:
        """Return the bytes of an extent, in memory that is used again."""
        if self._raw.size < nbytes:
            self._raw = np.empty(nbytes, dtype=np.uint8)
        view = self._raw[:nbytes].data
        self.files.opened(file).fill(view, offset)
        return view
