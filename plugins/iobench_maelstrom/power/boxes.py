"""What A6's files are read by: boxes of several variables at once, coordinates, times."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Box,
    ChunkedFields,
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
        NetcdfFile,
        NetcdfVariable,
        Raw,
        Storage,
    )

__all__ = [
    "BoxedSamples",
    "NamedBox",
    "box_of",
    "check_variable",
    "hours_of",
    "index_file",
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


NamedBox = tuple[str, "NetcdfFile", str, Ranges]
"""A name in the sample, the file, the variable there, and which part of it."""


class BoxedSamples(ChunkedFields):
    """A dataset whose samples are boxes of variables: `boxes` says which.

    ``fused`` is known once ``samples`` has run.
    """

    fused: tuple[str, ...] = ()
    _of_all: NetcdfFile | None = None
    """A file that samples of all files need."""

    @property
    def thread_safe(self) -> bool:
        """Whether threads may make samples at once: the HDF5 library cannot."""
        return not self.fused

    def boxes(self, where: Any) -> list[NamedBox]:
        """Return the boxes of a sample."""
        raise NotImplementedError

    def place(self, where: Any) -> tuple[int, int]:
        """Return the number of a sample's file, and its index along the sample dimension."""
        file, index = where[:2]
        return file, index

    def read(self, where: Any) -> Any:
        """Return the bytes of the boxes, neighbours at once; the numbers themselves where fused."""
        boxes = [(name, file, file.variables[each], r) for name, file, each, r in self.boxes(where)]
        if self.fused:
            return {
                name: box_through_library(file, variable.name, *_ends(variable, ranges))
                for name, file, variable, ranges in boxes
            }
        fields = [
            box_of(file, variable, ranges, of_all=file is self._of_all)
            for _, file, variable, ranges in boxes
        ]
        return read_fields(self._chunks, fields, self.place(where))

    def decode(self, raw: Raw, where: Any) -> dict[str, NDArray[Any]]:
        """Return the numbers of the boxes by name, as ``xarray.open_dataset`` decodes them."""
        return {
            name: unpack(stored, file.variables[variable].packing)
            for (name, file, variable, _), stored in zip(
                self.boxes(where), raw.arrays(), strict=True
            )
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
