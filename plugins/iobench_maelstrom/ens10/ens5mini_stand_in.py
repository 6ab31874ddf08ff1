"""The files of a stand-in of ens5mini: NetCDF, one a month, of smooth values.

Every value follows from (seed, start, step, variable, member) alone, so that the bytes do not
depend on how many processes write.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from iobench.datasets import define_axes, netcdf4, smooth_values
from iobench_maelstrom.ens10.schema import (
    ALL_DATES,
    ALL_MONTHS,
    LEVELS,
    PRESSURE_VARIABLES,
)
from iobench_maelstrom.ens10.stand_in import Ensemble, share_of

STAND_IN_VERSION = 2
"""Counts up when the same seed gives other bytes."""
ALL_YEARS = tuple(range(1998, 2008))
MEMBERS = 5
STEPS = (0, 24)
SHAPE = (40, 80)
"""Europe, 0.5 degrees apart: 60 to 40.5 north, 0 to 39.5 east."""
DEFAULT_MONTHS = ("01", "07")
DEFAULT_YEARS: tuple[int, ...] = (1998, 1999)
NOISE = 0.86


def plan_of_months(*, scale: float | None, tiny: bool, seed: int) -> Ensemble:
    """Return the plan of a size: tiny, the profile's default, or a share of all samples."""
    years, n_members, shape = DEFAULT_YEARS, MEMBERS, SHAPE
    if tiny or scale is None:
        by_month = [_in_month(ALL_DATES, month) for month in DEFAULT_MONTHS]
        dates = tuple(date for some in by_month for date in some[: 2 if tiny else None])
    else:
        dates, years = share_of(scale, ALL_YEARS)
    if tiny:
        n_members, shape = 3, (10, 20)
    keys = tuple({"date": month} for month in ALL_MONTHS if _in_month(dates, month))
    return Ensemble(seed, keys, 0, tiny, dates, years, STEPS, n_members, shape)


def _in_month(dates: tuple[str, ...], month: str) -> tuple[str, ...]:
    return tuple(date for date in dates if date[:2] == month)


def month_nbytes(plan: Ensemble, month: str) -> int:
    """Return about the bytes of a month's file."""
    n_starts = len(plan.years) * len(_in_month(plan.dates, month))
    n_fields = len(PRESSURE_VARIABLES) * plan.n_members * len(STEPS) * len(LEVELS)
    return n_starts * n_fields * plan.shape[0] * plan.shape[1] * 4 + (32 << 10)


def write_month(plan: Ensemble, month: str, path: Path, advance: Callable[[int], None]) -> None:
    """Write one month's file as xarray writes what cfgrib decodes: contiguous float32."""
    starts = [(year, date) for year in plan.years for date in _in_month(plan.dates, month)]
    times = [np.datetime64(f"{year}-{date[:2]}-{date[2:]}", "s") for year, date in starts]
    latitudes, longitudes = (40 / plan.shape[1] * np.arange(length) for length in plan.shape)
    axes = {
        "number": (np.arange(plan.n_members), "1"),
        "time": (np.array(times).astype(np.int64), "seconds since 1970-01-01"),
        "step": (np.array(STEPS, dtype=np.float64), "hours"),
        "isobaricInhPa": (np.array(LEVELS, dtype=np.float64), "hPa"),
        "latitude": (60.0 - latitudes, "degrees_north"),
        "longitude": (longitudes, "degrees_east"),
    }
    with netcdf4("maelstrom-ens5mini").Dataset(path, "w", format="NETCDF4") as file:
        define_axes(file, axes, calendar="proleptic_gregorian")
        for variable in PRESSURE_VARIABLES:
            stored = file.createVariable(
                variable.name, "f4", tuple(axes), contiguous=True, fill_value=np.float32(np.nan)
            )
            stored.setncatts({"units": variable.units, "long_name": variable.long_name})
        for number, (year, date) in enumerate(starts):
            for variable, (step, hours) in itertools.product(PRESSURE_VARIABLES, enumerate(STEPS)):
                what = plan.seed, STAND_IN_VERSION, variable.name, year, int(date), hours
                low, high = np.array(variable.ranges)[:, :, None, None].swapaxes(0, 1)
                shape = (plan.n_members, len(LEVELS), *plan.shape)
                fields = smooth_values(shape, low, high, *what, noise=NOISE)
                file[variable.name][:, number, step] = fields
            advance(month_nbytes(plan, month) // len(starts))
