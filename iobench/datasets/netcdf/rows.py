"""NetCDF files put in a row along a dimension: their order, and where each sample lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.extents import read_extents
from iobench.datasets.netcdf.file import decode_slab, read_through_library, where_slab
from iobench.datasets.netcdf.storage import slab_extents
from iobench.datasets.rows import SampleRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.datasets.netcdf.file import NetcdfFile

__all__ = ["FileRows"]


class FileRows:
    """The samples of NetCDF files along a dimension, in the rows that `SampleRows` finds.

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
        rows = SampleRows(
            coordinates,
            [_attribute(file, dim, "units") for file in files],
            [_attribute(file, dim, "calendar") for file in files],
        )
        self.files = tuple(files[number] for number in rows.order)
        self.coordinates = [coordinates[number] for number in rows.order]
        self.positions, self.units, self.numbers = rows.positions, rows.units, rows.numbers


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
