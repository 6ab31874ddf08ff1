"""The samples of a store, for a ring: read to where the batch wants them, or decoded there."""

from __future__ import annotations

import shlex
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import StoreError
from iobench.files.atomic import is_local
from iobench.loaders.pipeline import store_pipeline
from iobench.loaders.ring.box_reader import StoredBoxReader, find_arrays
from iobench.loaders.ring.buffers import ScratchBytes
from iobench.loaders.ring.checks import ExtentChecks
from iobench.loaders.ring.log import StageStopwatch
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.reads import (
    MIN_RUN,
    MappedReads,
    RowReads,
    ask_for,
    find_grid,
    is_cached,
)
from iobench.loaders.ring.sample_patches import CutReader
from iobench.recording.kinds import Kind
from iobench.stores.chunked_store import ChunkedStore
from iobench.stores.example import decode_varint_rows
from iobench.stores.extents import ExtentStore
from iobench.stores.finished_store import open_store as open_finished
from iobench.stores.manifest import MANIFEST_NAME
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.checks import SampleChecks
    from iobench.loaders.ring.contract import Reader, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.reads import ExtentGrid
    from iobench.loaders.ring.sample_patches import PatchPlaces
    from iobench.samples import SampleSpec
    from iobench.stores.contract import Store
    from iobench.stores.extents import ExtentTable
    from iobench.stores.fields import FieldLayout, RowDecoder

REMOTE_THREADS: Final = 4
"""That read a store elsewhere by default: they wait, whatever CPUs there are."""
SCRATCH_NBYTES: Final = 32 << 20
"""Whole samples of a store that are in memory at once to be cut, unless one is more."""


def open_store(path: str | os.PathLike[str]) -> Store:
    """Return the store at ``path``, for random access and for `iobench.loader`.

    Parameters
    ----------
    path : path or str
        A store that ``iobench convert`` made, of any format, or its address (``s3://...``).

    Raises
    ------
    StoreError
        If it is unfinished or damaged, or holds no store of iobench's.
    """
    place = path if isinstance(path, str) and "://" in path else Path(path)
    try:
        return open_finished(place)
    except StoreError as error:
        if isinstance(place, str) or not place.exists() or (place / MANIFEST_NAME).exists():
            raise
        raise StoreError(
            f"{error}; iobench.open_dataset loads other GRIB, NetCDF and Zarr files as they are, "
            f"'iobench convert {shlex.quote(str(place.absolute()))} OUT --to zarr' makes a store"
        ) from error


def source_of_store(store: Store, verify: bool = False) -> StoreSource | PipelineSource:
    """Return the samples of a store: by extents, or by the chunks that several of them share."""
    if not isinstance(store, ChunkedStore):
        return StoreSource(store, verify)
    source = PipelineSource(store_pipeline(store, verify=verify))
    source.is_remote = not is_local(store.path)
    return source


class StoreSource:
    """The samples of a store; see `BatchSource`.

    Numbers as memory has them are read to their rows: from mappings where the page cache has them
    and they lie at equal distances, else with ``preadv``. What is encoded is decoded there.
    """

    def __init__(self, store: Store, verify: bool = False) -> None:
        self.store = store
        self.spec: SampleSpec = store.spec
        self.checks = ExtentChecks(store) if verify else None
        self.is_remote = not is_local(store.path)
        self.files: FileSet | None = None  # of a local store of extents
        self.layout: FieldLayout | None = None  # None where samples have to be decoded
        if isinstance(store, ExtentStore):
            self.files = None if self.is_remote else store.files
            self.layout = store.fields()

    def __reduce__(self) -> tuple[type[StoreSource], tuple[Store, bool]]:
        return StoreSource, (self.store, self.checks is not None)

    def __len__(self) -> int:
        return len(self.store)

    def filler(self) -> Reader:
        """Return a reader for one more thread."""
        is_plain = self.layout is not None and self.files is not None
        return PlainReader(self) if is_plain else DecodeReader(self)

    def box_filler(self, patches: PatchPlaces) -> StoredBoxReader | CutReader:
        """Return a reader of boxes for one more thread."""
        whole = CutReader(self.filler(), self.spec, patches, SCRATCH_NBYTES)
        arrays = find_arrays(self, patches)
        return whole if arrays is None else StoredBoxReader(self, patches, arrays, whole)

    @cached_property
    def grids(self) -> list[ExtentGrid | None]:
        """How the extents of each number lie; found by a look at all of them."""
        store, layout = self.store, self.layout
        assert isinstance(store, ExtentStore)
        assert layout is not None
        sizes = [store.file_sizes[path] for path in store.table.files]
        return [
            find_grid(store.table, number, length, sizes)
            for number, length in enumerate(layout.lengths)
        ]


class DecodeReader:
    """Fills rows with what a store decodes: ``of_whole`` samples, or of each extent to its rows."""

    def __init__(self, source: StoreSource, *, of_whole: bool = False) -> None:
        store = self._store = source.store
        self._checks, self._files = source.checks, source.files
        self._table: ExtentTable | None = None
        self._decoder: RowDecoder | None = None
        self._is_mapped = False
        if isinstance(store, ExtentStore):
            self._table = store.table
            self._decoder = None if of_whole else store.row_decoder
            # Where there are few files, mapping them gains more than it costs.
            self._is_mapped = len(store.table.files) * MIN_RUN <= store.table.file.size
        self._packed = [v for v in store.manifest.spec if v.packed is not None]
        self._numbers = {v.name: np.empty(v.shape, v.dtype) for v in self._packed}
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
                arrays = self._named(samples[row], self._store.decode, raw)
                for name, values in one.items():
                    values[...] = arrays[name]
                watch.end(Kind.DECODE, sum(map(len, raw)))
                continue
            stored = {**one, **self._numbers}
            for number, data in enumerate(checked):
                self._named(samples[row], self._decoder.decode_into, number, data, stored)
                watch.end(Kind.DECODE, len(data))
            for variable in self._packed:
                assert variable.packed is not None
                unpack(self._numbers[variable.name], variable.packed, one[variable.name])
            watch.end(Kind.DECODE, 0)

    def _named(self, sample: np.int64, decode: Callable[..., Any], *given: Any) -> Any:
        try:
            return decode(*given)
        except StoreError as error:
            raise StoreError(f"{self._store.path}: sample {sample}: {error}") from error

    def _extents(
        self, samples: NDArray[np.int64], watch: StageStopwatch
    ) -> Iterator[tuple[int, Iterable[memoryview]]]:
        """Yield for each row, in any order, the bytes of its extents; each until the next one."""
        table, files = self._table, self._files
        watch.start()
        if table is None or files is None or self._decoder is None:  # all of a batch together
            of_each = [self._store.extents(sample) for sample in samples.tolist()]
            raw = self._store.read([extent for extents in of_each for extent in extents])
            watch.end(Kind.READ, sum(map(len, raw)))
            left = iter(raw)
            for row, extents in enumerate(of_each):
                yield row, [next(left) for _ in extents]
            return
        is_mapped = self._is_mapped
        if not is_cached(table, samples, files):
            is_mapped = False
            ask_for(table, samples, files)
            watch.end(Kind.READ, 0)
        read = self._mapped if is_mapped else self._read
        for row in np.lexsort((table.offset[samples, 0], table.file[samples, 0])).tolist():
            watch.start()
            yield row, _timed(table.places(int(samples[row])), read, files, watch)

    def _mapped(self, files: FileSet, file: int, offset: int, nbytes: int) -> memoryview:
        """Return the bytes of an extent where the page cache has them."""
        view = memoryview(files.mapped(file))[offset : offset + nbytes]
        if len(view) < nbytes:
            raise files.opened(file).ends_early(offset + len(view), offset + nbytes)
        return view

    def _read(self, files: FileSet, file: int, offset: int, nbytes: int) -> memoryview:
        """Return the bytes of an extent, in memory that is used again."""
        view = self._scratch.take("extent", nbytes).data
        files.opened(file).fill(view, offset)
        return view

    def close(self) -> None:
        """Nothing: the store's files are shared."""


def _timed(
    places: Iterator[tuple[int, int, int]],
    read: Callable[[FileSet, int, int, int], memoryview],
    files: FileSet,
    watch: StageStopwatch,
) -> Iterator[memoryview]:
    for file, offset, nbytes in places:
        data = read(files, file, offset, nbytes)
        watch.end(Kind.READ, nbytes)
        yield data


def _checked(
    extents: Iterable[memoryview], row: int, checks: SampleChecks, watch: StageStopwatch
) -> Iterator[memoryview]:
    for number, data in enumerate(extents):
        checks.compare(row, number, [data])
        watch.end(Kind.VERIFY, len(data))
        yield data


class PlainReader:
    """Fills rows of variables that lie in extents of local files as memory has them.

    Samples that are laid out otherwise than the first one of the store are decoded whole.
    """

    def __init__(self, source: StoreSource) -> None:
        store, layout, files = source.store, source.layout, source.files
        assert isinstance(store, ExtentStore)
        assert layout is not None
        assert files is not None
        self._files, self._checks, self._table = files, source.checks, store.table
        self._others = DecodeReader(source, of_whole=True)
        self._gap_nbytes = {
            number: nbytes
            for number, parts in enumerate(layout.extents)
            if (nbytes := sum(part.nbytes for part in parts if not part.name))
        }
        extents = dict(enumerate(layout.extents))
        self._cold: Sequence[RowReads | MappedReads] = [RowReads(self._table, extents, files)]
        self._warm = self._cold
        # What lies at equal distances is taken from mappings where the page cache has it.
        gathered = {
            number: (grid, extents[number])
            for number, grid in enumerate(source.grids)
            if grid is not None
        }
        if gathered:
            left = {n: parts for n, parts in extents.items() if n not in gathered}
            others = [RowReads(self._table, left, files)] if left else []
            self._warm = [MappedReads(gathered, files), *others]
        self._packed = [v for v in store.manifest.spec if v.packed is not None and v.nbytes]
        # Of each variable that is varints, the bytes they take.
        self._varints = {
            part.name: part.nbytes
            for extent in layout.extents
            for part in extent
            if part.name in layout.varints
        }
        self._stored = {v.name: v.nbytes for v in self._packed} | self._varints
        self._plain = [v.name for v in store.spec if v.nbytes and v.name not in self._stored]
        self._lengths = np.array(layout.lengths, dtype=np.int64)
        self._around = {
            number: np.frombuffer(around, dtype=np.uint8)
            for number, around in enumerate(layout.around or ())
            if around
        }
        self._scratch = ScratchBytes()

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill ``rows``; see `Reader`."""
        watch = StageStopwatch(log)
        others = np.flatnonzero((self._table.length[samples] != self._lengths).any(axis=1))
        if others.size < len(samples):
            fitting = samples
            if others.size:  # laid out otherwise: one that fits is read in its place, for now
                fitting = samples.copy()
                fitting[others] = np.delete(samples, others)[0]
            self._fill(fitting, rows, watch)
        self._decode(others, samples, rows, watch)
        watch.emit()

    def _fill(self, samples: NDArray[np.int64], rows: Rows, watch: StageStopwatch) -> None:
        count = len(samples)
        reads = self._chosen(samples, watch)
        row_bytes = {
            name: rows[name].reshape(-1).view(np.uint8).reshape(count, -1) for name in self._plain
        }
        for name, nbytes in self._stored.items():
            row_bytes[name] = self._scratch.take(name, count * nbytes).reshape(count, nbytes)
        gaps = {
            number: self._scratch.take(number, count * nbytes).reshape(count, nbytes)
            for number, nbytes in self._gap_nbytes.items()
        }
        checks = None if self._checks is None else self._checks.of(samples)
        for each in reads:
            each.read(samples, row_bytes, gaps, watch, checks)
        for variable in self._packed:
            row = rows[variable.name]
            numbers = row_bytes[variable.name].view(variable.dtype).reshape(row.shape)
            assert variable.packed is not None
            unpack(numbers, variable.packed, row)
            watch.end(Kind.DECODE, row_bytes[variable.name].size)
        for name in self._varints:
            others = _decode_varints(row_bytes[name], rows[name])
            watch.end(Kind.DECODE, row_bytes[name].size)
            self._decode(others, samples, rows, watch)
        for number, around in self._around.items():
            others = np.flatnonzero((gaps[number] != around).any(axis=1))
            self._decode(others, samples, rows, watch)

    def _chosen(
        self, samples: NDArray[np.int64], watch: StageStopwatch
    ) -> Sequence[RowReads | MappedReads]:
        """Return how to read the samples of a batch; ask for what is not in the page cache."""
        if is_cached(self._table, samples, self._files):
            return self._warm
        ask_for(self._table, samples, self._files)
        watch.end(Kind.READ, 0)
        return self._cold

    def _decode(
        self,
        chosen: NDArray[np.intp],
        samples: NDArray[np.int64],
        rows: Rows,
        watch: StageStopwatch,
    ) -> None:
        """Decode samples that are laid out otherwise."""
        for row in chosen.tolist():
            one = slice(row, row + 1)
            here = {name: values[one] for name, values in rows.items()}
            self._others.fill_rows(samples[one], here, watch)

    def close(self) -> None:
        """Let memory go."""
        self._scratch.clear()


def _decode_varints(row_bytes: NDArray[np.uint8], rows: NDArray[Any]) -> NDArray[np.intp]:
    """Decode varints to rows, and return those of which that cannot be done so simply."""
    count = len(rows)
    numbers, holds = decode_varint_rows(row_bytes, rows.size // count)
    target = rows.reshape(count, -1)
    target[...] = numbers
    if target.itemsize < numbers.itemsize:
        holds &= (target == numbers).all(axis=1)
    return np.flatnonzero(~holds)
