"""Patches of a store's samples, of which no more is read or decoded than they touch.

Numbers that are stored as memory has them are copied from the page cache straight to the batch,
row by row of the patch. What is not there, or lies elsewhere, is read in ranges: from a patch's
first byte to its last, unless what lies between two of its rows is worth a call. Of arrays in
chunks only those are read and decoded that the patch is in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iobench.errors import StoreError
from iobench.files.atomic import is_local
from iobench.files.ranges import FileRange
from iobench.loaders.ring.log import BatchLog, Laps
from iobench.loaders.ring.object_reads import RangeViews, fill_objects
from iobench.loaders.ring.patch_source import SCRATCH_NBYTES, CutSamples, PatchCut, PatchSizes
from iobench.loaders.ring.range_plan import CALL_NBYTES, REQUEST_NBYTES
from iobench.loaders.ring.read_ahead import are_cached, ask_for_ranges
from iobench.loaders.ring.store_source import StoreSource
from iobench.loaders.ring.wrapped_source import WrappedSource
from iobench.recording.kinds import Kind
from iobench.stores.extents import ExtentStore
from iobench.stores.fields import ChunkedArray, ChunkedDecoder, FieldLayout
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.contract import BatchSource, PatchFiller, Rows

COPY_NBYTES: Final = 64 << 10
"""What copying one piece of a patch is worth, beside its bytes: some 5 us."""
NEVER: Final = 1 << 62
"""What a call is worth where none is made."""
DECODE_FACTOR: Final = 5
"""Bytes that are copied while one is decompressed."""


def patches_of(source: BatchSource, sizes: PatchSizes) -> BatchSource:
    """Return patches of a source's samples, whose fillers are `PatchFiller`.

    Of a store no more is read than the patches touch, where their bytes can be found and that is
    cheaper; whole samples are made, and cut, of datasets, of what is encoded as a whole, with
    ``verify`` (a checksum is of a whole extent) and with ``direct``. ``choice`` says which.
    """
    if not isinstance(source, StoreSource):
        return CutSamples(source, sizes, f"{source.spec.nbytes} bytes of samples are made, and cut")
    nbytes = sum(extent.nbytes for extent in source.store.extents(0)) if len(source.store) else 0
    found = _held(source, sizes)
    if isinstance(found, str):
        why = f"samples are read whole, {nbytes} bytes for patches of {sizes.part.nbytes}: {found}"
        return CutSamples(source, sizes, why, SCRATCH_NBYTES)
    return StorePatches(source, sizes, found, nbytes)


def _held(source: StoreSource, sizes: PatchSizes) -> list[HeldArray] | str:
    """Return where the variables of a store lie; or why whole samples are read."""
    store = source.store
    if source.verify:
        return "with verify=True, since a checksum is of a whole extent"
    if source.direct:
        return "around the page cache"
    if not isinstance(store, ExtentStore) or not len(store):
        return "they are encoded"
    cuts = {
        variable.name: sizes.cut(variable) for variable in store.manifest.spec if variable.nbytes
    }
    if source.fields is not None:
        held = _plain(source.fields, cuts)
    elif isinstance(store.decoder, ChunkedDecoder):
        held = _chunked(store.decoder, cuts)
    else:
        return "they are encoded"
    is_here = is_local(store.path)
    extents = store.extents(0)
    whole_cost = sum(extent.nbytes for extent in extents) + sizes.part.nbytes
    cost = sum(one.cost(COPY_NBYTES if is_here else REQUEST_NBYTES, is_here) for one in held)
    if any(one.lengths is not None for one in held):
        whole_cost += DECODE_FACTOR * store.manifest.spec.nbytes
    if cost >= whole_cost:
        return "they are small, or patches touch nearly all"
    return held


def _plain(fields: FieldLayout, cuts: Mapping[str, PatchCut]) -> list[HeldArray]:
    return [
        HeldArray(number, cut, cut.variable.shape, cut.variable.shape, part.start)
        for number, parts in enumerate(fields.extents)
        for part in parts
        if part.name
        for cut in (cuts[part.name],)
    ]


def _chunked(decoder: ChunkedDecoder, cuts: Mapping[str, PatchCut]) -> list[HeldArray]:
    held = []
    for number, array in enumerate(decoder.chunked_arrays()):
        lengths = decoder.chunk_lengths(number)
        starts = None if lengths is None else np.cumsum(lengths, axis=1) - lengths
        held.append(
            HeldArray(
                number, cuts[array.name], array.shape, array.chunk, 0, lengths=lengths,
                starts=starts,
            )
        )  # fmt: skip
    return held


class PatchPiece(NamedTuple):
    """What a patch takes of one chunk: which, where in it, and where in the patch."""

    chunk: int
    inner: tuple[slice, ...]
    outer: tuple[slice, ...]


@dataclass(frozen=True, slots=True, eq=False)
class HeldArray:
    """Where one variable lies in an extent of each sample, in chunks of one shape."""

    extent: int  # which of a sample's extents
    cut: PatchCut  # what patches take of it
    shape: tuple[int, ...]
    chunk: tuple[int, ...]  # of the array that the extent holds, and of its chunks
    start: int  # where in the extent the first chunk begins
    # (samples, chunks): Of compressed chunks: their bytes, and where they begin
    lengths: NDArray[np.int64] | None = None
    starts: NDArray[np.int64] | None = None

    @property
    def name(self) -> str:
        """The variable's."""
        return self.cut.variable.name

    @property
    def itemsize(self) -> int:
        """Bytes of a number, as stored."""
        return np.dtype(self.cut.variable.dtype).itemsize

    def cost(self, piece_nbytes: int, is_here: bool) -> int:
        """Return what reading a patch costs, in bytes; of the first corner."""
        pieces = list(self.pieces([0] * (1 + max(self.cut.columns, default=0))))
        nbytes = math.prod(self.cut.sizes) * self.itemsize
        if self.lengths is not None:
            chunk_nbytes = math.prod(self.chunk) * self.itemsize
            return len(pieces) * (piece_nbytes + (1 + DECODE_FACTOR) * chunk_nbytes)
        if is_here:
            return nbytes + len(pieces) * piece_nbytes
        ranges = [self.spans(piece, REQUEST_NBYTES) for piece in pieces]
        return sum(len(spans.offsets) * (spans.nbytes + piece_nbytes) for spans in ranges)

    def pieces(self, corner: list[int]) -> Iterator[PatchPiece]:
        """Yield what a patch takes of each chunk that it touches."""
        starts, sizes = self.cut.starts(corner), self.cut.sizes
        if self.chunk == self.shape:
            inner = tuple(slice(at, at + n) for at, n in zip(starts, sizes, strict=True))
            yield PatchPiece(0, inner, ())
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
            yield PatchPiece(number, tuple(within), tuple(outer))

    def spans(self, piece: PatchPiece, call_nbytes: int) -> PieceSpans:
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


class Wanted(NamedTuple):
    """Bytes of a file, and what is made of them."""

    file: int
    offset: int
    nbytes: int
    shape: tuple[int, ...]
    """Of the numbers there, strides as in the file; of those of a compressed chunk all."""
    strides: tuple[int, ...]
    target: NDArray[Any]
    coded: int
    """The extent that decodes it; -1 where it is stored as memory has it."""
    inner: tuple[slice, ...]
    """Which of a decoded chunk's numbers are wanted."""
    sample: int


class StorePatches(WrappedSource):
    """Patches of a store's samples; see `patches_of`."""

    def __init__(
        self,
        source: StoreSource,
        sizes: PatchSizes,
        held: list[HeldArray],
        whole_nbytes: int,
    ) -> None:
        choice = (
            f"of {whole_nbytes} bytes of a sample no more is read than patches of "
            f"{sizes.part.nbytes} touch"
        )
        super().__init__(source, sizes.part, "patches", choice)
        self._store_source = source
        self._sizes = sizes
        self._held = held

    def filler(self) -> PatchFiller:
        """Return a filler for one more thread."""
        return _PatchReader(self._store_source, self._sizes, self._held)


class _PatchReader:
    def __init__(self, source: StoreSource, sizes: PatchSizes, held: list[HeldArray]) -> None:
        store = source.store
        assert isinstance(store, ExtentStore)
        self._source, self._sizes, self._held = source, sizes, held
        self._store, self._table = store, store.table
        self._files: FileSet | None = store.files if is_local(store.path) else None
        self._decoder = store.decoder
        self._arrays: tuple[ChunkedArray, ...] = ()
        if isinstance(self._decoder, ChunkedDecoder):
            self._arrays = self._decoder.chunked_arrays()
        self._packed = {v.name: v.packed for v in store.manifest.spec if v.packed is not None}
        self._lengths: NDArray[np.int64] | None = None
        self._around: list[tuple[int, int, bytes]] = []
        if source.fields is not None:
            self._lengths = np.array(source.fields.lengths, dtype=np.int64)
            self._around = _around(source.fields)
        self._whole = CutSamples(source, sizes, at_once_nbytes=SCRATCH_NBYTES).filler()
        self._rooms: dict[object, NDArray[np.uint8]] = {}

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill patches from the first corner on."""
        corners = np.zeros((len(samples), len(self._sizes.dims)), dtype=np.int64)
        self.fill_at(samples, corners, rows, log)

    def fill_at(
        self,
        samples: NDArray[np.int64],
        corners: NDArray[np.int64],
        rows: Rows,
        log: BatchLog,
    ) -> None:
        """Fill ``rows``; see `PatchFiller`."""
        laps = Laps(log)
        stored = dict(rows)
        for name in self._packed:
            part = self._sizes.cut(self._store.manifest.spec[name]).part
            room = self._room(("packed", name), len(samples) * part.nbytes)
            stored[name] = room.view(part.dtype).reshape(len(samples), *part.shape)
        fits = np.ones(len(samples), dtype=np.bool_)  # as the first sample of the store is laid out
        if self._lengths is not None:
            fits = (self._table.length[samples] == self._lengths).all(axis=1)
        fitting = np.flatnonzero(fits).tolist()
        around = self._room("around", len(samples) * sum(len(each) for _, _, each in self._around))
        around = around.reshape(len(samples), -1)
        order = sorted(fitting, key=lambda row: int(samples[row]))
        boxes = corners.tolist()

        def wanted(rows_wanted: Sequence[int], call_nbytes: int) -> Iterator[Wanted]:
            for row in rows_wanted:
                yield from self._wanted(
                    int(samples[row]), boxes[row], row, stored, around, call_nbytes
                )

        if self._files is None:
            self._fetch(list(wanted(order, REQUEST_NBYTES)), laps)
        elif self._is_cached([next(wanted([row], NEVER)) for row in (*order[:1], *order[-1:])]):
            self._copy(wanted(order, NEVER), self._files, laps)
        else:
            self._read(list(wanted(order, CALL_NBYTES)), self._files, laps)
        if self._around:
            expected = np.frombuffer(b"".join(each for _, _, each in self._around), np.uint8)
            fits[fitting] = (around[fitting] == expected).all(axis=1)
        for name, packed in self._packed.items():
            for row in fitting:
                unpack(stored[name][row], packed, rows[name][row])
            laps.end(Kind.DECODE, stored[name].nbytes)
        laps.emit()
        for row in np.flatnonzero(~fits).tolist():
            one = slice(row, row + 1)
            here = {name: values[one] for name, values in rows.items()}
            self._whole.fill_at(samples[one], corners[one], here, log)

    def _wanted(
        self,
        sample: int,
        corner: list[int],
        row: int,
        stored: Mapping[str, NDArray[Any]],
        around: NDArray[np.uint8],
        call_nbytes: int,
    ) -> Iterator[Wanted]:
        """Yield the bytes that a patch takes, and where they go."""
        files = self._table.file[sample].tolist()
        offsets = self._table.offset[sample].tolist()
        for held in self._held:
            file, start = files[held.extent], offsets[held.extent] + held.start
            whole = stored[held.name][row, ...].reshape(held.cut.sizes)
            for piece in held.pieces(corner):
                target = whole[piece.outer] if piece.outer else whole
                if held.lengths is not None and held.starts is not None:
                    at = start + int(held.starts[sample, piece.chunk])
                    nbytes = int(held.lengths[sample, piece.chunk])
                    yield Wanted(file, at, nbytes, (), (), target, held.extent, piece.inner, sample)
                    continue
                at = start + piece.chunk * math.prod(held.chunk) * held.itemsize
                spans = held.spans(piece, call_nbytes)
                shape, strides = spans.counts[spans.split :], spans.strides[spans.split :]
                indices = itertools.product(*map(range, spans.counts[: spans.split]))
                for index, offset in zip(indices, spans.offsets, strict=True):
                    place: Any = (*index, ...)
                    part = target[place]
                    yield Wanted(
                        file, at + offset, spans.nbytes, shape, strides, part, -1, (), sample
                    )
        column = 0
        for number, begin, expected in self._around:
            part = around[row, column : column + len(expected)]
            column += len(expected)
            yield Wanted(
                files[number],
                offsets[number] + begin,
                part.size,
                part.shape,
                (1,),
                part,
                -1,
                (),
                sample,
            )

    def _is_cached(self, some: Sequence[Wanted]) -> bool:
        assert self._files is not None
        return are_cached([(each.file, each.offset) for each in some], self._files)

    def _put(self, one: Wanted, buffer: Any, offset: int, laps: Laps) -> None:
        """Copy, or decode, the numbers that lie in a buffer."""
        target = one.target
        if one.coded < 0:
            view = np.ndarray(one.shape, target.dtype, buffer, offset, one.strides)
            target[...] = view
            laps.end(Kind.READ, target.nbytes)
            return
        array = self._arrays[one.coded]
        chunk = self._room("chunk", array.chunk_nbytes)
        data = memoryview(buffer)[offset : offset + one.nbytes]
        laps.end(Kind.READ, one.nbytes)
        assert isinstance(self._decoder, ChunkedDecoder)
        try:
            self._decoder.decode_chunk(one.coded, data, chunk)
        except StoreError as error:
            raise StoreError(f"{self._store.path}: sample {one.sample}: {error}") from error
        target[...] = chunk.view(array.dtype).reshape(array.chunk)[one.inner]
        laps.end(Kind.DECODE, one.nbytes)

    def _copy(self, wanted: Iterator[Wanted], files: FileSet, laps: Laps) -> None:
        """Take what is wanted from the page cache."""
        laps.start()
        for one in wanted:
            mapped = files.mapped(one.file)
            if one.offset + one.nbytes > len(mapped):
                end = one.offset + one.nbytes
                raise files.opened(one.file).ends_early(len(mapped), end)
            self._put(one, mapped, one.offset, laps)

    def _read(self, wanted: Sequence[Wanted], files: FileSet, laps: Laps) -> None:
        """Read what is wanted from disk, all of it asked for before."""
        laps.start()
        places = np.array([each[:3] for each in wanted], dtype=np.int64).reshape(-1, 3)
        ask_for_ranges(places[:, 0], places[:, 1], places[:, 1] + places[:, 2], files)
        for one in wanted:
            view = self._room("read", one.nbytes).data
            files.opened(one.file).fill(view, one.offset)
            self._put(one, view, 0, laps)

    def _fetch(self, wanted: Sequence[Wanted], laps: Laps) -> None:
        """Read what is wanted by requests, many at once."""
        laps.start()
        memory = self._room("read", sum(one.nbytes for one in wanted)).data
        ranges, at = [], 0
        for one in wanted:
            ranges.append(
                RangeViews(
                    FileRange(one.file, one.offset, one.nbytes), [memory[at : at + one.nbytes]]
                )
            )
            at += one.nbytes
        fill_objects(self._table.files, ranges, in_flight=self._source.in_flight)
        at = 0
        for one in wanted:
            self._put(one, memory, at, laps)
            at += one.nbytes

    def _room(self, key: object, nbytes: int) -> NDArray[np.uint8]:
        """Return memory of this thread that is used again."""
        room = self._rooms.get(key)
        if room is None or room.size < nbytes:
            room = self._rooms[key] = np.empty(nbytes, dtype=np.uint8)
        return room[:nbytes]

    def close(self) -> None:
        """Let memory go."""
        self._rooms.clear()
        self._whole.close()


def _around(fields: FieldLayout) -> list[tuple[int, int, bytes]]:
    """Return which extents have bytes around variables that say where these lie, and where."""
    found = []
    for number, left in enumerate(fields.around or ()):
        at = 0
        for part in fields.extents[number]:
            if not part.name:
                found.append((number, part.start, left[at : at + part.nbytes]))
                at += part.nbytes
    return found
