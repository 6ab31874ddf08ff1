"""What a sample takes of arrays in chunks: read, decoded, joined; shared ones are kept decoded."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.decoded_chunks import ChunkRow, count_decoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.decoded_chunks import (
        ChunkKey,
        Decode,
        DecodedChunk,
        DecodedChunks,
        Stored,
    )

__all__ = ["ChunkedPart", "PartBytes", "Place", "join_chunks", "places_touched", "read_parts"]

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


@dataclass(frozen=True, slots=True, eq=False)
class ChunkedPart:
    """What a sample takes of an array in chunks.

    Parameters
    ----------
    source : object
        The array, for whoever reads its chunks.
    name : str
        What tells it from other arrays that samples of a file take.
    chunk, start, stop : tuple of int
        Shape of a chunk; which range the sample takes.
    shape : tuple of int
        Of the sample's array, which may lack dimensions of length one.
    axis : int
        The sample dimension; -1 where the array lacks it.
    of_all : bool
        Whether the array is in a file that samples of all files need.
    dtype, fill : str, number
        Of the numbers as stored; what never written chunks hold.
    places : sequence of Place
        The chunks to read; the others were never written.
    decode : callable
        Makes the numbers of one.
    """

    source: Any
    name: str
    chunk: Place
    start: Place
    stop: Place
    shape: tuple[int, ...]
    axis: int
    of_all: bool
    dtype: str
    fill: Any
    places: Sequence[Place]
    decode: Decode

    def row(self, file: int) -> ChunkRow:
        """Return which chunks its own are kept with."""
        length = self.chunk[self.axis] if self.axis >= 0 else 0
        number = self.start[self.axis] // length if length else 0
        return ChunkRow(-1 if self.of_all else file, self.name, length, number)

    def joined(self, chunks: dict[Place, DecodedChunk]) -> NDArray[Any]:
        """Return its numbers as stored; decodes the chunks that nobody has decoded yet."""

        def chunk_at(place: Place) -> NDArray[Any] | None:
            found = chunks.get(place)
            return None if found is None else found.values(self.decode)

        values = join_chunks(
            self.chunk, self.start, self.stop, chunk_at, dtype=self.dtype, fill=self.fill
        )
        if chunks:
            count_decoded(used_nbytes=values.nbytes)
        return values.reshape(self.shape)


class PartBytes(list[memoryview]):
    """What was read for a sample: nothing of chunks that were kept, or that others read.

    Parameters
    ----------
    content : sequence of memoryview
        The bytes.
    sample : (int, int)
        Number of the file, index along the sample dimension.
    decoders : sequence of callable
        Each returns one of the arrays that were asked for, as stored.
    is_absent : bool
        Whether a chunk was to be read that is not there.

    Attributes
    ----------
    about : object
        What whoever decodes it needs besides.
    """

    def __init__(
        self,
        content: Sequence[memoryview],
        sample: tuple[int, int],
        decoders: Sequence[Callable[[], NDArray[Any]]],
        *,
        is_absent: bool = False,
    ) -> None:
        super().__init__(content)
        self.sample = sample
        self.is_absent = is_absent
        self.about: Any = None
        self.decoders = decoders

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
    read: Callable[[Sequence[tuple[ChunkedPart, Place]]], Sequence[Stored]],
) -> PartBytes:
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
        Returns the stored bytes of chunks.
    """
    rows = [part.row(sample[0]) for part in parts]
    wanted: dict[ChunkKey, tuple[ChunkedPart, Place]] = {}
    for part, row in zip(parts, rows, strict=True):
        for place in part.places:
            wanted[row, place] = part, place

    def read_wanted(keys: Sequence[ChunkKey]) -> Sequence[Stored]:
        return read([wanted[key] for key in keys])

    chunks, own = kept.take(list(wanted), sample, read_wanted) if wanted else ([], [])
    held = dict(zip(wanted, chunks, strict=True))
    decoders = [
        functools.partial(part.joined, {place: held[row, place] for place in part.places})
        for part, row in zip(parts, rows, strict=True)
    ]
    return PartBytes(own, sample, decoders, is_absent=any(chunk.is_absent for chunk in chunks))
