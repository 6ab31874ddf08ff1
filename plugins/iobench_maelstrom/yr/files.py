"""What the files of application A1 hold and where they are published, and stand-ins of them."""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

import numpy as np

from iobench.datasets import Smooth, StandIn, StandInFile, StandInVariable, axis_variable, spread

BUCKET_URL = "https://object-store.os-api.cci1.ecmwf.int/maelstrom-ap1"
PARAMETER = "air_temperature"
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
    mean: float
    std: float
    low: float
    high: float


# Coefficients: table of climetlab-maelstrom-yr 0.6.3.
PREDICTORS = (
    Predictor("air_temperature_0.1_2m", 4.725014929970105, 7.566987847083937, -36.0, 30.0),
    Predictor("air_temperature_0.9_2m", 6.112570554018021, 7.521962731122694, -34.0, 34.0),
    Predictor("air_temperature_2m", 5.388952960570653, 7.4335476655246735, -35.0, 32.0),
    Predictor("bias_yesterday", -0.07066702128698428, 0.7485341580688785, -6.0, 6.0),
    Predictor("cloud_area_fraction", 0.6884219621618589, 0.40055377741854187, 0.0, 1.0),
    Predictor("precipitation_amount", 0.07837766820254426, 0.36662233737977684, 0.0, 8.0),
    Predictor("x_wind_10m", 0.4250524006783962, 4.6850994324021595, -22.0, 22.0),
    Predictor("y_wind_10m", -0.7272756993770599, 5.11310843905376, -24.0, 24.0),
)
STATIC_PREDICTORS = (
    Predictor("altitude", 110.0174789428711, 218.2789258799505, 0.0, 2300.0),
    Predictor("analysis_std", 0.5121386324365934, 0.40215385148028904, 0.0, 4.0),
    Predictor("bias_recent", -0.007340590585954487, 0.5344001060184195, -4.0, 4.0),
    Predictor("land_area_fraction", 0.45299264788627625, 0.49328521353773686, 0.0, 1.0),
    Predictor("model_altitude", 109.62958717346191, 213.4803743151553, 0.0, 2100.0),
    Predictor("model_laf", 0.43093839287757874, 0.48621477236654775, 0.0, 1.0),
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
LAST_TRAINING_DATE = "20210228"
# Every two weeks or so of the second year: validation of the D1.7 configurations of
# metno/maelstrom-train, whose test files are all of the second year.
VALIDATION_DATES = (
    "20210301", "20210315", "20210402", "20210416", "20210501", "20210515", "20210602", "20210616",
    "20210701", "20210715", "20210802", "20210816", "20210901", "20210915", "20211002", "20211016",
    "20211101", "20211115", "20211202", "20211216", "20220101", "20220202", "20220216",
)  # fmt: skip
_DAYS = np.arange("2020-03-01", "2022-03-01", dtype="M8[D]")
ALL_DATES = tuple(
    name for name in (f"{day:%Y%m%d}" for day in _DAYS.tolist()) if name not in MISSING_DATES
)
"""The 724 dates (``YYYYMMDD``), one file each."""


def start_name(date: str) -> str:
    """Return date and hour as in the file's name; the hour follows the day of the month."""
    hour = {1: 3, 2: 9, 3: 15, 0: 21}[int(date[6:]) % 4]
    return f"{date}T{hour:02}Z"


SPACING_M = 1000.0
FIRST_X, FIRST_Y = -897442.2, -1104322.0
"""Of the whole grid, as the published files have it."""
PROJECTION: dict[str, Any] = {
    "grid_mapping_name": "lambert_conformal_conic",
    "proj4": "+proj=lcc +lat_0=63 +lon_0=15 +lat_1=63 +lat_2=63 +no_defs +R=6.371e+06",
    "standard_parallel": [63.0, 63.0],
    "longitude_of_central_meridian": 15.0,
    "latitude_of_projection_origin": 63.0,
    "earth_radius": 6.371e6,
}
PLACED = {"coordinates": "longitude latitude"}
MAPPED = {"grid_mapping": "projection_lcc", **PLACED}
KNOWN = {"predictor": PREDICTORS, "static_predictor": STATIC_PREDICTORS}
GRID, FIELD = ("y", "x"), ("leadtime", "y", "x")


def _bounds(channels: tuple[Predictor, ...]) -> tuple[list[float], list[float]]:
    return [each.low for each in channels], [each.high for each in channels]


RANDOM_VERSION = 3
"""Part of the key of random numbers."""
SMOOTH: tuple[tuple[str, tuple[str, ...], Any, Any, tuple[float, float], dict[str, str]], ...] = (
    (
        "static_predictors", (*GRID, "static_predictor"), *_bounds(STATIC_PREDICTORS),
        (0.64, 0.52), MAPPED,
    ),
    ("predictors", (*FIELD, "predictor"), *_bounds(PREDICTORS), (0.83, 0.71), MAPPED),
    ("target_mean", FIELD, -35.0, 33.0, (0.93, 0.76), {"units": "celsius"}),
    ("target_std", FIELD, 0.02, 6.0, (0.97, 0.74), {"units": "celsius"}),
)  # fmt: skip
"""Name, dimensions, bounds, noise of 5GB and of 5TB, attributes of a stand-in's variables."""


def stand_in_dates(size: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the dates of a tiny stand-in, and of one of ordinary size."""
    counts = (4, 2) if size == "5TB" else (8, 40)
    return spread(ALL_DATES, counts[0]), spread(ALL_DATES, counts[1])


def stand_in_lengths(size: str, *, scale: float | None, tiny: bool) -> dict[str, int]:
    """Return the lengths of a file: of 5TB parts, on the whole grid unless tiny."""
    n_leadtimes, n_y, n_x, *_ = SIZES[size]
    if size == "5TB" and tiny:
        n_leadtimes, n_y, n_x = 6, 512, 384
    elif size == "5TB":
        share = 2 if scale is None else round(scale * len(ALL_DATES) * n_leadtimes)
        n_leadtimes = min(n_leadtimes, max(1, share))
    return {"leadtime": n_leadtimes, "y": n_y, "x": n_x}


def contents(size: str, plan: StandIn, date: str) -> StandInFile:
    """Return what the file of a date holds, its variables in the layout of the published ones."""
    whole = SIZES[size]
    x = FIRST_X + SPACING_M * (whole.x_offset + np.arange(plan.lengths["x"]))
    y = FIRST_Y + SPACING_M * (whole.y_offset + np.arange(plan.lengths["y"]))
    start = datetime.datetime.strptime(start_name(date) + "+0000", "%Y%m%dT%HZ%z")
    since = "seconds since 1970-01-01 00:00:00 +00:00"
    lead = 3600.0 * whole.lead_hours * np.arange(plan.lengths["leadtime"])
    axes = [
        axis_variable(name, values, units, standard_name=standard_name, **PLACED)
        for name, values, units, standard_name in (
            ("x", x.astype("f4"), "m", "projection_x_coordinate"),
            ("y", y.astype("f4"), "m", "projection_y_coordinate"),
            ("leadtime", lead, "seconds", "leadtime"),
        )
    ]
    axes += [
        StandInVariable(
            dim, (dim,), np.array([each.name for each in channels], object), str, PLACED
        )
        for dim, channels in KNOWN.items()
    ]
    grid = plan.lengths["y"], plan.lengths["x"]
    places = [  # the same in all files
        StandInVariable(
            name, GRID, Smooth(low, high)(grid, "f4", (plan.seed, name)), "f4",
            {"units": units, "standard_name": name, "grid_mapping": "projection_lcc"},
        )
        for name, units, low, high in (
            ("latitude", "degree_north", 52.3, 73.9), ("longitude", "degree_east", 1.9, 41.8)
        )
    ]  # fmt: skip
    time = {"units": since, "standard_name": "time", **PLACED}
    return StandInFile(
        [
            *axes,
            *places,
            StandInVariable("time", (), start.timestamp(), "f8", time),
            StandInVariable("projection_lcc", (), 0, "i4", {**PROJECTION, **PLACED}),
            *(
                StandInVariable(name, dims, Smooth(low, high, noise[size == "5TB"]), "f4", more)
                for name, dims, low, high, noise, more in SMOOTH
            ),
        ],
        (plan.seed, RANDOM_VERSION, date),
        {"history": f"iobench stand-in of maelstrom-yr {size}, seed {plan.seed}"},
    )
