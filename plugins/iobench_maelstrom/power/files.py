"""What application A6's files hold and where they are published, and stand-ins of them.

Sources: climetlab-maelstrom-power-production 0.2.2 and its notebooks; else marked as assumed.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from iobench.datasets import (
    Axis,
    RecipeVariable,
    Smooth,
    StandIn,
    StandInFile,
    StandInVariable,
    axis_variable,
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
    """One of the three kinds of weather files; ``required`` are the variables training reads."""

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
STAND_IN_VERSION = 3
"""Counts up when the same seed gives other bytes."""
FIRST_DAYS = ("2019-01-01", "2019-01-02")
"""Of a stand-in: a tiny one has both, the default the first."""
N_TINY_PRODUCTION_DAYS = 30
STEPS_PER_DAY = 144
"""Of production: one every ten minutes."""
FILL = np.int16(-32767)
LARGEST = 32766


def grid_of(plan: StandIn) -> Grid:
    """Return the grid of a stand-in."""
    return TINY_GRID if plan.tiny else GRID


def run_contents(plan: StandIn, kind: LevelType, day: str, hour: str) -> StandInFile:
    """Return one forecast as grib_to_netcdf writes it: int16 in a range of its own."""
    start = np.datetime64(f"{day}T{hour}", "h")
    n_hours = int((start - np.datetime64("1900-01-01T00", "h")).astype(int))
    hours, since = n_hours + np.arange(N_STEPS, dtype="i4"), "hours since 1900-01-01 00:00:00.0"
    axes = [axis_variable("time", hours, since, calendar="gregorian", long_name="time")]
    if kind.levels:
        levels = np.array(kind.levels, dtype="i4")
        axes.append(axis_variable("level", levels, kind.level_units, long_name="level"))
    for axis in grid_of(plan):
        degrees = np.round(axis.first + axis.step * np.arange(axis.length), 3).astype("f4")
        axes.append(axis_variable(axis.name, degrees, axis.units, long_name=axis.name))
    fields = []
    for each in kind.variables:
        margin = n_hours % 97 / 9700 * (each.high - each.low)
        low, high = each.low + margin, each.high - margin
        attributes = {
            "scale_factor": np.float64((high - low) / (2 * LARGEST)),
            "add_offset": np.float64((high + low) / 2),
            "missing_value": FILL,
            "units": each.units,
            "long_name": each.long_name,
        }
        values = Smooth(-LARGEST, LARGEST, each.noise)
        fields.append(StandInVariable(each.name, kind.dims, values, "i2", attributes, FILL))
    history = "iobench stand-in, laid out as grib_to_netcdf writes"
    return StandInFile(
        [*axes, *fields], key=(plan.seed, STAND_IN_VERSION, kind.prefix, n_hours),
        attributes={"Conventions": "CF-1.6", "history": history}, format="NETCDF3_64BIT_OFFSET",
    )  # fmt: skip


def production_contents(plan: StandIn, turbine: Turbine) -> StandInFile:
    """Return a turbine's ten-minute production, with gaps; names but the first are assumed."""
    n_steps = (N_TINY_PRODUCTION_DAYS if plan.tiny else len(ALL_DAYS)) * STEPS_PER_DAY
    first = ALL_DAYS.index(FIRST_DAYS[0]) * STEPS_PER_DAY if plan.tiny else 0
    minutes = 10 * (first + np.arange(n_steps))
    axes = [
        axis_variable(
            "time", minutes, f"minutes since {ALL_DAYS[0]} 00:00:00", calendar="proleptic_gregorian"
        ),
        axis_variable("level", np.array([turbine.hub_height]), "m"),
        axis_variable("latitude", np.array([turbine.latitude]), "degrees_north"),
        axis_variable("longitude", np.array([turbine.longitude]), "degrees_east"),
    ]
    series = (
        ("production", "kW", partial(_with_gaps, Smooth(-5.0, turbine.power_rating, 0.98))),
        ("wind_speed", "m s**-1", Smooth(0.0, 25.0, 0.97)),
        ("rotor_speed", "min**-1", Smooth(0.0, 22.0, 0.79)),
        ("regulation", "%", Smooth(60.0, 100.0, 0.02)),
        ("status", "1", Smooth(1.0, 1.0)),
    )
    dims = tuple(each.name for each in axes)
    fields = [
        StandInVariable(name, dims, values, "f8", {"units": units}, np.nan)
        for name, units, values in series
    ]
    attributes = {
        "wind plant": f"stand-in {turbine.number}",
        "power rating": f"{turbine.power_rating:g} kW",
        "hub height": f"{turbine.hub_height:g} m",
    }
    return StandInFile([*axes, *fields], (plan.seed, STAND_IN_VERSION, turbine.number), attributes)


def _with_gaps(
    smooth: Smooth, shape: tuple[int, ...], dtype: Any, key: Sequence[int | str]
) -> NDArray[Any]:
    values = smooth(shape, dtype, key)
    values[Smooth(0, 1, 1)(shape, dtype, (*key, "gaps")) < 0.004] = np.nan
    return values


def level_constants() -> StandInFile:
    """Return coefficients that begin and end as those of the 137 levels, smooth in between."""
    height = np.linspace(0, 1, HALF_LEVELS)
    pressure = height * (2 - height)
    b = pressure * pressure * pressure
    a = 101325.0 * (pressure - b)
    axes = [axis_variable("dim0", np.arange(1)), axis_variable("dim0_0", np.arange(HALF_LEVELS))]
    fields = [
        StandInVariable(name, ("dim0", "dim0_0"), values[None], "f8", {"units": units})
        for name, values, units in (
            ("hyai", a, "Pa"), ("hybi", b, "1"), ("hyam", a, "Pa"), ("hybm", b, "1")
        )
    ]  # fmt: skip
    return StandInFile([*axes, *fields])
