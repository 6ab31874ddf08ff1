"""Where NetCDF variables lie in their file, and how stored bytes become arrays."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.codec_chain import ChunkCodecs, DamagedChunkError, decode_chunk
from iobench.datasets.cached import join_chunks, places_touched
from iobench.errors import FileFormatError
from iobench.files.ranges import FileRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


__all__ = [
    "Chunked",
    "Contiguous",
    "Slab",
    "Storage",
    "chunk_extents",
    "chunks_array",
    "codecs_of",
    "decoded_chunk",
    "naming_chunk",
    "slab_array",
    "slab_extents",
    "stretch_array",
    "stretches",
]

PICK_NBYTES = 4096
"""Stretches of a strided slab shorter than this are read with what lies between them."""

STRETCH_NBYTES = 1 << 20
"""About so much of a contiguous variable is kept as one where samples share its pages."""


@dataclass(frozen=True, slots=True)
class Contiguous:
    """One stretch of the file in C order; ``offset`` -1: never written, all fill value."""

    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Chunked:
    """Chunks of one shape, each a stretch of the file.

    Parameters
    ----------
    chunk : tuple of int
        Shape of a chunk.
    filters : tuple of str
        What was applied to a chunk when writing, in this order: see `iobench.chunks.codec_chain`.
    offsets, nbytes, masks : ndarray, shape of the grid of chunks
        Where each chunk is (-1: never written), its stored size, and as bits the filters that
        were left out for it.
    """

    chunk: tuple[int, ...]
    filters: tuple[str, ...]
    offsets: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    masks: NDArray[np.uint32]


Storage = Contiguous | Chunked


@dataclass(frozen=True, slots=True, eq=False)
class Slab:
    """One index along ``axis`` of a stored variable; ``axis`` -1: all of it.

    Parameters
    ----------
    file, name : str
        The file and the variable, for reading and for messages.
    shape : tuple of int
        Of the whole variable.
    stored : str
        dtype on disk, with byte order.
    fill : number
        What never written parts hold.
    """

    file: str
    name: str
    shape: tuple[int, ...]
    stored: str
    fill: Any
    storage: Storage
    axis: int
    index: int

    @property
    def slab_shape(self) -> tuple[int, ...]:
        """Shape of the slab: the variable's without ``axis``."""
        if self.axis < 0:
            return self.shape
        return self.shape[: self.axis] + self.shape[self.axis + 1 :]

    @property
    def start(self) -> tuple[int, ...]:
        """First index along each dimension of the variable."""
        return tuple(self.index if axis == self.axis else 0 for axis in range(len(self.shape)))

    @property
    def stop(self) -> tuple[int, ...]:
        """Behind the last index along each dimension of the variable."""
        ends = enumerate(self.shape)
        return tuple(self.index + 1 if axis == self.axis else end for axis, end in ends)


def slab_extents(slab: Slab) -> list[FileRange[str]]:
    """Return the stretches of the file that the slab needs, in the order `slab_array` takes."""
    if isinstance(slab.storage, Contiguous):
        return _contiguous_extents(slab, slab.storage)
    return chunk_extents(slab.file, slab.storage, slab.start, slab.stop)


def chunk_extents(
    file: str, storage: Chunked, start: tuple[int, ...], stop: tuple[int, ...]
) -> list[FileRange[str]]:
    """Return where the chunks lie that hold a range along each dimension, if they were written."""
    return [
        FileRange(file, int(storage.offsets[place]), int(storage.nbytes[place]))
        for place in places_touched(storage.chunk, start, stop)
        if storage.offsets[place] >= 0
    ]


def slab_array(slab: Slab, buffers: Sequence[memoryview]) -> NDArray[Any]:
    """Return the slab's numbers as stored, from the bytes of its extents.

    Raises
    ------
    FileFormatError
        If a chunk cannot be inflated, has a wrong size or checksum: names file and variable.
    """
    storage = slab.storage
    if isinstance(storage, Contiguous):
        return _contiguous_array(slab, buffers)
    return chunks_array(slab, storage, slab.start, slab.stop, buffers).reshape(slab.slab_shape)


def chunks_array(
    slab: Slab,
    storage: Chunked,
    start: tuple[int, ...],
    stop: tuple[int, ...],
    buffers: Sequence[memoryview],
) -> NDArray[Any]:
    """Return a range along each dimension of a slab's variable, from its `chunk_extents`' bytes."""
    remaining = iter(buffers)

    def chunk_at(place: tuple[int, ...]) -> NDArray[Any] | None:
        if storage.offsets[place] < 0:
            return None
        return decoded_chunk(slab, storage, place, next(remaining))

    return join_chunks(storage.chunk, start, stop, chunk_at, dtype=slab.stored, fill=slab.fill)


def _strides(slab: Slab) -> tuple[int, int, int]:
    """Return how many stretches a slab of a contiguous variable has, their length and distance."""
    itemsize = np.dtype(slab.stored).itemsize
    if slab.axis < 0:
        return 1, math.prod(slab.shape) * itemsize, 0
    inner = math.prod(slab.shape[slab.axis + 1 :]) * itemsize
    return math.prod(slab.shape[: slab.axis]), inner, inner * slab.shape[slab.axis]


def _contiguous_extents(slab: Slab, storage: Contiguous) -> list[FileRange[str]]:
    n_stretches, length, distance = _strides(slab)
    if storage.offset < 0 or n_stretches == 0 or length == 0:
        return []
    start = storage.offset + max(slab.index, 0) * length
    if n_stretches > 1 and length < PICK_NBYTES:
        return [FileRange(slab.file, start, (n_stretches - 1) * distance + length)]
    return [FileRange(slab.file, start + n * distance, length) for n in range(n_stretches)]


def _contiguous_array(slab: Slab, buffers: Sequence[memoryview]) -> NDArray[Any]:
    n_stretches, length, distance = _strides(slab)
    if not buffers:
        return np.full(slab.slab_shape, slab.fill, dtype=slab.stored)
    if len(buffers) == 1 and n_stretches > 1:
        span = np.frombuffer(buffers[0], dtype=np.uint8)
        picked = np.lib.stride_tricks.as_strided(span, (n_stretches, length), (distance, 1))
        return np.ascontiguousarray(picked).view(slab.stored).reshape(slab.slab_shape)
    if len(buffers) == 1:
        return np.frombuffer(buffers[0], dtype=slab.stored).reshape(slab.slab_shape)
    values = np.empty((n_stretches, length), dtype=np.uint8)
    for row, buffer in zip(values, buffers, strict=True):
        row[:] = np.frombuffer(buffer, dtype=np.uint8)
    return values.view(slab.stored).reshape(slab.slab_shape)


def stretches(slab: Slab, storage: Contiguous) -> Chunked | None:
    """Return a variable whose samples share pages as if it were in chunks; None of another one.

    A sample's numbers lie so close to others' that all are read: with them kept, once.
    """
    n_stretches, length, _ = _strides(slab)
    if storage.offset < 0 or n_stretches < 2 or not 0 < length < PICK_NBYTES:
        return None
    itemsize = np.dtype(slab.stored).itemsize
    return _stretches(storage.offset, slab.shape, slab.axis, itemsize)


@lru_cache(maxsize=1024)
def _stretches(offset: int, shape: tuple[int, ...], axis: int, itemsize: int) -> Chunked:
    chunk = [1] * axis + list(shape[axis:])
    nbytes = math.prod(chunk) * itemsize
    for outer in reversed(range(axis)):
        chunk[outer] = max(1, min(shape[outer], STRETCH_NBYTES // nbytes))
        nbytes *= chunk[outer]
        if chunk[outer] < shape[outer]:
            break
    starts = [range(0, n, length) for n, length in zip(shape, chunk, strict=True)]
    strides = [math.prod(shape[each + 1 :]) * itemsize for each in range(len(shape))]
    offsets = np.array(offset, dtype=np.int64)
    sizes = np.array(itemsize, dtype=np.int64)
    for along, length, n, stride in zip(starts, chunk, shape, strides, strict=True):
        offsets = offsets[..., None] + np.array(along) * stride
        sizes = sizes[..., None] * np.minimum(length, n - np.array(along))
    return Chunked(tuple(chunk), (), offsets, sizes, np.zeros(offsets.shape, dtype=np.uint32))


def stretch_array(
    slab: Slab, storage: Chunked, where: tuple[int, ...], stored: memoryview
) -> NDArray[Any]:
    """Return the numbers of one of `stretches`; the last ones may be shorter."""
    ends = zip(where, storage.chunk, slab.shape, strict=True)
    shape = [min(length, n - number * length) for number, length, n in ends]
    return np.frombuffer(stored, dtype=slab.stored).reshape(shape)


def codecs_of(slab: Slab, storage: Chunked) -> ChunkCodecs:
    """Return how the chunks of a slab's variable are encoded."""
    axes = tuple(range(len(storage.chunk)))
    return ChunkCodecs(slab.stored, storage.chunk, axes, storage.filters)


def decoded_chunk(
    slab: Slab, storage: Chunked, where: tuple[int, ...], stored: memoryview
) -> NDArray[Any]:
    """Return a chunk's numbers as stored, from its bytes; raises as `slab_array` does."""
    with naming_chunk(slab, where):
        return decode_chunk(stored, codecs_of(slab, storage), int(storage.masks[where]))


@contextmanager
def naming_chunk(slab: Slab, where: tuple[int, ...]) -> Iterator[None]:
    """Name file, variable and chunk where decoding says that a chunk is damaged."""
    try:
        yield
    except DamagedChunkError as error:
        raise FileFormatError(
            f"{slab.file}: variable {slab.name!r}: chunk {where} is damaged: {error}; "
            "fetch the file again"
        ) from error
