"""What application A6's files hold and where they are published, and stand-ins of them.

Sources: climetlab-maelstrom-power-production 0.2.2 (names, dates, runs) and the notebooks of its
repository (names of the constants, model level). What neither says is marked as assumed.
"""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from iobench.datasets import (
    Axis,
    RecipeVariable,
    StandIn,
    define_axes,
    smooth_values,
    writing_library,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


class WeatherField(NamedTuple):
    """A field of the weather: name, units, long name, bounds and noise of a stand-in's values."""

    name: str
    units: str
    long_name: str
    low: float
    high: float
    noise: float


class LevelType(msgspec.Struct, frozen=True):
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

    @property
    def axes(self) -> tuple[Axis, ...]:
        """These dimensions, as a recipe has them."""
        return tuple(map(Axis, self.dims))

    @property
    def fields(self) -> tuple[RecipeVariable, ...]:
        """The variables training reads, as a recipe has them."""
        return tuple(
            RecipeVariable(name, units)
            for name, units, *_ in self.variables
            if name in self.required
        )


MODEL = LevelType(
    "model",
    "ml",
    "model levels 128 to 137",
    tuple(range(128, 138)),
    "1",
    (
        WeatherField("t", "K", "Temperature", 225.0, 325.0, 0.39),
        WeatherField("q", "kg kg**-1", "Specific humidity", 1e-6, 2.5e-2, 0.4),
        WeatherField("u", "m s**-1", "U component of wind", -45.0, 45.0, 0.39),
        WeatherField("v", "m s**-1", "V component of wind", -45.0, 45.0, 0.39),
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
        WeatherField("z", "m**2 s**-2", "Geopotential", -6000.0, 98000.0, 0.2),
        WeatherField("t", "K", "Temperature", 195.0, 320.0, 0.38),
        WeatherField("u", "m s**-1", "U component of wind", -80.0, 100.0, 0.39),
        WeatherField("v", "m s**-1", "V component of wind", -80.0, 80.0, 0.39),
        WeatherField("r", "%", "Relative humidity", 0.0, 110.0, 0.45),
        WeatherField("q", "kg kg**-1", "Specific humidity", 1e-8, 2e-2, 0.27),
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
        WeatherField("sp", "Pa", "Surface pressure", 60000.0, 106000.0, 0.34),
        WeatherField("u10", "m s**-1", "10 metre U wind component", -40.0, 40.0, 0.38),
        WeatherField("v10", "m s**-1", "10 metre V wind component", -40.0, 40.0, 0.38),
        WeatherField("t2m", "K", "2 metre temperature", 225.0, 325.0, 0.38),
    ),
    ("sp",),
)


LEVEL_TYPES = {each.prefix: each for each in (MODEL, PRESSURE, SURFACE)}


class Turbine(NamedTuple):
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


STAND_IN_VERSION = 2
"""Counts up when the same seed gives other bytes."""
FIRST_DAYS = ("2019-01-01", "2019-01-02")
"""Of a stand-in: a tiny one has both, the default the first."""
N_TINY_PRODUCTION_DAYS = 30
NAME = "maelstrom-power"
STEPS_PER_DAY = 144
"""Of production: one every ten minutes."""
HEADER_NBYTES = 20 << 10
"""About what the axes and attributes of a file take."""
FILL = np.int16(-32767)
LARGEST = 32766


def run_nbytes(plan: StandIn, level_type: LevelType) -> int:
    """Return about the bytes of a weather file."""
    n_fields = N_STEPS * max(1, len(level_type.levels)) * len(level_type.variables)
    return HEADER_NBYTES + 2 * n_fields * math.prod(axis.length for axis in grid_of(plan))


def grid_of(plan: StandIn) -> Grid:
    """Return the grid of a stand-in."""
    return TINY_GRID if plan.tiny else GRID


def production_steps(plan: StandIn) -> int:
    """Return how many values of a turbine a stand-in has."""
    return (N_TINY_PRODUCTION_DAYS if plan.tiny else len(ALL_DAYS)) * STEPS_PER_DAY


def production_nbytes(plan: StandIn) -> int:
    """Return about the bytes of a turbine's file."""
    return HEADER_NBYTES + 8 * production_steps(plan) * (len(PRODUCTION_VARIABLES) + 1)


def write_run(plan: StandIn, level_type: LevelType, day: str, hour: str, path: Path) -> None:
    """Write one forecast as grib_to_netcdf does: classic, 64-bit offsets, int16 packed.

    Each file has a range of its own, as with real ones.
    """
    start = np.datetime64(f"{day}T{hour}", "h")
    n_hours = int((start - np.datetime64("1900-01-01T00", "h")).astype(int))
    axes: dict[str, tuple[NDArray[Any], str]] = {}
    for axis in reversed(grid_of(plan)):
        degrees = np.round(axis.first + axis.step * np.arange(axis.length), 3)
        axes[axis.name] = degrees.astype("f4"), axis.units
    if level_type.levels:
        axes["level"] = np.array(level_type.levels, dtype="i4"), level_type.level_units
    hours = n_hours + np.arange(N_STEPS, dtype="i4")
    axes["time"] = hours, "hours since 1900-01-01 00:00:00.0"
    with writing_library("netCDF4", NAME).Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        file.set_fill_off()
        file.Conventions = "CF-1.6"
        file.history = "iobench stand-in, laid out as grib_to_netcdf writes"
        define_axes(file, axes, calendar="gregorian")
        for name in axes:
            file[name].long_name = name
        for each in level_type.variables:
            margin = n_hours % 97 / 9700 * (each.high - each.low)
            low, high = each.low + margin, each.high - margin
            created = file.createVariable(each.name, "i2", level_type.dims, fill_value=FILL)
            created.setncatts({
                "scale_factor": np.float64((high - low) / (2 * LARGEST)),
                "add_offset": np.float64((high + low) / 2),
                "missing_value": FILL,
                "units": each.units,
                "long_name": each.long_name,
            })  # fmt: skip
        for each in level_type.variables:
            stored = file[each.name]
            stored.set_auto_maskandscale(False)
            for step in range(N_STEPS):
                what = plan.seed, STAND_IN_VERSION, level_type.prefix, each.name, n_hours, step
                stored[step] = smooth_values(
                    stored.shape[1:], -LARGEST, LARGEST, *what, noise=each.noise, dtype="i2"
                )


def write_production(plan: StandIn, turbine: Turbine, path: Path) -> None:
    """Write ten-minute production of one turbine: NetCDF-4, contiguous, one point.

    It has a few gaps, and hours when the turbine was limited or stood still.
    """
    n_steps, key = production_steps(plan), (plan.seed, STAND_IN_VERSION, turbine.number)
    first = ALL_DAYS.index(FIRST_DAYS[0]) * STEPS_PER_DAY if plan.tiny else 0
    bounds = {"production": (-5.0, turbine.power_rating, 0.98), "wind_speed": (0.0, 25.0, 0.97),
              "rotor_speed": (0.0, 22.0, 0.79)}  # fmt: skip
    series: dict[str, NDArray[np.float64]] = {
        name: smooth_values((n_steps,), low, high, *key, name, noise=noise, dtype="f8")
        for name, (low, high, noise) in bounds.items()
    }
    gaps, limited, still = np.random.default_rng(key).random((3, n_steps))
    series["production"][gaps < 0.004] = np.nan
    series["regulation"] = np.where(limited < 0.01, 60.0, 100.0)
    series["status"] = np.where(still < 0.005, 2.0, 1.0)
    axes = {
        "time": (10 * (first + np.arange(n_steps)), f"minutes since {ALL_DAYS[0]} 00:00:00"),
        "level": (np.array([turbine.hub_height]), "m"),
        "latitude": (np.array([turbine.latitude]), "degrees_north"),
        "longitude": (np.array([turbine.longitude]), "degrees_east"),
    }
    with writing_library("netCDF4", NAME).Dataset(path, "w") as file:
        file.setncatts({
            "wind plant": f"stand-in {turbine.number}",
            "power rating": f"{turbine.power_rating:g} kW",
            "hub height": f"{turbine.hub_height:g} m",
        })  # fmt: skip
        define_axes(file, axes, calendar="proleptic_gregorian")
        for name, values in series.items():
            created = file.createVariable(
                name, "f8", tuple(axes), contiguous=True, fill_value=np.nan
            )
            created.units = PRODUCTION_VARIABLES[name]
            created[:] = values.reshape(n_steps, 1, 1, 1)


def write_constants(path: Path) -> None:
    """Write coefficients that begin and end as those of the 137 levels, smooth in between."""
    height = np.linspace(0, 1, HALF_LEVELS)
    pressure = height * (2 - height)
    b = pressure * pressure * pressure
    a = 101325.0 * (pressure - b)
    axes = {"dim0": (np.arange(1), ""), "dim0_0": (np.arange(HALF_LEVELS), "")}
    with writing_library("netCDF4", NAME).Dataset(path, "w") as file:
        define_axes(file, axes)
        for name, values in {"hyai": a, "hybi": b, "hyam": a, "hybm": b}.items():
            created = file.createVariable(name, "f8", tuple(axes), contiguous=True)
            created.units = "Pa" if name.startswith("hya") else "1"
            created[:] = values[None]
