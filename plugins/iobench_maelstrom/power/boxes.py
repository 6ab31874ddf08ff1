"""Boxes of NetCDF variables, one stretch of indices along each dimension, read by extent or chunk.

The readers of iobench take one index along one dimension; a box is given to them as a variable of
its own whose storage is that part of the whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Chunked,
    Contiguous,
    Packing,
    Slab,
    inspect_netcdf,
    read_extents,
    read_through_library,
    slab_array,
    slab_extents,
    unpack,
)
from iobench.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets import Advance, NetcdfFile, NetcdfVariable, Raw

__all__ = [
    "BoxBytes",
    "VariableBox",
    "box_of",
    "check_variable",
    "decode_boxes",
    "index_file",
    "read_boxes",
    "read_boxes_through_library",
    "read_times",
    "read_whole",
    "without_other_variables",
]

UNIT_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
TIME_UNITS = re.compile(
    r"(second|minute|hour|day)s? since (\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.0*)?)?)?"
)
Ranges = tuple[tuple[int, int], ...]
"""First index and the one after the last, for each dimension."""


@dataclass(frozen=True, slots=True, eq=False)
class VariableBox:
    """A part of a variable: ``pick`` takes it out of what ``slab`` holds."""

    slab: Slab
    pick: tuple[slice, ...]
    packing: Packing


class BoxBytes(list[memoryview]):
    """A sample's bytes, with which box each run of them belongs to.

    ``seconds`` since 1970 is the sample's time, where decoding needs it.
    """

    def __init__(
        self,
        parts: list[tuple[str, VariableBox, int]],
        content: list[memoryview],
        seconds: int | None,
    ) -> None:
        super().__init__(content)
        self.parts = parts
        self.seconds = seconds


def box_of(file: NetcdfFile, variable: NetcdfVariable, ranges: Ranges) -> VariableBox:
    """Return a part of a variable; all of a dimension where ``ranges`` ends before it.

    Raises
    ------
    FileFormatError
        If only the library knows where the variable lies.
    """
    ranges = (*ranges, *((0, length) for length in variable.shape[len(ranges) :]))
    storage: Contiguous | Chunked
    if isinstance(variable.storage, Contiguous):
        storage, shape = _stretch(variable, variable.storage, ranges)
        pick: tuple[slice, ...] = ()
    elif isinstance(variable.storage, Chunked):
        storage, shape, pick = _chunks(variable.storage, ranges)
    else:
        raise FileFormatError(f"{file.path}: variable {variable.name!r} has no known extents")
    stored = variable.packing.stored
    slab = Slab(str(file.path), variable.name, shape, stored, variable.fill, storage, -1, -1)
    return VariableBox(slab, pick, variable.packing)


def _stretch(
    variable: NetcdfVariable, storage: Contiguous, ranges: Ranges
) -> tuple[Contiguous, tuple[int, ...]]:
    """Return a box that is one stretch of a contiguous variable: single indices, then one range."""
    shape = tuple(stop - start for start, stop in ranges)
    after_range = False
    for length, whole in zip(shape, variable.shape, strict=True):
        if after_range and length != whole:
            raise ValueError(f"{ranges} of {variable.name} {variable.shape} is not one stretch")
        after_range = after_range or length > 1
    if storage.offset < 0:
        return storage, shape
    first = int(np.ravel_multi_index([start for start, _ in ranges], variable.shape))
    return Contiguous(storage.offset + first * np.dtype(variable.packing.stored).itemsize), shape


def _chunks(storage: Chunked, ranges: Ranges) -> tuple[Chunked, tuple[int, ...], tuple[slice, ...]]:
    """Return the chunks a box touches as a variable of their own, and the box inside it."""
    touched, pick = [], []
    for (start, stop), length in zip(ranges, storage.chunk, strict=True):
        first = start // length
        touched.append(slice(first, -(-stop // length)))
        pick.append(slice(start - first * length, stop - first * length))
    places = tuple(touched)
    part = replace(
        storage,
        offsets=storage.offsets[places],
        nbytes=storage.nbytes[places],
        masks=storage.masks[places],
    )
    grid = part.offsets.shape
    shape = tuple(n * length for n, length in zip(grid, storage.chunk, strict=True))
    return part, shape, tuple(pick)


def read_boxes(boxes: Sequence[tuple[str, VariableBox]], *, seconds: int | None = None) -> BoxBytes:
    """Return the bytes of named boxes, neighbours read at once."""
    parts, extents = [], []
    for name, box in boxes:
        found = slab_extents(box.slab)
        parts.append((name, box, len(found)))
        extents += found
    return BoxBytes(parts, read_extents(extents), seconds)


def decode_boxes(raw: Raw) -> dict[str, NDArray[Any]]:
    """Return the numbers of what `read_boxes` returned, as ``xarray.open_dataset`` decodes them."""
    if not isinstance(raw, BoxBytes):
        raise TypeError("decode takes what read returned")
    arrays, start = {}, 0
    for name, box, n_buffers in raw.parts:
        stored = slab_array(box.slab, raw[start : start + n_buffers])
        arrays[name] = unpack(stored[box.pick], box.packing)
        start += n_buffers
    return arrays


def read_boxes_through_library(
    file: NetcdfFile, boxes: Sequence[tuple[str, NetcdfVariable, Ranges]]
) -> dict[str, NDArray[Any]]:
    """Read and decode boxes through the NetCDF library, for storage only it knows."""
    arrays = {}
    for name, variable, ranges in boxes:
        dim = variable.dims[0] if ranges and ranges[0][1] - ranges[0][0] == 1 else None
        index = ranges[0][0] if dim else -1
        values = read_through_library(file, variable, dim=dim, index=index)
        whole = values[np.newaxis] if dim else values
        inner = ranges[1:] if dim else ranges
        pick = tuple(slice(start, stop) for start, stop in inner)
        arrays[name] = whole[(slice(None), *pick)] if dim else whole[pick]
    return arrays


def read_whole(file: NetcdfFile, name: str) -> NDArray[Any]:
    """Return all numbers of a variable, decoded.

    Raises
    ------
    FileFormatError
        If the file has no numeric variable of that name.
    """
    if name not in file.variables:
        raise FileFormatError(
            f"{file.path}: has no numeric variable {name!r}; it has {', '.join(file.variables)}"
        )
    variable = file.variables[name]
    if variable.storage is None:
        return read_through_library(file, variable, dim=None, index=-1)
    return decode_boxes(read_boxes([(name, box_of(file, variable, ()))]))[name]


def read_times(file: NetcdfFile) -> NDArray[np.datetime64]:
    """Return the coordinate ``time``, to the second.

    Raises
    ------
    FileFormatError
        If there is none, or its units are not seconds, minutes, hours or days since a date.
    """
    values = read_whole(file, "time")
    units = file.variables["time"].attributes.get("units", "")
    found = TIME_UNITS.fullmatch(units.strip())
    if found is None or values.ndim != 1 or not np.isfinite(values).all():
        raise FileFormatError(
            f"{file.path}: variable 'time' has units {units!r} and shape {values.shape}, expected "
            "finite seconds, minutes, hours or days since a date along one dimension"
        )
    unit, year, month, day, hour, minute, second = found.groups(default="0")
    clock = f"{int(hour):02d}:{int(minute):02d}:{int(second):02d}"
    origin = np.datetime64(f"{year}-{int(month):02d}-{int(day):02d}T{clock}", "s")
    seconds = np.rint(values.astype(np.float64) * UNIT_SECONDS[unit]).astype("timedelta64[s]")
    return np.asarray(origin + seconds)


def check_variable(file: NetcdfFile, name: str, dims: tuple[str, ...]) -> NetcdfVariable:
    """Return a variable of a file.

    Raises
    ------
    FileFormatError
        If it is not there or has other dimensions.
    """
    variable = file.variables.get(name)
    found = "missing" if variable is None else f"({', '.join(variable.dims)})"
    if variable is None or variable.dims != dims:
        raise FileFormatError(
            f"{file.path}: variable {name!r} is {found}, expected ({', '.join(dims)}); another "
            "version of the data set is not read"
        )
    return variable


def without_other_variables(file: NetcdfFile, names: Sequence[str]) -> NetcdfFile:
    """Return a file with these variables only: what travels to the workers."""
    return replace(file, variables={name: file.variables[name] for name in names}, skipped={})


def index_file(path: Path, advance: Advance) -> NetcdfFile:
    """Return what a file holds; a job for `iobench.datasets.run_jobs`."""
    file = inspect_netcdf(path)
    advance(1)
    return file
