"""What application A6's files hold and where they are published.

Sources: climetlab-maelstrom-power-production 0.2.2 (names, dates, runs) and the notebooks of its
repository (names of the constants, model level). What neither says is marked as assumed.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from iobench.datasets import Axis, Field

BUCKET_URL = "https://object-store.os-api.cci1.ecmwf.int/maelstrom-ap6"
REPOSITORY_URL = "https://github.com/4castRenewables/climetlab-plugin-a6"
TERMS = f"terms and conditions defined at {REPOSITORY_URL}/LICENSE"
CITATION = (
    "IFS Documentation Cy47r1, Part III: Dynamics and Numerical Procedures, ECMWF, 2020, "
    "eq. 2.11 (constants); production data of NOTUS energy GmbH & Co. KG"
)
CONSTANTS_FILE = "ECMWF_AB137.nc"
PRODUCTION_FILE = "production_data/wind_turbine_{}.nc"
HALF_LEVELS = 138
"""Coefficients of the bounds of the 137 model levels."""
PACKAGE = "climetlab-maelstrom-power-production"
INSTALL = f"pip install 'iobench[climetlab,netcdf]' dask && pip install --no-deps {PACKAGE}==0.2.2"
RUNS = ("00", "12")
"""Hours at which forecasts start."""
HOURS_PER_RUN = 12
"""Steps used of each: the next run is newer from there on."""
N_STEPS = 49
"""Hourly to 48 h (assumed: 48 or 49)."""
ALL_DAYS = tuple(
    str(datetime.date(2017, 1, 1) + datetime.timedelta(days=number))
    for number in range(4 * 365 + 1)
)
"""2017 to 2020, ``YYYY-MM-DD``."""


Grid = tuple[Axis, Axis]
"""Latitudes and longitudes, degrees."""


def _grid(north: float, west: float, n_latitudes: int, n_longitudes: int) -> Grid:
    return (
        Axis("latitude", n_latitudes, north, -0.1, "degrees_north"),
        Axis("longitude", n_longitudes, west, 0.1, "degrees_east"),
    )


GRID = _grid(70.0, -25.0, 351, 551)
"""Europe (assumed: the domain is not published; this is the one of the clustering benchmark)."""
TINY_GRID = _grid(54.9, 7.0, 60, 80)
"""Around the turbines."""


class WeatherField(Field, frozen=True, kw_only=True):
    """A field of the weather."""

    long_name: str


def _field(
    name: str, units: str, long_name: str, low: float, high: float, noise: float
) -> WeatherField:
    return WeatherField(name, units, low, high, long_name=long_name, noise=noise)


@dataclass(frozen=True, slots=True)
class LevelType:
    """One of the three kinds of weather files; ``kind`` is as the plugin's names have it.

    ``required`` are the variables training reads; other ones may be there too.
    """

    kind: str
    prefix: str
    title: str
    levels: tuple[int, ...]
    level_units: str
    variables: tuple[WeatherField, ...]
    required: tuple[str, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions of its fields, in file order."""
        level = ("level",) if self.levels else ()
        return ("time", *level, "latitude", "longitude")


MODEL = LevelType(
    "model",
    "ml",
    "model levels 128 to 137",
    tuple(range(128, 138)),
    "1",
    (
        _field("t", "K", "Temperature", 225.0, 325.0, 0.39),
        _field("q", "kg kg**-1", "Specific humidity", 1e-6, 2.5e-2, 0.4),
        _field("u", "m s**-1", "U component of wind", -45.0, 45.0, 0.39),
        _field("v", "m s**-1", "V component of wind", -45.0, 45.0, 0.39),
    ),
    ("t", "q", "u", "v"),
)
# The set of variables and levels is assumed, but for 500 and 1000 hPa.
PRESSURE = LevelType(
    "pressure",
    "pl",
    "pressure levels",
    (300, 500, 700, 850, 950, 1000),
    "millibars",
    (
        _field("z", "m**2 s**-2", "Geopotential", -6000.0, 98000.0, 0.2),
        _field("t", "K", "Temperature", 195.0, 320.0, 0.38),
        _field("u", "m s**-1", "U component of wind", -80.0, 100.0, 0.39),
        _field("v", "m s**-1", "V component of wind", -80.0, 80.0, 0.39),
        _field("r", "%", "Relative humidity", 0.0, 110.0, 0.45),
        _field("q", "kg kg**-1", "Specific humidity", 1e-8, 2e-2, 0.27),
    ),
    ("z", "t", "u", "v", "r", "q"),
)
CLUSTERING_VARIABLES = ("z", "r", "t", "u", "v")
CLUSTERING_LEVELS = (300, 500, 700, 850, 950)
"""Of deep clustering."""
# Only `sp` is known; the others are assumed.
SURFACE = LevelType(
    "surface",
    "sfc",
    "the surface",
    (),
    "",
    (
        _field("sp", "Pa", "Surface pressure", 60000.0, 106000.0, 0.34),
        _field("u10", "m s**-1", "10 metre U wind component", -40.0, 40.0, 0.38),
        _field("v10", "m s**-1", "10 metre V wind component", -40.0, 40.0, 0.38),
        _field("t2m", "K", "2 metre temperature", 225.0, 325.0, 0.38),
    ),
    ("sp",),
)


LEVEL_TYPES = {each.prefix: each for each in (MODEL, PRESSURE, SURFACE)}


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
