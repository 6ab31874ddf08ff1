"""What application A6's files hold and where they are published.

Sources: climetlab-maelstrom-power-production 0.2.2 (names, dates, runs) and the notebooks of its
repository (names of the constants, model level). What neither says is marked as assumed.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from iobench.errors import OptionError, UnknownNameError

__all__ = [
    "ALL_DAYS",
    "BATCH_SIZE",
    "BUCKET_URL",
    "CITATION",
    "CONSTANTS_URL",
    "GRID",
    "HALF_LEVELS",
    "HOURS_PER_RUN",
    "LEVEL_TYPES",
    "N_STEPS",
    "PRODUCTION_VARIABLES",
    "RUNS",
    "TERMS",
    "TINY_GRID",
    "TURBINES",
    "FieldVariable",
    "LevelType",
    "RegionalGrid",
    "Turbine",
    "check_options",
    "parse_days",
    "parse_number",
    "production_url",
    "run_url",
]

BUCKET_URL = "https://object-store.os-api.cci1.ecmwf.int/maelstrom-ap6"
REPOSITORY_URL = "https://github.com/4castRenewables/climetlab-plugin-a6"
TERMS = f"terms and conditions defined at {REPOSITORY_URL}/LICENSE"
CITATION = (
    "IFS Documentation Cy47r1, Part III: Dynamics and Numerical Procedures, ECMWF, 2020, "
    "eq. 2.11 (constants); production data of NOTUS energy GmbH & Co. KG"
)
CONSTANTS_URL = f"{BUCKET_URL}/ECMWF_AB137.nc"
HALF_LEVELS = 138
"""Coefficients of the bounds of the 137 model levels."""
RUNS = (0, 12)
"""Hours at which forecasts start."""
HOURS_PER_RUN = 12
"""Steps used of each: the next run is newer from there on."""
BATCH_SIZE = 64
"""Of deep clustering; the forecast's regression takes all hours at once."""
N_STEPS = 49
"""Hourly to 48 h (assumed: 48 or 49)."""


def _every_day() -> tuple[datetime.date, ...]:
    first, last = datetime.date(2017, 1, 1), datetime.date(2020, 12, 31)
    n_days = (last - first).days + 1
    return tuple(first + datetime.timedelta(days=number) for number in range(n_days))


ALL_DAYS = _every_day()


@dataclass(frozen=True, slots=True)
class RegionalGrid:
    """A regular grid from its north-western corner, degrees."""

    north: float
    west: float
    n_latitudes: int
    n_longitudes: int
    spacing: float = 0.1

    @property
    def shape(self) -> tuple[int, int]:
        """Latitudes and longitudes."""
        return self.n_latitudes, self.n_longitudes

    @property
    def n_points(self) -> int:
        """Points of one field."""
        return self.n_latitudes * self.n_longitudes


GRID = RegionalGrid(70.0, -25.0, 351, 551)
"""Europe (assumed: the domain is not published; this is the one of the clustering benchmark)."""
TINY_GRID = RegionalGrid(54.9, 7.0, 60, 80)
"""Around the turbines."""


@dataclass(frozen=True, slots=True)
class FieldVariable:
    """A field: name, units, and what values a stand-in gives it.

    ``means`` and ``deviations`` hold one value, or one for each level; values stay within ``low``
    and ``high``.
    """

    name: str
    units: str
    long_name: str
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class LevelType:
    """One of the three kinds of weather files.

    ``required`` are the variables training reads; other ones may be there too.
    """

    prefix: str
    title: str
    levels: tuple[int, ...]
    level_units: str
    variables: tuple[FieldVariable, ...]
    required: tuple[str, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions of its fields, in file order."""
        level = ("level",) if self.levels else ()
        return ("time", *level, "latitude", "longitude")


_MODEL_LEVEL = LevelType(
    "ml",
    "model levels 128 to 137",
    tuple(range(128, 138)),
    "1",
    (
        FieldVariable("t", "K", "Temperature", (281.0,), (6.0,), 225.0, 325.0),
        FieldVariable("q", "kg kg**-1", "Specific humidity", (6e-3,), (2e-3,), 1e-6, 2.5e-2),
        FieldVariable("u", "m s**-1", "U component of wind", (2.0,), (5.0,), -45.0, 45.0),
        FieldVariable("v", "m s**-1", "V component of wind", (0.0,), (5.0,), -45.0, 45.0),
    ),
    ("t", "q", "u", "v"),
)
# The set of variables and levels is assumed, but for 500 and 1000 hPa.
_PRESSURE_LEVEL = LevelType(
    "pl",
    "pressure levels",
    (300, 500, 700, 850, 950, 1000),
    "millibars",
    (
        FieldVariable(
            "z", "m**2 s**-2", "Geopotential",
            (89000.0, 54500.0, 29400.0, 14200.0, 5300.0, 1100.0), (900.0,), -6000.0, 98000.0,
        ),
        FieldVariable(
            "t", "K", "Temperature",
            (226.0, 252.0, 268.0, 276.0, 280.0, 282.0), (5.0,), 195.0, 320.0,
        ),
        FieldVariable("u", "m s**-1", "U component of wind", (6.0,), (9.0,), -80.0, 100.0),
        FieldVariable("v", "m s**-1", "V component of wind", (0.0,), (9.0,), -80.0, 80.0),
        FieldVariable("r", "%", "Relative humidity", (55.0,), (18.0,), 0.0, 110.0),
        FieldVariable(
            "q", "kg kg**-1", "Specific humidity",
            (1e-4, 7e-4, 2e-3, 4e-3, 6e-3, 6.5e-3),
            (2e-5, 2e-4, 6e-4, 1e-3, 1.5e-3, 1.6e-3), 1e-8, 2e-2,
        ),
    ),
    ("z", "t", "u", "v", "r", "q"),
)  # fmt: skip
# Only `sp` is known; the others are assumed.
_SURFACE_LEVEL = LevelType(
    "sfc",
    "the surface",
    (),
    "",
    (
        FieldVariable("sp", "Pa", "Surface pressure", (99000.0,), (1400.0,), 60000.0, 106000.0),
        FieldVariable("u10", "m s**-1", "10 metre U wind component", (1.5,), (4.0,), -40.0, 40.0),
        FieldVariable("v10", "m s**-1", "10 metre V wind component", (0.0,), (4.0,), -40.0, 40.0),
        FieldVariable("t2m", "K", "2 metre temperature", (281.0,), (6.0,), 225.0, 325.0),
    ),
    ("sp",),
)
LEVEL_TYPES: Mapping[str, LevelType] = {
    "model": _MODEL_LEVEL,
    "pressure": _PRESSURE_LEVEL,
    "surface": _SURFACE_LEVEL,
}


@dataclass(frozen=True, slots=True)
class Turbine:
    """A wind turbine of the stand-in; the real ones are somewhere in Germany."""

    number: int
    latitude: float
    longitude: float
    power_rating: float
    hub_height: float


TURBINES = (
    Turbine(1, 52.43, 14.12, 850.0, 74.0),
    Turbine(2, 51.62, 8.81, 1500.0, 85.0),
    Turbine(3, 53.88, 9.04, 2000.0, 105.0),
    Turbine(4, 51.19, 13.37, 850.0, 74.0),
)
PRODUCTION_VARIABLES = {
    "production": "kW",
    "wind_speed": "m s**-1",
    "rotor_speed": "min**-1",
    "regulation": "%",
    "status": "1",
}
"""Names (but for the first, assumed) and units of what a turbine reports every ten minutes."""


def run_url(prefix: str, day: datetime.date, hour: int) -> str:
    """Return where a weather file is published: kind of level, day, hour the forecast starts."""
    return f"{BUCKET_URL}/{prefix}_{day:%Y%m%d}_{hour:02d}.nc"


def production_url(number: int) -> str:
    """Return where the production of a turbine is published."""
    return f"{BUCKET_URL}/production_data/wind_turbine_{number}.nc"


def check_options(dataset: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Raise UnknownNameError for an option that ``dataset`` does not know, listing those it does.

    Raises
    ------
    UnknownNameError
        As said.
    """
    unknown = sorted(set(options) - set(known))
    if unknown:
        listed = ", ".join(known) or "no options"
        raise UnknownNameError(f"option {unknown[0]!r}: {dataset} knows {listed}")


def parse_days(text: str) -> tuple[datetime.date, ...]:
    """Return the days of a comma list of ``YYYY-MM-DD``, in order.

    Raises
    ------
    OptionError
        If one of them is not a day of the data set.
    """
    days = set()
    for entry in text.split(","):
        try:
            day = datetime.datetime.strptime(entry.strip(), "%Y-%m-%d").date()
        except ValueError:
            day = None
        if day is None or not ALL_DAYS[0] <= day <= ALL_DAYS[-1]:
            raise OptionError(
                f"date {entry.strip()!r}: expected YYYY-MM-DD, several separated by commas, from "
                f"{ALL_DAYS[0]} to {ALL_DAYS[-1]}"
            )
        days.add(day)
    return tuple(sorted(days))


def parse_number(name: str, text: str, allowed: tuple[int, ...]) -> int:
    """Return the number an option gives.

    Raises
    ------
    OptionError
        If it is not one of the allowed ones, listing them.
    """
    if text not in {str(number) for number in allowed}:
        listed = ", ".join(str(number) for number in allowed)
        raise OptionError(f"{name} {text!r}: expected one of {listed}")
    return int(text)
