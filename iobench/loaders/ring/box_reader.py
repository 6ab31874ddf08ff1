"""Boxes of a store's samples, of which no more is read or decoded than they touch.

Numbers are copied from mappings of files; the rows of a box that the page cache does not have are
asked for before. From a bucket a box is read from its first byte to its last, unless what lies
between two rows is worth a request.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iobench.errors import StoreError
from iobench.files.ranges import FileRange
from iobench.loaders.ring.buffers import ScratchBytes
from iobench.loaders.ring.log import StageStopwatch
from iobench.loaders.ring.reads import ask_for_ranges, is_cached
from iobench.recording.kinds import Kind
from iobench.stores.extents import ExtentStore
from iobench.stores.fields import ChunkedArray, ChunkedDecoder
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.contract import Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.sample_patches import CutReader, PatchCut, PatchPlaces
    from iobench.loaders.ring.store_source import StoreSource
    from iobench.stores.fields import FieldLayout

CALL_NBYTES: Final = 32 << 10
"""What asking for a range is worth, and the Python around it: some 1.5 us at 20 GB/s."""
REQUEST_NBYTES: Final = 512 << 10
"""What a request to a store of objects is worth: 1 ms of this process at 500 MB/s. How long it is
under way counts less, since others are meanwhile."""
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
    strides: tuple[int, ...]  # of the numbers there
    # the extent whose chunk has to be decoded, and which of its numbers are taken; -1 for none
    chunk_of: int = -1
    inner: tuple[slice, ...] = ()
    sample: int = -1


class StoredVariable:
    """Where a variable lies in the extents of each sample: in chunks, or in one that is all."""

    def __init__(self, array: ChunkedArray, cut: PatchCut, start: int = 0) -> None:
        self.array, self.cut = array, cut
        self.start = start  # where in its extent it begins, if it is not encoded
        steps = [*array.chunk[1:], np.dtype(array.dtype).itemsize]
        self.strides = tuple(math.prod(steps[axis:]) for axis in range(len(array.chunk)))

    def ranges(
        self,
        sample: int,
        places: Sequence[Place],
        corner: list[int],
        target: NDArray[Any],
        call_nbytes: int,
    ) -> Iterator[BoxRange]:
        """Yield the ranges of a sample, given by its extents, that a box takes."""
        array = self.array
        for number, inner, outer in self._chunks(corner):
            part = target[outer] if outer else target
            extent = array.extent + number * array.is_encoded
            file, offset, nbytes = places[extent]
            if array.is_encoded:
                yield BoxRange(file, offset, nbytes, part, (), extent, inner, sample)
            else:
                offset += self.start + number * array.chunk_nbytes
                yield from self._rows(file, offset, inner, part, call_nbytes)

    def _chunks(
        self, corner: list[int]
    ) -> Iterator[tuple[int, tuple[slice, ...], tuple[slice, ...]]]:
        """Yield each chunk a box touches: its number, where in it, and where in the box."""
        shape, chunk = self.array.shape, self.array.chunk
        if chunk == shape:
            yield 0, self.cut.box(corner), ()
            return
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

    def _rows(
        self,
        file: int,
        offset: int,
        inner: tuple[slice, ...],
        target: NDArray[Any],
        call_nbytes: int,
    ) -> Iterator[BoxRange]:
        """Yield the numbers of a chunk from first to last, apart where far more lies between."""
        sizes, strides, split = target.shape, self.strides, 0
        nbytes = _span(target, strides, 0)
        while (call_nbytes and split < len(sizes)) and (
            sizes[split] == 1 or strides[split] - _span(target, strides, split + 1) >= call_nbytes
        ):
            split += 1
            nbytes = _span(target, strides, split)
        offset += sum(one.start * each for one, each in zip(inner, strides, strict=True))
        if not split:
            yield BoxRange(file, offset, nbytes, target, strides)
            return
        for index in np.ndindex(*sizes[:split]):
            at = offset + sum(place * each for place, each in zip(index, strides, strict=False))
            part: Any = (*index, ...)
            yield BoxRange(file, at, nbytes, target[part], strides[split:])


def _span(target: NDArray[Any], strides: tuple[int, ...], first: int) -> int:
    """Return the bytes from the first number of a part to its last, by the axes from one on."""
    nbytes = target.itemsize
    for size, stride in zip(target.shape[first:], strides[first:], strict=True):
        nbytes += (size - 1) * stride
    return nbytes


def find_arrays(source: StoreSource, patches: PatchPlaces) -> list[StoredVariable] | None:
    """Return where the variables of a store lie; None where boxes are cut of whole samples.

    So they are with ``verify``, where samples are encoded whole, and where parts cost more.
    """
    store, layout = source.store, source.layout
    if source.checks is not None or not isinstance(store, ExtentStore) or not len(store):
        return None
    cuts = {v.name: patches.cut(v) for v in store.manifest.spec if v.nbytes}
    if layout is not None and not layout.varints:
        arrays = [
            StoredVariable(
                ChunkedArray(v.name, v.shape, v.shape, v.dtype, number, False),
                cuts[v.name],
                part.start,
            )
            for number, parts in enumerate(layout.extents)
            for part in parts
            if part.name
            for v in (cuts[part.name].variable,)
        ]
    elif layout is None and isinstance(store.decoder, ChunkedDecoder):
        arrays = [StoredVariable(each, cuts[each.name]) for each in store.decoder.chunked_arrays()]
    else:
        return None
    cost, whole_cost = 0, patches.part.nbytes
    places = list(store.table.places(0))
    call_nbytes = 0 if source.files is not None else REQUEST_NBYTES
    for each in arrays:
        target = np.empty(each.cut.sizes, each.array.dtype)
        whole_cost += each.cut.variable.nbytes * (1 + DECODE_FACTOR * each.array.is_encoded)
        for one in each.ranges(0, places, [0] * len(patches.dims), target, call_nbytes):
            cost += max(call_nbytes, COPY_NBYTES)
            if one.chunk_of >= 0:
                cost += each.array.chunk_nbytes * (1 + DECODE_FACTOR)
            else:
                cost += one.nbytes if call_nbytes else one.target.nbytes
    return arrays if cost < whole_cost else None


class StoredBoxReader:
    """Fills rows with boxes of a store's samples.

    Samples that are laid out otherwise than the first one of the store are decoded whole, and cut.
    """

    def __init__(
        self,
        source: StoreSource,
        patches: PatchPlaces,
        arrays: list[StoredVariable],
        whole: CutReader,
    ) -> None:
        store = source.store
        assert isinstance(store, ExtentStore)
        self._store, self._table, self._files = store, store.table, source.files
        self._arrays, self._whole = arrays, whole
        self._encoded = {
            one.array.extent + number: one.array
            for one in arrays
            if one.array.is_encoded
            for number in range(one.array.n_chunks)
        }
        self._packed = [
            (patches.cut(v).part, v.packed) for v in store.manifest.spec if v.packed is not None
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
        """Fill ``rows`` with the boxes of samples that begin at these corners."""
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

        def ranges(call_nbytes: int) -> Iterator[BoxRange]:
            for row in order:
                corner = corners[row].tolist()
                yield from self._ranges(
                    int(samples[row]), corner, row, stored, around[row], call_nbytes
                )

        watch.start()
        if self._files is None:
            self._fetch(list(ranges(REQUEST_NBYTES)), watch)
        else:
            if order and not is_cached(self._table, samples[order], self._files):
                places = np.array([one[:3] for one in ranges(CALL_NBYTES)], dtype=np.int64)
                start, nbytes = places[:, 1], places[:, 2]
                ask_for_ranges(places[:, 0], start, start + nbytes, self._files)
            self._copy(ranges(0), self._files, watch)
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
        for each in self._arrays:
            target = stored[each.array.name][row, ...].reshape(each.cut.sizes)
            yield from each.ranges(sample, places, corner, target, call_nbytes)
        column = 0
        for number, begin, expected in self._around:  # which say whether variables lie there
            part = around[column : column + len(expected)]
            column += len(expected)
            file, offset, _ = places[number]
            yield BoxRange(file, offset + begin, part.size, part, (1,))

    def _put(self, one: BoxRange, buffer: Any, offset: int, watch: StageStopwatch) -> None:
        """Copy, or decode, the numbers that lie in a buffer."""
        target = one.target
        if one.chunk_of < 0:
            target[...] = np.ndarray(target.shape, target.dtype, buffer, offset, one.strides)
            watch.end(Kind.READ, target.nbytes)
            return
        array, decoder = self._encoded[one.chunk_of], self._store.decoder
        assert isinstance(decoder, ChunkedDecoder)
        chunk = self._scratch.take("chunk", array.chunk_nbytes)
        watch.end(Kind.READ, one.nbytes)
        try:
            data = memoryview(buffer)[offset : offset + one.nbytes]
            decoder.decode_chunk(one.chunk_of, data, chunk)
        except StoreError as error:
            raise StoreError(f"{self._store.path}: sample {one.sample}: {error}") from error
        target[...] = chunk.view(array.dtype).reshape(array.chunk)[one.inner]
        watch.end(Kind.DECODE, one.nbytes)

    def _copy(self, ranges: Iterator[BoxRange], files: FileSet, watch: StageStopwatch) -> None:
        """Take ranges from mappings of their files."""
        for one in ranges:
            mapped = files.mapped(one.file)
            end = one.offset + one.nbytes
            if end > len(mapped):
                raise files.opened(one.file).ends_early(len(mapped), end)
            self._put(one, mapped, one.offset, watch)

    def _fetch(self, ranges: Sequence[BoxRange], watch: StageStopwatch) -> None:
        """Read ranges by requests, many at once."""
        files = self._table.files
        read = self._store.read([FileRange(files[one.file], *one[1:3]) for one in ranges])
        for one, data in zip(ranges, read, strict=True):
            self._put(one, data, 0, watch)

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
