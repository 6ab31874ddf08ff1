"""What the files of application A1 hold and where they are published, and stand-ins of them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from iobench.datasets import StandIn, smooth_values, writing_library

if TYPE_CHECKING:
    from numpy.typing import NDArray


BUCKET_URL = "https://object-store.os-api.cci1.ecmwf.int/maelstrom-ap1"
TERMS_OF_USE = (
    "By downloading data from this dataset, you agree to the terms and conditions defined at "
    "https://github.com/metno/maelstrom_yr/LICENSE"
)
CITATION = (
    "Nipen, T. N., Seierstad, I. A., Lussana, C., Kristiansen, J. and Hov, Ø. (2020): Adopting "
    "Citizen Observations in Operational Weather Prediction, Bulletin of the American "
    "Meteorological Society, 101(1), E43-E57"
)


class Predictor(NamedTuple):
    """One channel: the mean and deviation it is normalised by, bounds of a stand-in's values."""

    name: str
    units: str
    mean: float
    std: float
    low: float
    high: float


# Coefficients: table of climetlab-maelstrom-yr 0.6.3.
PREDICTORS = (
    Predictor(
        "air_temperature_0.1_2m", "celsius", 4.725014929970105, 7.566987847083937, -36.0, 30.0
    ),
    Predictor(
        "air_temperature_0.9_2m", "celsius", 6.112570554018021, 7.521962731122694, -34.0, 34.0
    ),
    Predictor("air_temperature_2m", "celsius", 5.388952960570653, 7.4335476655246735, -35.0, 32.0),
    Predictor("bias_yesterday", "celsius", -0.07066702128698428, 0.7485341580688785, -6.0, 6.0),
    Predictor("cloud_area_fraction", "1", 0.6884219621618589, 0.40055377741854187, 0.0, 1.0),
    Predictor("precipitation_amount", "kg/m^2", 0.07837766820254426, 0.36662233737977684, 0.0, 8.0),
    Predictor("x_wind_10m", "m/s", 0.4250524006783962, 4.6850994324021595, -22.0, 22.0),
    Predictor("y_wind_10m", "m/s", -0.7272756993770599, 5.11310843905376, -24.0, 24.0),
)
STATIC_PREDICTORS = (
    Predictor("altitude", "m", 110.0174789428711, 218.2789258799505, 0.0, 2300.0),
    Predictor("analysis_std", "celsius", 0.5121386324365934, 0.40215385148028904, 0.0, 4.0),
    Predictor("bias_recent", "celsius", -0.007340590585954487, 0.5344001060184195, -4.0, 4.0),
    Predictor("land_area_fraction", "1", 0.45299264788627625, 0.49328521353773686, 0.0, 1.0),
    Predictor("model_altitude", "m", 109.62958717346191, 213.4803743151553, 0.0, 2100.0),
    Predictor("model_laf", "1", 0.43093839287757874, 0.48621477236654775, 0.0, 1.0),
)
FEATURES = ("leadtime", "x", "y")
"""Appended by the training code, in this order."""
CHANNELS = (*(each.name for each in (*PREDICTORS, *STATIC_PREDICTORS)), *FEATURES)
RAW_FORECAST = [each.name for each in PREDICTORS].index("air_temperature_2m")


class Size(NamedTuple):
    """One of the two sizes the data are published in."""

    n_leadtimes: int
    n_y: int
    n_x: int
    y_offset: int  # where its grid begins in the whole one
    x_offset: int
    lead_hours: int  # between lead times


SIZES = {
    "5GB": Size(10, 128, 128, 687, 587, 6),
    "5TB": Size(59, 2321, 1796, 0, 0, 1),
}

MISSING_DATES = ("20200522", "20200526", "20200530", "20200805", "20210805", "20220115")
FIRST_DATE, LAST_DATE = np.datetime64("2020-03-01"), np.datetime64("2022-02-28")
LAST_TRAINING_DATE = "20210228"
# Every two weeks or so of the second year: validation of the D1.7 configurations of
# metno/maelstrom-train, whose test files are all of the second year.
VALIDATION_DATES = (
    "20210301", "20210315", "20210402", "20210416", "20210501", "20210515", "20210602", "20210616",
    "20210701", "20210715", "20210802", "20210816", "20210901", "20210915", "20211002", "20211016",
    "20211101", "20211115", "20211202", "20211216", "20220101", "20220202", "20220216",
)  # fmt: skip


_DAYS = np.arange(FIRST_DATE, LAST_DATE + np.timedelta64(1, "D"))
ALL_DATES = tuple(
    name for name in (f"{day:%Y%m%d}" for day in _DAYS.tolist()) if name not in MISSING_DATES
)
"""The 724 dates (``YYYYMMDD``), one file each."""


def start_name(date: str) -> str:
    """Return date and hour as in the file's name; the hour follows the day of the month."""
    hour = {1: 3, 2: 9, 3: 15, 0: 21}[int(date[6:]) % 4]
    return f"{date}T{hour:02}Z"


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

    @property
    def file_nbytes(self) -> int:
        per_lead = len(PREDICTORS) + 2
        once = len(STATIC_PREDICTORS) + 4
        return 4 * self.n_y * self.n_x * (per_lead * self.n_steps + once) + HEADERS_NBYTES


def plan_of_size(size: str, *, scale: float | None, tiny: bool, seed: int) -> YrPlan:
    """Return the plan of a size: tiny, the profile's default, or a share of all samples."""
    n_leadtimes, n_y, n_x, *_ = SIZES[size]
    if tiny:
        n_dates = N_TINY_DATES[size]
        if size == "5TB":
            n_leadtimes, n_y, n_x = TINY_5TB
    elif scale is None:
        n_dates = N_DEFAULT_DATES[size]
        if size == "5TB":
            n_leadtimes = N_DEFAULT_LEADTIMES
    else:
        fields = max(1, round(scale * len(ALL_DATES) * n_leadtimes))
        n_leadtimes = min(fields, n_leadtimes)
        n_dates = max(1, round(fields / n_leadtimes))
    dates = (ALL_DATES[number * len(ALL_DATES) // n_dates] for number in range(n_dates))
    keys = tuple({"dates": date} for date in dates)
    return YrPlan(seed, keys, n_leadtimes, tiny, size, n_y, n_x)


def write_file(plan: YrPlan, date: str, path: Path) -> None:
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

    with writing_library("netCDF4", "maelstrom-yr").Dataset(path, "w") as file:

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
