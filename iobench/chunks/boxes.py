"""Boxes of stored variables, a range along each dimension: their bytes, and their numbers.

What samples share of chunks is read and decoded once, and kept; see `DecodedChunks`.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from iobench.chunks.chunked_variable import (
    ChunkedVariable,
    Place,
    check_known,
    chunk_range,
    decode_chunk,
    read_chunks,
)
from iobench.chunks.decoded_chunks import ChunkRow, count_decoded, count_used
from iobench.chunks.packing import unpack
from iobench.files.memory import array_for_one_sample
from iobench.files.ranges import FileRange, fill_extents, read_extents
from iobench.samples import SharedBytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from iobench.chunks.decoded_chunks import ChunkKey, DecodedChunk, DecodedChunks, Stored

Decoder = Callable[["NDArray[Any] | None"], "NDArray[Any]"]
"""Returns an array of a sample as stored; told where it may be made."""

PICK_NBYTES: Final = 4096
"""Rows of a box shorter than this are read with what lies between them: fewer system calls cost
less than the bytes they save."""
IN_PLACE_NBYTES: Final = 1 << 16
"""Rows no shorter than this are read to where they belong: of others copying costs less."""
SHARED_PAGES_NBYTES: Final = 1 << 20
"""About so much of a contiguous variable is kept as one where samples share its pages."""


class Box(NamedTuple):
    """A range along each dimension of a stored variable."""

    file: str  # the file or store
    variable: ChunkedVariable  # with where its numbers lie in ``file``
    start: tuple[int, ...]
    stop: tuple[int, ...]  # one per dimension, not empty, inside the variable's shape
    # the sample dimensions, the slowest first; -1 of one that the variable lacks
    axes: tuple[int, ...] = ()
    of_all: bool = False  # whether the file is one that samples of all files need
    # whether the array lacks the sample dimensions, of which the box has one index each
    drops_axes: bool = False

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths along the dimensions of the variable."""
        return tuple(map(operator.sub, self.stop, self.start))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that is made of it."""
        return self.shape_of(self.lengths)

    def shape_of(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the array for the box's `lengths`, where they are at hand."""
        if not self.drops_axes:
            return lengths
        return tuple([length for axis, length in enumerate(lengths) if axis not in self.axes])


def index_box(
    file: str, variable: ChunkedVariable, axes: tuple[int, ...] = (), indexes: Sequence[int] = ()
) -> Box:
    """Return one index of a variable along each of its sample dimensions; of axis -1 it lacks."""
    check_known(file, variable)
    start, stop = [0] * len(variable.shape), list(variable.shape)
    for axis, index in zip(axes, indexes, strict=True):
        if axis >= 0:
            start[axis], stop[axis] = index, index + 1
    return Box(file, variable, tuple(start), tuple(stop), axes, False, True)


# -- numbers that lie as they are ----------------------------------------------------------------


class _Rows(NamedTuple):
    """Where the rows of a box lie, whichever variable of this shape it is of."""

    dtype: np.dtype[Any]
    strides: Place  # bytes between neighbours along each dimension
    # what is read: where each begins, from the first number of the box on
    starts: tuple[int, ...]
    nbytes: int  # of each
    shape: Place  # of the numbers that each holds
    is_whole: bool  # whether no others lie between them


@functools.lru_cache(maxsize=256)
def _rows(dtype: str, shape: Place, lengths: Place) -> _Rows:
    """Return where the rows of a box lie: found out once, not for each sample."""
    kind = np.dtype(dtype)
    strides = [kind.itemsize] * (len(shape) + 1)
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis]  # of the next outer dimension
    inner = tuple(strides[1:])
    if 0 in lengths:
        return _Rows(kind, inner, (), 0, lengths, True)
    first = len(shape)
    while first > 0 and lengths[first - 1] == shape[first - 1]:
        first -= 1
    row = first = max(first - 1, 0)  # the dimension along which a row is a part
    if shape and inner[row] * lengths[row] < PICK_NBYTES:
        while first > 0 and (first == row or lengths[first] == shape[first]):
            first -= 1
    starts = [0]
    for outer in range(first):
        starts = [at + n * inner[outer] for at in starts for n in range(lengths[outer])]
    pairs = zip(lengths[first:], inner[first:], strict=True)
    nbytes = sum((n - 1) * stride for n, stride in pairs) + kind.itemsize
    is_whole = nbytes == math.prod(lengths[first:]) * kind.itemsize
    return _Rows(kind, inner, tuple(starts), nbytes, lengths[first:], is_whole)


def box_ranges(box: Box) -> list[FileRange[str]]:
    """Return the ranges of the file that a box needs, in C order: rows, or the chunks there are."""
    file, variable = box.file, box.variable
    if not variable.is_contiguous:
        places = places_touched(variable.chunk, box.start, box.stop)
        extents = (chunk_range(file, variable, place) for place in places)
        return [each for each in extents if each is not None]
    if variable.offset < 0:
        return []
    rows = _rows(variable.packing.stored, variable.shape, box.lengths)
    first = variable.offset + sum(map(operator.mul, box.start, rows.strides))
    return [FileRange(file, first + start, rows.nbytes) for start in rows.starts]


class IndexRow(NamedTuple):
    """Where numbers lie that are a part of the file, for any index along the sample dimensions."""

    offset: int  # of index 0
    steps: tuple[int, ...]  # bytes from an index to the next, 0 along what the variable lacks
    nbytes: int
    dtype: np.dtype[Any]
    shape: Place

    def at(self, file: str, indexes: Sequence[int]) -> FileRange[str]:
        """Return the range of the file."""
        return FileRange(
            file, self.offset + sum(map(operator.mul, self.steps, indexes)), self.nbytes
        )

    def array(self, content: memoryview) -> NDArray[Any]:
        """Return the numbers as stored."""
        return np.frombuffer(content, self.dtype).reshape(self.shape)


def index_row(variable: ChunkedVariable, axes: Place) -> IndexRow | None:
    """Return where an index of a variable lies; None where it is no part of the file."""
    if not variable.is_contiguous or variable.offset < 0:
        return None
    lengths = tuple([1 if axis in axes else n for axis, n in enumerate(variable.shape)])
    rows = _rows(variable.packing.stored, variable.shape, lengths)
    if not rows.is_whole or len(rows.starts) != 1:
        return None
    shape = tuple([n for axis, n in enumerate(lengths) if axis not in axes])
    steps = tuple([rows.strides[axis] if axis >= 0 else 0 for axis in axes])
    return IndexRow(variable.offset, steps, rows.nbytes, rows.dtype, shape)


def rows_in_place(
    out: NDArray[Any] | None, shape: Place, dtype: np.dtype[Any], nbytes: int
) -> list[memoryview]:
    """Return the rows of an array, to be read as they lie; none where it has to be copied."""
    if out is None or nbytes < IN_PLACE_NBYTES or not out.ndim or not fits(out, shape, dtype):
        return []
    whole = out.data.cast("B")
    return [whole[at : at + nbytes] for at in range(0, len(whole), nbytes)]


def _contiguous_array(box: Box, buffers: Sequence[memoryview]) -> NDArray[Any]:
    """Return a box's numbers as stored, from the bytes of its `box_ranges`."""
    lengths, packing = box.lengths, box.variable.packing
    if not buffers:
        return np.full(box.shape_of(lengths), box.variable.fill, dtype=packing.stored)
    rows = _rows(packing.stored, box.variable.shape, lengths)
    if rows.is_whole:
        # Joining takes a third less time than copying row by row.
        content = buffers[0] if len(buffers) == 1 else bytearray().join(buffers)
        return np.frombuffer(content, rows.dtype).reshape(box.shape_of(lengths))
    values = array_for_one_sample((len(buffers), *rows.shape), rows.dtype)
    strides = rows.strides[len(lengths) - len(rows.shape) :]
    for target, buffer in zip(values, buffers, strict=True):
        target[...] = np.ndarray(rows.shape, rows.dtype, buffer, 0, strides)
    return values.reshape(box.shape_of(lengths))


@functools.lru_cache(maxsize=1024)
def in_chunks(
    variable: ChunkedVariable, axes: Place, *, only_shared: bool = False
) -> ChunkedVariable | None:
    """Return contiguous numbers as chunks of some that lie together; the last ones are shorter."""
    shape, itemsize = variable.shape, np.dtype(variable.packing.stored).itemsize
    last = max(axes, default=-1)
    row_nbytes = math.prod(shape[last + 1 :]) * itemsize
    is_short = row_nbytes < PICK_NBYTES and last > 0
    if only_shared:
        n_rows = math.prod(n for axis, n in enumerate(shape[: max(last, 0)]) if axis not in axes)
        if not is_short or row_nbytes == 0 or n_rows < 2 or variable.offset < 0:
            return None
    whole = len(shape) and (last if is_short else last + 1)
    chunk = [1] * whole + list(shape[whole:])
    nbytes = math.prod(chunk) * itemsize
    for axis in reversed(range(whole)):
        chunk[axis] = max(1, min(shape[axis], SHARED_PAGES_NBYTES // max(1, nbytes)))
        nbytes *= chunk[axis]
        if chunk[axis] < shape[axis]:
            break
    offsets = np.array(variable.offset, dtype=np.int64)
    sizes = np.array(itemsize, dtype=np.int64)
    for axis, (length, n) in enumerate(zip(chunk, shape, strict=True)):
        along = np.arange(0, n, max(1, length))
        offsets = offsets[..., None] + along * math.prod(shape[axis + 1 :]) * itemsize
        sizes = sizes[..., None] * np.minimum(length, n - along)
    if variable.offset < 0:  # never written
        offsets[...] = -1
    return replace(
        variable, chunk=tuple(chunk), offset=-1, offsets=offsets, sizes=sizes, is_cut=True
    )


# -- numbers in chunks ---------------------------------------------------------------------------


def places_touched(chunk: Place, start: Place, stop: Place) -> Iterator[Place]:
    """Yield the places of the chunks that hold a range along each dimension, in C order."""
    ends = zip(start, stop, chunk, strict=True)
    return itertools.product(*(range(a // length, -(-b // length)) for a, b, length in ends))


def parts_touched(
    chunk: Place, start: Sequence[int], stop: Sequence[int]
) -> Iterator[tuple[tuple[int, slice, slice], ...]]:
    """Yield of the same chunks along each dimension the place, and what of the range is there.

    That is a slice of the range, and one of the chunk.
    """
    overlaps = []
    for a, b, length in zip(start, stop, chunk, strict=True):
        firsts = range(a // length * length, b, length)
        ends = [(first, max(first, a), min(first + length, b)) for first in firsts]
        overlaps.append(
            [(n // length, slice(c - a, d - a), slice(c - n, d - n)) for n, c, d in ends]
        )
    return itertools.product(*overlaps)


def fits(out: NDArray[Any] | None, shape: Place, dtype: str | np.dtype[Any]) -> bool:
    """Return whether an array of this shape and dtype can be made in ``out``."""
    return (
        out is not None
        and out.shape == shape
        and out.dtype == dtype
        and out.flags.c_contiguous
        and out.flags.writeable
    )


def _joined(
    box: Box,
    chunk: Place,
    chunk_at: Callable[[Place, NDArray[Any] | None], NDArray[Any] | None],
    out: NDArray[Any] | None,
) -> NDArray[Any]:
    """Return a box's numbers as stored, from chunks or bundles of them; in ``out`` if it fits."""
    dtype, is_usable = (
        box.variable.packing.stored,
        fits(out, box.shape, box.variable.packing.stored),
    )
    if out is not None and is_usable:
        values = out.reshape(box.lengths)
    else:
        values = array_for_one_sample(box.lengths, dtype)
    for parts in parts_touched(chunk, box.start, box.stop):
        place, outer, inner = zip(*parts, strict=True) if parts else ((), ..., ())
        target = values[outer]  # a number is an array, too
        decoded = chunk_at(place, target if fits(target, chunk, values.dtype) else None)
        if decoded is None:
            target[...] = box.variable.fill
        elif decoded is not target:
            target[...] = decoded[inner]
    return out if out is not None and is_usable else values.reshape(box.shape)


def _stored_array(
    box: Box, stored: Sequence[memoryview | None], out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return a box's numbers as stored, from the bytes of its chunks."""
    variable, contents = box.variable, iter(stored)

    def decoded(place: Place, to_be: NDArray[Any] | None) -> NDArray[Any] | None:
        if (content := next(contents)) is None:
            return None
        return decode_chunk(box.file, variable, place, content, to_be)

    return _joined(box, variable.chunk, decoded, out)


def _plain_array(
    box: Box, stored: Sequence[memoryview], out: NDArray[Any] | None = None
) -> NDArray[Any]:
    if box.variable.is_contiguous:
        return _contiguous_array(box, stored)
    return _stored_array(box, stored, out)


def read_stored_box(box: Box) -> NDArray[Any]:
    """Return the numbers of a box as stored."""
    file, variable = box.file, box.variable
    if variable.is_contiguous:
        return _contiguous_array(box, read_extents(box_ranges(box)))
    places = places_touched(variable.chunk, box.start, box.stop)
    return _stored_array(box, read_chunks([(file, variable, place) for place in places]))


def read_box(box: Box) -> NDArray[Any]:
    """Return the numbers of a box unpacked, equal to what xarray decodes; raises as above."""
    return unpack(read_stored_box(box), box.variable.packing)


# -- samples, with what they share ---------------------------------------------------------------


class StoredArrays(SharedBytes, frozen=True):
    """What was read of the arrays of a sample."""

    decoders: Sequence[Decoder]
    is_absent: bool = False  # whether a chunk was to be read that is not there

    def arrays(self, out: Sequence[NDArray[Any] | None] = ()) -> list[NDArray[Any]]:
        """Return the arrays as stored, in the order in which they were asked for."""
        return [each(target) for each, target in itertools.zip_longest(self.decoders, out)]


def read_boxes(
    cache: DecodedChunks,
    boxes: Sequence[Box],
    sample: tuple[int, ...],
    out: Sequence[NDArray[Any] | None] = (),
) -> StoredArrays:
    """Read what the boxes of a sample need and no thread has read or decoded already.

    Numbers are read into ``out`` where they lie there as in the file.
    """
    parts = [_part(box, cache, sample[0]) for box in boxes]
    plain = [[] if part else box_ranges(box) for box, part in zip(boxes, parts, strict=True)]
    in_place: dict[int, list[memoryview]] = {}
    for number, (array, box, ranges) in enumerate(zip(out, boxes, plain, strict=False)):
        if ranges and box.variable.is_contiguous:
            rows = _rows(box.variable.packing.stored, box.variable.shape, box.lengths)
            nbytes = rows.nbytes if rows.is_whole else 0
            if views := rows_in_place(array, box.shape, rows.dtype, nbytes):
                fill_extents(ranges, views)
                in_place[number], plain[number] = views, []
    buffers = read_extents(list(itertools.chain.from_iterable(plain)))
    part_of: dict[ChunkKey, _Part] = {
        (part.row, place): part for part in parts if part for place in part.places
    }

    def read(keys: Sequence[ChunkKey]) -> list[Stored]:
        chunks = [part_of[key].chunks_in(key[1]) for key in keys]
        contents = iter(read_chunks(list(itertools.chain.from_iterable(chunks))))
        return [list(itertools.islice(contents, len(some))) for some in chunks]

    bundles, own = cache.take(list(part_of), sample, read) if part_of else ([], [])
    held = dict(zip(part_of, bundles, strict=True))
    rest = iter(buffers)
    decoders: list[Decoder] = []
    for number, (box, part, ranges) in enumerate(zip(boxes, parts, plain, strict=True)):
        if number in in_place:
            decoders.append(functools.partial(_as_read, out[number]))
        elif part is None:
            stored = [next(rest) for _ in ranges]
            decoders.append(functools.partial(_plain_array, box, stored))
        else:
            own_bundles = {place: held[part.row, place] for place in part.places}
            decoders.append(functools.partial(part.joined, own_bundles))
    every = [*buffers, *own, *itertools.chain.from_iterable(in_place.values())]
    return StoredArrays(every, decoders, any(each.is_absent for each in bundles))


def _as_read(values: Any, out: NDArray[Any] | None = None) -> Any:
    """Return numbers that lie where they belong."""
    return values


@functools.lru_cache(maxsize=1024)
def _bundle_shape(
    chunk: Place, shape: Place, lengths: Place, axes: Place, dtype: str, nbytes: int
) -> Place:
    """Return the shape of the bundles of chunks that are kept as one."""
    if any(each not in axes and lengths[each] < shape[each] for each in range(len(shape))):
        return chunk
    n_chunks = nbytes // max(1, math.prod(chunk) * np.dtype(dtype).itemsize)
    bundle = list(chunk)
    for each in reversed(range(len(chunk))):
        fitting = min(n_chunks, -(-shape[each] // chunk[each]))
        if each not in axes and fitting > 1:
            bundle[each] *= fitting
            n_chunks //= fitting
    return tuple(bundle)


class _Part(NamedTuple):
    """What a sample takes of a variable in chunks, or of one whose pages samples share."""

    box: Box
    variable: ChunkedVariable  # that of the box; where samples share its pages, those as chunks
    row: ChunkRow
    places: list[Place]  # of the bundles in the grid of such

    def bundle(self, place: Place) -> Box:
        """Return a bundle whole."""
        start = tuple(map(operator.mul, place, self.row.bundle))
        ends = zip(start, self.row.bundle, self.variable.shape, strict=True)
        return Box(self.box.file, self.variable, start, tuple([min(a + n, b) for a, n, b in ends]))

    def chunks_in(self, place: Place) -> list[tuple[str, ChunkedVariable, Place]]:
        """Return the chunks of a bundle, in C order."""
        file, variable, start, stop, *_ = self.bundle(place)
        return [(file, variable, at) for at in places_touched(variable.chunk, start, stop)]

    def joined(
        self, bundles: dict[Place, DecodedChunk], out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return its numbers as stored, in ``out`` or not to be written; decodes what is left."""
        box, bundle = self.box, self.row.bundle
        n_chunks = sum(each.n_chunks for each in bundles.values())
        if n_chunks and not self.variable.is_cut:
            itemsize = np.dtype(self.variable.packing.stored).itemsize
            count_used(math.prod(box.lengths) * itemsize, n_chunks)
        if len(bundles) == 1:
            is_whole = box.lengths == bundle and fits(out, box.shape, self.variable.packing.stored)
            target = out.reshape(bundle) if out is not None and is_whole else None
            (only,) = bundles.values()
            values = only.values(self._decoded, target)
            if out is not None and target is not None and values is target:
                return out
            if values is not None:
                firsts = map(operator.mul, self.places[0], bundle)
                ends = zip(firsts, box.start, box.stop, strict=True)
                part = values[tuple(slice(a - first, b - first) for first, a, b in ends)]
                return part.reshape(box.shape)
        return _joined(
            box, bundle, lambda place, to_be: bundles[place].values(self._decoded, to_be), out
        )

    def _decoded(
        self, place: Place, stored: Stored, out: NDArray[Any] | None
    ) -> NDArray[Any] | None:
        """Return the numbers of a bundle; None where none of its chunks was ever written."""
        variable, n_chunks = self.variable, sum(content is not None for content in stored)
        if not n_chunks:
            return None
        if not variable.is_cut:
            count_decoded(n_chunks * variable.chunk_nbytes, n_chunks)
        bundle = self.bundle(place)
        if len(stored) == 1 and stored[0] is not None:
            (at,) = places_touched(variable.chunk, bundle.start, bundle.stop)
            return decode_chunk(bundle.file, variable, at, stored[0], out)
        return _stored_array(bundle, stored, out)


def _part(box: Box, cache: DecodedChunks, file: int) -> _Part | None:
    """Return what a box takes of what is kept: chunks, or shared pages; None of others."""
    variable: ChunkedVariable | None = box.variable
    axes, start = box.axes, box.start
    if box.variable.is_contiguous:
        variable = in_chunks(box.variable, axes, only_shared=True) if box.drops_axes else None
    elif box.variable.is_message and axes and min(axes) >= 0 and not cache.has_repeats:
        variable = None
    if variable is None:
        return None
    chunk = variable.chunk
    lengths = tuple([chunk[axis] if axis >= 0 else 0 for axis in axes])
    numbers = tuple([start[axis] // chunk[axis] if axis >= 0 else 0 for axis in axes])
    bundle = _bundle_shape(
        chunk, variable.shape, box.lengths, axes, variable.packing.stored, cache.bundle_nbytes()
    )
    # A sample may take variables of the same name of two files.
    name = f"{variable.name} of {box.file}"
    row = ChunkRow(-1 if box.of_all else file, name, lengths, numbers, bundle)
    return _Part(box, variable, row, list(places_touched(bundle, start, box.stop)))
