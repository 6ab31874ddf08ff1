"""Stand-ins of ENS-10 and its toy: what they hold, and ENS-10's files of smooth random fields.

Every value follows from (seed, start date, year, step, member, variable) alone, so that the bytes
do not depend on how many processes write or which dates are asked for. Sea temperature has values
over land too: the stand-in has no coast lines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iobench.datasets import PlannedFile, StandIn, in_mirror
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
from iobench_maelstrom.ens10.target import hours_since_1900, new_netcdf, valid_time

STAND_IN_VERSION = 1
"""Counts up when the same seed gives other bytes."""
HEADERS_NBYTES = 108
"""GRIB1 sections 0, 1 (with local definition 1), 2, 5 and the head of 4."""

Field = NDArray[np.float32]

ALL_YEARS = tuple(range(1998, 2018))
STEPS = (0, 24, 48)
DEFAULT_YEARS: tuple[int, ...] = (2015, 2016)  # the last year of training and the first of testing
N_MODES = 12
RAIN = ("cp", "tp")
PATCHY = (*RAIN, "tcc")
N_DEFAULT_DATES = {"sfc": 12, "pl": 4}
"""Of pressure levels fewer, for a date's file is larger by 14 to 11."""
FIRST_PRESSURE_NUMBER = 1000
"""Fields at pressure levels are numbered from here, so that no other dtype changes their values."""
LONG_NAMES = {"t2m": "2 metre temperature", "z": "Geopotential", "t": "Temperature"}


@dataclass(frozen=True, slots=True)
class Ensemble(StandIn):
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
    nbytes = len(plan.dates) * len(plan.years) * 4 * plan.shape[0] * plan.shape[1] + (32 << 10)
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
    hours, units = hours_since_1900([valid_time(f"{year}{date}") for year, date in starts])
    spacing = 360 / plan.shape[1]
    latitudes, longitudes = (spacing * np.arange(length) for length in plan.shape)
    axes = {
        "time": (hours.astype("i4"), units),
        "latitude": ((90.0 - latitudes).astype("f4"), "degrees_north"),
        "longitude": (longitudes.astype("f4"), "degrees_east"),
    }
    number = [field.name for field in plan.fields].index(task.target)
    maker, name = _maker(plan.seed, plan.shape, plan.fields), task.target_variable
    with new_netcdf("maelstrom-ens10", path, axes, calendar="gregorian") as file:
        stored = file.createVariable(name, "f4", tuple(axes), contiguous=True)
        stored.setncatts({"units": task.target_units, "long_name": LONG_NAMES[name]})
        for row, (year, date) in enumerate(starts):
            when = number, date, year, LEAD_HOURS
            stored[row] = maker.member(maker.base(*when), *when, 0)
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
            for year, step in ((year, step) for year in plan.years for step in plan.steps):
                for member, fields in _members(plan, date, year, step):
                    keys = f"dataDate={year}{date},step={step},perturbationNumber={member}"
                    for handle, field in zip(handles, fields, strict=True):
                        codes.codes_set_key_vals(handle, keys)
                        codes.codes_set_values(handle, field.ravel())
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
        "bitsPerValue": 16,
    }
    for key, value in keys.items():
        codes.codes_set(handle, key, value)
    return handle


def _members(
    plan: Ensemble, date: str, year: int, step: int
) -> Iterator[tuple[int, list[NDArray[np.float64]]]]:
    """Yield each member with its fields, one per variable."""
    maker = _maker(plan.seed, plan.shape, plan.fields)
    bases = [maker.base(number, date, year, step) for number in range(len(plan.fields))]
    for member in range(1, plan.n_members + 1):
        yield (
            member,
            [maker.member(base, n, date, year, step, member) for n, base in enumerate(bases)],
        )


class _FieldMaker:
    """Makes fields as sums of a few smooth patterns, each shifted along its latitudes."""

    def __init__(self, seed: int, shape: tuple[int, int], fields: tuple[GribField, ...]) -> None:
        self.seed = seed
        self.fields = fields
        self.keys = [_key(variable, number) for number, variable in enumerate(fields)]
        self.shape = shape
        self.modes = [smooth_mode(self._random(0, number), shape) for number in range(N_MODES)]
        self.sine = np.sin(np.radians(np.linspace(90.0, -90.0, shape[0])))
        self.climates = [
            _zonal(variable.name, self.sine)[:, None].astype(np.float32)
            + 0.12 * self._patterns(3, 1, key)
            for key, variable in zip(self.keys, fields, strict=True)
        ]

    def base(self, number: int, date: str, year: int, step: int) -> Field:
        """Return what all members of a forecast share, as a fraction of the range of values."""
        season = np.cos(2 * np.pi * (_day_of_year(date) - 15) / 365)
        tilt = (-0.06 * season * self.sine).astype(np.float32)[:, None]
        weather = self._patterns(4, 2, self.keys[number], int(date), year)
        drift = self._patterns(2, 3, self.keys[number], int(date), year, step)
        field: Field = (
            self.climates[number] + tilt + np.float32(0.13) * weather + np.float32(0.05) * drift
        )
        return field

    def member(
        self, base: Field, number: int, date: str, year: int, step: int, member: int
    ) -> NDArray[np.float64]:
        """Return one member's field in the variable's units."""
        variable = self.fields[number]
        field = self._patterns(2, 4, self.keys[number], int(date), year, step, member)
        uncertain = 5 if variable.name in PATCHY else 1
        field *= np.float32(uncertain * (0.005 + 0.0002 * step))
        field += base
        np.clip(field, 0.0, 1.0, out=field)
        if variable.name in RAIN:
            field *= field * field  # most places dry, few wet
        values = field.astype(np.float64)
        values *= variable.high - variable.low
        values += variable.low
        return values

    def _patterns(self, count: int, *key: int) -> Field:
        """Return the sum of ``count`` shifted patterns with random weights, of unit deviation."""
        random = self._random(*key)
        numbers = random.choice(N_MODES, size=count, replace=False)
        shifts = random.integers(self.shape[1], size=count)
        weights = random.standard_normal(count) / np.sqrt(count)
        total = np.zeros(self.shape, dtype=np.float32)
        product = np.empty_like(total)
        for number, shift, weight in zip(numbers, shifts, weights, strict=True):
            shifted = self.modes[number][:, shift : shift + self.shape[1]]
            total += np.multiply(shifted, np.float32(weight), out=product)
        return total

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, STAND_IN_VERSION, *key])


@functools.lru_cache(maxsize=2)
def _maker(seed: int, shape: tuple[int, int], fields: tuple[GribField, ...]) -> _FieldMaker:
    return _FieldMaker(seed, shape, fields)


def _key(variable: GribField, number: int) -> int:
    """Return what a field's values follow from: its number, whatever else is written."""
    return FIRST_PRESSURE_NUMBER + PRESSURE_FIELDS.index(variable) if variable.level else number


def smooth_mode(random: np.random.Generator, shape: tuple[int, int]) -> Field:
    """Return a smooth pattern, twice around the globe so that a shift is a slice.

    White noise on a domain twice as high (the poles do not meet), filtered to amplitudes falling
    with the wave number to the power 1.8, as of temperature and height at these scales.
    """
    noise = random.standard_normal((2 * shape[0], shape[1]))
    spectrum = np.fft.rfft2(noise)
    along = np.arange(spectrum.shape[1])[None, :]
    across = np.fft.fftfreq(noise.shape[0], 1 / noise.shape[0])[:, None]
    wave_number = np.hypot(along, across)
    spectrum *= np.exp(-((wave_number / 50) ** 2)) / np.maximum(wave_number, 2.0) ** 1.8
    spectrum[0, 0] = 0
    pattern = np.fft.irfft2(spectrum, s=noise.shape)[: shape[0]]
    pattern /= pattern.std()
    return np.concatenate([pattern, pattern], axis=1).astype(np.float32)


def _zonal(name: str, sine: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a variable's mean by latitude, as a fraction of its range of values."""
    profile: NDArray[np.float64] = 0.5 - 0.1 * np.cos(5 * np.arcsin(sine))  # winds
    if name in ("sst", "t2m", "skt") or (name[0] in "tz" and name[1:].isdigit()):
        profile = 0.93 - 0.75 * sine**2
    elif name in ("tcw", "tcwv") or name[0] == "q":
        profile = 0.75 - 0.65 * np.abs(sine)
    elif name in RAIN:
        profile = 0.2 + 0.25 * np.exp(-((sine / 0.2) ** 2))
    elif name == "tcc":
        profile = 0.5 + 0.2 * sine**2
    elif name == "msl":
        profile = 0.35 + 0.06 * np.sin(6 * np.arcsin(np.abs(sine)))
    return profile


def _day_of_year(date: str) -> float:
    return (int(date[:2]) - 1) * 30.4 + int(date[2:])


def _eccodes() -> ModuleType:
    try:
        import eccodes
    except ImportError as error:
        raise MissingExtraError(
            "maelstrom-ens10 needs ecCodes and NetCDF: pip install 'iobench[grib,netcdf]'"
        ) from error
    return eccodes  # type: ignore[no-any-return]
