"""Writes a stand-in of application A1: NetCDF-4 files of smooth values with noise, one per date.

Every value follows from (seed, grid, date, lead time, variable) alone, so that the bytes do not
depend on how many processes write.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import StandIn, netcdf4, smooth_values
from iobench_maelstrom.yr.schema import (
    ALL_DATES,
    PREDICTORS,
    SIZES,
    STATIC_PREDICTORS,
    Predictor,
    start_name,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Advance

STAND_IN_VERSION = 2
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
SURFACE = {
    "altitude": ("m", 0.0, 2300.0), "land_area_fraction": ("1", 0.0, 1.0),
}  # fmt: skip
TARGETS = {"target_mean": (-35.0, 33.0), "target_std": (0.02, 6.0)}
NOISE = {
    "5GB": {"predictors": 0.83, "static_predictors": 0.64, "altitude": 0.42,
            "land_area_fraction": 0.17, "target_mean": 0.93, "target_std": 0.97},
    "5TB": {"predictors": 0.71, "static_predictors": 0.52, "altitude": 0.32,
            "land_area_fraction": 0.09, "target_mean": 0.76, "target_std": 0.74},
}  # fmt: skip
"""The share of noise in each variable of the two sizes; see `smooth_values`."""


class YrPlan(StandIn, frozen=True):
    """What a stand-in holds: ``n_steps`` lead times of a grid, of one of the `SIZES`."""

    size: str = ""
    n_y: int = 0
    n_x: int = 0

    @classmethod
    def of_size(cls, size: str, *, scale: float | None, tiny: bool, seed: int) -> YrPlan:
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
        dates = (ALL_DATES[number * len(ALL_DATES) // n_dates] for number in range(n_dates))
        keys = tuple({"dates": date} for date in dates)
        return cls(seed, keys, n_leadtimes, tiny, size, n_y, n_x)

    @property
    def file_nbytes(self) -> int:
        """Bytes of one file, about."""
        per_lead = len(PREDICTORS) + 2
        once = len(STATIC_PREDICTORS) + 4
        return 4 * self.n_y * self.n_x * (per_lead * self.n_steps + once) + HEADERS_NBYTES


def write_file(plan: YrPlan, date: str, path: Path, advance: Advance) -> None:
    """Write the file of a date, its variables in the order and layout of the published ones."""
    size = SIZES[plan.size]
    x = (FIRST_X + SPACING_M * (size.x_offset + np.arange(plan.n_x))).astype(np.float32)
    y = (FIRST_Y + SPACING_M * (size.y_offset + np.arange(plan.n_y))).astype(np.float32)
    latitude, longitude = _geographic(x.astype(np.float64), y.astype(np.float64))
    start = datetime.datetime.strptime(start_name(date) + "+0000", "%Y%m%dT%HZ%z")
    known = {"predictor": PREDICTORS, "static_predictor": STATIC_PREDICTORS}
    grid = ("y", "x")
    placed = {"coordinates": "longitude latitude"}
    mapped = {"grid_mapping": "projection_lcc", **placed}

    def values(name: str, low: Any, high: Any, *key: int) -> NDArray[np.float32]:
        shape = (plan.n_y, plan.n_x, *np.shape(low))
        what: tuple[int | str, ...] = (plan.seed, STAND_IN_VERSION, name, date, *key)
        return smooth_values(shape, low, high, *what, noise=NOISE[plan.size][name])

    with netcdf4("maelstrom-yr").Dataset(path, "w", format="NETCDF4") as file:

        def put(
            name: str, dims: tuple[str, ...], values: Any, dtype: str, **attributes: Any
        ) -> Any:
            variable = file.createVariable(name, dtype, dims, contiguous=True, endian="little")
            variable.setncatts(attributes)
            if values is not None:
                variable[...] = values
            return variable

        file.set_fill_off()
        file.history = f"iobench stand-in of maelstrom-yr {plan.size}, seed {plan.seed}"
        for name, length in {"y": plan.n_y, "x": plan.n_x, "leadtime": plan.n_steps}.items():
            file.createDimension(name, length)
        for name, channels in known.items():
            file.createDimension(name, len(channels))
        for name, numbers in (("x", x), ("y", y)):
            kind = f"projection_{name}_coordinate"
            put(name, (name,), numbers, "f4", units="m", standard_name=kind, **placed)
        for name, field, end in (("latitude", latitude, "north"), ("longitude", longitude, "east")):
            described = {"units": f"degree_{end}", "standard_name": name}
            put(name, grid, field, "f4", **described, grid_mapping="projection_lcc")
        lead = 3600.0 * size.lead_hours * np.arange(plan.n_steps)
        described = {"units": "seconds", "standard_name": "leadtime"}
        put("leadtime", ("leadtime",), lead, "f8", **described, **placed)
        described = {"units": "seconds since 1970-01-01 00:00:00 +00:00", "standard_name": "time"}
        put("time", (), start.timestamp(), "f8", **described, **placed)
        put("projection_lcc", (), 0, "i4", **PROJECTION, **placed)
        for dim, channels in known.items():
            for name, texts in (
                (dim, [each.name for each in channels]),
                (f"{dim}_units", [each.units for each in channels]),
            ):
                words = file.createVariable(name, str, (dim,))
                words.setncatts(placed)
                words[:] = np.array(texts, dtype=object)
        for name, (units, low, high) in SURFACE.items():
            put(name, grid, values(name, low, high), "f4", units=units, **mapped)
        static = values("static_predictors", *_bounds(STATIC_PREDICTORS))
        put("static_predictors", (*grid, "static_predictor"), static, "f4", **mapped)
        of_lead = ("leadtime", *grid)
        predictors = put("predictors", (*of_lead, "predictor"), None, "f4", **mapped)
        for name in TARGETS:
            put(name, of_lead, None, "f4", standard_name=name, units="celsius")
        for number in range(plan.n_steps):
            predictors[number] = values("predictors", *_bounds(PREDICTORS), number)
            for name, bounds in TARGETS.items():
                file[name][number] = values(name, *bounds, number)
            advance(plan.file_nbytes // plan.n_steps)


def _bounds(channels: tuple[Predictor, ...]) -> tuple[list[float], list[float]]:
    return [each.low for each in channels], [each.high for each in channels]


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
