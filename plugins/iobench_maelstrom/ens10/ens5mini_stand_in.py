"""The files of a stand-in of ens5mini: NetCDF, one a month, of smooth random fields.

Every value follows from (seed, start, step, variable, member) alone, so that the bytes do not
depend on how many processes write.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench_maelstrom.ens10.schema import (
    ALL_DATES,
    ALL_MONTHS,
    LEVELS,
    PRESSURE_VARIABLES,
    PressureVariable,
)
from iobench_maelstrom.ens10.stand_in import Ensemble, share_of, smooth_mode
from iobench_maelstrom.ens10.target import new_netcdf

if TYPE_CHECKING:
    from numpy.typing import NDArray

STAND_IN_VERSION = 1
"""Counts up when the same seed gives other bytes."""
ALL_YEARS = tuple(range(1998, 2008))
MEMBERS = 5
STEPS = (0, 24)
SHAPE = (40, 80)
"""Europe, 0.5 degrees apart: 60 to 40.5 north, 0 to 39.5 east."""
DEFAULT_MONTHS = ("01", "07")
DEFAULT_YEARS: tuple[int, ...] = (1998, 1999)
N_MODES = 12


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
    calendar = "proleptic_gregorian"
    with new_netcdf("maelstrom-ens5mini", path, axes, calendar=calendar) as file:
        for variable in PRESSURE_VARIABLES:
            stored = file.createVariable(
                variable.name, "f4", tuple(axes), contiguous=True, fill_value=np.float32(np.nan)
            )
            stored.setncatts({"units": variable.units, "long_name": variable.long_name})
        for number, (year, date) in enumerate(starts):
            for kind, variable in enumerate(PRESSURE_VARIABLES):
                for step, hours in enumerate(STEPS):
                    fields = _fields(plan, variable, (kind, year, int(date), hours))
                    file[variable.name][:, number, step] = fields
            advance(month_nbytes(plan, month) // len(starts))


def _fields(
    plan: Ensemble, variable: PressureVariable, key: tuple[int, int, int, int]
) -> NDArray[np.float32]:
    """Return one variable of a forecast's step, shape (member, level, latitude, longitude).

    Neighbouring levels are alike: each is a turn between two patterns. What members share is
    several times larger than what they differ in, which grows with the lead time.
    """
    height = np.arange(len(LEVELS), dtype=np.float32)[:, None, None] * np.float32(0.25)
    turns = np.cos(height), np.sin(height)
    kind, year, date, hours = key
    weather = [_pattern(plan, 1, kind, year, date, turn) for turn in range(2)]
    drift = [_pattern(plan, 2, *key, turn) for turn in range(2)]
    low, high = (
        np.array(bounds, dtype=np.float32)[:, None, None]
        for bounds in zip(*variable.ranges, strict=True)
    )
    south = np.linspace(-0.15, 0.15, plan.shape[0], dtype=np.float32)[:, None]
    base = (
        np.float32(0.5) + south + np.float32(0.13) * (turns[0] * weather[0] + turns[1] * weather[1])
    )
    base = base + np.float32(0.02 + hours / 1200) * (turns[0] * drift[0] + turns[1] * drift[1])
    members = np.empty((plan.n_members, len(LEVELS), *plan.shape), dtype=np.float32)
    for member in range(plan.n_members):
        own = [_pattern(plan, 3, *key, member, turn) for turn in range(2)]
        spread_of_members = np.float32(0.005 + 0.0002 * hours)
        members[member] = base + spread_of_members * (turns[0] * own[0] + turns[1] * own[1])
    np.clip(members, 0.0, 1.0, out=members)
    return low + members * (high - low)


def _pattern(plan: Ensemble, *key: int) -> NDArray[np.float32]:
    """Return a smooth pattern of about unit deviation."""
    random = np.random.default_rng([plan.seed, STAND_IN_VERSION, *key])
    modes = _modes(plan.seed, plan.shape)
    width = plan.shape[1]
    total = np.zeros(plan.shape, dtype=np.float32)
    for number in random.choice(N_MODES, size=2, replace=False):
        shift = int(random.integers(width))
        total += np.float32(random.standard_normal()) * modes[number][:, shift : shift + width]
    return total / np.float32(np.sqrt(2))


@functools.lru_cache(maxsize=2)
def _modes(seed: int, shape: tuple[int, int]) -> list[NDArray[np.float32]]:
    return [
        smooth_mode(np.random.default_rng([seed, STAND_IN_VERSION, 0, number]), shape)
        for number in range(N_MODES)
    ]
