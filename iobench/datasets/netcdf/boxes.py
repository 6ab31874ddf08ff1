"""Boxes of NetCDF variables: any range along each dimension, read by extent or by chunk."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.cached import ChunkedPart, StoredArrays, read_parts
from iobench.datasets.decoded_chunks import DecodedChunks, file_and_index, widest_chunks
from iobench.datasets.extents import read_extents
from iobench.datasets.netcdf.file import read_through_library
from iobench.datasets.netcdf.storage import (
    PICK_NBYTES,
    Chunked,
    Contiguous,
    Slab,
    chunk_extents,
    chunks_array,
    decoded_chunk,
    slab_array,
    slab_extents,
    stretch_array,
    stretches,
)
from iobench.datasets.packing import unpack
from iobench.errors import FileFormatError
from iobench.files.ranges import FileRange
from iobench.files.urls import range_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from iobench.datasets.cached import Place
    from iobench.datasets.contract import SharedChunks
    from iobench.datasets.netcdf.file import NetcdfFile, NetcdfVariable
    from iobench.datasets.netcdf.storage import Storage

__all__ = [
    "Box",
    "ChunkedFields",
    "box_array",
    "box_extents",
    "box_through_library",
    "decode_box",
    "make_box",
    "read_fields",
]


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """A range along each dimension of a stored variable.

    Parameters
    ----------
    file : str
        Path of the file.
    variable : NetcdfVariable
        Its schema; of another file of the same schema if ``storage`` is this file's.
    storage : Contiguous or Chunked
        Where its numbers lie in ``file``.
    start, stop : tuple of int
        One per dimension, not empty, inside the variable's shape.
    axis : int
        The sample dimension; -1 where the variable lacks it.
    of_all : bool
        Whether the file is one that samples of all files need.
    """

    file: str
    variable: NetcdfVariable
    storage: Storage
    start: tuple[int, ...]
    stop: tuple[int, ...]
    axis: int = -1
    of_all: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the box."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))


def box_extents(box: Box) -> list[FileRange[str]]:
    """Return the stretches of the file that the box needs, in the order `box_array` takes.

    A contiguous variable gives one stretch per row of the box, as few as its shape allows. Rows
    shorter than 4 KiB are read with what lies between them, one stretch for all of them: fewer
    system calls cost less than the bytes they save.
    """
    if isinstance(box.storage, Chunked):
        return chunk_extents(box.file, box.storage, box.start, box.stop)
    if box.storage.offset < 0:
        return []
    offsets, length, distance = _rows(box, box.storage)
    if _reads_between(offsets, length):
        between = (offsets.shape[-1] - 1) * distance + length
        return [FileRange(box.file, start, between) for start in offsets[..., 0].ravel().tolist()]
    return [FileRange(box.file, start, length) for start in offsets.ravel().tolist()]


def box_array(box: Box, buffers: Sequence[memoryview]) -> NDArray[Any]:
    """Return the box's numbers as stored, from the bytes of its extents.

    Raises
    ------
    FileFormatError
        If a chunk cannot be inflated, has a wrong size or checksum: names file and variable.
    """
    stored = box.variable.packing.stored
    if isinstance(box.storage, Chunked):
        return chunks_array(_whole(box), box.storage, box.start, box.stop, buffers)
    if not buffers:
        return np.full(box.shape, box.variable.fill, dtype=stored)
    offsets, length, distance = _rows(box, box.storage)
    if offsets.size == 1:
        return np.frombuffer(buffers[0], dtype=stored).reshape(box.shape)
    if not _reads_between(offsets, length):
        joined = bytearray().join(buffers)  # a third less time than copying row by row
        return np.frombuffer(joined, dtype=stored).reshape(box.shape)
    rows = np.empty((len(buffers), offsets.shape[-1], length), dtype=np.uint8)
    for target, buffer in zip(rows, buffers, strict=True):
        between = np.frombuffer(buffer, dtype=np.uint8)
        target[:] = np.lib.stride_tricks.as_strided(between, target.shape, (distance, 1))
    return rows.view(stored).reshape(box.shape)


def decode_box(box: Box, buffers: Sequence[memoryview]) -> NDArray[Any]:
    """Return the box's numbers unpacked, equal to what xarray decodes, from its extents' bytes."""
    return unpack(box_array(box, buffers), box.variable.packing)


def box_through_library(
    file: NetcdfFile, name: str, start: Sequence[int], stop: Sequence[int]
) -> NDArray[Any]:
    """Return a box's numbers through the NetCDF library, where only it knows the storage.

    It reads a whole index of the first dimension at a time.
    """
    variable = file.variables[name]
    if not variable.dims:
        return read_through_library(file, variable, dim=None, index=-1)
    inside = tuple(slice(*ends) for ends in zip(start[1:], stop[1:], strict=True))
    outer = range(start[0], stop[0])
    parts = [
        read_through_library(file, variable, dim=variable.dims[0], index=index)[inside]
        for index in outer
    ]
    return np.stack(parts)


def _rows(box: Box, storage: Contiguous) -> tuple[NDArray[np.int64], int, int]:
    """Return where each row of a box begins, a row's length and the distance of neighbours.

    A row is what lies together: all inner dimensions that the box spans whole, and its range
    along the next one. The offsets have one axis for each dimension outside of that.
    """
    shape = box.variable.shape
    strides = _strides(shape, np.dtype(box.variable.packing.stored).itemsize)
    axis = len(shape) - 1
    while axis > 0 and box.shape[axis] == shape[axis]:
        axis -= 1
    if not shape:
        return np.array([storage.offset]), np.dtype(box.variable.packing.stored).itemsize, 0
    offsets = np.array(storage.offset + box.start[axis] * strides[axis], dtype=np.int64)
    for outer in range(axis):
        along = np.arange(box.start[outer], box.stop[outer], dtype=np.int64) * strides[outer]
        offsets = offsets[..., None] + along
    length = box.shape[axis] * strides[axis]
    return np.atleast_1d(offsets), length, strides[axis - 1] if axis else 0


def _strides(shape: Sequence[int], itemsize: int) -> list[int]:
    return [math.prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape))]


def _reads_between(offsets: NDArray[np.int64], length: int) -> bool:
    return offsets.shape[-1] > 1 and length < PICK_NBYTES


def _whole(box: Box) -> Slab:
    """Return all of the variable that a box is of."""
    variable, stored = box.variable, box.variable.packing.stored
    return Slab(box.file, variable.name, variable.shape, stored, variable.fill, box.storage, -1, -1)


def make_box(
    file: NetcdfFile,
    name: str,
    start: Sequence[int],
    stop: Sequence[int],
    *,
    axis: int = -1,
    of_all: bool = False,
) -> Box:
    """Return a box of a variable of a file.

    Raises
    ------
    FileFormatError
        If only the NetCDF library knows how the variable is stored.
    """
    variable = file.variables[name]
    if variable.storage is None:
        raise FileFormatError(
            f"{file.path}: variable {name!r} has no known extents; read it through the library"
        )
    return Box(
        range_file(file.path), variable, variable.storage, tuple(start), tuple(stop), axis, of_all
    )


class ChunkedFields:
    """What datasets of NetCDF files have in common: the decoded chunks that samples share.

    A sample is of one file and lies at one index along the sample dimension; ``where`` begins with
    both. Several may lie at the same.
    """

    has_chunks = False
    _widest: SharedChunks | None = None

    @cached_property
    def _chunks(self) -> DecodedChunks:
        return DecodedChunks()

    def _find_chunks(
        self, sample_dim: str, variables: Iterable[tuple[NetcdfVariable, Storage | None]]
    ) -> None:
        """Find out which of the variables of all files are in chunks that are read here."""
        every = list(variables)
        found = [(each, how) for each, how in every if isinstance(how, Chunked)]
        self.has_chunks = bool(found) and all(how is not None for _, how in every)
        self._widest = widest_chunks(
            sample_dim, ((each.name, each.dims, each.shape, how.chunk) for each, how in found)
        )

    def expect(self, where: Sequence[Any], *, follows: bool) -> None:
        """Say which samples will be asked for, in order; see `DecodedChunks.expect`."""
        self._chunks.expect(*file_and_index(where), follows=follows)

    def chunking(self) -> SharedChunks | None:
        """Return the variable of whose chunks a sample takes least; None where all are its own."""
        return self._widest


def read_fields(
    kept: DecodedChunks, fields: Sequence[Slab | Box], sample: tuple[int, int]
) -> StoredArrays:
    """Read what the fields of a sample need and no thread has read or decoded already.

    Parameters
    ----------
    kept : DecodedChunks
        Of the source.
    fields : sequence of Slab or Box
        Of one file, but for boxes that are ``of_all``.
    sample : (int, int)
        Number of the file, index along the sample dimension.

    Returns
    -------
    StoredArrays
        Whose ``arrays()`` are what `slab_array` and `box_array` return.
    """
    parts = [_chunked_part(each) for each in fields]
    plain = [
        (slab_extents(each) if isinstance(each, Slab) else box_extents(each))
        if part is None
        else []
        for each, part in zip(fields, parts, strict=True)
    ]
    flat = [extent for extents in plain for extent in extents]
    contiguous: list[memoryview] = []

    def read(wanted: Sequence[tuple[ChunkedPart, Place]]) -> list[memoryview | None]:
        extents = list(flat) if not contiguous else []
        n_flat = len(extents)
        for part, place in wanted:
            file, storage = part.source
            if (offset := int(storage.offsets[place])) >= 0:
                extents.append(FileRange(file, offset, int(storage.nbytes[place])))
        found = read_extents(extents)  # neighbours at once, whichever variable they are of
        contiguous.extend(found[:n_flat])
        stored = iter(found[n_flat:])
        return [
            next(stored) if part.source[1].offsets[place] >= 0 else None for part, place in wanted
        ]

    held = read_parts(kept, [part for part in parts if part is not None], sample, read)
    if flat and not contiguous:
        read(())
    joined, buffers = iter(held.decoders), iter(contiguous)
    decoders = [
        next(joined) if part is not None else _decoder(each, [next(buffers) for _ in extents])
        for each, part, extents in zip(fields, parts, plain, strict=True)
    ]
    return StoredArrays([*contiguous, *held.buffers], decoders)


def _decoder(field: Slab | Box, buffers: Sequence[memoryview]) -> Callable[[], NDArray[Any]]:
    if isinstance(field, Slab):
        return functools.partial(slab_array, field, buffers)
    return functools.partial(box_array, field, buffers)


def _chunked_part(field: Slab | Box) -> ChunkedPart | None:
    """Return what the field takes of what is kept: chunks, or short stretches; None of others."""
    slab = field if isinstance(field, Slab) else _whole(field)
    storage = field.storage
    is_chunked = isinstance(storage, Chunked)
    if isinstance(storage, Contiguous):
        if isinstance(field, Box) or (found := stretches(slab, storage)) is None:
            return None
        storage = found

    return ChunkedPart(
        source=(slab.file, storage),
        name=f"{slab.name} of {slab.file}",  # a sample may take the same name of two files
        array_shape=slab.shape,
        chunk=storage.chunk,
        start=field.start,
        stop=field.stop,
        shape=field.slab_shape if isinstance(field, Slab) else field.shape,
        axis=field.axis,
        of_all=isinstance(field, Box) and field.of_all,
        dtype=slab.stored,
        fill=slab.fill,
        decode=functools.partial(decoded_chunk if is_chunked else stretch_array, slab, storage),
        is_counted=is_chunked,
    )
