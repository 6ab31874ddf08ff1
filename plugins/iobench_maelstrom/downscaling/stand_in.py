"""Writes a stand-in of application A5: monthly float64 NetCDF files of smooth random fields.

Every value follows from (seed, tier, month, variable, time) alone, so that the bytes do not depend
on how many processes write. Coarse inputs and fine targets share their weather and topography.
"""

from __future__ import annotations

import calendar
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import PlannedFile
from iobench.errors import MissingExtraError
from iobench_maelstrom.downscaling.schema import TIERS, Field, Tier
from iobench_maelstrom.ens10.schema import Grid
from iobench_maelstrom.ens10.stand_in import smooth_mode

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["STAND_IN_VERSION", "MonthsPlan", "planned_files"]

STAND_IN_VERSION = 1
"""Counts up when the same seed gives other bytes."""
N_MODES = 10
N_WEATHER = 4
SINCE = np.datetime64("1990-01-01", "h")
TINY_MONTHS = {
    1: ("2019-04", "2020-04", "2020-05"),
    2: ("2016-01", "2017-01", "2018-01"),
}
"""One of each split."""
DEFAULT_MONTHS = {
    1: (*(f"2019-{month:02}" for month in range(4, 10)), *TIERS[1].months[-6:]),
    2: ("2015-01", "2016-07", "2017-04", "2018-10"),
}
TINY_HOURS, DEFAULT_HOURS = 48, 168
"""Of a month of tier 2; those of tier 1 are always whole."""
DAILY = {"slhf_in": -0.25, "sshf_in": -0.3, "blh_in": 0.25}
"""How far the day moves a variable, as a share of its range; temperatures less."""


@dataclass(frozen=True, slots=True)
class MonthsPlan:
    """What a stand-in holds: months, and hours at most of each."""

    seed: int
    tier: int
    months: tuple[str, ...]
    hours: int

    @classmethod
    def of_size(cls, tier: Tier, *, scale: float | None, tiny: bool, seed: int) -> MonthsPlan:
        """Return the plan of a size: tiny, the profile's default, or a share of all months."""
        whole = 31 * 24
        number = tier.number
        if tiny:
            return cls(seed, number, TINY_MONTHS[number], TINY_HOURS if number == 2 else whole)
        if scale is None:
            hours = DEFAULT_HOURS if number == 2 else whole
            return cls(seed, number, DEFAULT_MONTHS[number], hours)
        n_all = len(tier.months)
        count = max(1, round(scale * n_all))
        months = tuple(tier.months[n * n_all // count] for n in range(count))
        hours = max(1, round(scale * n_all * whole)) if number == 2 else whole
        return cls(seed, number, months, min(hours, whole))

    def n_steps(self, month: str) -> int:
        """Time steps in a month's file."""
        days = calendar.monthrange(int(month[:4]), int(month[5:]))[1]
        return -(-min(days * 24, self.hours) // TIERS[self.tier].step_hours)

    def month_nbytes(self, month: str) -> int:
        """Bytes of a month's file, about."""
        tier = TIERS[self.tier]
        n_fields = sum(self.n_steps(month) if _over_time(tier, f) else 1 for f in tier.fields)
        rows, columns = tier.shape
        return n_fields * rows * columns * 8 + (32 << 10)

    @property
    def nbytes(self) -> int:
        """Bytes of all files, about."""
        return sum(self.month_nbytes(month) for month in self.months)


def planned_files(plan: MonthsPlan) -> list[PlannedFile]:
    """Return the files of a stand-in."""
    return [
        PlannedFile(
            "url/" + TIERS[plan.tier].month_url(month).replace("://", "/"),
            plan.month_nbytes(month),
            functools.partial(_write_month, plan, month),
        )
        for month in plan.months
    ]


def _over_time(tier: Tier, field: Field) -> bool:
    """Return whether a variable is stored at every time; of tier 1 all are."""
    return tier.number == 1 or not field.static


def _write_month(plan: MonthsPlan, month: str, path: Path, advance: Callable[[int], None]) -> None:
    """Write one month's file: float64, each variable in one piece."""
    tier = TIERS[plan.tier]
    n_steps = plan.n_steps(month)
    hours = tier.step_hours * np.arange(n_steps)
    with _netcdf4().Dataset(path, "w", format="NETCDF4") as file:
        file.setncatts(_global_attributes(tier))
        _write_axes(file, tier, np.datetime64(month, "h") + hours)
        for number, field in enumerate(tier.fields):
            over_time = _over_time(tier, field)
            dims = tier.dims if over_time else tier.dims[1:]
            stored = file.createVariable(field.name, "f8", dims, contiguous=True, fill_value=False)
            if field.units:
                stored.units = field.units
            if field.static:
                topography = _in_range(field, _static(plan, field))
                stored[:] = np.broadcast_to(topography, (n_steps, *tier.shape)[-len(dims) :])
            else:
                stored[:] = _in_range(field, _weather(plan, month, number, hours))
        advance(plan.month_nbytes(month))


def _global_attributes(tier: Tier) -> dict[str, str]:
    attributes = {"Conventions": "CF-1.6", "history": "made up by iobench: a stand-in"}
    if tier.number == 1:
        attributes["CDO"] = "Climate Data Operators version 1.9.8 (https://mpimet.mpg.de/cdo)"
        attributes["NCO"] = "netCDF Operators version 4.9.5"
    return attributes


def _write_axes(file: Any, tier: Tier, times: NDArray[np.datetime64]) -> None:
    rows, columns = tier.shape
    if tier.number == 1:
        across, along = 54.5 - 0.1 * np.arange(rows), 4.0 + 0.1 * np.arange(columns)
        units = ("degrees_north", "degrees_east")
    else:
        across, along = -5.0 + 0.055 * np.arange(rows), -9.0 + 0.055 * np.arange(columns)
        units = ("degrees", "degrees")
    axes = (
        ((times - SINCE).astype(np.float64), f"hours since {SINCE.astype('M8[D]')} 00:00:00"),
        (across, units[0]),
        (along, units[1]),
    )
    for name, (values, unit) in zip(tier.dims, axes, strict=True):
        file.createDimension(name, len(values))
        axis = file.createVariable(name, "f8", (name,), contiguous=True, fill_value=False)
        axis.units = unit
        axis[:] = values
    file["time"].calendar = "proleptic_gregorian"


def _in_range(field: Field, fraction: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values of a variable from fractions of its range; about 0..1, clipped."""
    values: NDArray[np.float64] = np.clip(fraction, 0.0, 1.0)
    values *= field.high - field.low
    values += field.low
    return values


def _static(plan: MonthsPlan, field: Field) -> NDArray[np.float64]:
    """Return topography or land share as fractions; of the target with finer structure."""
    smooth = _pattern(plan, 0) + 0.4 * _pattern(plan, 1)
    if field.name.endswith("_tar"):
        smooth = smooth + 0.15 * _pattern(plan, 2)
    if field.name in ("lsm_in", "fr_land_tar"):
        return 0.5 + 3.0 * (smooth + 0.5)
    land: NDArray[np.float64] = 0.15 + 0.12 * smooth
    return land * np.abs(land) * 3.0


def _weather(plan: MonthsPlan, month: str, number: int, hours: NDArray[Any]) -> NDArray[np.float64]:
    """Return a variable's month as fractions of its range, shape (time, row, column).

    Patterns grow and decay within days. All temperatures, and the other variables among
    themselves, share half of their weather.
    """
    tier = TIERS[plan.tier]
    field = tier.fields[number]
    is_warmth = field.units == "K"
    season = -np.cos(2 * np.pi * (int(month[5:]) - 1) / 12)
    day = np.cos(2 * np.pi * (hours - 14) / 24)
    daily = DAILY.get(field.name, 0.05 if is_warmth else 0.0)
    level = 0.5 + (0.15 * season if is_warmth else 0.0) + daily * day
    values = np.empty((len(hours), *tier.shape))
    values[:] = level[:, None, None]
    if is_warmth or field.name == "sp_in":
        topography = _static(plan, next(f for f in tier.fields if f.static))
        values -= (0.25 if is_warmth else 0.8) * topography
    shared = 900 + is_warmth
    year_month = int(month[:4]), int(month[5:])
    for kind in (shared, number):
        random = np.random.default_rng([plan.seed, STAND_IN_VERSION, plan.tier, kind, *year_month])
        for mode in random.choice(N_MODES, size=N_WEATHER, replace=False):
            days, start, weight = random.uniform(3, 9), random.uniform(0, 2 * np.pi), 0.045
            course = weight * np.cos(2 * np.pi * hours / (24 * days) + start)
            values += course[:, None, None] * _pattern(plan, int(mode))
    return values


def _pattern(plan: MonthsPlan, mode: int) -> NDArray[np.float64]:
    return _modes(plan.seed, plan.tier)[mode]


@functools.lru_cache(maxsize=2)
def _modes(seed: int, tier: int) -> list[NDArray[np.float64]]:
    """Return the patterns that all fields are made of; half of what goes around is enough."""
    rows, columns = TIERS[tier].shape
    grid = Grid(rows, 2 * columns, 0.1)
    found = []
    for number in range(N_MODES):
        random = np.random.default_rng([seed, STAND_IN_VERSION, tier, 0, number])
        found.append(smooth_mode(random, grid)[:, :columns].astype(np.float64))
    return found


def _netcdf4() -> Any:
    try:
        import netCDF4
    except ImportError as error:
        raise MissingExtraError(
            "maelstrom-downscaling needs NetCDF: pip install 'iobench[netcdf]'"
        ) from error
    return netCDF4
