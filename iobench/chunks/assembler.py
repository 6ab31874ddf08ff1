"""What a sample takes of stored variables: read, decoded, joined; what is shared is kept."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from iobench.chunks.boxes import (
    Box,
    box_ranges,
    contiguous_array,
    fits,
    join_chunks,
    page_chunks,
    places_touched,
)
from iobench.chunks.chunk_reading import StoredChunk, read_chunks
from iobench.chunks.chunked_variable import ChunkedVariable, Place, decode_chunk
from iobench.chunks.decode_counts import count_decoded, count_used
from iobench.chunks.decoded_chunks import ChunkRow
from iobench.files.memory import array_for_one_sample
from iobench.files.ranges import read_extents
from iobench.samples import SharedBytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.chunks.decoded_chunks import ChunkKey, DecodedChunk, DecodedChunks, Stored
    from iobench.files.ranges import FileRange


@functools.lru_cache(maxsize=1024)
def bundle_shape(
    chunk: Place, shape: Place, lengths: Place, axes: Place, dtype: str, nbytes: int
) -> Place:
    """Return the shape of the bundles of chunks that are kept as one.

    They are neighbours in all but the sample dimensions: the same samples need them. Where a sample
    takes a part of another dimension, each chunk is kept by itself.
    """
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
    """What a sample takes of a variable in chunks."""

    box: Box
    variable: ChunkedVariable  # that of the box; where samples share its pages, those as chunks
    key: str  # what tells it from other variables that samples of a file take
    # whether decoding takes work: numbers that lie as they are are no chunks to a user
    is_counted: bool

    @property
    def chunk(self) -> Place:
        """Shape of a chunk."""
        return self.variable.chunk

    def row(self, file: int, bundle_nbytes: int) -> ChunkRow:
        """Return which chunks its own are kept with."""
        box, variable, chunk = self.box, self.variable, self.chunk
        axes, start = box.axes, box.start
        if len(axes) == 1 and axes[0] >= 0:  # as most are; small samples feel it
            axis = axes[0]
            lengths: Place = (chunk[axis],)
            numbers: Place = (start[axis] // chunk[axis],)
        else:
            lengths = tuple([chunk[axis] if axis >= 0 else 0 for axis in axes])
            numbers = tuple([start[axis] // chunk[axis] if axis >= 0 else 0 for axis in axes])
        stored = variable.packing.stored
        bundle = bundle_shape(chunk, variable.shape, box.lengths, axes, stored, bundle_nbytes)
        return ChunkRow(-1 if box.of_all else file, self.key, lengths, numbers, bundle)

    def chunks_in(self, row: ChunkRow, place: Place) -> list[StoredChunk]:
        """Return the chunks of a bundle, in C order."""
        inside = places_touched(self.chunk, *self._ends(row.bundle, place))
        return [(self.box.file, self.variable, at) for at in inside]

    def _ends(self, bundle: Place, place: Place) -> tuple[Place, Place]:
        start = tuple(n * length for n, length in zip(place, bundle, strict=True))
        ends = zip(start, bundle, self.variable.shape, strict=True)
        return start, tuple(min(a + length, end) for a, length, end in ends)

    def joined(
        self, row: ChunkRow, bundles: dict[Place, DecodedChunk], out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return its numbers as stored; decodes the chunks that nobody has decoded yet.

        They are ``out``, if there is one and no other copy of them is kept; else those of one
        bundle are a part of what is kept, not to be written.
        """
        decode = functools.partial(self._decoded, row.bundle)
        start, stop = self.box.start, self.box.stop
        whole: NDArray[Any] | None = None
        target: NDArray[Any] | None = None
        if fits(out, self.box.shape, self.variable.packing.stored):
            assert out is not None
            target = out.reshape(self.box.lengths)
        if len(bundles) == 1:
            ((place, only),) = bundles.items()
            to_be = target if target is not None and target.shape == row.bundle else None
            whole = only.values(decode, to_be)
        values: NDArray[Any]
        if target is not None and whole is target:
            values = target
        elif whole is not None:
            firsts = map(operator.mul, place, row.bundle)
            ends = zip(firsts, start, stop, strict=True)
            values = whole[tuple(slice(a - first, b - first) for first, a, b in ends)]
        else:
            values = join_chunks(
                row.bundle, start, stop, lambda place, to_be: bundles[place].values(decode, to_be),
                dtype=self.variable.packing.stored, fill=self.variable.fill, out=target,
            )  # fmt: skip
        n_chunks = sum(bundle.n_chunks for bundle in bundles.values())
        if n_chunks and self.is_counted:
            count_used(values.nbytes, n_chunks)
        return out if out is not None and values is target else values.reshape(self.box.shape)

    def _decoded(
        self, bundle: Place, place: Place, stored: Stored, out: NDArray[Any] | None
    ) -> NDArray[Any] | None:
        """Return the numbers of a bundle; None where none of its chunks was ever written."""
        if all(content is None for content in stored):
            return None
        if len(stored) == 1:
            (at,) = places_touched(self.chunk, *self._ends(bundle, place))
            return self._chunk(at, stored[0], out)
        contents = iter(stored)
        return join_chunks(
            self.chunk, *self._ends(bundle, place),
            lambda at, to_be: self._chunk(at, next(contents), to_be),
            dtype=self.variable.packing.stored, fill=self.variable.fill, out=out,
        )  # fmt: skip

    def _chunk(
        self, place: Place, stored: memoryview | None, out: NDArray[Any] | None
    ) -> NDArray[Any] | None:
        if stored is None:
            return None
        if not self.is_counted:
            return self._as_it_lies(place, stored)
        values = decode_chunk(self.box.file, self.variable, place, stored, out)
        count_decoded(values.nbytes)
        return values

    def _as_it_lies(self, place: Place, stored: memoryview) -> NDArray[Any]:
        """Return the numbers of neighbouring pages; the last ones may be fewer."""
        ends = zip(place, self.chunk, self.variable.shape, strict=True)
        shape = [min(length, n - number * length) for number, length, n in ends]
        return np.frombuffer(stored, dtype=self.variable.packing.stored).reshape(shape)


class StoredArrays(SharedBytes, frozen=True):
    """What was read of the arrays of a sample."""

    # each returns one of the arrays that were asked for, as stored; told where it may be made
    decoders: Sequence[Callable[[NDArray[Any] | None], NDArray[Any]]]
    is_absent: bool = False  # whether a chunk was to be read that is not there

    def arrays(self, out: Sequence[NDArray[Any] | None] = ()) -> list[NDArray[Any]]:
        """Return the arrays as stored, in the order in which they were asked for.

        One that is a part of what is kept is not to be written; `unpack` returns a copy of it.
        One that could be decoded into its ``out`` is that.
        """
        return [each(to_be) for each, to_be in itertools.zip_longest(self.decoders, out)]


def read_boxes(cache: DecodedChunks, boxes: Sequence[Box], sample: tuple[int, ...]) -> StoredArrays:
    """Read what the boxes of a sample need and no thread has read or decoded already."""
    parts = [_part(box, cache) for box in boxes]
    plain = [box_ranges(b) if p is None else [] for b, p in zip(boxes, parts, strict=True)]
    ranges_alone = [each for ranges in plain for each in ranges]
    held, own, contiguous = _take(cache, [p for p in parts if p is not None], sample, ranges_alone)
    buffers = iter(contiguous)
    decoders: list[Callable[[NDArray[Any] | None], NDArray[Any]]] = []
    chunked = iter(held)
    for box, part, ranges in zip(boxes, parts, plain, strict=True):
        if part is None:
            decoders.append(functools.partial(plain_array, box, [next(buffers) for _ in ranges]))
        else:
            decoders.append(functools.partial(part.joined, *next(chunked)))
    absent = any(bundle.is_absent for _, bundles in held for bundle in bundles.values())
    return StoredArrays([*contiguous, *own], decoders, absent)


def plain_array(
    box: Box, stored: Sequence[memoryview], out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return the numbers of a box whose ranges were read for it alone."""
    if box.variable.is_contiguous:
        return contiguous_array(box, stored)
    return message_array(box, stored, out)


def message_array(box: Box, stored: Sequence[memoryview], out: NDArray[Any] | None) -> NDArray[Any]:
    """Return the numbers of a box of whole messages, each decoded straight into its place."""
    chunk = box.variable.chunk
    if out is None or not fits(out, box.shape, "=f4"):
        out = array_for_one_sample(box.shape, np.float32)
    places = places_touched(chunk, box.start, box.stop)
    values = out.reshape(len(stored), *chunk)
    for place, content, to_be in zip(places, stored, values, strict=True):
        decode_chunk(box.file, box.variable, place, content, to_be)
    return out


def _part(box: Box, cache: DecodedChunks) -> _Part | None:
    """Return what the box takes of what is kept: chunks, or shared pages; None of others.

    A message is of one sample as a rule: kept are those that others need, or that come again.
    """
    variable = box.variable
    if variable.is_contiguous:
        pages, is_counted = page_chunks(box), False
        if pages is None:
            return None
    elif variable.is_message and box.is_of_one and not cache.has_repeats:
        return None
    else:
        pages, is_counted = variable, True
    # A sample may take variables of the same name of two files.
    return _Part(box, pages, f"{variable.name} of {box.file}", is_counted)


_Held = tuple[ChunkRow, "dict[Place, DecodedChunk]"]


def _take(
    cache: DecodedChunks,
    parts: Sequence[_Part],
    sample: tuple[int, ...],
    ranges_alone: Sequence[FileRange[str]],
) -> tuple[list[_Held], list[memoryview], list[memoryview]]:
    """Return the bundles of each part, what was read for them, and what was read beside them."""
    if not parts:  # numbers that lie as they are
        return [], [], read_extents(ranges_alone) if ranges_alone else []
    contiguous: list[memoryview] = []

    def read(chunks: Sequence[StoredChunk]) -> list[memoryview | None]:
        contents_read, more = read_chunks(chunks, also=() if contiguous else ranges_alone)
        contiguous.extend(more)  # neighbours at once, whichever variable they are of
        return contents_read

    bundle_nbytes = cache.bundle_nbytes()
    rows = [part.row(sample[0], bundle_nbytes) for part in parts]
    places = [
        list(places_touched(row.bundle, part.box.start, part.box.stop))
        for part, row in zip(parts, rows, strict=True)
    ]
    part_of: dict[ChunkKey, _Part] = {
        (row, place): part
        for part, row, some in zip(parts, rows, places, strict=True)
        for place in some
    }

    def read_keys(keys: Sequence[ChunkKey]) -> Sequence[Stored]:
        chunks = [part_of[key].chunks_in(*key) for key in keys]
        contents = iter(read(list(itertools.chain.from_iterable(chunks))))
        return [list(itertools.islice(contents, len(some))) for some in chunks]

    bundles, own = cache.take(list(part_of), sample, read_keys) if part_of else ([], [])
    if ranges_alone and not contiguous:
        read(())
    held = dict(zip(part_of, bundles, strict=True))
    return (
        [(row, {at: held[row, at] for at in some}) for row, some in zip(rows, places, strict=True)],
        own,
        contiguous,
    )
