"""The coordinate along a dimension of users' own files: whether neighbours there are neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.netcdf.file import inspect_netcdf
from iobench.datasets.netcdf.rows import FileRows
from iobench.datasets.zarr_arrays.chunks import Cut, cut_array, read_cut
from iobench.datasets.zarr_arrays.store import inspect_zarr
from iobench.datasets.zarr_arrays.through_library import read_through_zarr
from iobench.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["check_monotonic"]


def check_monotonic(files: Sequence[Path], dims: Sequence[str], kind: str) -> None:
    """Check that along each dimension the coordinate rises, or falls, throughout.

    A dimension without a coordinate is counted, and a GRIB grid is regular by its definition.

    Parameters
    ----------
    files : sequence of Path
        All of one kind.
    dims : sequence of str
        Dimensions that tiles are cut along.
    kind : str
        ``"GRIB"``, ``"NetCDF"`` or ``"Zarr"``.

    Raises
    ------
    FileFormatError
        Naming file, dimension and the first place where the coordinate turns or stands still.
    """
    if kind == "GRIB":
        return
    for file in files:
        for dim in dims:
            values = _zarr_values(file, dim) if kind == "Zarr" else _netcdf_values(file, dim)
            _check(values, file, dim)


def _check(values: NDArray[Any], file: Path, dim: str) -> None:
    if values.dtype.kind not in "iuf" or len(values) < 2:
        return
    steps = np.diff(values.astype(np.float64))
    right = steps > 0 if steps[0] > 0 else steps < 0
    if not right.all():
        place = int(np.argmin(right))
        raise FileFormatError(
            f"{file}: the coordinate {dim!r} is not monotonic: {values[place]:g} at {place}, then "
            f"{values[place + 1]:g}; a patch there would join what does not lie side by side, so "
            "sort the file along it first, or leave it out of --patch"
        )


def _netcdf_values(file: Path, dim: str) -> NDArray[Any]:
    return FileRows([inspect_netcdf(file)], dim).coordinates[0]


def _zarr_values(file: Path, dim: str) -> NDArray[Any]:
    store = inspect_zarr(file)
    variable = store.variables.get(dim)
    if variable is None or variable.dims != (dim,):
        return np.arange(store.dims[dim])
    if variable.chunking is None:
        return read_through_zarr(variable, axis=-1, index=-1)
    return cut_array(Cut(variable), read_cut(Cut(variable)))
