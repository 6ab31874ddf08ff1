"""Writes a stand-in of application A1: NetCDF-4 files of smooth random fields, one per date.

Every value follows from (seed, grid, date, lead time, variable) alone, so that the bytes do not
depend on how many processes write. Values have about the moments of the real ones.
"""

from __future__ import annotations

import datetime
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iobench.datasets import StandIn, netcdf4
from iobench_maelstrom.yr.schema import (
    ALL_DATES,
    PREDICTORS,
    SIZES,
    STATIC_PREDICTORS,
    start_name,
)

if TYPE_CHECKING:
    from iobench.datasets import Advance

Surface = NDArray[np.float32]

VERSION = 1
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


N_MODES = 5
DRIFT_POINTS_PER_HOUR = 20
"""Weather moves by some 5 m/s on a grid of 1 km."""
RELIEF, MODEL_RELIEF, ANALYSIS, BIAS, WEATHER, LOCAL = range(6)
"""First part of the random key: which family of patterns."""
MEAN = {each.name: each.mean for each in (*PREDICTORS, *STATIC_PREDICTORS)}
STD = {each.name: each.std for each in (*PREDICTORS, *STATIC_PREDICTORS)}
TARGET_MEAN, TARGET_STD = 5.517, (0.485, 0.378)


@dataclass(frozen=True, slots=True)
class YrPlan(StandIn):
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
    weather = _weather_of(plan.seed, plan.n_y, plan.n_x)
    static = weather.static(date)
    known = {"predictor": PREDICTORS, "static_predictor": STATIC_PREDICTORS}
    grid = ("y", "x")
    placed = {"coordinates": "longitude latitude"}
    mapped = {"grid_mapping": "projection_lcc", **placed}
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
        for name, values in (("x", x), ("y", y)):
            kind = f"projection_{name}_coordinate"
            put(name, (name,), values, "f4", units="m", standard_name=kind, **placed)
        for name, field, end in (("latitude", latitude, "north"), ("longitude", longitude, "east")):
            told = {"units": f"degree_{end}", "standard_name": name}
            put(name, grid, field, "f4", **told, grid_mapping="projection_lcc")
        lead = 3600.0 * size.lead_hours * np.arange(plan.n_steps)
        told = {"units": "seconds", "standard_name": "leadtime"}
        put("leadtime", ("leadtime",), lead, "f8", **told, **placed)
        told = {"units": "seconds since 1970-01-01 00:00:00 +00:00", "standard_name": "time"}
        put("time", (), start.timestamp(), "f8", **told, **placed)
        put("projection_lcc", (), 0, "i4", **PROJECTION, **placed)
        for dim, channels in known.items():
            for name, texts in (
                (dim, [each.name for each in channels]),
                (f"{dim}_units", [each.units for each in channels]),
            ):
                words = file.createVariable(name, str, (dim,))
                words.setncatts(placed)
                words[:] = np.array(texts, dtype=object)
        names = [each.name for each in STATIC_PREDICTORS]
        for name, units in (("altitude", "m"), ("land_area_fraction", "1")):
            put(name, grid, static[..., names.index(name)], "f4", units=units, **mapped)
        put("static_predictors", (*grid, "static_predictor"), static, "f4", **mapped)
        of_lead = ("leadtime", *grid)
        predictors = put("predictors", (*of_lead, "predictor"), None, "f4", **mapped)
        mean, std = (
            put(name, of_lead, None, "f4", standard_name=name, units="celsius")
            for name in ("target_mean", "target_std")
        )
        for number in range(plan.n_steps):
            made = weather.forecast(date, number * size.lead_hours, static[..., 0])
            predictors[number], mean[number], std[number] = made
            advance(plan.file_nbytes // plan.n_steps)


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


class NordicWeather:
    """Makes fields as sums of a few smooth patterns, each shifted along its rows."""

    def __init__(self, seed: int, n_y: int, n_x: int) -> None:
        self.key = (seed, VERSION)
        self.shape = (n_y, n_x)
        self.modes = [_mode(self._random(99, number), n_y, n_x) for number in range(N_MODES)]

    def static(self, date: str) -> Surface:
        """Return what does not change with lead time, shape (y, x, static_predictor)."""
        relief = self._patterns(4, 0, RELIEF)
        model_relief = relief + 0.1 * self._patterns(2, 0, MODEL_RELIEF)
        fields = {
            "altitude": np.where(relief > 0, _skewed(relief, "altitude"), 0),
            "analysis_std": _skewed(self._patterns(3, 0, ANALYSIS, int(date)), "analysis_std"),
            "bias_recent": _scaled(self._patterns(3, 0, BIAS, int(date)), "bias_recent"),
            "land_area_fraction": np.clip(0.45 + 2 * relief, 0, 1),
            "model_altitude": np.where(
                model_relief > -0.1, _skewed(model_relief, "model_altitude"), 0
            ),
            "model_laf": np.clip(0.43 + 1.5 * model_relief, 0, 1),
        }
        return np.stack([fields[each.name] for each in STATIC_PREDICTORS], axis=-1).astype("f4")

    def forecast(
        self, date: str, hours: int, altitude: Surface
    ) -> tuple[Surface, Surface, Surface]:
        """Return predictors, shape (y, x, predictor), and mean and deviation of the target."""
        drift = hours * DRIFT_POINTS_PER_HOUR
        weather = {
            each.name: self._patterns(3, drift, WEATHER, number, int(date))
            for number, each in enumerate(PREDICTORS)
        }
        spread = np.exp(0.3 * weather["bias_yesterday"])
        raw = _season(date, hours) + 3.5 * weather["air_temperature_2m"] - 0.005 * altitude
        low = (MEAN["air_temperature_2m"] - MEAN["air_temperature_0.1_2m"]) * spread
        high = (MEAN["air_temperature_0.9_2m"] - MEAN["air_temperature_2m"]) * spread
        fields = {
            "air_temperature_0.1_2m": raw - low,
            "air_temperature_0.9_2m": raw + high,
            "air_temperature_2m": raw,
            "bias_yesterday": _scaled(weather["bias_yesterday"], "bias_yesterday"),
            "cloud_area_fraction": np.clip(0.75 + weather["cloud_area_fraction"], 0, 1),
            "precipitation_amount": np.maximum(
                _skewed(weather["precipitation_amount"], "precipitation_amount") - 0.02, 0
            ),
            "x_wind_10m": _scaled(weather["x_wind_10m"], "x_wind_10m"),
            "y_wind_10m": _scaled(weather["y_wind_10m"], "y_wind_10m"),
        }
        predictors = np.empty((*self.shape, len(PREDICTORS)), dtype=np.float32)
        for number, each in enumerate(PREDICTORS):
            predictors[..., number] = fields[each.name]
        local = self._patterns(2, 0, LOCAL, int(date), hours)
        offset = np.float32(TARGET_MEAN - MEAN["air_temperature_2m"])
        return predictors, raw + offset + 0.9 * local, _lognormal(local, *TARGET_STD)

    def _patterns(self, count: int, drift: int, *key: int) -> Surface:
        """Return the sum of ``count`` patterns shifted by ``drift``, of about unit deviation."""
        random = self._random(*key)
        numbers = random.choice(N_MODES, size=count, replace=False)
        shifts = (random.integers(self.shape[1], size=count) + drift) % self.shape[1]
        weights = random.standard_normal(count)
        weights /= np.linalg.norm(weights)
        total = np.zeros(self.shape, dtype=np.float32)
        for number, shift, weight in zip(numbers, shifts, weights, strict=True):
            total += self.modes[number][:, shift : shift + self.shape[1]] * np.float32(weight)
        return total

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([*self.key, *key])


def _mode(random: np.random.Generator, n_y: int, n_x: int) -> Surface:
    """Return a smooth pattern of unit deviation, twice side by side so that a shift is a slice."""
    spectrum = np.fft.rfft2(random.standard_normal((n_y, n_x)))
    along = np.arange(spectrum.shape[1])[None, :] / n_x
    across = np.fft.fftfreq(n_y)[:, None]
    wave_number = np.hypot(along, across) * max(n_y, n_x)
    spectrum /= np.maximum(wave_number, 2.0) ** 2
    spectrum[0, 0] = 0
    pattern = np.fft.irfft2(spectrum, s=(n_y, n_x))
    pattern /= pattern.std()
    return np.concatenate([pattern, pattern], axis=1).astype(np.float32)


def _scaled(pattern: Surface, name: str) -> Surface:
    return np.float32(MEAN[name]) + np.float32(STD[name]) * pattern


def _skewed(pattern: Surface, name: str) -> Surface:
    return _lognormal(pattern, MEAN[name], STD[name])


def _lognormal(pattern: Surface, mean: float, std: float) -> Surface:
    """Return positive values of that mean and deviation, if the pattern is normal."""
    variance = np.log1p((std / mean) ** 2)
    shape, centre = np.float32(np.sqrt(variance)), np.float32(np.log(mean) - variance / 2)
    values: Surface = np.exp(centre + shape * pattern)
    return values


def _season(date: str, hours: int) -> np.float32:
    """Return the mean temperature of a time of year and day."""
    day = datetime.datetime.strptime(date, "%Y%m%d").timetuple().tm_yday
    of_year = np.cos(2 * np.pi * (day - 30) / 365)
    of_day = np.cos(2 * np.pi * (hours - 9) / 24)
    return np.float32(MEAN["air_temperature_2m"] + 0.55 - 8 * of_year + 1.5 * of_day)


@functools.lru_cache(maxsize=2)
def _weather_of(seed: int, n_y: int, n_x: int) -> NordicWeather:
    return NordicWeather(seed, n_y, n_x)
