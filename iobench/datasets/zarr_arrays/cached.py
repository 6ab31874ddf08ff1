"""Cuts of Zarr arrays read and decoded apart, with chunks that samples share kept decoded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.decoded_chunks import ChunkRow, count_decoded
from iobench.datasets.zarr_arrays.chunks import (
    cut_of_chunks,
    cut_places,
    decode_stored_chunk,
    read_chunks,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.datasets.decoded_chunks import ChunkKey, DecodedChunk, DecodedChunks
    from iobench.datasets.zarr_arrays.chunks import Cut

__all__ = ["CutBytes", "read_cuts", "stored_cut"]


@dataclass(frozen=True, slots=True, eq=False)
class CutPart:
    """A cut, and its chunks."""

    cut: Cut
    chunks: Sequence[DecodedChunk]


class CutBytes(list[memoryview]):
    """What was read for cuts: nothing of chunks that were kept, or that others read."""

    def __init__(self, content: Sequence[memoryview], parts: Sequence[CutPart]) -> None:
        super().__init__(content)
        self.parts = tuple(parts)


def read_cuts(kept: DecodedChunks, cuts: Sequence[Cut], sample: tuple[int, int]) -> CutBytes:
    """Read what the cuts of a sample need and no thread has read or decoded already.

    Parameters
    ----------
    kept : DecodedChunks
        Of the source.
    cuts : sequence of Cut
        Of one store.
    sample : (int, int)
        Number of the store, index along the sample dimension.
    """
    keys: list[ChunkKey] = []
    variables = {cut.variable.name: cut.variable for cut in cuts}
    counts = []
    for cut in cuts:
        places = cut_places(cut)
        chunking = cut.variable.chunking
        length = chunking.codecs.shape[cut.axis] if chunking and cut.axis >= 0 else 0
        row = ChunkRow(sample[0], cut.variable.name, length, cut.index // length if length else 0)
        keys += [(row, place) for place in places]
        counts.append(len(places))

    def read(wanted: Sequence[ChunkKey]) -> list[memoryview | None]:
        places: dict[str, list[tuple[int, ...]]] = {}
        for row, place in wanted:
            places.setdefault(row.variable, []).append(place)
        contents = {name: iter(read_chunks(variables[name], at)) for name, at in places.items()}
        return [next(contents[row.variable]) for row, _ in wanted]

    chunks, own = kept.take(keys, sample, read)
    parts, first = [], 0
    for cut, count in zip(cuts, counts, strict=True):
        parts.append(CutPart(cut, chunks[first : first + count]))
        first += count
    return CutBytes(own, parts)


def stored_cut(part: CutPart) -> NDArray[Any]:
    """Return the numbers of a cut as stored; decodes the chunks that nobody has decoded yet.

    Raises
    ------
    FileFormatError
        If a chunk cannot be decoded, has a wrong size or checksum: names store, array and chunk.
    """
    variable = part.cut.variable

    def decode(place: tuple[int, ...], stored: memoryview | None) -> NDArray[Any] | None:
        return None if stored is None else decode_stored_chunk(variable, place, stored)

    remaining = iter(part.chunks)
    used = math.prod(part.cut.shape) * np.dtype(variable.dtype).itemsize
    count_decoded(used_nbytes=used)
    values = cut_of_chunks(part.cut, lambda _: next(remaining).values(decode))
    # What is kept is for the next sample as well: nobody gets hold of it.
    return values if values.flags.writeable else values.copy()
