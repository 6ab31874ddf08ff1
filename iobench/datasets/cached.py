"""What a sample takes of arrays in chunks: read, decoded, joined; shared ones are kept decoded."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.decoded_chunks import ChunkRow, count_decoded, count_used
from iobench.samples import SharedBytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.decoded_chunks import (
        ChunkKey,
        DecodedChunk,
        DecodedChunks,
        Stored,
    )

__all__ = [
    "ChunkedPart",
    "Place",
    "StoredArrays",
    "join_chunks",
    "places_touched",
    "read_parts",
]

Place = tuple[int, ...]
"""Where a chunk is in the grid of chunks."""


def places_touched(chunk: Place, start: Place, stop: Place) -> Iterator[Place]:
    """Yield the places of the chunks that hold a range along each dimension, in C order."""
    ends = zip(start, stop, chunk, strict=True)
    return itertools.product(*(range(a // length, -(-b // length)) for a, b, length in ends))


def join_chunks(
    chunk: Place,
    start: Place,
    stop: Place,
    chunk_at: Callable[[Place], NDArray[Any] | None],
    *,
    dtype: str | np.dtype[Any],
    fill: Any,
) -> NDArray[Any]:
    """Return a range along each dimension of an array in chunks, as a new array.

    Parameters
    ----------
    chunk : tuple of int
        Shape of a chunk.
    start, stop : tuple of int
        Ends of the range, inside the array.
    chunk_at : callable
        Returns the numbers of the chunk at a place, asked in C order; None where there is none.
    dtype, fill : dtype, number
        Of the result; what it holds where there is no chunk.
    """
    values = np.empty([b - a for a, b in zip(start, stop, strict=True)], dtype=dtype)
    overlaps = []
    for a, b, length in zip(start, stop, chunk, strict=True):
        firsts = range(a // length * length, b, length)
        ends = [(first, max(first, a), min(first + length, b)) for first in firsts]
        overlaps.append([(slice(c - a, d - a), slice(c - n, d - n)) for n, c, d in ends])
    both = itertools.product(*overlaps)
    for place, pairs in zip(places_touched(chunk, start, stop), both, strict=True):
        found = chunk_at(place)
        target = tuple(pair[0] for pair in pairs)
        values[target] = fill if found is None else found[tuple(pair[1] for pair in pairs)]
    return values


@functools.lru_cache(maxsize=1024)
def brick_shape(chunk: Place, shape: Place, axis: int, n_chunks: int) -> Place:
    """Return the shape of the bricks of chunks that are kept as one.

    They are neighbours in all but the sample dimension: the same samples need them.

    Parameters
    ----------
    chunk, shape : tuple of int
        Shape of a chunk and of the array.
    axis : int
        The sample dimension; -1 where the array lacks it.
    n_chunks : int
        How many there may be in one.
    """
    brick = list(chunk)
    for each in reversed(range(len(chunk))):
        fitting = min(n_chunks, -(-shape[each] // chunk[each]))
        if each != axis and fitting > 1:
            brick[each] *= fitting
            n_chunks //= fitting
    return tuple(brick)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkedPart:
    """What a sample takes of an array in chunks.

    Parameters
    ----------
    source : object
        The array, for whoever reads its chunks.
    name : str
        What tells it from other arrays that samples of a file take.
    array_shape, chunk, start, stop : tuple of int
        Shape of the array and of a chunk; which range the sample takes.
    shape : tuple of int
        Of the sample's array, which may lack dimensions of length one.
    axis : int
        The sample dimension; -1 where the array lacks it.
    of_all : bool
        Whether the array is in a file that samples of all files need.
    dtype, fill : str, number
        Of the numbers as stored; what never written chunks hold.
    decode : callable
        Makes the numbers of the chunk at a place of its stored bytes.
    is_counted : bool
        Whether that takes work: stretches of numbers that lie as they are are no chunks to a user.
    """

    source: Any
    name: str
    array_shape: Place
    chunk: Place
    start: Place
    stop: Place
    shape: Place
    axis: int
    of_all: bool
    dtype: str
    fill: Any
    decode: Callable[[Place, memoryview], NDArray[Any]]
    is_counted: bool = True

    def brick(self, nbytes: int) -> Place:
        """Return the shape of what is kept as one: a chunk where the sample takes only some."""
        ends = enumerate(zip(self.start, self.stop, self.array_shape, strict=True))
        if not all(each == self.axis or (a == 0 and b == n) for each, (a, b, n) in ends):
            return self.chunk
        n_chunks = nbytes // max(1, math.prod(self.chunk) * np.dtype(self.dtype).itemsize)
        return brick_shape(self.chunk, self.array_shape, self.axis, n_chunks)

    def row(self, file: int, brick_nbytes: int) -> ChunkRow:
        """Return which chunks its own are kept with."""
        length = self.chunk[self.axis] if self.axis >= 0 else 0
        number = self.start[self.axis] // length if length else 0
        return ChunkRow(
            -1 if self.of_all else file, self.name, length, number, self.brick(brick_nbytes)
        )

    def chunks_in(self, row: ChunkRow, place: Place) -> list[Place]:
        """Return the places of the chunks of a brick, in C order."""
        return list(places_touched(self.chunk, *self._ends(row.brick, place)))

    def _ends(self, brick: Place, place: Place) -> tuple[Place, Place]:
        start = tuple(n * length for n, length in zip(place, brick, strict=True))
        ends = zip(start, brick, self.array_shape, strict=True)
        return start, tuple(min(a + length, end) for a, length, end in ends)

    def joined(self, row: ChunkRow, bricks: dict[Place, DecodedChunk]) -> NDArray[Any]:
        """Return its numbers as stored; decodes the chunks that nobody has decoded yet."""
        decode = functools.partial(self._decoded, row.brick)
        values = join_chunks(
            row.brick, self.start, self.stop, lambda place: bricks[place].values(decode),
            dtype=self.dtype, fill=self.fill,
        )  # fmt: skip
        n_chunks = sum(brick.n_chunks for brick in bricks.values())
        if n_chunks and self.is_counted:
            count_used(values.nbytes, n_chunks)
        return values.reshape(self.shape)

    def _decoded(self, brick: Place, place: Place, stored: Stored) -> NDArray[Any] | None:
        """Return the numbers of a brick; None where none of its chunks was ever written."""
        if all(content is None for content in stored):
            return None
        if len(stored) == 1:
            (at,) = places_touched(self.chunk, *self._ends(brick, place))
            return self._chunk(at, stored[0])
        contents = iter(stored)
        return join_chunks(
            self.chunk, *self._ends(brick, place), lambda at: self._chunk(at, next(contents)),
            dtype=self.dtype, fill=self.fill,
        )  # fmt: skip

    def _chunk(self, place: Place, stored: memoryview | None) -> NDArray[Any] | None:
        if stored is None:
            return None
        values = self.decode(place, stored)
        if self.is_counted:
            count_decoded(values.nbytes)
        return values


@dataclass(frozen=True, slots=True)
class StoredArrays(SharedBytes):
    """What was read of the arrays of a sample.

    Parameters
    ----------
    decoders : sequence of callable
        Each returns one of the arrays that were asked for, as stored.
    is_absent : bool
        Whether a chunk was to be read that is not there.
    """

    decoders: Sequence[Callable[[], NDArray[Any]]]
    is_absent: bool = False

    def arrays(self) -> list[NDArray[Any]]:
        """Return the arrays as stored, in the order in which they were asked for.

        Raises
        ------
        FileFormatError
            If a chunk cannot be decoded, has a wrong size or checksum: names file and array.
        """
        return [each() for each in self.decoders]


def read_parts(
    kept: DecodedChunks,
    parts: Sequence[ChunkedPart],
    sample: tuple[int, int],
    read: Callable[[Sequence[tuple[ChunkedPart, Place]]], Sequence[memoryview | None]],
) -> StoredArrays:
    """Read what the parts of a sample need and no thread has read or decoded already.

    Parameters
    ----------
    kept : DecodedChunks
        Of the source.
    parts : sequence of ChunkedPart
        Of one file, but for those that are ``of_all``. Several may share chunks.
    sample : (int, int)
        Number of the file, index along the sample dimension.
    read : callable
        Returns the stored bytes of chunks, None of those that were never written.
    """
    brick_nbytes = kept.brick_nbytes()
    rows = [part.row(sample[0], brick_nbytes) for part in parts]
    places = [
        list(places_touched(row.brick, part.start, part.stop))
        for part, row in zip(parts, rows, strict=True)
    ]
    wanted: dict[ChunkKey, ChunkedPart] = {
        (row, place): part
        for part, row, some in zip(parts, rows, places, strict=True)
        for place in some
    }

    def read_wanted(keys: Sequence[ChunkKey]) -> Sequence[Stored]:
        chunks = [[(wanted[key], at) for at in wanted[key].chunks_in(*key)] for key in keys]
        contents = iter(read(list(itertools.chain.from_iterable(chunks))))
        return [list(itertools.islice(contents, len(some))) for some in chunks]

    bricks, own = kept.take(list(wanted), sample, read_wanted) if wanted else ([], [])
    held = dict(zip(wanted, bricks, strict=True))
    decoders = [
        functools.partial(part.joined, row, {place: held[row, place] for place in some})
        for part, row, some in zip(parts, rows, places, strict=True)
    ]
    return StoredArrays(own, decoders, any(brick.is_absent for brick in bricks))
