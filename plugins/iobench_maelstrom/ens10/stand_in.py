"""Writes a stand-in of ENS-10: GRIB1 files and ERA5's targets, of smooth random fields.

Every value follows from (seed, start date, year, step, member, variable) alone, so that the bytes
do not depend on how many processes write or which dates are asked for. Sea temperature has values
over land too: the stand-in has no coast lines.
"""

from __future__ import annotations

import dataclasses
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
    ALL_YEARS,
    GRID,
    LEAD_HOURS,
    MEMBERS,
    STEPS,
    SURFACE_VARIABLES,
    GribField,
    Grid,
    UnetTask,
    forecast_url,
)
from iobench_maelstrom.ens10.target import valid_time, write_target
from iobench_maelstrom.ens10.tasks import PRESSURE_FIELDS, TASK_LEVELS, TASKS

__all__ = ["STAND_IN_VERSION", "StandInPlan", "planned_files", "smooth_mode", "spread"]

STAND_IN_VERSION = 1
"""Counts up when the same seed gives other bytes."""
HEADERS_NBYTES = 108
"""GRIB1 sections 0, 1 (with local definition 1), 2, 5 and the head of 4."""

Field = NDArray[np.float32]

DEFAULT_YEARS = (2015, 2016)  # the last year of training and the first of testing
N_MODES = 12
RAIN = ("cp", "tp")
PATCHY = (*RAIN, "tcc")
N_DEFAULT_DATES = 12
N_DEFAULT_PRESSURE_DATES = 4
"""Fewer, for a date's file is larger by 14 to 11."""
FIRST_PRESSURE_NUMBER = 1000
"""Fields at pressure levels are numbered from here, so that no other dtype changes their values."""


@dataclass(frozen=True, slots=True)
class StandInPlan(StandIn):
    """What a stand-in holds."""

    dates: tuple[str, ...] = ()
    years: tuple[int, ...] = DEFAULT_YEARS
    steps: tuple[int, ...] = STEPS
    n_members: int = MEMBERS
    grid: Grid = GRID
    dtype: str = "sfc"
    fields: tuple[GribField, ...] = SURFACE_VARIABLES

    @classmethod
    def of_size(
        cls, *, scale: float | None, tiny: bool, seed: int, dtype: str = "sfc"
    ) -> StandInPlan:
        """Return the plan of a size: tiny, the profile's default, or a share of all samples.

        The default has step 48 h alone, and of the levels those upstream's ``grib_copy`` leaves.
        """
        plan = cls._of_surface(scale=scale, tiny=tiny, seed=seed)
        if dtype == "sfc":
            return plan
        if tiny:
            grid = Grid(46, 90, 4.0)
            return dataclasses.replace(plan, dtype=dtype, fields=PRESSURE_FIELDS, grid=grid)
        if scale is not None:
            return dataclasses.replace(plan, dtype=dtype, fields=PRESSURE_FIELDS)
        fields = tuple(field for field in PRESSURE_FIELDS if field.level in TASK_LEVELS)
        dates = spread(N_DEFAULT_PRESSURE_DATES)
        return dataclasses.replace(plan, dtype=dtype, fields=fields, dates=dates)

    @classmethod
    def _of_surface(cls, *, scale: float | None, tiny: bool, seed: int) -> StandInPlan:
        if tiny:
            return cls(seed, (), dates=ALL_DATES[:2], n_members=3, grid=Grid(91, 180, 2.0))
        if scale is None:
            return cls(seed, (), dates=spread(N_DEFAULT_DATES), steps=(LEAD_HOURS,))
        n_samples = max(1, round(scale * len(ALL_DATES) * len(ALL_YEARS)))
        years = tuple(ALL_YEARS)[:n_samples]
        dates = spread(max(1, round(n_samples / len(years))))
        return cls(seed, (), dates=dates, years=years)

    @property
    def tasks(self) -> list[UnetTask]:
        """The tasks whose targets are written."""
        return list(dict.fromkeys(TASKS[self.dtype].values()))

    @property
    def n_samples(self) -> int:
        """Forecast starts: dates times years."""
        return len(self.dates) * len(self.years)

    @property
    def message_nbytes(self) -> int:
        """Bytes of one GRIB message."""
        return HEADERS_NBYTES + 2 * self.grid.n_points

    @property
    def messages_per_file(self) -> int:
        """Messages in one date's file."""
        per_step = self.n_members * len(self.fields)
        return len(self.years) * len(self.steps) * per_step

    @property
    def target_nbytes(self) -> int:
        """Bytes of one target's file, about."""
        return self.n_samples * 4 * self.grid.n_points + (32 << 10)


def spread(count: int) -> tuple[str, ...]:
    """Return ``count`` start dates spread evenly over the year."""
    return tuple(ALL_DATES[number * len(ALL_DATES) // count] for number in range(count))


def planned_files(plan: StandInPlan) -> list[PlannedFile]:
    """Return the files of a stand-in, the targets first since they are the odd ones out."""
    files = [
        PlannedFile(
            in_mirror(task.target_url),
            plan.target_nbytes,
            functools.partial(_write_target_file, plan, task),
        )
        for task in plan.tasks
    ]
    size = plan.messages_per_file * plan.message_nbytes
    for date in plan.dates:
        write = functools.partial(_write_forecasts, plan, date)
        files.append(PlannedFile(in_mirror(forecast_url(date, plan.dtype)), size, write))
    return files


def _write_forecasts(
    plan: StandInPlan, date: str, path: Path, advance: Callable[[int], None]
) -> None:
    """Write one date's file in the order year, step, member, level, parameter."""
    codes = _eccodes()
    handles = [_new_handle(codes, plan, variable) for variable in plan.fields]
    try:
        with path.open("wb") as stream:
            for year, step in ((year, step) for year in plan.years for step in plan.steps):
                keys = {"dataDate": int(f"{year}{date}"), "step": step}
                for member, fields in _ensemble(plan, date, year, step):
                    for handle, field in zip(handles, fields, strict=True):
                        codes.codes_set_key_vals(
                            handle,
                            ",".join(f"{key}={value}" for key, value in keys.items())
                            + f",perturbationNumber={member}",
                        )
                        codes.codes_set_values(handle, field.ravel())
                        message = codes.codes_get_message(handle)
                        stream.write(message)
                    advance(len(handles) * plan.message_nbytes)
    finally:
        for handle in handles:
            codes.codes_release(handle)


def _write_target_file(
    plan: StandInPlan, task: UnetTask, path: Path, advance: Callable[[int], None]
) -> None:
    """Write the analysis at each forecast's valid time, in order of time."""
    starts = sorted(f"{year}{date}" for year in plan.years for date in plan.dates)
    times = [valid_time(start) for start in starts]
    fields = (_analysis(plan, task, start[4:], int(start[:4])) for start in starts)
    write_target(
        path, times, fields, plan.grid, variable=task.target_variable, units=task.target_units
    )
    advance(plan.target_nbytes)


def _new_handle(codes: ModuleType, plan: StandInPlan, variable: GribField) -> Any:
    handle = codes.codes_grib_new_from_samples(f"regular_ll_{plan.dtype}_grib1")
    grid = plan.grid
    keys: dict[str, int | float | str] = {
        "centre": 98,
        "localDefinitionNumber": 1,
        "class": "od",
        "type": "pf",
        "stream": "enfo",
        "numberOfForecastsInEnsemble": MEMBERS + 1,
        "Ni": grid.n_longitudes,
        "Nj": grid.n_latitudes,
        "latitudeOfFirstGridPointInDegrees": 90.0,
        "longitudeOfFirstGridPointInDegrees": 0.0,
        "latitudeOfLastGridPointInDegrees": -90.0,
        "longitudeOfLastGridPointInDegrees": 360.0 - grid.spacing,
        "iDirectionIncrementInDegrees": grid.spacing,
        "jDirectionIncrementInDegrees": grid.spacing,
        "dataTime": 0,
        "level": variable.level,
        "paramId": variable.param_id,
        "bitsPerValue": 16,
    }
    for key, value in keys.items():
        codes.codes_set(handle, key, value)
    return handle


def _ensemble(
    plan: StandInPlan, date: str, year: int, step: int
) -> Iterator[tuple[int, list[NDArray[np.float64]]]]:
    """Yield each member with its fields, one per variable."""
    maker = _maker(plan.seed, plan.grid, plan.fields)
    bases = [maker.base(number, date, year, step) for number in range(len(plan.fields))]
    for member in range(1, plan.n_members + 1):
        yield (
            member,
            [maker.member(base, n, date, year, step, member) for n, base in enumerate(bases)],
        )


def _analysis(plan: StandInPlan, task: UnetTask, date: str, year: int) -> NDArray[np.float64]:
    number = next(n for n, variable in enumerate(plan.fields) if variable.name == task.target)
    maker = _maker(plan.seed, plan.grid, plan.fields)
    base = maker.base(number, date, year, LEAD_HOURS)
    return maker.member(base, number, date, year, LEAD_HOURS, 0)


class _FieldMaker:
    """Makes fields as sums of a few smooth patterns, each shifted along its latitudes."""

    def __init__(self, seed: int, grid: Grid, fields: tuple[GribField, ...]) -> None:
        self.seed = seed
        self.fields = fields
        self.keys = [_key(variable, number) for number, variable in enumerate(fields)]
        self.shape = grid.shape
        self.modes = [smooth_mode(self._random(0, number), grid) for number in range(N_MODES)]
        self.sine = np.sin(np.radians(np.linspace(90.0, -90.0, grid.n_latitudes)))
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
def _maker(seed: int, grid: Grid, fields: tuple[GribField, ...]) -> _FieldMaker:
    return _FieldMaker(seed, grid, fields)


def _key(variable: GribField, number: int) -> int:
    """Return what a field's values follow from: its number, whatever else is written."""
    return FIRST_PRESSURE_NUMBER + PRESSURE_FIELDS.index(variable) if variable.level else number


def smooth_mode(random: np.random.Generator, grid: Grid) -> Field:
    """Return a smooth pattern, twice around the globe so that a shift is a slice.

    White noise on a domain twice as high (the poles do not meet), filtered to amplitudes falling
    with the wave number to the power 1.8, as of temperature and height at these scales.
    """
    noise = random.standard_normal((2 * grid.n_latitudes, grid.n_longitudes))
    spectrum = np.fft.rfft2(noise)
    along = np.arange(spectrum.shape[1])[None, :]
    across = np.fft.fftfreq(noise.shape[0], 1 / noise.shape[0])[:, None]
    wave_number = np.hypot(along, across)
    spectrum *= np.exp(-((wave_number / 50) ** 2)) / np.maximum(wave_number, 2.0) ** 1.8
    spectrum[0, 0] = 0
    pattern = np.fft.irfft2(spectrum, s=noise.shape)[: grid.n_latitudes]
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
