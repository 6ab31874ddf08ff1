"""Application A6's training sample: five features at a turbine's nearest grid point, one hour.

As in the notebook of climetlab-plugin-a6: air density, wind speed and direction on one model level,
time of day and of year, and the mean production of the hour with negatives set to 0.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Arrays,
    Locator,
    Progress,
    PublishedStep,
    SampleIndex,
    inspect_netcdf,
    no_progress,
)
from iobench.errors import FileFormatError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.power.boxes import (
    BoxBytes,
    Ranges,
    box_of,
    decode_boxes,
    read_boxes,
    read_boxes_through_library,
    read_times,
    read_whole,
    without_other_variables,
)
from iobench_maelstrom.power.files import find_all, find_runs, open_runs
from iobench_maelstrom.power.production import check_coefficients, check_single_point
from iobench_maelstrom.power.schema import (
    CITATION,
    CONSTANTS_URL,
    LEVEL_TYPES,
    TERMS,
    production_url,
)
from iobench_maelstrom.power.stand_in import (
    STAND_IN_VERSION,
    PowerPlan,
    constants_files,
    production_files,
    weather_files,
    write_plan,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import NetcdfFile, PlannedFile, Raw
    from iobench_maelstrom.power.files import WeatherRuns

__all__ = ["FEATURES", "PowerFeatures", "wind_direction", "year_part"]

FEATURES = ("air_density", "wind_speed", "wind_direction", "time_of_day", "time_of_year")
FEATURE_UNITS = "kg m**-3, m s**-1, degree, 1, 1"
GAS_CONSTANT_DRY = 287.05
GAS_CONSTANT_VAPOUR = 461.523
"""J kg**-1 K**-1, as in the notebook."""
HOUR = np.timedelta64(3600, "s")
DAYS_PER_YEAR = 365
"""Also in leap years, as in the notebook."""
MODEL, SURFACE = LEVEL_TYPES["model"], LEVEL_TYPES["surface"]

Where = tuple[int, int, int, int, int]
"""Run, step, first production step of the hour and the one after the last, seconds since 1970."""


class PowerFeatures:
    """Features and production of a turbine, hour by hour; a `Dataset` and a `Synthesizer`.

    Parameters
    ----------
    wind_turbine_id : int
        Which of the four turbines.
    days : tuple of date
        Days whose weather is required; empty for those at hand.
    model_level : int
        Where the wind is taken; 133 is about 100 m above ground.
    """

    name = "maelstrom-power"
    title = "Wind power forecast: nearest-point features, hourly production (MAELSTROM A6)"
    published: PublishedStep | None = None
    synthesis_version = STAND_IN_VERSION

    def __init__(
        self, wind_turbine_id: int, *, days: tuple[datetime.date, ...] = (), model_level: int = 133
    ) -> None:
        self.wind_turbine_id = wind_turbine_id
        self.days = days
        self.model_level = model_level
        self.fused: tuple[str, ...] = ()
        self._model: tuple[NetcdfFile, ...] = ()
        self._surface: tuple[NetcdfFile, ...] = ()
        self._production: NetcdfFile | None = None
        self._point: Ranges = ()
        self._level: tuple[int, int] = (0, 0)
        self._pressure = (0.0, 0.0)

    @property
    def thread_safe(self) -> bool:
        """Whether threads may make samples at once: the HDF5 library cannot."""
        return not self.fused

    def files(self, locator: Locator) -> list[Path]:
        """Return the model-level and as many surface files, the constants, the production.

        Raises
        ------
        MissingFileError
            Listing what is missing by URL.
        """
        weather = find_runs(self.name, [MODEL.prefix, SURFACE.prefix], self.days, locator)
        others = [CONSTANTS_URL, production_url(self.wind_turbine_id)]
        return [*weather, *find_all(self.name, others, locator)]

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per hour that has weather and production, in order of time.

        Raises
        ------
        FileFormatError
            If a file is cut short or of another schema, the surface's times are not those of the
            model levels, or no hour has both.
        """
        *weather, constants, production = files
        model = open_runs(weather[: len(weather) // 2], MODEL, locator.progress)
        surface = open_runs(weather[len(weather) // 2 :], SURFACE, locator.progress)
        _check_same_hours(model, surface)
        turbine = inspect_netcdf(production)
        check_single_point(turbine)
        self._place(model.files[0], surface.files[0], turbine)
        self._pressure = _pressure_coefficients(inspect_netcdf(constants), self.model_level)
        self._model = tuple(without_other_variables(f, MODEL.required) for f in model.files)
        self._surface = tuple(without_other_variables(f, SURFACE.required) for f in surface.files)
        self._production = without_other_variables(turbine, ["production"])
        kept = (*self._model, *self._surface, self._production)
        unknown = any(v.storage is None for file in kept for v in file.variables.values())
        self.fused = ("read", "decode") if unknown else ()
        where = _hours_with_production(model, turbine)
        return SampleIndex(
            spec=_spec(turbine),
            where=where,
            coordinate=[str(model.time(run, step))[:16] for run, step, *_ in where],
            provenance={
                **self._provenance(files, model, len(where)),
                "stand_in": locator.stand_in,
            },
        )

    def read(self, where: Where) -> Any:
        """Return the few bytes of the point and the hour; the numbers themselves where fused."""
        run, step, start, stop, seconds = where
        if self._production is None:
            raise OptionError("maelstrom-power: call samples() before read()")
        time = (step, step + 1)
        wanted: list[tuple[NetcdfFile, str, Ranges]] = [
            (self._model[run], name, (time, self._level, *self._point)) for name in MODEL.required
        ]
        wanted.append((self._surface[run], "sp", (time, *self._point)))
        wanted.append((self._production, "production", ((start, stop),)))
        if self.fused:
            arrays: dict[str, NDArray[Any]] = {"time": np.asarray(seconds)}
            for file, name, ranges in wanted:
                variable = file.variables[name]
                arrays |= read_boxes_through_library(file, [(name, variable, ranges)])
            return arrays
        boxes = [(name, box_of(file, file.variables[name], r)) for file, name, r in wanted]
        return read_boxes(boxes, seconds=seconds)

    def decode(self, raw: Raw) -> Arrays:
        """Return ``t, q, u, v, sp`` of the point, the hour's ``production``, ``time`` in s."""
        arrays = decode_boxes(raw)
        seconds = raw.seconds if isinstance(raw, BoxBytes) else None
        if seconds is None:
            raise TypeError("decode takes what read returned")
        return {**arrays, "time": np.asarray(seconds)}

    def preprocess(self, arrays: Arrays) -> Sample:
        """Return ``features``, in the order of `FEATURES`, and the hour's mean ``production``."""
        t, q, u, v, sp = (float(arrays[name].reshape(())) for name in ("t", "q", "u", "v", "sp"))
        a, b = self._pressure
        gas_constant = GAS_CONSTANT_DRY * (1 - q) + GAS_CONSTANT_VAPOUR * q
        density = (a + b * sp) / (gas_constant * t)
        day, second = divmod(int(arrays["time"]), 86400)
        features = [density, np.hypot(u, v), wind_direction(u, v), second / 86400, year_part(day)]
        produced = arrays["production"].astype(np.float64)
        mean = max(0.0, float(np.nanmean(produced)))
        return {
            "features": np.array(features, dtype=np.float32),
            "production": np.asarray(mean, dtype=np.float32),
        }

    def synthesis_nbytes(self, *, scale: float | None, tiny: bool) -> int:
        """Return about the bytes ``synthesize`` will write."""
        plan = PowerPlan.of_size(scale=scale, tiny=tiny, seed=0, days=self.days)
        return sum(file.nbytes for file in _planned(plan))

    def synthesize(
        self,
        root: Path,
        *,
        scale: float | None,
        tiny: bool,
        seed: int,
        progress: Progress = no_progress,
        processes: int | None = None,
    ) -> list[Path]:
        """Write the stand-in under ``root``, with all four turbines, and return its files."""
        plan = PowerPlan.of_size(scale=scale, tiny=tiny, seed=seed, days=self.days)
        files = _planned(plan)
        return write_plan(root, plan, files, self.name, progress=progress, processes=processes)

    def _place(self, model: NetcdfFile, surface: NetcdfFile, turbine: NetcdfFile) -> None:
        """Find the model level and the grid point nearest to the turbine."""
        levels = read_whole(model, "level").astype(int).tolist()
        if self.model_level not in levels:
            raise FileFormatError(
                f"{model.path}: variable 'level' is {', '.join(map(str, levels))}, expected "
                f"{self.model_level} among them"
            )
        place = levels.index(self.model_level)
        self._level = (place, place + 1)
        point = []
        for dim in ("latitude", "longitude"):
            axis = read_whole(model, dim).astype(np.float64)
            if not np.array_equal(axis, read_whole(surface, dim).astype(np.float64)):
                raise FileFormatError(
                    f"{surface.path}: variable {dim!r} differs from that of {model.path}"
                )
            nearest = _nearest(axis, float(read_whole(turbine, dim)[0]), dim, turbine)
            point.append((nearest, nearest + 1))
        self._point = tuple(point)

    def _provenance(
        self, files: Sequence[Path], model: WeatherRuns, n_samples: int
    ) -> Mapping[str, Any]:
        return {
            "dataset": self.name,
            "schema": "maelstrom-ap6 ml, sfc, production, constants",
            "options": {
                "wind_turbine_id": self.wind_turbine_id,
                "date": sorted({str(times[0])[:10] for times in model.times}),
                "model_level": self.model_level,
            },
            "grid_point": [start for start, _ in self._point],
            "hours_without_production": len(model.hours) - n_samples,
            "production": "mean of the hour's ten-minute values, negatives 0",
            "normalisation": {},
            "terms_of_use": TERMS,
            "citation": CITATION,
            "files": [{"name": file.name, "nbytes": file.stat().st_size} for file in files],
        }


def wind_direction(u: float, v: float) -> float:
    """Return the notebook's angle in degrees: 90 less that of the wind to the equator.

    It folds opposite directions into one, from 0 to 180.
    """
    side = np.copysign(1.0, u)
    return float(90.0 - np.degrees(np.arctan2(v * side, abs(u))))


def year_part(day: int) -> float:
    """Return the part of its year before a day, counted from 1970; as the notebook does."""
    date = np.datetime64(day, "D")
    first = date.astype("datetime64[Y]").astype("datetime64[D]")
    return float((date - first).astype(int)) / DAYS_PER_YEAR


def _nearest(axis: NDArray[np.float64], place: float, dim: str, turbine: NetcdfFile) -> int:
    """Return which value of a coordinate of the grid is nearest to the turbine's."""
    distances = np.abs(axis - place)
    nearest = int(np.argmin(distances))
    if not distances[nearest] <= np.abs(np.diff(axis)).max(initial=0.0):
        raise FileFormatError(
            f"{turbine.path}: variable {dim!r} is {place:g}, outside of the weather's grid from "
            f"{axis[0]:g} to {axis[-1]:g}"
        )
    return nearest


def _planned(plan: PowerPlan) -> list[PlannedFile]:
    weather = [*weather_files(plan, MODEL), *weather_files(plan, SURFACE)]
    return [*weather, *constants_files(), *production_files(plan)]


def _spec(turbine: NetcdfFile) -> SampleSpec:
    units = turbine.variables["production"].attributes.get("units", "")
    features = Variable(
        "features", (len(FEATURES),), "<f4", ("feature",), FEATURE_UNITS, channels=FEATURES
    )
    return SampleSpec((features, Variable("production", (), "<f4", (), units, role="target")))


def _check_same_hours(model: WeatherRuns, surface: WeatherRuns) -> None:
    for run, times in enumerate(model.times):
        if not np.array_equal(times, surface.times[run]):
            raise FileFormatError(
                f"{surface.files[run].path}: variable 'time' begins at {surface.times[run][0]}, "
                f"expected {times[0]} and the steps of {model.files[run].path}"
            )


def _pressure_coefficients(file: NetcdfFile, level: int) -> tuple[float, float]:
    """Return A and B of a full level: means of those of its bounds (IFS Cy47r1 III, eq. 2.11)."""
    check_coefficients(file)
    a, b = (read_whole(file, name)[0, level - 1 : level + 1].mean() for name in ("hyai", "hybi"))
    return float(a), float(b)


def _hours_with_production(model: WeatherRuns, turbine: NetcdfFile) -> list[Where]:
    """Return where the hours are that have weather and at least one value of production."""
    times = read_times(turbine)
    if not (np.diff(times) > np.timedelta64(0, "s")).all():
        raise FileFormatError(f"{turbine.path}: variable 'time' does not grow throughout")
    known = np.isfinite(read_whole(turbine, "production").reshape(-1))
    where = []
    for run, step in model.hours:
        hour = model.time(run, step)
        start, stop = np.searchsorted(times, [hour, hour + HOUR]).tolist()
        if known[start:stop].any():
            where.append((run, step, start, stop, int(hour.astype("datetime64[s]").astype(int))))
    if not where:
        raise FileFormatError(
            f"{turbine.path}: holds production from {times[:1]} to {times[-1:]} but for no hour of "
            f"the weather, {model.time(*model.hours[0])} to {model.time(*model.hours[-1])}"
        )
    return where
