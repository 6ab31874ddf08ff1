"""NetCDF files put in a row along a dimension: their order, and where each sample lies."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.extents import read_extents
from iobench.datasets.netcdf.file import decode_slab, read_through_library, where_slab
from iobench.datasets.netcdf.storage import slab_extents
from iobench.datasets.positions import (
    decode_times,
    one_row_each,
    row_numbers,
    seconds_since_1970,
    time_positions,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.datasets.netcdf.file import NetcdfFile

__all__ = ["FileRows"]


class FileRows:
    """The samples of files along a dimension.

    Files are put in the order of their coordinate where it orders all of them: none overlaps, and
    all are times of one calendar or numbers of one unit. They are then in one row; else each is a
    row of its own, in the order given.

    Parameters
    ----------
    files : sequence of NetcdfFile
        As given.
    dim : str
        The sample dimension.

    Attributes
    ----------
    files : tuple of NetcdfFile
        In order.
    coordinates : list of ndarray
        The numbers each has along the dimension, or counts.
    positions : ndarray of float64, shape (samples,)
        See `iobench.datasets.SampleIndex`.
    units : str
        Of the positions.
    numbers : ndarray of int64, shape (samples,)
        Which row each sample is in.
    """

    def __init__(self, files: Sequence[NetcdfFile], dim: str) -> None:
        coordinates = [_coordinate(file, dim) for file in files]
        units = [_attribute(file, dim, "units") for file in files]
        times = _all_times(files, coordinates, dim)
        values: Sequence[NDArray[Any]] = coordinates if times is None else times
        calendars = {_attribute(file, dim, "calendar") for file in files}
        one_unit = len(set(units)) == 1 and len(calendars) == 1 and units[0] is not None
        comparable = times is not None or one_unit
        order = _order(values) if comparable else list(range(len(files)))
        self.files = tuple(files[number] for number in order)
        self.coordinates = [coordinates[number] for number in order]
        parts = [values[number] for number in order]
        if times is None:
            numbers = [part.astype(np.float64) for part in parts]
        else:
            numbers = [seconds_since_1970(part) for part in parts]
        self.positions = np.concatenate(numbers)
        self.numbers = row_numbers(numbers) if comparable else one_row_each(numbers)
        self.units = (units[0] or "") if len(set(units)) == 1 else ""
        if times is not None:
            self.positions, self.units = time_positions(np.concatenate(parts), self.numbers)


def _all_times(
    files: Sequence[NetcdfFile], coordinates: Sequence[NDArray[Any]], dim: str
) -> list[NDArray[Any]] | None:
    """Return the coordinates as times, or None unless all are, of one calendar."""
    times = []
    for file, numbers in zip(files, coordinates, strict=True):
        units, calendar = _attribute(file, dim, "units"), _attribute(file, dim, "calendar")
        decoded = decode_times(numbers, units, calendar or "") if units else None
        if decoded is None:
            return None
        times.append(decoded)
    kinds = {getattr(part[0], "calendar", part.dtype.kind) for part in times if len(part)}
    return times if len(kinds) == 1 else None


def _coordinate(file: NetcdfFile, dim: str) -> NDArray[Any]:
    """Return the coordinate along ``dim``, or the indices where it has none."""
    length = file.dims[dim]
    if not _has_coordinate(file, dim):
        return np.arange(length)
    variable = file.variables[dim]
    if variable.storage is None:
        through = [read_through_library(file, variable, dim=dim, index=i) for i in range(length)]
        return np.array(through)
    slab = where_slab(file, variable, dim=None, index=-1)
    return decode_slab(slab, variable.packing, read_extents(slab_extents(slab)))


def _has_coordinate(file: NetcdfFile, dim: str) -> bool:
    return dim in file.variables and file.variables[dim].dims == (dim,)


def _attribute(file: NetcdfFile, dim: str, name: str) -> str | None:
    """Return an attribute of the coordinate, "" where it lacks it, None without a coordinate."""
    return file.variables[dim].attributes.get(name, "") if _has_coordinate(file, dim) else None


def _order(values: Sequence[NDArray[Any]]) -> list[int]:
    """Return the order of the files: by coordinate where it orders them, else as given."""
    given = list(range(len(values)))
    if any(len(part) == 0 for part in values):
        return given
    ordered = sorted(given, key=lambda number: values[number].min())
    apart = all(
        values[before].max() < values[after].min() for before, after in itertools.pairwise(ordered)
    )
    return ordered if apart else given
