"""What the files of application A1 hold: predictors, dates, grid, and where they are published."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from iobench.errors import OptionError

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


@dataclass(frozen=True, slots=True)
class Predictor:
    """One channel: its name, units, the mean and deviation it is normalised by.

    ``low`` and ``high`` are the bounds of a stand-in's values.
    """

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


@dataclass(frozen=True, slots=True)
class Size:
    """One of the two sizes the data are published in.

    ``y_offset`` and ``x_offset`` say where its grid begins in the whole one; ``lead_hours`` is the
    step between lead times.
    """

    n_leadtimes: int
    n_y: int
    n_x: int
    y_offset: int
    x_offset: int
    lead_hours: int


SIZES = {
    "5GB": Size(10, 128, 128, 687, 587, 6),
    "5TB": Size(59, 2321, 1796, 0, 0, 1),
}

MISSING_DATES = ("20200522", "20200526", "20200530", "20200805", "20210805", "20220115")
FIRST_DATE, LAST_DATE = datetime.date(2020, 3, 1), datetime.date(2022, 2, 28)
LAST_TRAINING_DATE = "20210228"
# Every two weeks or so of the second year: validation of the D1.7 configurations of
# metno/maelstrom-train, whose test files are all of the second year.
VALIDATION_DATES = (
    "20210301", "20210315", "20210402", "20210416", "20210501", "20210515", "20210602", "20210616",
    "20210701", "20210715", "20210802", "20210816", "20210901", "20210915", "20211002", "20211016",
    "20211101", "20211115", "20211202", "20211216", "20220101", "20220202", "20220216",
)  # fmt: skip


def _all_dates() -> tuple[str, ...]:
    n_days = (LAST_DATE - FIRST_DATE).days + 1
    days = (FIRST_DATE + datetime.timedelta(days=number) for number in range(n_days))
    names = (f"{day:%Y%m%d}" for day in days)
    return tuple(name for name in names if name not in MISSING_DATES)


ALL_DATES = _all_dates()
"""The 724 dates (``YYYYMMDD``), one file each."""


def start_name(date: str) -> str:
    """Return date and hour as in the file's name; the hour follows the day of the month."""
    hour = {1: 3, 2: 9, 3: 15, 0: 21}[int(date[6:]) % 4]
    return f"{date}T{hour:02}Z"


def parse_dates(text: str) -> tuple[str, ...]:
    """Return the dates (``YYYYMMDD``) of a comma list of ``YYYY-MM-DD`` or ``YYYYMMDD``."""
    dates = {part.strip().replace("-", "") for part in text.split(",")}
    if unknown := dates - set(ALL_DATES):
        missing = ", ".join(f"{date[:4]}-{date[4:6]}-{date[6:]}" for date in MISSING_DATES)
        raise OptionError(
            f"dates {min(unknown)!r}: expected YYYY-MM-DD or YYYYMMDD, separated by commas, from "
            f"{FIRST_DATE} to {LAST_DATE} except {missing}"
        )
    return tuple(sorted(dates))
