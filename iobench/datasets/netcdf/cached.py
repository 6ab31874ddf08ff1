"""Slabs of NetCDF variables read and decoded apart, with chunks that samples share kept decoded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.decoded_chunks import ChunkRow, count_decoded
from iobench.datasets.extents import read_extents
from iobench.datasets.netcdf.storage import (
    Chunked,
    decoded_chunk,
    slab_array,
    slab_extents,
    slab_of_chunks,
    slab_places,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.datasets.decoded_chunks import ChunkKey, DecodedChunk, DecodedChunks
    from iobench.datasets.netcdf.storage import Slab

__all__ = ["SlabBytes", "read_slabs", "stored_slabs"]


@dataclass(frozen=True, slots=True, eq=False)
class _SlabPart:
    """A slab, and its bytes (of a contiguous variable) or its chunks that were written."""

    slab: Slab
    buffers: Sequence[memoryview]
    chunks: Sequence[DecodedChunk]


class SlabBytes(list[memoryview]):
    """What was read for slabs: nothing of chunks that were kept, or that others read."""

    def __init__(
        self, content: Sequence[memoryview], sample: tuple[int, int], parts: Sequence[_SlabPart]
    ) -> None:
        super().__init__(content)
        self.sample = sample
        self.parts = tuple(parts)


def read_slabs(kept: DecodedChunks, slabs: Sequence[Slab], sample: tuple[int, int]) -> SlabBytes:
    """Read what the slabs of a sample need and no thread has read or decoded already.

    Parameters
    ----------
    kept : DecodedChunks
        Of the source.
    slabs : sequence of Slab
        Of one file.
    sample : (int, int)
        Number of the file, index along the sample dimension.
    """
    keys: list[ChunkKey] = []
    storages: dict[str, tuple[Slab, Chunked]] = {}
    n_chunks = []
    plain = [slab_extents(slab) if not isinstance(slab.storage, Chunked) else [] for slab in slabs]
    for slab in slabs:
        before = len(keys)
        if isinstance(storage := slab.storage, Chunked):
            storages[slab.name] = slab, storage
            length = storage.chunk[slab.axis] if slab.axis >= 0 else 0
            number = slab.index // length if length else 0
            row = ChunkRow(sample[0], slab.name, length, number)
            keys += [
                (row, place) for place in slab_places(slab, storage) if storage.offsets[place] >= 0
            ]
        n_chunks.append(len(keys) - before)
    flat = [extent for extents in plain for extent in extents]
    contiguous: list[memoryview] = []

    def read(wanted: Sequence[ChunkKey]) -> list[memoryview]:
        extents = list(flat) if not contiguous else []
        for row, place in wanted:
            slab, storage = storages[row.variable]
            extents.append((slab.file, int(storage.offsets[place]), int(storage.nbytes[place])))
        found = read_extents(extents)
        n_flat = len(extents) - len(wanted)
        contiguous.extend(found[:n_flat])
        return found[n_flat:]

    chunks, own = kept.take(keys, sample, read) if keys else ([], [])
    if flat and not contiguous:
        read(())
    parts, first, next_plain = [], 0, 0
    for slab, extents, count in zip(slabs, plain, n_chunks, strict=True):
        buffers = contiguous[next_plain : next_plain + len(extents)]
        parts.append(_SlabPart(slab, buffers, chunks[first : first + count]))
        first, next_plain = first + count, next_plain + len(extents)
    return SlabBytes([*contiguous, *own], sample, parts)


def stored_slabs(raw: SlabBytes) -> list[NDArray[Any]]:
    """Return the numbers of each slab as stored; decodes the chunks that nobody has decoded yet.

    Raises
    ------
    FileFormatError
        If a chunk cannot be inflated, has a wrong size or checksum: names file and variable.
    """
    return [_stored_slab(part) for part in raw.parts]


def _stored_slab(part: _SlabPart) -> NDArray[Any]:
    slab, storage = part.slab, part.slab.storage
    if not isinstance(storage, Chunked):
        return slab_array(slab, part.buffers)

    def decode(place: tuple[int, ...], stored: memoryview | None) -> NDArray[Any]:
        assert stored is not None  # none is asked for that was never written
        return decoded_chunk(slab, storage, place, stored)

    remaining = iter(part.chunks)
    values = slab_of_chunks(slab, storage, lambda _: next(remaining).values(decode))
    if part.chunks:
        count_decoded(used_nbytes=math.prod(slab.slab_shape) * np.dtype(slab.stored).itemsize)
    return values
