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
from iobench.chunks.chunk_reading import read_chunks
from iobench.chunks.chunked_variable import ChunkedVariable, Place, decode_chunk
from iobench.chunks.decode_counts import count_decoded, count_used
from iobench.chunks.decoded_chunks import ChunkRow
from iobench.files.memory import array_for_one_sample
from iobench.files.ranges import read_extents
from iobench.samples import SharedBytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.chunks.decoded_chunks import ChunkKey, DecodedChunk, DecodedChunks, Stored

Decoder = Callable[["NDArray[Any] | None"], "NDArray[Any]"]
"""Returns an array of a sample as stored; told where it may be made."""


class StoredArrays(SharedBytes, frozen=True):
    """What was read of the arrays of a sample."""

    decoders: Sequence[Decoder]
    is_absent: bool = False  # whether a chunk was to be read that is not there

    def arrays(self, out: Sequence[NDArray[Any] | None] = ()) -> list[NDArray[Any]]:
        """Return the arrays as stored, in the order in which they were asked for.

        One that is a part of what is kept is not to be written; `unpack` returns a copy of it.
        One that could be decoded into its ``out`` is that.
        """
        return [each(target) for each, target in itertools.zip_longest(self.decoders, out)]


def read_boxes(cache: DecodedChunks, boxes: Sequence[Box], sample: tuple[int, ...]) -> StoredArrays:
    """Read what the boxes of a sample need and no thread has read or decoded already."""
    parts = [_part(box, cache, sample[0]) for box in boxes]
    plain = [[] if part else box_ranges(box) for box, part in zip(boxes, parts, strict=True)]
    beside = list(itertools.chain.from_iterable(plain))
    part_of: dict[ChunkKey, _Part] = {
        (part.row, place): part for part in parts if part for place in part.places
    }
    buffers: list[memoryview] = []

    def read(keys: Sequence[ChunkKey]) -> list[Stored]:
        chunks = [part_of[key].chunks_in(key[1]) for key in keys]
        wanted = list(itertools.chain.from_iterable(chunks))
        found, more = read_chunks(wanted, also=() if buffers else beside)
        buffers.extend(more)  # neighbours at once, whichever variable they are of
        contents = iter(found)
        return [list(itertools.islice(contents, len(some))) for some in chunks]

    bundles, own = cache.take(list(part_of), sample, read) if part_of else ([], [])
    if beside and not buffers:
        buffers.extend(read_extents(beside))
    held = dict(zip(part_of, bundles, strict=True))
    rest = iter(buffers)
    decoders: list[Decoder] = []
    for box, part, ranges in zip(boxes, parts, plain, strict=True):
        if part is None:
            decoders.append(functools.partial(_plain_array, box, [next(rest) for _ in ranges]))
        else:
            own_bundles = {place: held[part.row, place] for place in part.places}
            decoders.append(functools.partial(part.joined, own_bundles))
    return StoredArrays([*buffers, *own], decoders, any(each.is_absent for each in bundles))


def _plain_array(
    box: Box, stored: Sequence[memoryview], out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return the numbers of a box whose ranges were read for it alone: rows, or whole messages."""
    if box.variable.is_contiguous:
        return contiguous_array(box, stored)
    if out is None or not fits(out, box.shape, "=f4"):
        out = array_for_one_sample(box.shape, np.float32)
    chunk = box.variable.chunk
    places = places_touched(chunk, box.start, box.stop)
    values = out.reshape(len(stored), *chunk)
    for place, content, target in zip(places, stored, values, strict=True):
        decode_chunk(box.file, box.variable, place, content, target)
    return out


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


def _part(box: Box, cache: DecodedChunks, file: int) -> _Part | None:
    """Return what a box takes of what is kept: chunks, or shared pages; None of others.

    A message is of one sample as a rule: kept are those that others need, or that come again.
    """
    variable: ChunkedVariable | None = box.variable
    if box.variable.is_contiguous:
        variable = page_chunks(box)
    elif box.variable.is_message and box.is_of_one and not cache.has_repeats:
        variable = None
    if variable is None:
        return None
    chunk, start = variable.chunk, box.start
    lengths = tuple([chunk[axis] if axis >= 0 else 0 for axis in box.axes])
    numbers = tuple([start[axis] // chunk[axis] if axis >= 0 else 0 for axis in box.axes])
    bundle = bundle_shape(
        chunk, variable.shape, box.lengths, box.axes, variable.packing.stored, cache.bundle_nbytes()
    )
    # A sample may take variables of the same name of two files.
    name = f"{variable.name} of {box.file}"
    row = ChunkRow(-1 if box.of_all else file, name, lengths, numbers, bundle)
    return _Part(box, variable, row, list(places_touched(bundle, start, box.stop)))


class _Part(NamedTuple):
    """What a sample takes of a variable in chunks."""

    box: Box
    variable: ChunkedVariable  # that of the box; where samples share its pages, those as chunks
    row: ChunkRow
    places: list[Place]  # of the bundles in the grid of such

    def chunks_in(self, place: Place) -> list[tuple[str, ChunkedVariable, Place]]:
        """Return the chunks of a bundle, in C order."""
        inside = places_touched(self.variable.chunk, *self._ends(place))
        return [(self.box.file, self.variable, at) for at in inside]

    def _ends(self, place: Place) -> tuple[Place, Place]:
        start = tuple(map(operator.mul, place, self.row.bundle))
        ends = zip(start, self.row.bundle, self.variable.shape, strict=True)
        return start, tuple([min(a + length, end) for a, length, end in ends])

    def joined(
        self, bundles: dict[Place, DecodedChunk], out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return its numbers as stored; decodes the chunks that nobody has decoded yet.

        They are ``out``, if there is one and no other copy of them is kept; else those of one
        bundle are a part of what is kept, not to be written.
        """
        box, dtype = self.box, self.variable.packing.stored
        target, values = None, None
        if out is not None and fits(out, box.shape, dtype):
            target = out.reshape(box.lengths)
        if len(bundles) == 1:
            is_whole = target is not None and target.shape == self.row.bundle
            (only,) = bundles.values()
            values = only.values(self._decoded, target if is_whole else None)
            if values is not None and values is not target:
                firsts = map(operator.mul, self.places[0], self.row.bundle)
                ends = zip(firsts, box.start, box.stop, strict=True)
                values = values[tuple(slice(a - first, b - first) for first, a, b in ends)]
        if values is None:
            values = join_chunks(
                self.row.bundle, box.start, box.stop,
                lambda place, to_be: bundles[place].values(self._decoded, to_be),
                dtype=dtype, fill=self.variable.fill, out=target,
            )  # fmt: skip
        n_chunks = sum(bundle.n_chunks for bundle in bundles.values())
        if n_chunks and not self.variable.is_cut:
            count_used(values.nbytes, n_chunks)
        return out if out is not None and values is target else values.reshape(box.shape)

    def _decoded(
        self, place: Place, stored: Stored, out: NDArray[Any] | None
    ) -> NDArray[Any] | None:
        """Return the numbers of a bundle; None where none of its chunks was ever written."""
        variable, contents = self.variable, iter(stored)

        def decoded(at: Place, to_be: NDArray[Any] | None) -> NDArray[Any] | None:
            if (content := next(contents)) is None:
                return None
            values = decode_chunk(self.box.file, variable, at, content, to_be)
            if not variable.is_cut:
                count_decoded(values.nbytes)
            return values

        if all(content is None for content in stored):
            return None
        start, stop = self._ends(place)
        if len(stored) == 1:
            (at,) = places_touched(variable.chunk, start, stop)
            return decoded(at, out)
        return join_chunks(
            variable.chunk, start, stop, decoded,
            dtype=variable.packing.stored, fill=variable.fill, out=out,
        )  # fmt: skip
