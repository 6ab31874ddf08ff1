"""Writes a stand-in of application A1: NetCDF-4 files of smooth random fields, one per date.

Every value follows from (seed, grid, date, lead time, variable) alone, so that the bytes do not
depend on how many processes write.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import PlannedFile
from iobench.errors import MissingExtraError
from iobench_maelstrom.yr.fields import NordicWeather
from iobench_maelstrom.yr.schema import (
    ALL_DATES,
    PREDICTORS,
    SIZES,
    STATIC_PREDICTORS,
    Predictor,
    file_url,
    start_name,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["STAND_IN_VERSION", "YrPlan", "planned_files"]

STAND_IN_VERSION = 1
"""Counts up when the same seed gives other bytes."""
HEADERS_NBYTES = 40 << 10
SPACING_M = 1000.0
FIRST_X, FIRST_Y = -897442.2, -1104322.0
"""Of the whole grid, as the published files have it."""
EARTH_RADIUS = 6.371e6
PROJECTION: dict[str, Any] = {
    "grid_mapping_name": "lambert_conformal_conic",
    "proj4": "+proj=lcc +lat_0=63 +lon_0=15 +lat_1=63 +lat_2=63 +no_defs +R=6.371e+06",
    "standard_parallel": [63.0, 63.0],
    "longitude_of_central_meridian": 15.0,
    "latitude_of_projection_origin": 63.0,
    "earth_radius": EARTH_RADIUS,
}
N_DEFAULT_DATES = {"5GB": 40, "5TB": 2}
N_TINY_DATES = {"5GB": 8, "5TB": 4}
N_DEFAULT_LEADTIMES = 2
"""Of 5TB: with two dates about 1 GB, on the whole grid, whose rows make its access pattern."""
TINY_5TB = (6, 512, 384)


@dataclass(frozen=True, slots=True)
class YrPlan:
    """What a stand-in holds."""

    seed: int
    parameter: str
    size: str
    dates: tuple[str, ...]
    n_leadtimes: int
    n_y: int
    n_x: int

    @classmethod
    def of_size(
        cls, parameter: str, size: str, *, scale: float | None, tiny: bool, seed: int
    ) -> YrPlan:
        """Return the plan of a size: tiny, the profile's default, or a share of all samples."""
        real = SIZES[size]
        n_leadtimes, n_y, n_x = real.n_leadtimes, real.n_y, real.n_x
        if tiny:
            n_dates = N_TINY_DATES[size]
            if size == "5TB":
                n_leadtimes, n_y, n_x = TINY_5TB
        elif scale is None:
            n_dates = N_DEFAULT_DATES[size]
            if size == "5TB":
                n_leadtimes = N_DEFAULT_LEADTIMES
        else:
            fields = max(1, round(scale * len(ALL_DATES) * real.n_leadtimes))
            n_leadtimes = min(fields, real.n_leadtimes)
            n_dates = max(1, round(fields / n_leadtimes))
        return cls(seed, parameter, size, spread(n_dates), n_leadtimes, n_y, n_x)

    @property
    def file_nbytes(self) -> int:
        """Bytes of one file, about."""
        per_lead = len(PREDICTORS) + 2
        once = len(STATIC_PREDICTORS) + 4
        points = self.n_y * self.n_x
        return 4 * points * (per_lead * self.n_leadtimes + once) + HEADERS_NBYTES

    @property
    def nbytes(self) -> int:
        """Bytes of all files, about."""
        return len(self.dates) * self.file_nbytes


def spread(count: int) -> tuple[str, ...]:
    """Return ``count`` dates spread evenly over both years."""
    return tuple(ALL_DATES[number * len(ALL_DATES) // count] for number in range(count))


def planned_files(plan: YrPlan) -> list[PlannedFile]:
    """Return the files of a stand-in, by date."""
    return [
        PlannedFile(
            "url/" + file_url(plan.parameter, plan.size, date).replace("://", "/"),
            plan.file_nbytes,
            functools.partial(_write_file, plan, date),
        )
        for date in plan.dates
    ]


def _write_file(plan: YrPlan, date: str, path: Path, advance: Callable[[int], None]) -> None:
    try:
        import netCDF4
    except ImportError as error:
        raise MissingExtraError(
            "maelstrom-yr needs NetCDF: pip install 'iobench[netcdf]'"
        ) from error
    with netCDF4.Dataset(path, "w", format="NETCDF4") as file:
        file.set_fill_off()
        file.history = f"iobench stand-in of maelstrom-yr {plan.size}, seed {plan.seed}"
        lengths = {
            "y": plan.n_y,
            "x": plan.n_x,
            "leadtime": plan.n_leadtimes,
            "predictor": len(PREDICTORS),
            "static_predictor": len(STATIC_PREDICTORS),
        }
        for name, length in lengths.items():
            file.createDimension(name, length)
        _write_coordinates(file, plan, date)
        _write_names(file, "predictor", PREDICTORS)
        _write_names(file, "static_predictor", STATIC_PREDICTORS)
        _write_fields(file, plan, date, advance)


def _write_fields(file: Any, plan: YrPlan, date: str, advance: Callable[[int], None]) -> None:
    maker = _maker(plan.seed, plan.n_y, plan.n_x)
    static = maker.static(date)
    names = [each.name for each in STATIC_PREDICTORS]
    for name, units in (("altitude", "m"), ("land_area_fraction", "1")):
        _variable(file, name, "f4", ("y", "x"), _mapped(units=units))[:] = static[
            ..., names.index(name)
        ]
    attributes = _mapped()
    _variable(file, "static_predictors", "f4", ("y", "x", "static_predictor"), attributes)[:] = (
        static
    )
    predictors = _variable(
        file, "predictors", "f4", ("leadtime", "y", "x", "predictor"), attributes
    )
    targets = [
        _variable(
            file,
            name,
            "f4",
            ("leadtime", "y", "x"),
            {"standard_name": name, "units": "celsius"},
        )
        for name in ("target_mean", "target_std")
    ]
    step = SIZES[plan.size].lead_hours
    for lead in range(plan.n_leadtimes):
        forecast, mean, std = maker.forecast(date, lead * step, static[..., 0])
        predictors[lead] = forecast
        targets[0][lead], targets[1][lead] = mean, std
        advance(plan.file_nbytes // plan.n_leadtimes)


def _write_coordinates(file: Any, plan: YrPlan, date: str) -> None:
    size = SIZES[plan.size]
    x = (FIRST_X + SPACING_M * (size.x_offset + np.arange(plan.n_x))).astype(np.float32)
    y = (FIRST_Y + SPACING_M * (size.y_offset + np.arange(plan.n_y))).astype(np.float32)
    start = datetime.datetime.strptime(start_name(date) + "+0000", "%Y%m%dT%HZ%z")
    lead = 3600.0 * size.lead_hours * np.arange(plan.n_leadtimes)
    described = {"coordinates": "longitude latitude"}
    for name, values, long_name in (
        ("x", x, "projection_x_coordinate"),
        ("y", y, "projection_y_coordinate"),
    ):
        attributes = {"units": "m", "standard_name": long_name, **described}
        _variable(file, name, "f4", (name,), attributes)[:] = values
    latitude, longitude = _geographic(x.astype(np.float64), y.astype(np.float64))
    for name, field, units in (
        ("latitude", latitude, "degree_north"),
        ("longitude", longitude, "degree_east"),
    ):
        attributes = {"units": units, "standard_name": name, "grid_mapping": "projection_lcc"}
        _variable(file, name, "f4", ("y", "x"), attributes)[:] = field
    attributes = {"units": "seconds", "standard_name": "leadtime", **described}
    _variable(file, "leadtime", "f8", ("leadtime",), attributes)[:] = lead
    units = "seconds since 1970-01-01 00:00:00 +00:00"
    attributes = {"units": units, "standard_name": "time", **described}
    _variable(file, "time", "f8", (), attributes)[...] = start.timestamp()
    _variable(file, "projection_lcc", "i4", (), {**PROJECTION, **described})[...] = 0


def _write_names(file: Any, dim: str, predictors: tuple[Predictor, ...]) -> None:
    texts = {
        dim: [each.name for each in predictors],
        f"{dim}_units": [each.units for each in predictors],
    }
    for name, values in texts.items():
        variable = file.createVariable(name, str, (dim,))
        variable.coordinates = "longitude latitude"
        variable[:] = np.array(values, dtype=object)


def _variable(
    file: Any, name: str, dtype: str, dims: tuple[str, ...], attributes: dict[str, Any]
) -> Any:
    variable = file.createVariable(name, dtype, dims, contiguous=True, endian="little")
    variable.setncatts(attributes)
    return variable


def _mapped(**attributes: str) -> dict[str, str]:
    return {**attributes, "grid_mapping": "projection_lcc", "coordinates": "longitude latitude"}


def _geographic(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return latitude and longitude, in degrees, of a Lambert cone tangent at 63 degrees north.

    J. P. Snyder, Map Projections: A Working Manual, USGS 1987, equations 15-1 to 15-11.
    """
    parallel = np.radians(63.0)
    n = np.sin(parallel)
    tangent = np.tan(np.pi / 4 + parallel / 2) ** n
    factor = EARTH_RADIUS * np.cos(parallel) * tangent / n
    origin = factor / tangent
    rho = np.hypot(x[None, :], origin - y[:, None])
    theta = np.arctan2(x[None, :], origin - y[:, None])
    latitude = np.degrees(2 * np.arctan((factor / rho) ** (1 / n)) - np.pi / 2)
    return latitude, 15.0 + np.degrees(theta / n)


@functools.lru_cache(maxsize=2)
def _maker(seed: int, n_y: int, n_x: int) -> NordicWeather:
    return NordicWeather(seed, STAND_IN_VERSION, n_y, n_x)
