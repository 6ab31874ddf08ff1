"""What application A6's features are computed from, at a turbine: grid point, pressure, hours."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from iobench.datasets import file_times, whole_variable
from iobench.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.datasets import NetcdfFile

GAS_CONSTANT_DRY = 287.05
GAS_CONSTANT_VAPOUR = 461.523
"""J kg**-1 K**-1, as in the notebook."""
DAYS_PER_YEAR = 365
"""Also in leap years, as in the notebook."""
HOUR = np.timedelta64(3600, "s")

Where = tuple[int, int, int, int, int]
"""Run, step, first production step of the hour and the one after the last, seconds since 1970."""
Number = TypeVar("Number", float, "NDArray[np.float64]")


def air_density(pressure: Number, temperature: Number, humidity: Number) -> Number:
    """Return the density of moist air, kg m**-3, from Pa, K and kg kg**-1."""
    gas_constant = GAS_CONSTANT_DRY * (1 - humidity) + GAS_CONSTANT_VAPOUR * humidity
    return pressure / (gas_constant * temperature)


def wind_direction(u: float, v: float) -> float:
    """Return the notebook's angle in degrees: 90 less that of the wind to the equator.

    It folds opposite directions into one, from 0 to 180.
    """
    side = np.copysign(1.0, u)
    return float(90.0 - np.degrees(np.arctan2(v * side, abs(u))))


def year_part(day: int) -> float:
    """Return the part of its year before a day, counted from 1970; as the notebook does."""
    date = np.datetime64(day, "D")
    first = date.astype("datetime64[Y]").astype("datetime64[D]")
    return float((date - first).astype(int)) / DAYS_PER_YEAR


def nearest_index(axis: NDArray[np.float64], place: float, dim: str, turbine: NetcdfFile) -> int:
    """Return which value of a coordinate of the grid is nearest to the turbine's."""
    distances = np.abs(axis - place)
    nearest = int(np.argmin(distances))
    if not distances[nearest] <= np.abs(np.diff(axis)).max(initial=0.0):
        raise FileFormatError(
            f"{turbine.path}: variable {dim!r} is {place:g}, outside of the weather's grid from "
            f"{axis[0]:g} to {axis[-1]:g}"
        )
    return nearest


def pressure_coefficients(file: NetcdfFile, level: int) -> tuple[float, float]:
    """Return A and B of a full level: means of those of its bounds (IFS Cy47r1 III, eq. 2.11)."""
    a, b = (
        whole_variable(file, name)[0, level - 1 : level + 1].mean() for name in ("hyai", "hybi")
    )
    return float(a), float(b)


def hours_with_production(
    model: Sequence[NDArray[np.datetime64]], turbine: NetcdfFile
) -> list[Where]:
    """Return where the hours are that have weather and at least one value of production.

    ``model`` holds the times of each forecast.
    """
    [times] = file_times([turbine], "time")
    if not (np.diff(times) > np.timedelta64(0, "s")).all():
        raise FileFormatError(f"{turbine.path}: variable 'time' does not grow throughout")
    known = np.isfinite(whole_variable(turbine, "production").reshape(-1))
    where = []
    for run, hours in enumerate(model):
        for step, hour in enumerate(hours):
            start, stop = np.searchsorted(times, [hour, hour + HOUR]).tolist()
            if known[start:stop].any():
                seconds = int(hour.astype("datetime64[s]").astype(int))
                where.append((run, step, start, stop, seconds))
    if not where:
        raise FileFormatError(
            f"{turbine.path}: holds production from {times[:1]} to {times[-1:]} but for no hour of "
            f"the weather, {model[0][0]} to {model[-1][-1]}"
        )
    return where
