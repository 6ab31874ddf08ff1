"""The samples of a store, for a ring: read to where the batch wants them, or decoded there."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import StoreError
from iobench.files.atomic import is_local
from iobench.loaders.contract import BatchSource, Reader
from iobench.loaders.pipeline import store_pipeline
from iobench.loaders.ring.buffers import ScratchBytes
from iobench.loaders.ring.log import StageStopwatch
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.reads import (
    MIN_RUN,
    ask_for,
    find_grid,
    is_cached,
    read_extents,
)
from iobench.loaders.ring.sample_patches import BoxReader, CutReader, find_arrays
from iobench.recording.kinds import Kind
from iobench.stores.chunked_store import ChunkedStore
from iobench.stores.rounding import unpack
from iobench.stores.tfrecord import decode_varint_rows
from iobench.stores.verification import ExtentChecks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet
    from iobench.loaders.contract import Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.reads import ExtentGrid, Targets
    from iobench.loaders.ring.sample_patches import PatchPlaces
    from iobench.samples import SampleSpec
    from iobench.stores.contract import Store
    from iobench.stores.fields import FieldLayout

REMOTE_THREADS: Final = 4
"""That read a store elsewhere by default: they wait, whatever CPUs there are."""
SCRATCH_NBYTES: Final = 32 << 20
"""Whole samples of a store that are in memory at once to be cut, unless one is more."""


def source_of_store(store: Store, verify: bool = False) -> StoreSource | PipelineSource:
    """Return the samples of a store: by extents, or by the chunks that several of them share."""
    if not isinstance(store, ChunkedStore):
        return StoreSource(store, verify)
    source = PipelineSource(store_pipeline(store, verify=verify))
    source.is_remote = not is_local(store.path)
    return source


class StoreSource(BatchSource):
    """The samples of a store; see `BatchSource`.

    Numbers as memory has them are read to their rows: from mappings where the page cache has them
    and they lie at equal distances, else with ``preadv``. What is encoded is decoded there.
    """

    def __init__(self, store: Store, verify: bool = False) -> None:
        self.store = store
        self.spec: SampleSpec = store.spec
        self.checks = ExtentChecks(store) if verify else None
        self.is_remote = not is_local(store.path)
        self.files: FileSet | None = None if self.is_remote else store.files
        self.layout: FieldLayout | None = store.fields()  # None: samples have to be decoded

    def __reduce__(self) -> tuple[type[StoreSource], tuple[Store, bool]]:
        return StoreSource, (self.store, self.checks is not None)

    def __len__(self) -> int:
        return len(self.store)

    def filler(self) -> Reader:
        """Return a reader for one more thread."""
        is_plain = self.layout is not None and self.files is not None
        return PlainReader(self) if is_plain else DecodeReader(self)

    def box_filler(self, patches: PatchPlaces) -> BoxReader | CutReader:
        """Return a reader of boxes for one more thread."""
        if arrays := find_arrays(self, patches):
            return BoxReader(self, patches, arrays)
        return CutReader(self.filler(), self.spec, patches, SCRATCH_NBYTES)

    @cached_property
    def grids(self) -> list[ExtentGrid | None]:
        """How the extents of each number lie; found by a look at all of them."""
        store, layout = self.store, self.layout
        assert layout is not None
        sizes = [store.file_sizes[path] for path in store.table.files]
        lengths = enumerate(layout.lengths)
        return [find_grid(store.table, number, length, sizes) for number, length in lengths]


class DecodeReader(Reader):
    """Fills rows with what a store decodes: whole samples, or of each extent to its rows."""

    def __init__(self, source: StoreSource) -> None:
        store = self._store = source.store
        self._checks, self._files = source.checks, source.files
        # What writes extent (number, bytes) of a sample to its arrays, in threads, if it can.
        self._decode_into, self._table = getattr(store.decoder, "decode_into", None), store.table
        # Where there are few files, mapping them gains more than it costs.
        self._maps = len(store.table.files) * MIN_RUN <= store.table.file.size
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
        for row, extents in self._extents(samples, watch):
            sample = int(samples[row])
            one = {name: values[row, ...] for name, values in rows.items()}
            checked = self._checked(sample, extents, watch)
            if self._decode_into is None:
                raw = list(checked)
                arrays = self._named(sample, self._store.decode, raw)
                for name, values in one.items():
                    values[...] = arrays[name]
                watch.end(Kind.DECODE, sum(map(len, raw)))
                continue
            stored = {**one, **self._numbers}
            for number, data in enumerate(checked):
                self._named(sample, self._decode_into, number, data, stored)
                watch.end(Kind.DECODE, len(data))
            for variable in self._packed:
                assert variable.packed is not None
                unpack(self._numbers[variable.name], variable.packed, one[variable.name])
            watch.end(Kind.DECODE, 0)

    def _named(self, sample: int, decode: Callable[..., Any], *given: Any) -> Any:
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
        if files is None or self._decode_into is None:  # all of a batch together
            of_each = [self._store.extents(sample) for sample in samples.tolist()]
            raw = self._store.read([extent for extents in of_each for extent in extents])
            watch.end(Kind.READ, sum(map(len, raw)))
            left = iter(raw)
            for row, extents in enumerate(of_each):
                yield row, [next(left) for _ in extents]
            return
        maps = self._maps
        if not is_cached(table, samples, files):
            maps = False
            ask_for(table, samples, files)
            watch.end(Kind.READ, 0)
        for row in np.lexsort((table.offset[samples, 0], table.file[samples, 0])).tolist():
            watch.start()
            places = table.places(int(samples[row]))
            yield row, (self._bytes(files, place, maps, watch) for place in places)

    def _bytes(
        self, files: FileSet, place: tuple[int, int, int], maps: bool, watch: StageStopwatch
    ) -> memoryview:
        """Return an extent: of its file's mapping, or in memory that is used again."""
        file, offset, nbytes = place
        if maps:
            data = memoryview(files.mapped(file))[offset : offset + nbytes]
            if len(data) < nbytes:
                raise files.opened(file).ends_early(offset + len(data), offset + nbytes)
        else:
            data = self._scratch.take("extent", nbytes).data
            files.opened(file).fill(data, offset)
        watch.end(Kind.READ, nbytes)
        return data

    def _checked(
        self, sample: int, extents: Iterable[memoryview], watch: StageStopwatch
    ) -> Iterator[memoryview]:
        for number, data in enumerate(extents):
            if self._checks is not None:
                self._checks.compare([sample], number, [data])
                watch.end(Kind.VERIFY, len(data))
            yield data


class PlainReader(Reader):
    """Fills rows of variables that lie in extents of local files as memory has them.

    Samples that are laid out otherwise than the first one of the store are decoded whole.
    """

    def __init__(self, source: StoreSource) -> None:
        store, layout, files = source.store, source.layout, source.files
        assert layout is not None
        assert files is not None
        self._files, self._checks, self._table = files, source.checks, store.table
        self._grids, self._extents = source.grids, layout.extents
        self._others = DecodeReader(source)
        self._lengths = np.array(layout.lengths, dtype=np.int64)
        self._packed = [v for v in store.manifest.spec if v.packed is not None and v.nbytes]
        self._tags = {
            number: np.frombuffer(around, dtype=np.uint8)
            for number, around in enumerate(layout.around or ())
            if around
        }
        self._varints = layout.varints
        # Bytes a row of what is not read to its place: by variable, around those by extent.
        self._stored: dict[str | int, int] = {v.name: v.nbytes for v in self._packed}
        for number, parts in enumerate(layout.extents):
            for part in parts:
                if part.name in layout.varints:
                    self._stored[part.name] = part.nbytes
                elif not part.name:
                    self._stored[number] = self._stored.get(number, 0) + part.nbytes
        self._plain = [v.name for v in store.spec if v.nbytes and v.name not in self._stored]
        self._scratch = ScratchBytes()

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill ``rows``; see `Reader`."""
        watch = StageStopwatch(log)
        fits = (self._table.length[samples] == self._lengths).all(axis=1)
        if fits.all():
            fits = self._fill(samples, rows, watch)
        elif fits.any():  # one that fits is read in the place of others, for now
            fits &= self._fill(np.where(fits, samples, samples[fits][0]), rows, watch)
        for row in np.flatnonzero(~fits).tolist():
            one = slice(row, row + 1)
            here = {name: values[one] for name, values in rows.items()}
            self._others.fill_rows(samples[one], here, watch)
        watch.emit()

    def _fill(
        self, samples: NDArray[np.int64], rows: Rows, watch: StageStopwatch
    ) -> NDArray[np.bool_]:
        """Fill ``rows``; return which of them are laid out as the first sample is."""
        count = len(samples)
        row_bytes: dict[str | int, NDArray[np.uint8]] = {
            name: rows[name].reshape(-1).view(np.uint8).reshape(count, -1) for name in self._plain
        }
        for name, nbytes in self._stored.items():
            row_bytes[name] = self._scratch.take(name, count * nbytes).reshape(count, nbytes)
        targets = {number: self._targets(number, row_bytes) for number in range(len(self._extents))}
        grids: list[ExtentGrid | None] = []
        watch.start()
        if is_cached(self._table, samples, self._files):
            grids = self._grids
        else:
            ask_for(self._table, samples, self._files)
        for number, grid in enumerate(grids):
            if grid is not None:
                grid.copy(samples, targets[number], self._files, watch)
        left = {n: each for n, each in targets.items() if not grids or grids[n] is None}
        if left:
            read_extents(self._table, samples, left, self._files, watch)
        if self._checks is not None:
            for number, parts in targets.items():
                self._checks.compare(samples, number, *(part for part, _ in parts))
            watch.end(Kind.VERIFY, count * int(self._lengths.sum()))
        for variable in self._packed:
            row, numbers = rows[variable.name], row_bytes[variable.name]
            assert variable.packed is not None
            unpack(numbers.view(variable.dtype).reshape(row.shape), variable.packed, row)
            watch.end(Kind.DECODE, numbers.size)
        fits = np.ones(count, dtype=np.bool_)
        for name in self._varints:
            fits &= _decode_varints(row_bytes[name], rows[name])
            watch.end(Kind.DECODE, row_bytes[name].size)
        for number, expected in self._tags.items():
            fits &= (row_bytes[number] == expected).all(axis=1)
        return fits

    def _targets(self, number: int, row_bytes: dict[str | int, NDArray[np.uint8]]) -> Targets:
        """Return where the parts of an extent go; what is no variable's, side by side."""
        targets = []
        column = 0
        for part in self._extents[number]:
            rows = row_bytes[part.name or number]
            if not part.name:
                rows = rows[:, column : column + part.nbytes]
                column += part.nbytes
            targets.append((rows, slice(part.start, part.start + part.nbytes)))
        return targets


def _decode_varints(row_bytes: NDArray[np.uint8], rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Decode varints to rows, and return of which that can be done so simply."""
    count = len(rows)
    numbers, holds = decode_varint_rows(row_bytes, rows.size // count)
    target = rows.reshape(count, -1)
    target[...] = numbers
    if target.itemsize < numbers.itemsize:
        holds &= (target == numbers).all(axis=1)
    return holds
