"""Writes a stand-in of ens5mini: a NetCDF file a month, of smooth random fields.

Every value follows from (seed, start, step, variable, member) alone, so that the bytes do not
depend on how many processes write.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import StandIn, netcdf4
from iobench_maelstrom.ens10.ens5mini_schema import (
    ALL_MONTHS,
    ALL_YEARS,
    DIMS,
    GRID,
    LEVELS,
    MEMBERS,
    PRESSURE_VARIABLES,
    STEPS,
    PressureVariable,
    dates_of,
)
from iobench_maelstrom.ens10.schema import ALL_DATES, Grid
from iobench_maelstrom.ens10.stand_in import smooth_mode, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["STAND_IN_VERSION", "MonthlyPlan", "write_month"]

STAND_IN_VERSION = 1
"""Counts up when the same seed gives other bytes."""
DEFAULT_MONTHS = ("01", "07")
DEFAULT_YEARS = (1998, 1999)
N_MODES = 12
NORTH = 60.0


@dataclass(frozen=True, slots=True)
class MonthlyPlan(StandIn):
    """What a stand-in holds: of each month a file."""

    dates: tuple[str, ...] = ()
    years: tuple[int, ...] = ()
    n_members: int = MEMBERS
    grid: Grid = GRID

    @classmethod
    def of_size(cls, *, scale: float | None, tiny: bool, seed: int) -> MonthlyPlan:
        """Return the plan of a size: tiny, the profile's default, or a share of all samples."""
        default = tuple(date for month in DEFAULT_MONTHS for date in dates_of(month))
        if tiny:
            dates = tuple(date for month in DEFAULT_MONTHS for date in dates_of(month)[:2])
            return cls._of(seed, dates, DEFAULT_YEARS, 3, Grid(10, 20, 2.0))
        if scale is None:
            return cls._of(seed, default, DEFAULT_YEARS)
        n_samples = max(1, round(scale * len(ALL_DATES) * len(ALL_YEARS)))
        years = tuple(ALL_YEARS)[:n_samples]
        return cls._of(seed, spread(max(1, round(n_samples / len(years)))), years)

    @classmethod
    def _of(
        cls,
        seed: int,
        dates: tuple[str, ...],
        years: tuple[int, ...],
        n_members: int = MEMBERS,
        grid: Grid = GRID,
    ) -> MonthlyPlan:
        keys = tuple({"date": month} for month in ALL_MONTHS if any(d[:2] == month for d in dates))
        return cls(seed, keys, dates=dates, years=years, n_members=n_members, grid=grid)

    def starts(self, month: str) -> list[tuple[int, str]]:
        """Return year and date of each forecast in a month's file, in order of time."""
        dates = [date for date in self.dates if date[:2] == month]
        return [(year, date) for year in self.years for date in dates]

    def month_nbytes(self, month: str) -> int:
        """Bytes of a month's file, about."""
        fields = len(PRESSURE_VARIABLES) * self.n_members * len(STEPS) * len(LEVELS)
        return len(self.starts(month)) * fields * self.grid.n_points * 4 + (32 << 10)


def write_month(plan: MonthlyPlan, month: str, path: Path, advance: Callable[[int], None]) -> None:
    """Write one month's file as xarray writes what cfgrib decodes: contiguous float32."""
    starts = plan.starts(month)
    with netcdf4("maelstrom-ens5mini").Dataset(path, "w", format="NETCDF4") as file:
        _write_axes(file, plan, starts)
        for variable in PRESSURE_VARIABLES:
            stored = file.createVariable(
                variable.name, "f4", DIMS, contiguous=True, fill_value=np.float32(np.nan)
            )
            stored.setncatts({"units": variable.units, "long_name": variable.long_name})
        for number, (year, date) in enumerate(starts):
            for kind, variable in enumerate(PRESSURE_VARIABLES):
                for step, hours in enumerate(STEPS):
                    fields = _fields(plan, variable, (kind, year, int(date), hours))
                    file[variable.name][:, number, step] = fields
            advance(plan.month_nbytes(month) // len(starts))


def _write_axes(file: Any, plan: MonthlyPlan, starts: list[tuple[int, str]]) -> None:
    grid = plan.grid
    times = [np.datetime64(f"{year}-{date[:2]}-{date[2:]}", "s") for year, date in starts]
    axes: dict[str, tuple[NDArray[Any], str]] = {
        "number": (np.arange(plan.n_members), "1"),
        "time": (np.array(times).astype(np.int64), "seconds since 1970-01-01"),
        "step": (np.array(STEPS, dtype=np.float64), "hours"),
        "isobaricInhPa": (np.array(LEVELS, dtype=np.float64), "hPa"),
        "latitude": (NORTH - grid.spacing * np.arange(grid.n_latitudes), "degrees_north"),
        "longitude": (grid.spacing * np.arange(grid.n_longitudes), "degrees_east"),
    }
    for name, (values, units) in axes.items():
        file.createDimension(name, len(values))
        axis = file.createVariable(name, values.dtype, (name,), contiguous=True)
        axis.units = units
        axis[:] = values
    file["time"].calendar = "proleptic_gregorian"


def _fields(
    plan: MonthlyPlan, variable: PressureVariable, key: tuple[int, int, int, int]
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
    south = np.linspace(-0.15, 0.15, plan.grid.n_latitudes, dtype=np.float32)[:, None]
    base = (
        np.float32(0.5) + south + np.float32(0.13) * (turns[0] * weather[0] + turns[1] * weather[1])
    )
    base = base + np.float32(0.02 + hours / 1200) * (turns[0] * drift[0] + turns[1] * drift[1])
    members = np.empty((plan.n_members, len(LEVELS), *plan.grid.shape), dtype=np.float32)
    for member in range(plan.n_members):
        own = [_pattern(plan, 3, *key, member, turn) for turn in range(2)]
        spread_of_members = np.float32(0.005 + 0.0002 * hours)
        members[member] = base + spread_of_members * (turns[0] * own[0] + turns[1] * own[1])
    np.clip(members, 0.0, 1.0, out=members)
    return low + members * (high - low)


def _pattern(plan: MonthlyPlan, *key: int) -> NDArray[np.float32]:
    """Return a smooth pattern of about unit deviation."""
    random = np.random.default_rng([plan.seed, STAND_IN_VERSION, *key])
    modes = _modes(plan.seed, plan.grid)
    width = plan.grid.n_longitudes
    total = np.zeros(plan.grid.shape, dtype=np.float32)
    for number in random.choice(N_MODES, size=2, replace=False):
        shift = int(random.integers(width))
        total += np.float32(random.standard_normal()) * modes[number][:, shift : shift + width]
    return total / np.float32(np.sqrt(2))


@functools.lru_cache(maxsize=2)
def _modes(seed: int, grid: Grid) -> list[NDArray[np.float32]]:
    return [
        smooth_mode(np.random.default_rng([seed, STAND_IN_VERSION, 0, number]), grid)
        for number in range(N_MODES)
    ]
