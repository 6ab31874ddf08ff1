"""Boxes of NetCDF variables: any range along each dimension, read by extent or by chunk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.netcdf.file import read_through_library
from iobench.datasets.netcdf.storage import (
    PICK_NBYTES,
    Chunked,
    Contiguous,
    Slab,
    slab_array,
    slab_extents,
)
from iobench.datasets.packing import unpack
from iobench.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.datasets.extents import FileExtent
    from iobench.datasets.netcdf.file import NetcdfFile, NetcdfVariable
    from iobench.datasets.netcdf.storage import Storage

__all__ = ["Box", "box_array", "box_extents", "box_through_library", "decode_box", "make_box"]


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
    """

    file: str
    variable: NetcdfVariable
    storage: Storage
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the box."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))


def box_extents(box: Box) -> list[FileExtent]:
    """Return the stretches of the file that the box needs, in the order `box_array` takes.

    A contiguous variable gives one stretch per row of the box, as few as its shape allows. Rows
    shorter than 4 KiB are read with what lies between them, one stretch for all of them: fewer
    system calls cost less than the bytes they save.
    """
    if isinstance(box.storage, Chunked):
        return slab_extents(_chunks_of(box, box.storage)[0])
    if box.storage.offset < 0:
        return []
    offsets, length, distance = _rows(box, box.storage)
    if _reads_between(offsets, length):
        between = (offsets.shape[-1] - 1) * distance + length
        return [(box.file, start, between) for start in offsets[..., 0].ravel().tolist()]
    return [(box.file, start, length) for start in offsets.ravel().tolist()]


def box_array(box: Box, buffers: Sequence[memoryview]) -> NDArray[Any]:
    """Return the box's numbers as stored, from the bytes of its extents.

    Raises
    ------
    FileFormatError
        If a chunk cannot be inflated, has a wrong size or checksum: names file and variable.
    """
    stored = box.variable.packing.stored
    if isinstance(box.storage, Chunked):
        slab, inside = _chunks_of(box, box.storage)
        return slab_array(slab, buffers)[inside]
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


def _chunks_of(box: Box, storage: Chunked) -> tuple[Slab, tuple[slice, ...]]:
    """Return the chunks that a box touches as a variable of their own, and the box inside it."""
    variable = box.variable
    ends = list(zip(box.start, box.stop, storage.chunk, variable.shape, strict=True))
    grid = tuple(slice(start // chunk, -(-stop // chunk)) for start, stop, chunk, _ in ends)
    first = [start // chunk * chunk for start, _, chunk, _ in ends]
    shape = tuple(
        min(-(-stop // chunk) * chunk, length) - begin
        for begin, (_, stop, chunk, length) in zip(first, ends, strict=True)
    )
    touched = Chunked(
        storage.chunk,
        storage.filters,
        storage.offsets[grid],
        storage.nbytes[grid],
        storage.masks[grid],
    )
    slab = Slab(
        file=box.file,
        name=variable.name,
        shape=shape,
        stored=variable.packing.stored,
        fill=variable.fill,
        storage=touched,
        axis=-1,
        index=-1,
    )
    inside = tuple(
        slice(start - begin, stop - begin)
        for begin, start, stop in zip(first, box.start, box.stop, strict=True)
    )
    return slab, inside


def make_box(file: NetcdfFile, name: str, start: Sequence[int], stop: Sequence[int]) -> Box:
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
    return Box(str(file.path), variable, variable.storage, tuple(start), tuple(stop))
