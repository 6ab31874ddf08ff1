"""The stand-in of a recipe: NetCDF files of its axes and variables, with smooth values."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray

    from iobench.datasets.published_files import StandIn
    from iobench.datasets.recipes import Recipe

SINCE = np.datetime64("1990-01-01", "h")
N_WAVES = 4


def write_netcdf(recipe: Recipe, plan: StandIn, key: Mapping[str, str], path: Path) -> None:
    """Write one file: axes with their coordinates, then the variables, each in one piece."""
    with netcdf4(recipe.name).Dataset(path, "w", format="NETCDF4") as file:
        file.setncatts(dict(recipe.attributes))
        for axis in recipe.axes:
            values, units = _coordinate(recipe, plan, key, axis.name)
            file.createDimension(axis.name, len(values))
            stored = file.createVariable(
                axis.name, "f8", (axis.name,), contiguous=True, fill_value=False
            )
            if units:
                stored.units = units
            stored[:] = values
        if "time" in file.variables:
            file["time"].calendar = "proleptic_gregorian"
        for each in recipe.fields:
            stored = file.createVariable(
                each.name, each.dtype, recipe.stored_dims(each), contiguous=True, fill_value=False
            )
            if each.units:
                stored.units = each.units
            stored[:] = recipe.values(each, key, plan)


def smooth_values(
    shape: tuple[int, ...], low: float, high: float, *random_key: int | str
) -> NDArray[np.float64]:
    """Return waves of a few lengths between two bounds, which follow from the key alone."""
    numbers = [zlib.crc32(each.encode()) if isinstance(each, str) else each for each in random_key]
    random = np.random.default_rng(numbers)
    values = np.full(shape, 0.5)
    for _ in range(N_WAVES):
        angle = np.asarray(random.uniform(0, 2 * np.pi))
        for length, count in zip(shape, random.integers(1, 4, len(shape)), strict=True):
            angle = angle[..., None] + 2 * np.pi * count * np.arange(length) / length
        values += 0.5 / N_WAVES * np.cos(angle)
    return low + (high - low) * values


def _coordinate(
    recipe: Recipe, plan: StandIn, key: Mapping[str, str], name: str
) -> tuple[NDArray[np.float64], str]:
    if name == "time":
        times = recipe.times(key, plan.n_steps)
        units = f"hours since {SINCE.astype('M8[D]')} 00:00:00"
        return (times.astype("M8[h]") - SINCE).astype(np.float64), units
    axis = next(each for each in recipe.axes if each.name == name)
    numbers = np.arange(recipe.length(axis, key, plan))
    return axis.first + axis.step * numbers.astype(np.float64), axis.units


def netcdf4(dataset: str) -> ModuleType:
    """Return the NetCDF library, which stand-ins are written with.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        import netCDF4
    except ImportError as error:
        raise MissingExtraError(f"{dataset} needs NetCDF: pip install 'iobench[netcdf]'") from error
    module: Any = netCDF4
    return module  # type: ignore[no-any-return]
