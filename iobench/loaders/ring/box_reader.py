"""Boxes of a store's samples, of which no more is read or decoded than they touch.

Numbers that are stored as memory has them are copied from the page cache straight to the batch,
row by row of the box. What is not there, or lies elsewhere, is read in ranges: from a box's first
byte to its last, unless what lies between two of its rows is worth a call. Of arrays in chunks only
those are read and decoded that the box is in.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from iobench.errors import StoreError
from iobench.files.ranges import FileRange
from iobench.loaders.ring.log import StageStopwatch
from iobench.loaders.ring.object_reads import RangeViews, fill_objects
from iobench.loaders.ring.range_plan import CALL_NBYTES, REQUEST_NBYTES
from iobench.loaders.ring.read_ahead import are_cached, ask_for_ranges
from iobench.recording.kinds import Kind
from iobench.stores.extents import ExtentStore
from iobench.stores.fields import ChunkedArray, ChunkedDecoder, FieldLayout
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.contract import BoxReader, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.sample_patches import PatchCut, PatchSizes
    from iobench.loaders.ring.store_access import StoreAccess

SCRATCH_NBYTES: Final = 32 << 20
"""Whole samples of a store that are in memory at once to be cut, unless one is more."""
COPY_NBYTES: Final = 64 << 10
"""What copying one piece of a box is worth, beside its bytes: some 5 us."""
NEVER: Final = 1 << 62
"""What a call is worth where none is made."""
DECODE_FACTOR: Final = 5
"""Bytes that are copied while one is decompressed."""


class ChunkPiece(NamedTuple):
    """What a box takes of one chunk: which, where in it, and where in the box."""

    chunk: int
    inner: tuple[slice, ...]
    outer: tuple[slice, ...]


class ExtentArray(msgspec.Struct, frozen=True, eq=False):
    """Where one variable lies in an extent of each sample, in chunks of one shape."""

    extent: int  # which of a sample's extents
    cut: PatchCut  # what boxes take of it
    shape: tuple[int, ...]
    chunk: tuple[int, ...]  # of the array that the extent holds, and of its chunks
    start: int  # where in the extent the first chunk begins
    # (samples, chunks) of compressed chunks: their bytes
    lengths: NDArray[np.int64] | None = None

    @property
    def name(self) -> str:
        """The variable's."""
        return self.cut.variable.name

    @property
    def itemsize(self) -> int:
        """Bytes of a number, as stored."""
        return np.dtype(self.cut.variable.dtype).itemsize

    def cost(self, *, is_remote: bool) -> int:
        """Return what reading a box costs, in bytes; of the first corner."""
        pieces = list(self.pieces([0] * (1 + max(self.cut.columns, default=0))))
        piece_nbytes = REQUEST_NBYTES if is_remote else COPY_NBYTES
        if self.lengths is not None:
            chunk_nbytes = math.prod(self.chunk) * self.itemsize
            return len(pieces) * (piece_nbytes + (1 + DECODE_FACTOR) * chunk_nbytes)
        if not is_remote:
            return math.prod(self.cut.sizes) * self.itemsize + len(pieces) * piece_nbytes
        ranges = [self.spans(piece, REQUEST_NBYTES) for piece in pieces]
        return sum(len(spans.offsets) * (spans.nbytes + piece_nbytes) for spans in ranges)

    def pieces(self, corner: list[int]) -> Iterator[ChunkPiece]:
        """Yield what a box takes of each chunk that it touches."""
        starts, sizes = self.cut.starts(corner), self.cut.sizes
        if self.chunk == self.shape:
            inner = tuple(slice(at, at + n) for at, n in zip(starts, sizes, strict=True))
            yield ChunkPiece(0, inner, ())
            return
        grid = [-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True)]
        along = [
            range(at // c, (at + n - 1) // c + 1)
            for at, n, c in zip(starts, sizes, self.chunk, strict=True)
        ]
        for place in itertools.product(*along):
            number = 0
            within: list[slice] = []
            outer: list[slice] = []
            for p, n_chunks, c, at, n in zip(place, grid, self.chunk, starts, sizes, strict=True):
                number = number * n_chunks + p
                low, high = max(at, p * c), min(at + n, (p + 1) * c)
                within.append(slice(low - p * c, high - p * c))
                outer.append(slice(low - at, high - at))
            yield ChunkPiece(number, tuple(within), tuple(outer))

    def spans(self, piece: ChunkPiece, call_nbytes: int) -> PieceSpans:
        """Return the ranges of bytes of a chunk that are read for a piece of it."""
        itemsize = self.itemsize
        counts = [one.stop - one.start for one in piece.inner]
        strides = [math.prod(self.chunk[axis + 1 :]) * itemsize for axis in range(len(counts))]
        tails = [itemsize]  # from the first byte to the last, along this axis and all after it
        for count, stride in zip(counts[::-1], strides[::-1], strict=True):
            tails.insert(0, tails[0] + (count - 1) * stride)
        split = 0
        while split < len(counts) and (
            counts[split] == 1 or strides[split] - tails[split + 1] >= call_nbytes
        ):
            split += 1
        first = sum(one.start * stride for one, stride in zip(piece.inner, strides, strict=True))
        offsets = [
            first + sum(place * stride for place, stride in zip(index, strides, strict=False))
            for index in itertools.product(*map(range, counts[:split]))
        ]
        return PieceSpans(offsets, tails[split], tuple(counts), tuple(strides), split)


class PieceSpans(NamedTuple):
    """Ranges of bytes of a chunk, all as long: one for each index of some leading axes."""

    offsets: list[int]
    nbytes: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    split: int


class BoxRange(NamedTuple):
    """Bytes of a file, and what is made of them."""

    file: int
    offset: int
    nbytes: int
    # of the numbers there, strides as in the file; of those of a compressed chunk none
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    target: NDArray[Any]
    # the extent that decodes it; -1 where it is stored as memory has it
    coded: int = -1
    inner: tuple[slice, ...] = ()  # which of a decoded chunk's numbers are taken
    sample: int = -1


def find_arrays(access: StoreAccess, sizes: PatchSizes) -> list[ExtentArray] | None:
    """Return where the variables of a store lie; None where boxes are cut of whole samples.

    So they are where samples are encoded as a whole, with ``verify`` (a checksum is of a whole
    extent), and where reading in parts costs more.
    """
    store = access.store
    if access.checks is not None or not isinstance(store, ExtentStore) or not len(store):
        return None
    cuts = {v.name: sizes.cut(v) for v in store.manifest.spec if v.nbytes}
    layout = access.layout
    if layout is not None and not layout.varints:
        arrays = [
            ExtentArray(number, cut, cut.variable.shape, cut.variable.shape, part.start)
            for number, parts in enumerate(layout.extents)
            for part in parts
            if part.name
            for cut in (cuts[part.name],)
        ]
    elif layout is None and isinstance(store.decoder, ChunkedDecoder):
        decoder = store.decoder
        arrays = [
            ExtentArray(
                number, cuts[one.name], one.shape, one.chunk, 0, decoder.chunk_lengths(number)
            )
            for number, one in enumerate(decoder.chunked_arrays())
        ]
    else:
        return None
    whole_cost = sum(extent.nbytes for extent in store.extents(0)) + sizes.part.nbytes
    if any(one.lengths is not None for one in arrays):
        whole_cost += DECODE_FACTOR * store.manifest.spec.nbytes
    cost = sum(one.cost(is_remote=access.files is None) for one in arrays)
    return arrays if cost < whole_cost else None


class StoredBoxReader:
    """Fills rows with boxes of a store's samples.

    Samples that are laid out otherwise than the first one of the store are decoded whole, and cut.
    """

    def __init__(
        self,
        access: StoreAccess,
        sizes: PatchSizes,
        arrays: list[ExtentArray],
        whole: BoxReader,
    ) -> None:
        store = access.store
        assert isinstance(store, ExtentStore)
        self._store, self._table, self._files = store, store.table, access.files
        self._arrays, self._whole = arrays, whole
        self._decoder = store.decoder
        self._chunked: tuple[ChunkedArray, ...] = ()
        if isinstance(self._decoder, ChunkedDecoder):
            self._chunked = self._decoder.chunked_arrays()
        self._starts = {
            one.extent: np.cumsum(one.lengths, axis=1) - one.lengths
            for one in arrays
            if one.lengths is not None
        }
        self._packed = [
            (sizes.cut(v).part, v.packed) for v in store.manifest.spec if v.packed is not None
        ]
        self._lengths: NDArray[np.int64] | None = None
        self._around: list[tuple[int, int, bytes]] = []
        if access.layout is not None:
            self._lengths = np.array(access.layout.lengths, dtype=np.int64)
            self._around = _around(access.layout)
        self._expected = np.frombuffer(b"".join(each for *_, each in self._around), np.uint8)
        self._scratch: dict[object, NDArray[np.uint8]] = {}

    def fill(
        self, samples: NDArray[np.int64], rows: Rows, log: BatchLog, corners: NDArray[np.int64]
    ) -> None:
        """Fill ``rows``; see `BoxReader`."""
        watch = StageStopwatch(log)
        stored = dict(rows)
        for part, _ in self._packed:
            memory = self._memory(("packed", part.name), len(samples) * part.nbytes)
            stored[part.name] = memory.view(part.dtype).reshape(len(samples), *part.shape)
        fits = np.ones(len(samples), dtype=np.bool_)  # as the first sample of the store is laid out
        if self._lengths is not None:
            fits = (self._table.length[samples] == self._lengths).all(axis=1)
        fitting = np.flatnonzero(fits).tolist()
        around = self._memory("around", len(samples) * self._expected.size)
        around = around.reshape(len(samples), -1)
        order = sorted(fitting, key=lambda row: int(samples[row]))
        boxes = corners.tolist()

        def ranges(of_rows: Sequence[int], call_nbytes: int) -> Iterator[BoxRange]:
            for row in of_rows:
                sample = int(samples[row])
                yield from self._ranges(sample, boxes[row], row, stored, call_nbytes)
                yield from self._ranges_around(sample, around[row])

        if self._files is None:
            self._fetch(list(ranges(order, REQUEST_NBYTES)), watch)
        elif self._are_cached(order, ranges, self._files):
            self._copy(ranges(order, NEVER), self._files, watch)
        else:
            self._read(list(ranges(order, CALL_NBYTES)), self._files, watch)
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

    @staticmethod
    def _are_cached(order: Sequence[int], ranges: Any, files: FileSet) -> bool:
        ends = [next(ranges([row], NEVER)) for row in (*order[:1], *order[-1:])]
        return are_cached([(each.file, each.offset) for each in ends], files)

    def _ranges(
        self,
        sample: int,
        corner: list[int],
        row: int,
        stored: dict[str, NDArray[Any]],
        call_nbytes: int,
    ) -> Iterator[BoxRange]:
        """Yield the bytes that a box takes, and where they go."""
        files = self._table.file[sample].tolist()
        offsets = self._table.offset[sample].tolist()
        for array in self._arrays:
            file, start = files[array.extent], offsets[array.extent] + array.start
            whole = stored[array.name][row, ...].reshape(array.cut.sizes)
            for piece in array.pieces(corner):
                target = whole[piece.outer] if piece.outer else whole
                if array.lengths is not None:
                    at = start + int(self._starts[array.extent][sample, piece.chunk])
                    nbytes = int(array.lengths[sample, piece.chunk])
                    yield BoxRange(
                        file, at, nbytes, (), (), target, array.extent, piece.inner, sample
                    )
                    continue
                at = start + piece.chunk * math.prod(array.chunk) * array.itemsize
                spans = array.spans(piece, call_nbytes)
                shape, strides = spans.counts[spans.split :], spans.strides[spans.split :]
                indices = itertools.product(*map(range, spans.counts[: spans.split]))
                for index, offset in zip(indices, spans.offsets, strict=True):
                    place: Any = (*index, ...)
                    yield BoxRange(file, at + offset, spans.nbytes, shape, strides, target[place])

    def _ranges_around(self, sample: int, row: NDArray[np.uint8]) -> Iterator[BoxRange]:
        """Yield the bytes around variables, which say whether these lie as in the first sample."""
        column = 0
        for number, begin, expected in self._around:
            part = row[column : column + len(expected)]
            column += len(expected)
            file, offset = int(self._table.file[sample, number]), begin
            offset += int(self._table.offset[sample, number])
            yield BoxRange(file, offset, part.size, part.shape, (1,), part)

    def _put(self, one: BoxRange, buffer: Any, offset: int, watch: StageStopwatch) -> None:
        """Copy, or decode, the numbers that lie in a buffer."""
        target = one.target
        if one.coded < 0:
            target[...] = np.ndarray(one.shape, target.dtype, buffer, offset, one.strides)
            watch.end(Kind.READ, target.nbytes)
            return
        array = self._chunked[one.coded]
        chunk = self._memory("chunk", array.chunk_nbytes)
        data = memoryview(buffer)[offset : offset + one.nbytes]
        watch.end(Kind.READ, one.nbytes)
        assert isinstance(self._decoder, ChunkedDecoder)
        try:
            self._decoder.decode_chunk(one.coded, data, chunk)
        except StoreError as error:
            raise StoreError(f"{self._store.path}: sample {one.sample}: {error}") from error
        target[...] = chunk.view(array.dtype).reshape(array.chunk)[one.inner]
        watch.end(Kind.DECODE, one.nbytes)

    def _copy(self, ranges: Iterator[BoxRange], files: FileSet, watch: StageStopwatch) -> None:
        """Take ranges from the page cache."""
        watch.start()
        for one in ranges:
            mapped = files.mapped(one.file)
            if one.offset + one.nbytes > len(mapped):
                end = one.offset + one.nbytes
                raise files.opened(one.file).ends_early(len(mapped), end)
            self._put(one, mapped, one.offset, watch)

    def _read(self, ranges: Sequence[BoxRange], files: FileSet, watch: StageStopwatch) -> None:
        """Read ranges from disk, all of them asked for before."""
        watch.start()
        places = np.array([each[:3] for each in ranges], dtype=np.int64).reshape(-1, 3)
        ask_for_ranges(places[:, 0], places[:, 1], places[:, 1] + places[:, 2], files)
        for one in ranges:
            view = self._memory("read", one.nbytes).data
            files.opened(one.file).fill(view, one.offset)
            self._put(one, view, 0, watch)

    def _fetch(self, ranges: Sequence[BoxRange], watch: StageStopwatch) -> None:
        """Read ranges by requests, many at once."""
        watch.start()
        memory = self._memory("read", sum(one.nbytes for one in ranges)).data
        ends = list(itertools.accumulate(one.nbytes for one in ranges))
        fill_objects(
            self._table.files,
            [
                RangeViews(
                    FileRange(one.file, one.offset, one.nbytes), [memory[end - one.nbytes : end]]
                )
                for one, end in zip(ranges, ends, strict=True)
            ],
        )
        for one, end in zip(ranges, ends, strict=True):
            self._put(one, memory, end - one.nbytes, watch)

    def _memory(self, key: object, nbytes: int) -> NDArray[np.uint8]:
        """Return memory of this thread that is used again."""
        memory = self._scratch.get(key)
        if memory is None or memory.size < nbytes:
            memory = self._scratch[key] = np.empty(nbytes, dtype=np.uint8)
        return memory[:nbytes]

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
