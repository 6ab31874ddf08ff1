"""What the files of ENS-10 hold and where they are; stand-ins of ENS-10."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from iobench.datasets import (
    Smooth,
    StandIn,
    StandInFile,
    StandInVariable,
    axis_variable,
    load_eccodes,
    spread,
)

BUCKET_URL = "https://storage.ecmwf.europeanweather.cloud/MAELSTROM_AP4"
TERMS = "https://github.com/spcl/climetlab-maelstrom-ens10/blob/main/ENS10_LICENCE.txt"
"""Of use, as the plugin prints them."""
CITATION = "https://arxiv.org/abs/2005.08748"
"""What the plugin's documentation points to; it asks for no other."""
LEAD_HOURS = 48
"""The step the D2.3 U-Net read; its target is the field at the forecast's start plus this."""
MEMBERS = 10
GRID = (361, 720)
"""Global, regular: north to south, from Greenwich eastwards, 0.5 degrees apart."""
LEVELS = (1000, 925, 850, 700, 500, 400, 300, 200, 100, 50, 10)
"""Pressure in hPa, in the files' order."""
TASK_LEVELS = (850, 500)
"""All that is left of ENS-10's files after upstream's ``grib_copy``, in their order."""


class GribField(NamedTuple):
    """One field: cfgrib's name, ECMWF's number, units, a stand-in's range and noise, level."""

    short_name: str
    param_id: int
    units: str
    low: float
    high: float
    noise: float
    level: int = 0

    @property
    def name(self) -> str:
        """What it is called in a sample."""
        return f"{self.short_name}{self.level}" if self.level else self.short_name


# In the order cfgrib decodes them. Ranges: normalisation table of spcl/ens10.
SURFACE_FIELDS = (
    GribField("sst", 34, "K", 260.0, 305.0, 0.45),
    GribField("tcw", 136, "kg m**-2", 0.0, 60.0, 0.47),
    GribField("tcwv", 137, "kg m**-2", 0.0, 60.0, 0.48),
    GribField("cp", 143, "m", 0.0, 0.04, 0.27),
    GribField("msl", 151, "Pa", 97000.0, 110000.0, 0.53),
    GribField("tcc", 164, "(0 - 1)", 0.0, 1.0, 0.52),
    GribField("u10", 165, "m s**-1", -13.0, 11.0, 0.52),
    GribField("v10", 166, "m s**-1", -10.0, 15.0, 0.55),
    GribField("t2m", 167, "K", 218.0, 304.0, 0.48),
    GribField("tp", 228, "m", 0.0, 0.07, 0.34),
    GribField("skt", 235, "K", 210.0, 310.0, 0.44),
)


class PressureVariable(NamedTuple):
    """A variable: its range and a stand-in's noise, up to 700 hPa and above."""

    name: str
    param_id: int
    units: str
    ranges: tuple[tuple[float, float], tuple[float, float]]
    noise: tuple[float, float]


# Those of 850 and of 500 hPa: normalisation table of spcl/ens10.
PRESSURE_VARIABLES = (
    PressureVariable("z", 129, "m**2 s**-2", ((10000, 15500), (48200, 58000)), (0.45, 0.43)),
    PressureVariable("t", 130, "K", ((240, 299), (230, 269)), (0.48, 0.44)),
    PressureVariable("q", 133, "kg kg**-1", ((0.0, 15e-3), (0.0, 4e-3)), (0.49, 0.24)),
    PressureVariable("w", 135, "Pa s**-1", ((-1.2, 1.8), (-0.7, 1.4)), (0.54, 0.57)),
    PressureVariable("d", 155, "s**-1", ((-1.9e-4, 1.6e-4), (-5e-5, 8e-5)), (0.53, 0.58)),
    PressureVariable("u", 131, "m s**-1", ((-16, 17.5), (-7, 27)), (0.55, 0.56)),
    PressureVariable("v", 132, "m s**-1", ((-10, 16), (-7, 7)), (0.55, 0.52)),
)
PRESSURE_FIELDS = tuple(
    GribField(
        each.name, each.param_id, each.units, *each.ranges[level < 700], each.noise[level < 700],
        level,
    )
    for level in LEVELS
    for each in PRESSURE_VARIABLES
)  # fmt: skip
"""In the files' order of messages: level by level."""


class Task(msgspec.Struct, frozen=True):
    """One of the D2.3 U-Net's tasks: what it read, and what it was to say."""

    dtype: str  # ``sfc`` or ``pl``, as upstream
    fields: tuple[GribField, ...]  # what a sample is made of, all at one level
    target: str
    target_units: str  # name of the target in a sample, and its units
    target_variable: str  # its name in ERA5's file
    # where that is. No location is published: beside the forecasts, in a folder of its own
    target_url: str

    @property
    def channels(self) -> tuple[str, ...]:
        """Mean and deviation of each variable."""
        return tuple(f"{each.name}_{kind}" for each in self.fields for kind in ("mean", "std"))

    @property
    def level(self) -> int:
        """In hPa; 0 at the surface."""
        return self.fields[0].level

    @property
    def or_without(self) -> str:
        """The way round a missing target, for messages, where there is one."""
        return "" if self.level else ", or go without: --option target=none"


def _task(dtype: str, target: str, units: str, file: str) -> Task:
    """Return a task by its target; at pressure levels the names in ERA5's files are assumed."""
    level = int(target[1:]) if dtype == "pl" else 0
    fields = tuple(each for each in (*SURFACE_FIELDS, *PRESSURE_FIELDS) if each.level == level)
    variable = target[0] if level else target
    return Task(dtype, fields, target, units, variable, f"{BUCKET_URL}/era5/{file}")


_SURFACE = _task("sfc", "t2m", "K", "ERA5_sfc_t2m.nc")
TASKS: Mapping[str, Mapping[str, Task]] = {
    "sfc": {"era5": _SURFACE, "none": _SURFACE},
    "pl": {
        "z500": _task("pl", "z500", "m**2 s**-2", "ERA5_z500.nc"),
        "t850": _task("pl", "t850", "K", "ERA5_t850.nc"),
    },
}
"""By ``dtype`` and ``target``."""

_DAYS = (datetime.date(2018, 1, 1) + datetime.timedelta(days=number) for number in range(365))
ALL_DATES = tuple(f"{day:%m%d}" for day in _DAYS if day.weekday() in (0, 3))
"""The 105 start dates (``MMDD``): Mondays and Thursdays of 2018, after which files are named."""


def valid_time(start: str) -> np.datetime64:
    """Return when the forecast of a start date (``YYYYMMDD``, 0 UTC) is valid."""
    day = np.datetime64(f"{start[:4]}-{start[4:6]}-{start[6:]}T00", "h")
    return day + np.timedelta64(LEAD_HOURS, "h")


def start_date(text: str) -> str:
    """Return the start date (``MMDD``) of ``MMDD`` or ``YYYYMMDD``: the year is ignored."""
    return text[4:] if len(text) == 8 else text


STAND_IN_VERSION = 4
"""Counts up when the same seed gives other bytes."""
RANDOM_VERSION = 3
"""Part of the key of random numbers."""
ALL_YEARS = tuple(range(1998, 2018))
STEPS = (0, 24, 48)
DEFAULT_YEARS: tuple[int, ...] = (2015, 2016)  # the last year of training and the first of testing
N_DEFAULT_DATES = {"sfc": 12, "pl": 4}
"""Of pressure levels fewer, for a date's file is larger by 14 to 11."""
PACKED_BITS = 16
TARGET_NOISE = 0.62
LONG_NAMES = {"t2m": "2 metre temperature", "z": "Geopotential", "t": "Temperature"}


class Ensemble(StandIn, frozen=True):
    """What a stand-in holds: ensembles of some start dates (``MMDD``) in some years."""

    years: tuple[int, ...] = DEFAULT_YEARS
    steps: tuple[int, ...] = STEPS
    n_members: int = MEMBERS
    shape: tuple[int, int] = GRID
    fields: tuple[GribField, ...] = SURFACE_FIELDS


def plan_of_size(dtype: str, *, scale: float | None, tiny: bool, seed: int) -> Ensemble:
    """Return the plan of a size: tiny, the profile's default (step 48 h alone), or a share."""
    fields = SURFACE_FIELDS if dtype == "sfc" else PRESSURE_FIELDS
    years, n_members, shape = DEFAULT_YEARS, MEMBERS, GRID
    steps: tuple[int, ...] = STEPS
    if tiny:
        dates, n_members = ALL_DATES[:2], 3
        shape = (91, 180) if dtype == "sfc" else (46, 90)
    elif scale is not None:
        n_samples = max(1, round(scale * len(ALL_DATES) * len(ALL_YEARS)))
        years = ALL_YEARS[:n_samples]
        dates = spread(ALL_DATES, max(1, round(n_samples / len(years))))
    else:
        dates, steps = spread(ALL_DATES, N_DEFAULT_DATES[dtype]), (LEAD_HOURS,)
        fields = tuple(each for each in fields if each.level in (0, *TASK_LEVELS))
    keys = tuple({"date": date} for date in dates)
    return Ensemble(seed, keys, 0, tiny, {}, years, steps, n_members, shape, fields)


def target_contents(plan: Ensemble, task: Task) -> StandInFile:
    """Return the analysis at each forecast's valid time, in order of time."""
    starts = sorted(f"{year}{key['date']}" for year in plan.years for key in plan.keys)
    hours = np.array([valid_time(each) for each in starts]) - np.datetime64("1900-01-01T00", "h")
    spacing = 360 / plan.shape[1]
    latitudes, longitudes = ((spacing * np.arange(n)).astype("f4") for n in plan.shape)
    since = "hours since 1900-01-01 00:00:00"
    axes = [
        axis_variable("time", hours.astype("i4"), since, calendar="gregorian"),
        axis_variable("latitude", 90 - latitudes, "degrees_north"),
        axis_variable("longitude", longitudes, "degrees_east"),
    ]
    field = next(each for each in plan.fields if each.name == task.target)
    name = task.target_variable
    attributes = {"units": task.target_units, "long_name": LONG_NAMES[name]}
    values = Smooth(field.low, field.high, TARGET_NOISE)
    target = StandInVariable(name, tuple(each.name for each in axes), values, "f4", attributes)
    return StandInFile([*axes, target], (plan.seed, RANDOM_VERSION, "target", field.name))


def write_forecasts(plan: Ensemble, dtype: str, date: str, path: Path) -> None:
    """Write one date's file in the order year, step, member, level, parameter."""
    codes = load_eccodes()
    handles = [_new_handle(codes, plan, dtype, field) for field in plan.fields]
    members = range(1, plan.n_members + 1)
    try:
        with path.open("wb") as stream:
            for year, step, member in itertools.product(plan.years, plan.steps, members):
                keys = f"dataDate={year}{date},step={step},perturbationNumber={member}"
                for handle, field in zip(handles, plan.fields, strict=True):
                    what = plan.seed, RANDOM_VERSION, field.name, int(date), year, step, member
                    smooth = Smooth(field.low, field.high, field.noise, PACKED_BITS)
                    values = smooth(plan.shape, "f8", what)
                    codes.codes_set_key_vals(handle, keys)
                    codes.codes_set_values(handle, values.ravel())
                    stream.write(codes.codes_get_message(handle))
    finally:
        for handle in handles:
            codes.codes_release(handle)


def _new_handle(codes: ModuleType, plan: Ensemble, dtype: str, field: GribField) -> Any:
    handle = codes.codes_grib_new_from_samples(f"regular_ll_{dtype}_grib1")
    n_latitudes, n_longitudes = plan.shape
    spacing = 360 / n_longitudes
    keys: dict[str, int | float | str] = {
        "centre": 98,
        "localDefinitionNumber": 1,
        "class": "od",
        "type": "pf",
        "stream": "enfo",
        "numberOfForecastsInEnsemble": MEMBERS + 1,
        "Ni": n_longitudes,
        "Nj": n_latitudes,
        "latitudeOfFirstGridPointInDegrees": 90.0,
        "longitudeOfFirstGridPointInDegrees": 0.0,
        "latitudeOfLastGridPointInDegrees": -90.0,
        "longitudeOfLastGridPointInDegrees": 360.0 - spacing,
        "iDirectionIncrementInDegrees": spacing,
        "jDirectionIncrementInDegrees": spacing,
        "dataTime": 0,
        "level": field.level,
        "paramId": field.param_id,
        "bitsPerValue": PACKED_BITS,
    }
    for key, value in keys.items():
        codes.codes_set(handle, key, value)
    return handle
