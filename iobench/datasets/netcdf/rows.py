"""NetCDF files put in a row along a dimension: their order, and where each sample lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.catalogue import Inspection, catalogued
from iobench.datasets.netcdf.inspected import whole_variable
from iobench.datasets.rows import SampleRows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.netcdf.file import NetcdfFile
    from iobench.datasets.processes import Advance

__all__ = ["FileRows", "coordinate_of"]


class FileRows:
    """The samples of NetCDF files along a dimension, in the rows that `SampleRows` finds.

    Parameters
    ----------
    files : sequence of NetcdfFile
        As given.
    dim : str
        The sample dimension.
    cache_dir : Path
        Where the numbers along it are kept.

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

    def __init__(self, files: Sequence[NetcdfFile], dim: str, *, cache_dir: Path) -> None:
        coordinates = _coordinates(files, dim, cache_dir)
        rows = SampleRows(
            coordinates,
            [_attribute(file, dim, "units") for file in files],
            [_attribute(file, dim, "calendar") for file in files],
        )
        self.files = tuple(files[number] for number in rows.order)
        self.coordinates = [coordinates[number] for number in rows.order]
        self.positions, self.units, self.numbers = rows.positions, rows.units, rows.numbers


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """The numbers of a file along a dimension."""

    along: NDArray[Any]


def _coordinates(files: Sequence[NetcdfFile], dim: str, cache_dir: Path) -> list[NDArray[Any]]:
    """Return the coordinate of each file along ``dim``, or the indices where it has none."""
    by_path = {file.path: file for file in files if _has_coordinate(file, dim)}

    def read(path: Path, _: Advance) -> _Numbers:
        return _Numbers(coordinate_of(by_path[path], dim))

    inspection = Inspection(f"netcdf coordinate {dim} 1", read, (_Numbers,), in_processes=False)
    found, _ = catalogued(list(by_path), inspection, cache_dir=cache_dir)
    known = {path: each.along for path, each in zip(by_path, found, strict=True)}
    return [known[file.path] if file.path in known else coordinate_of(file, dim) for file in files]


def coordinate_of(file: NetcdfFile, dim: str) -> NDArray[Any]:
    """Return the coordinate of a file along ``dim``, or the indices where it has none."""
    if not _has_coordinate(file, dim):
        return np.arange(file.dims[dim])
    return whole_variable(file, dim)


def _has_coordinate(file: NetcdfFile, dim: str) -> bool:
    return dim in file.variables and file.variables[dim].dims == (dim,)


def _attribute(file: NetcdfFile, dim: str, name: str) -> str | None:
    """Return an attribute of the coordinate, "" where it lacks it, None without a coordinate."""
    return file.variables[dim].attributes.get(name, "") if _has_coordinate(file, dim) else None
