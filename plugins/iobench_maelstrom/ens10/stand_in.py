"""Stand-ins of ENS-10 and its toy: what they hold, and ENS-10's files of smooth values with noise.

Every value follows from (seed, start date, year, step, member, variable) alone, so that the bytes
do not depend on how many processes write or which dates are asked for.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from iobench.datasets import (
    PlannedFile,
    StandIn,
    define_axes,
    in_mirror,
    netcdf4,
    smooth_values,
)
from iobench.errors import MissingExtraError
from iobench_maelstrom.ens10.schema import (
    ALL_DATES,
    GRID,
    LEAD_HOURS,
    MEMBERS,
    PRESSURE_FIELDS,
    SURFACE_FIELDS,
    TASK_LEVELS,
    TASKS,
    GribField,
    Task,
)
from iobench_maelstrom.ens10.target import valid_time

STAND_IN_VERSION = 2
"""Counts up when the same seed gives other bytes."""
HEADERS_NBYTES = 108
"""GRIB1 sections 0, 1 (with local definition 1), 2, 5 and the head of 4."""

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

    dates: tuple[str, ...] = ()
    years: tuple[int, ...] = DEFAULT_YEARS
    steps: tuple[int, ...] = STEPS
    n_members: int = MEMBERS
    shape: tuple[int, int] = GRID
    fields: tuple[GribField, ...] = SURFACE_FIELDS


def plan_of_size(dtype: str, *, scale: float | None, tiny: bool, seed: int) -> Ensemble:
    """Return the plan of a size: tiny, the profile's default, or a share of all samples.

    The default has step 48 h alone, and of the levels those upstream's ``grib_copy`` leaves.
    """
    fields = SURFACE_FIELDS if dtype == "sfc" else PRESSURE_FIELDS
    years, n_members, shape = DEFAULT_YEARS, MEMBERS, GRID
    steps: tuple[int, ...] = STEPS
    if tiny:
        dates, n_members = ALL_DATES[:2], 3
        shape = (91, 180) if dtype == "sfc" else (46, 90)
    elif scale is not None:
        dates, years = share_of(scale, ALL_YEARS)
    else:
        dates, steps = spread(N_DEFAULT_DATES[dtype]), (LEAD_HOURS,)
        fields = tuple(each for each in fields if each.level in (0, *TASK_LEVELS))
    keys = tuple({"date": date} for date in dates)
    return Ensemble(seed, keys, 0, tiny, dates, years, steps, n_members, shape, fields)


def share_of(scale: float, years: tuple[int, ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return start dates and years that make up a share of the samples of all years."""
    n_samples = max(1, round(scale * len(ALL_DATES) * len(years)))
    some = years[:n_samples]
    return spread(max(1, round(n_samples / len(some)))), some


def spread(count: int) -> tuple[str, ...]:
    """Return ``count`` start dates spread evenly over the year."""
    return tuple(ALL_DATES[number * len(ALL_DATES) // count] for number in range(count))


def target_files(plan: Ensemble, dtype: str) -> list[PlannedFile]:
    """Return the targets' files of all tasks of a dtype."""
    nbytes = len(plan.dates) * len(plan.years) * 4 * plan.shape[0] * plan.shape[1] + (12 << 10)
    return [
        PlannedFile(
            in_mirror(task.target_url), nbytes, functools.partial(_write_target, plan, task, nbytes)
        )
        for task in dict.fromkeys(TASKS[dtype].values())
    ]


def _write_target(
    plan: Ensemble, task: Task, nbytes: int, path: Path, advance: Callable[[int], None]
) -> None:
    """Write the analysis at each forecast's valid time, in order of time."""
    starts = sorted((year, date) for year in plan.years for date in plan.dates)
    times = np.array([valid_time(f"{year}{date}") for year, date in starts])
    hours = (times - np.datetime64("1900-01-01T00", "h")).astype("i4")
    spacing = 360 / plan.shape[1]
    latitudes, longitudes = (spacing * np.arange(length) for length in plan.shape)
    axes = {
        "time": (hours, "hours since 1900-01-01 00:00:00"),
        "latitude": ((90.0 - latitudes).astype("f4"), "degrees_north"),
        "longitude": (longitudes.astype("f4"), "degrees_east"),
    }
    field = next(each for each in plan.fields if each.name == task.target)
    bounds, name = (field.low, field.high), task.target_variable
    with netcdf4("maelstrom-ens10").Dataset(path, "w", format="NETCDF4") as file:
        define_axes(file, axes, calendar="gregorian")
        stored = file.createVariable(name, "f4", tuple(axes), contiguous=True)
        stored.setncatts({"units": task.target_units, "long_name": LONG_NAMES[name]})
        for row, (year, date) in enumerate(starts):
            what = plan.seed, STAND_IN_VERSION, "target", field.name, int(date), year
            stored[row] = smooth_values(plan.shape, *bounds, *what, noise=TARGET_NOISE)
    advance(nbytes)


def message_nbytes(plan: Ensemble) -> int:
    """Return the bytes of one GRIB message."""
    return HEADERS_NBYTES + 2 * plan.shape[0] * plan.shape[1]


def forecasts_nbytes(plan: Ensemble) -> int:
    """Return the bytes of one date's file."""
    n_messages = len(plan.years) * len(plan.steps) * plan.n_members * len(plan.fields)
    return n_messages * message_nbytes(plan)


def write_forecasts(
    plan: Ensemble, dtype: str, date: str, path: Path, advance: Callable[[int], None]
) -> None:
    """Write one date's file in the order year, step, member, level, parameter."""
    codes = _eccodes()
    handles = [_new_handle(codes, plan, dtype, field) for field in plan.fields]
    try:
        with path.open("wb") as stream:
            members = range(1, plan.n_members + 1)
            for year, step, member in itertools.product(plan.years, plan.steps, members):
                keys = f"dataDate={year}{date},step={step},perturbationNumber={member}"
                for handle, field in zip(handles, plan.fields, strict=True):
                    what = plan.seed, STAND_IN_VERSION, field.name, int(date), year, step, member
                    values = smooth_values(
                        plan.shape, field.low, field.high, *what,
                        noise=field.noise, dtype="f8", bits=PACKED_BITS,
                    )  # fmt: skip
                    codes.codes_set_key_vals(handle, keys)
                    codes.codes_set_values(handle, values.ravel())
                    stream.write(codes.codes_get_message(handle))
                advance(len(handles) * message_nbytes(plan))
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


def _eccodes() -> ModuleType:
    try:
        import eccodes
    except ImportError as error:
        raise MissingExtraError(
            "maelstrom-ens10 needs ecCodes and NetCDF: pip install 'iobench[grib,netcdf]'"
        ) from error
    return eccodes  # type: ignore[no-any-return]
