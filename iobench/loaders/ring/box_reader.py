"""Boxes of a store's samples, of which no more is read or decoded than they touch.

Numbers are copied from the page cache row by row of the box. What is not there, or lies elsewhere,
is read from a box's first byte to its last, unless what lies between two rows is worth a call.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from iobench.errors import StoreError
from iobench.files.ranges import FileRange
from iobench.loaders.ring.buffers import ScratchBytes
from iobench.loaders.ring.log import StageStopwatch
from iobench.loaders.ring.reads import (
    REQUEST_NBYTES,
    RangeViews,
    ask_for_ranges,
    fill_objects,
    is_cached,
)
from iobench.recording.kinds import Kind
from iobench.stores.extents import ExtentStore
from iobench.stores.fields import ChunkedDecoder
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.contract import BoxReader, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.sample_patches import PatchCut, PatchSizes
    from iobench.loaders.ring.store_access import StoreAccess
    from iobench.samples import Variable
    from iobench.stores.fields import ChunkedArray, FieldLayout

SCRATCH_NBYTES: Final = 32 << 20
"""Whole samples of a store that are in memory at once to be cut, unless one is more."""
CALL_NBYTES: Final = 32 << 10
"""What a call to ``preadv`` is worth, and the Python around it: some 1.5 us at 20 GB/s."""
COPY_NBYTES: Final = 64 << 10
"""What copying one piece of a box is worth, beside its bytes: some 5 us."""
DECODE_FACTOR: Final = 5
"""Bytes that are copied while one is decompressed."""


Place = tuple[int, int, int]
"""File, offset and length of an extent."""


class BoxRange(NamedTuple):
    """Bytes of a file, and the numbers of a box that are among them."""

    file: int
    offset: int
    nbytes: int
    target: NDArray[Any]
    shape: tuple[int, ...]  # of the numbers there, in whatever strides
    strides: tuple[int, ...]
    # the extent whose chunk this is, and which of its numbers are taken; -1 where all are
    chunk_of: int = -1
    inner: tuple[slice, ...] = ()
    sample: int = -1


class PlainExtent(msgspec.Struct, frozen=True, eq=False):
    """A variable that lies in an extent of each sample as memory has it."""

    extent: int  # which of a sample's extents
    cut: PatchCut  # what boxes take of it
    start: int  # where in the extent it begins
    strides: tuple[int, ...]  # bytes from a number to the next one along each axis

    def n_split(self, call_nbytes: int) -> int:
        """Return how many leading axes are read index by index: what lies between is far more."""
        sizes, strides = self.cut.sizes, self.strides
        split = 0
        while (call_nbytes and split < len(sizes)) and (
            sizes[split] == 1 or strides[split] - self._span(split + 1) >= call_nbytes
        ):
            split += 1
        return split

    def _span(self, axis: int) -> int:
        """Return the bytes from a box's first number to its last, from an axis on."""
        tail = zip(self.cut.sizes[axis:], self.strides[axis:], strict=True)
        itemsize = np.dtype(self.cut.variable.dtype).itemsize
        return itemsize + sum((size - 1) * stride for size, stride in tail)

    def cost(self, call_nbytes: int) -> int:
        """Return what reading a box costs, in bytes; without calls in those that are copied."""
        if not call_nbytes:
            return self.cut.part.nbytes + COPY_NBYTES
        split = self.n_split(call_nbytes)
        return math.prod(self.cut.sizes[:split]) * (self._span(split) + call_nbytes)

    def ranges(
        self,
        sample: int,
        places: Sequence[Place],
        corner: list[int],
        target: NDArray[Any],
        call_nbytes: int,
    ) -> Iterator[BoxRange]:
        """Yield the ranges of a sample, given by its extents, that a box takes."""
        file, offset, _ = places[self.extent]
        strides, sizes, split = self.strides, self.cut.sizes, self.n_split(call_nbytes)
        first = offset + self.start
        first += sum(at * n for at, n in zip(self.cut.starts(corner), strides, strict=True))
        nbytes = self._span(split)
        for index in itertools.product(*map(range, sizes[:split])):
            at = first + sum(place * n for place, n in zip(index, strides, strict=False))
            part: Any = (*index, ...)
            yield BoxRange(file, at, nbytes, target[part], sizes[split:], strides[split:])


class ChunkedExtent(msgspec.Struct, frozen=True, eq=False):
    """A variable that is in chunks: each an extent of a sample, or all of them one."""

    cut: PatchCut
    array: ChunkedArray

    def cost(self, call_nbytes: int) -> int:
        """Return what reading a box costs, in bytes; of the first corner."""
        n_chunks = sum(1 for _ in self._chunks([0] * (1 + max(self.cut.columns, default=0))))
        factor = 1 + DECODE_FACTOR * self.array.is_encoded
        return n_chunks * (max(call_nbytes, COPY_NBYTES) + factor * self.array.chunk_nbytes)

    def _chunks(
        self, corner: list[int]
    ) -> Iterator[tuple[int, tuple[slice, ...], tuple[slice, ...]]]:
        """Yield each chunk a box touches: its number, where in it, and where in the box."""
        shape, chunk = self.array.shape, self.array.chunk
        axes = list(zip(self.cut.starts(corner), self.cut.sizes, chunk, strict=True))
        counts = [-(-n // c) for n, c in zip(shape, chunk, strict=True)]
        for place in itertools.product(
            *(range(at // c, (at + n - 1) // c + 1) for at, n, c in axes)
        ):
            number = 0
            inner: list[slice] = []
            outer: list[slice] = []
            for p, count, (at, n, c) in zip(place, counts, axes, strict=True):
                number = number * count + p
                low, high = max(at, p * c), min(at + n, (p + 1) * c)
                inner.append(slice(low - p * c, high - p * c))
                outer.append(slice(low - at, high - at))
            yield number, tuple(inner), tuple(outer)

    def ranges(
        self,
        sample: int,
        places: Sequence[Place],
        corner: list[int],
        target: NDArray[Any],
        call_nbytes: int,
    ) -> Iterator[BoxRange]:
        """Yield the chunks of a sample, given by its extents, that a box touches."""
        array = self.array
        for number, inner, outer in self._chunks(corner):
            extent = array.extent + number * array.is_encoded
            file, offset, nbytes = places[extent]
            if not array.is_encoded:
                nbytes = array.chunk_nbytes
                offset += number * nbytes
            part: Any = (*outer, ...)
            yield BoxRange(file, offset, nbytes, target[part], (), (), extent, inner, sample)


def _strides(variable: Variable) -> tuple[int, ...]:
    steps = [*variable.shape[1:], np.dtype(variable.dtype).itemsize]
    return tuple(math.prod(steps[axis:]) for axis in range(len(variable.shape)))


def find_arrays(source: StoreAccess, sizes: PatchSizes) -> list[PlainExtent | ChunkedExtent] | None:
    """Return where the variables of a store lie; None where boxes are cut of whole samples.

    So they are with ``verify``, where samples are encoded whole, and where parts cost more.
    """
    store, layout = source.store, source.layout
    if source.checks is not None or not isinstance(store, ExtentStore) or not len(store):
        return None
    cuts = {v.name: sizes.cut(v) for v in store.manifest.spec if v.nbytes}
    arrays: list[PlainExtent | ChunkedExtent] = []
    whole_cost = sum(extent.nbytes for extent in store.extents(0)) + sizes.part.nbytes
    if layout is not None and not layout.varints:
        for number, parts in enumerate(layout.extents):
            arrays += [
                PlainExtent(number, cuts[part.name], part.start, _strides(cuts[part.name].variable))
                for part in parts
                if part.name
            ]
    elif layout is None and isinstance(store.decoder, ChunkedDecoder):
        for array in store.decoder.chunked_arrays():
            cut = cuts[array.name]
            arrays.append(ChunkedExtent(cut, array))
            whole_cost += DECODE_FACTOR * array.is_encoded * cut.variable.nbytes
    else:
        return None
    call_nbytes = REQUEST_NBYTES if source.files is None else 0
    return arrays if sum(one.cost(call_nbytes) for one in arrays) < whole_cost else None


class StoredBoxReader:
    """Fills rows with boxes of a store's samples.

    Samples that are laid out otherwise than the first one of the store are decoded whole, and cut.
    """

    def __init__(
        self,
        source: StoreAccess,
        sizes: PatchSizes,
        arrays: list[PlainExtent | ChunkedExtent],
        whole: BoxReader,
    ) -> None:
        store = source.store
        assert isinstance(store, ExtentStore)
        self._store, self._table, self._files = store, store.table, source.files
        self._arrays, self._whole = arrays, whole
        self._chunked = {
            one.array.extent + number: one.array
            for one in arrays
            if isinstance(one, ChunkedExtent)
            for number in range(one.array.n_chunks if one.array.is_encoded else 1)
        }
        self._packed = [
            (sizes.cut(v).part, v.packed) for v in store.manifest.spec if v.packed is not None
        ]
        self._lengths: NDArray[np.int64] | None = None
        self._around: list[tuple[int, int, bytes]] = []
        if source.layout is not None:
            self._lengths = np.array(source.layout.lengths, dtype=np.int64)
            self._around = _around(source.layout)
        self._expected = np.frombuffer(b"".join(each for *_, each in self._around), np.uint8)
        self._scratch = ScratchBytes()

    def fill(
        self, samples: NDArray[np.int64], rows: Rows, log: BatchLog, corners: NDArray[np.int64]
    ) -> None:
        """Fill ``rows``; see `BoxReader`."""
        watch = StageStopwatch(log)
        stored = dict(rows)
        for part, _ in self._packed:
            memory = self._scratch.take(("packed", part.name), len(samples) * part.nbytes)
            stored[part.name] = memory.view(part.dtype).reshape(len(samples), *part.shape)
        fits = np.ones(len(samples), dtype=np.bool_)  # as the first sample of the store is laid out
        if self._lengths is not None:
            fits = (self._table.length[samples] == self._lengths).all(axis=1)
        fitting = np.flatnonzero(fits).tolist()
        around = self._scratch.take("around", len(samples) * self._expected.size)
        around = around.reshape(len(samples), -1)
        order = sorted(fitting, key=lambda row: int(samples[row]))
        from_cache = False
        if self._files is not None:
            from_cache = not order or is_cached(self._table, samples[order], self._files)
        call_nbytes = REQUEST_NBYTES if self._files is None else 0 if from_cache else CALL_NBYTES
        ranges = (
            one
            for row in order
            for one in self._ranges(
                int(samples[row]), corners[row].tolist(), row, stored, around[row], call_nbytes
            )
        )
        watch.start()
        if self._files is None:
            self._fetch(list(ranges), watch)
        elif from_cache:
            self._copy(ranges, self._files, watch)
        else:
            self._read(list(ranges), self._files, watch)
        if self._around:
            fits[fitting] = (around[fitting] == self._expected).all(axis=1)
        for part, packed in self._packed:
            for row in fitting:
                unpack(stored[part.name][row], packed, rows[part.name][row])
            watch.end(Kind.DECODE, stored[part.name].nbytes)
        watch.emit()
        for row in np.flatnonzero(~fits).tolist():
            one = slice(row, row + 1)
            here = {name: values[one] for name, values in rows.items()}
            self._whole.fill(samples[one], here, log, corners[one])

    def _ranges(
        self,
        sample: int,
        corner: list[int],
        row: int,
        stored: Mapping[str, NDArray[Any]],
        around: NDArray[np.uint8],
        call_nbytes: int,
    ) -> Iterator[BoxRange]:
        """Yield the bytes that a box takes, and where they go."""
        places = list(self._table.places(sample))
        for array in self._arrays:
            target = stored[array.cut.variable.name][row, ...].reshape(array.cut.sizes)
            yield from array.ranges(sample, places, corner, target, call_nbytes)
        column = 0
        for number, begin, expected in self._around:  # which say whether variables lie there
            part = around[column : column + len(expected)]
            column += len(expected)
            file, offset, _ = places[number]
            yield BoxRange(file, offset + begin, part.size, part, part.shape, (1,))

    def _put(self, one: BoxRange, buffer: Any, offset: int, watch: StageStopwatch) -> None:
        """Copy, or decode, the numbers that lie in a buffer."""
        target = one.target
        if one.chunk_of < 0:
            target[...] = np.ndarray(one.shape, target.dtype, buffer, offset, one.strides)
            watch.end(Kind.READ, target.nbytes)
            return
        array = self._chunked[one.chunk_of]
        if not array.is_encoded:
            target[...] = np.ndarray(array.chunk, array.dtype, buffer, offset)[one.inner]
            watch.end(Kind.READ, target.nbytes)
            return
        chunk = self._scratch.take("chunk", array.chunk_nbytes)
        data = memoryview(buffer)[offset : offset + one.nbytes]
        watch.end(Kind.READ, one.nbytes)
        decoder = self._store.decoder
        assert isinstance(decoder, ChunkedDecoder)
        try:
            decoder.decode_chunk(one.chunk_of, data, chunk)
        except StoreError as error:
            raise StoreError(f"{self._store.path}: sample {one.sample}: {error}") from error
        target[...] = chunk.view(array.dtype).reshape(array.chunk)[one.inner]
        watch.end(Kind.DECODE, one.nbytes)

    def _copy(self, ranges: Iterator[BoxRange], files: FileSet, watch: StageStopwatch) -> None:
        """Take ranges from the page cache."""
        for one in ranges:
            mapped = files.mapped(one.file)
            end = one.offset + one.nbytes
            if end > len(mapped):
                raise files.opened(one.file).ends_early(len(mapped), end)
            self._put(one, mapped, one.offset, watch)

    def _read(self, ranges: Sequence[BoxRange], files: FileSet, watch: StageStopwatch) -> None:
        """Read ranges from disk, all of them asked for before."""
        places = np.array([each[:3] for each in ranges], dtype=np.int64).reshape(-1, 3)
        ask_for_ranges(places[:, 0], places[:, 1], places[:, 1] + places[:, 2], files)
        for one in ranges:
            view = self._scratch.take("read", one.nbytes).data
            files.opened(one.file).fill(view, one.offset)
            self._put(one, view, 0, watch)

    def _fetch(self, ranges: Sequence[BoxRange], watch: StageStopwatch) -> None:
        """Read ranges by requests, many at once."""
        memory = self._scratch.take("read", sum(one.nbytes for one in ranges)).data
        ends = list(itertools.accumulate(one.nbytes for one in ranges))
        parts = [
            RangeViews(FileRange(*one[:3]), [memory[end - one.nbytes : end]])
            for one, end in zip(ranges, ends, strict=True)
        ]
        fill_objects(self._table.files, parts)
        for one, end in zip(ranges, ends, strict=True):
            self._put(one, memory, end - one.nbytes, watch)

    def close(self) -> None:
        """Let memory go."""
        self._scratch.clear()
        self._whole.close()


def _around(layout: FieldLayout) -> list[tuple[int, int, bytes]]:
    """Return which extents have bytes around variables that say where these lie, and where."""
    around = []
    for number, left in enumerate(layout.around or ()):
        at = 0
        for part in layout.extents[number]:
            if not part.name:
                around.append((number, part.start, left[at : at + part.nbytes]))
                at += part.nbytes
    return around
