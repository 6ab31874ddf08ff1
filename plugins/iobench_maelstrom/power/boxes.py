"""What A6's files are read by: boxes of several variables at once, coordinates, times."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Box,
    PartBytes,
    box_extents,
    box_through_library,
    cf_times,
    decode_box,
    inspect_netcdf,
    make_box,
    read_extents,
    read_fields,
    read_through_library,
    unpack,
)
from iobench.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets import (
        Advance,
        DecodedChunks,
        NetcdfFile,
        NetcdfVariable,
        Raw,
        Storage,
    )

__all__ = [
    "box_of",
    "check_variable",
    "decode_boxes",
    "hours_of",
    "index_file",
    "read_boxes",
    "read_boxes_through_library",
    "read_times",
    "read_whole",
    "stored_of",
    "without_other_variables",
]

Ranges = tuple[tuple[int, int], ...]
"""First index and the one after the last, for each dimension."""


def box_of(
    file: NetcdfFile, variable: NetcdfVariable, ranges: Ranges, *, of_all: bool = False
) -> Box:
    """Return a part of a variable; all of a dimension where ``ranges`` ends before it.

    The first dimension is the samples', but where the file is one that all need.

    Raises
    ------
    FileFormatError
        If only the library knows where the variable lies.
    """
    axis = -1 if of_all or not ranges else 0
    return make_box(file, variable.name, *_ends(variable, ranges), axis=axis, of_all=of_all)


def _ends(variable: NetcdfVariable, ranges: Ranges) -> tuple[list[int], list[int]]:
    """Return the first index and the one after the last of every dimension."""
    every = (*ranges, *((0, length) for length in variable.shape[len(ranges) :]))
    return [start for start, _ in every], [stop for _, stop in every]


def read_boxes(
    chunks: DecodedChunks,
    boxes: Sequence[tuple[str, Box]],
    sample: tuple[int, int],
    *,
    seconds: int | None = None,
) -> PartBytes:
    """Return the bytes of named boxes of a sample, by its file and index, neighbours at once.

    ``seconds`` since 1970 is the sample's time, where decoding needs it.
    """
    raw = read_fields(chunks, [box for _, box in boxes], sample)
    raw.about = [(name, box.variable.packing) for name, box in boxes], seconds
    return raw


def decode_boxes(raw: Raw) -> dict[str, NDArray[Any]]:
    """Return the numbers of what `read_boxes` returned, as ``xarray.open_dataset`` decodes them."""
    if not isinstance(raw, PartBytes):
        raise TypeError("decode takes what read returned")
    named, seconds = raw.about
    arrays = {
        name: unpack(stored, packing)
        for (name, packing), stored in zip(named, raw.arrays(), strict=True)
    }
    return arrays if seconds is None else {**arrays, "time": np.asarray(seconds)}


def read_boxes_through_library(
    file: NetcdfFile, boxes: Sequence[tuple[str, NetcdfVariable, Ranges]]
) -> dict[str, NDArray[Any]]:
    """Read and decode boxes through the NetCDF library, for storage only it knows."""
    return {
        name: box_through_library(file, variable.name, *_ends(variable, ranges))
        for name, variable, ranges in boxes
    }


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
    box = box_of(file, variable, ())
    return decode_box(box, read_extents(box_extents(box)))


def read_times(file: NetcdfFile) -> NDArray[np.datetime64]:
    """Return the coordinate ``time``, to the second.

    Raises
    ------
    FileFormatError
        If there is none along one dimension, or as `iobench.datasets.cf_times`.
    """
    values = read_whole(file, "time")
    attributes = file.variables["time"].attributes
    units = attributes.get("units", "")
    if values.ndim != 1:
        raise FileFormatError(
            f"{file.path}: variable 'time' has shape {values.shape}, expected one dimension"
        )
    return cf_times(file.path, values, units, attributes.get("calendar", ""))


def hours_of(times: Iterable[np.datetime64]) -> list[float]:
    """Return times as hours since 1970: where samples lie along the time."""
    seconds = np.array([*times], "datetime64[s]").astype(np.int64)
    hours: list[float] = (seconds / 3600).tolist()
    return hours


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


def stored_of(files: Iterable[NetcdfFile]) -> list[tuple[NetcdfVariable, Storage | None]]:
    """Return the variables of files, and how each is stored."""
    return [(each, each.storage) for file in files for each in file.variables.values()]


def index_file(path: Path, advance: Advance) -> NetcdfFile:
    """Return what a file holds; a job for `iobench.datasets.run_jobs`."""
    file = inspect_netcdf(path)
    advance(1)
    return file
