"""What the files of ENS-10 hold and where they are; stand-ins of ENS-10."""

from __future__ import annotations

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
    """One field: cfgrib's name, ECMWF's number, a stand-in's range and noise, level."""

    short_name: str
    param_id: int
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
    GribField("sst", 34, 260.0, 305.0, 0.45),
    GribField("tcw", 136, 0.0, 60.0, 0.47),
    GribField("tcwv", 137, 0.0, 60.0, 0.48),
    GribField("cp", 143, 0.0, 0.04, 0.27),
    GribField("msl", 151, 97000.0, 110000.0, 0.53),
    GribField("tcc", 164, 0.0, 1.0, 0.52),
    GribField("u10", 165, -13.0, 11.0, 0.52),
    GribField("v10", 166, -10.0, 15.0, 0.55),
    GribField("t2m", 167, 218.0, 304.0, 0.48),
    GribField("tp", 228, 0.0, 0.07, 0.34),
    GribField("skt", 235, 210.0, 310.0, 0.44),
)
PRESSURE_FIELDS = tuple(
    GribField(name, param_id, *(below if level >= 700 else above), level)
    for level in LEVELS
    for name, param_id, below, above in (
        ("z", 129, (10000.0, 15500.0, 0.45), (48200.0, 58000.0, 0.43)),
        ("t", 130, (240.0, 299.0, 0.48), (230.0, 269.0, 0.44)),
        ("q", 133, (0.0, 15e-3, 0.49), (0.0, 4e-3, 0.24)),
        ("w", 135, (-1.2, 1.8, 0.54), (-0.7, 1.4, 0.57)),
        ("d", 155, (-1.9e-4, 1.6e-4, 0.53), (-5e-5, 8e-5, 0.58)),
        ("u", 131, (-16.0, 17.5, 0.55), (-7.0, 27.0, 0.56)),
        ("v", 132, (-10.0, 16.0, 0.55), (-7.0, 7.0, 0.52)),
    )
)
"""In the files' order of messages, level by level; ranges are those of 850 and of 500 hPa."""


class Task(msgspec.Struct, frozen=True):
    """One of the D2.3 U-Net's tasks: what it read, and what it was to say."""

    dtype: str  # ``sfc`` or ``pl``, as upstream
    level: int  # in hPa; 0 at the surface
    target: str
    target_units: str  # name of the target in a sample, and its units
    target_variable: str  # its name in ERA5's file, at pressure levels assumed
    target_file: str

    @property
    def target_url(self) -> str:
        """Where that is: none is published, in a folder of its own beside the forecasts."""
        return f"{BUCKET_URL}/era5/{self.target_file}"

    @property
    def fields(self) -> tuple[GribField, ...]:
        """What a sample is made of."""
        return tuple(
            each for each in (*SURFACE_FIELDS, *PRESSURE_FIELDS) if each.level == self.level
        )

    @property
    def channels(self) -> tuple[str, ...]:
        """Mean and deviation of each variable."""
        return tuple(f"{each.name}_{kind}" for each in self.fields for kind in ("mean", "std"))

    @property
    def or_without(self) -> str:
        """What else than a missing target there is, for messages."""
        return "" if self.level else ", or go without: --option target=none"


_SURFACE = Task("sfc", 0, "t2m", "K", "t2m", "ERA5_sfc_t2m.nc")
TASKS: Mapping[str, Mapping[str, Task]] = {
    "sfc": {"era5": _SURFACE, "none": _SURFACE},
    "pl": {
        "z500": Task("pl", 500, "z500", "m**2 s**-2", "z", "ERA5_z500.nc"),
        "t850": Task("pl", 850, "t850", "K", "t", "ERA5_t850.nc"),
    },
}
"""By ``dtype`` and ``target``."""

_DAYS = np.arange("2018-01-01", "2019-01-01", dtype="M8[D]").tolist()
ALL_DATES = tuple(f"{day:%m%d}" for day in _DAYS if day.weekday() in (0, 3))
"""The 105 start dates (``MMDD``): Mondays and Thursdays of 2018, after which files are named."""


def valid_time(start: str) -> np.datetime64:
    """Return when the forecast of a start date (``YYYYMMDD``, 0 UTC) is valid."""
    day = np.datetime64(f"{start[:4]}-{start[4:6]}-{start[6:]}T00", "h")
    return day + np.timedelta64(LEAD_HOURS, "h")


STAND_IN_VERSION = 4
"""Counts up when the same seed gives other bytes."""
RANDOM_VERSION = 3
"""Part of the key of random numbers."""
ALL_YEARS = tuple(range(1998, 2018))
DEFAULT_YEARS = (2015, 2016)  # the last year of training and the first of testing
TINY_STEPS, TINY_MEMBERS = (0, 24, LEAD_HOURS), 3
TINY_GRIDS = {"sfc": (91, 180), "pl": (46, 90)}
PACKED_BITS = 16
TARGET_NOISE = 0.62


def years_of(plan: StandIn) -> tuple[int, ...]:
    """Return the years that a file of a stand-in holds."""
    return DEFAULT_YEARS[-plan.n_steps :] if plan.n_steps else ALL_YEARS


def target_contents(plan: StandIn, task: Task) -> StandInFile:
    """Return the analysis at each forecast's valid time, in order of time."""
    starts = sorted(f"{year}{key['date']}" for year in years_of(plan) for key in plan.keys)
    hours = np.array([valid_time(each) for each in starts]) - np.datetime64("1900-01-01T00", "h")
    shape = TINY_GRIDS[task.dtype] if plan.tiny else GRID
    latitudes, longitudes = ((360 / shape[1] * np.arange(n)).astype("f4") for n in shape)
    since = "hours since 1900-01-01 00:00:00"
    axes = [
        axis_variable("time", hours.astype("i4"), since, calendar="gregorian"),
        axis_variable("latitude", 90 - latitudes, "degrees_north"),
        axis_variable("longitude", longitudes, "degrees_east"),
    ]
    field = next(each for each in task.fields if each.name == task.target)
    values, units = Smooth(field.low, field.high, TARGET_NOISE), {"units": task.target_units}
    dims = tuple(each.name for each in axes)
    target = StandInVariable(task.target_variable, dims, values, "f4", units)
    return StandInFile([*axes, target], (plan.seed, RANDOM_VERSION, "target", field.name))


def write_forecasts(plan: StandIn, dtype: str, date: str, path: Path) -> None:
    """Write one date's file in the order year, step, member, level, parameter."""
    codes, shape = load_eccodes(), TINY_GRIDS[dtype] if plan.tiny else GRID
    fields = SURFACE_FIELDS if dtype == "sfc" else PRESSURE_FIELDS
    if not plan.tiny:  # nor another step: what no sample has is left out
        fields = tuple(each for each in fields if each.level in (0, *TASK_LEVELS))
    handles = [_new_handle(codes, shape, dtype, field) for field in fields]
    steps, n_members = (TINY_STEPS, TINY_MEMBERS) if plan.tiny else ((LEAD_HOURS,), MEMBERS)
    members = range(1, plan.lengths.get("number", n_members) + 1)
    try:
        with path.open("wb") as stream:
            for year, step, member in itertools.product(years_of(plan), steps, members):
                keys = f"dataDate={year}{date},step={step},perturbationNumber={member}"
                for handle, field in zip(handles, fields, strict=True):
                    what = plan.seed, RANDOM_VERSION, field.name, int(date), year, step, member
                    smooth = Smooth(field.low, field.high, field.noise, PACKED_BITS)
                    values = smooth(shape, "f8", what)
                    codes.codes_set_key_vals(handle, keys)
                    codes.codes_set_values(handle, values.ravel())
                    stream.write(codes.codes_get_message(handle))
    finally:
        for handle in handles:
            codes.codes_release(handle)


def _new_handle(codes: ModuleType, shape: tuple[int, int], dtype: str, field: GribField) -> Any:
    handle = codes.codes_grib_new_from_samples(f"regular_ll_{dtype}_grib1")
    n_latitudes, n_longitudes = shape
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
