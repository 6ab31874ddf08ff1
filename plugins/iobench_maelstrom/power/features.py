"""Application A6's training sample: five features at a turbine's nearest grid point, one hour.

As in the notebook of climetlab-plugin-a6, with the mean production of the hour, negatives 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from iobench.datasets import (
    Axis,
    FileKey,
    Hyperslab,
    Option,
    Recipe,
    RecipeVariable,
    SampleIndex,
    file_times,
    inspect_files,
    only_variables,
    whole_variable,
)
from iobench.errors import FileFormatError
from iobench.samples import SampleSpec, Variable
from iobench_maelstrom.power import files as archive
from iobench_maelstrom.power.weather import (
    DATE,
    PowerFiles,
    WeatherFields,
    run_times,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.coordinates import SampleLabels
    from iobench.datasets import Arrays, Locator, NetcdfFile, PluginCall, StandIn
    from iobench.samples import Sample

FEATURES = ("air_density", "wind_speed", "wind_direction", "time_of_day", "time_of_year")
FEATURE_UNITS = "kg m**-3, m s**-1, degree, 1, 1"
GAS_CONSTANT_DRY, GAS_CONSTANT_VAPOUR = 287.05, 461.523
"""J kg**-1 K**-1, as in the notebook."""
DAYS_PER_YEAR = 365
"""Also in leap years, as in the notebook."""
HOUR = np.timedelta64(3600, "s")
Where = tuple[int, int, int, int, int]
"""Run, step, first production step of the hour and the one after the last, seconds since 1970."""
Number = TypeVar("Number", float, "NDArray[np.float64]")


class Production(Recipe):
    """What a turbine reported every ten minutes: an input of the features."""

    name = "production"
    axes = (Axis("time"), Axis("level", 1), Axis("latitude", 1), Axis("longitude", 1))
    fields = (RecipeVariable("production"),)


class LevelConstants(Recipe):
    """Coefficients A and B of the model levels' bounds: an input of the features."""

    name = "constants"
    axes = (Axis("dim0", 1), Axis("dim0_0", archive.HALF_LEVELS))
    fields = tuple(RecipeVariable(name) for name in ("hyai", "hybi", "hyam", "hybm"))


class PowerFeatures(PowerFiles):
    """Features and production of a turbine, hour by hour: the dataset ``maelstrom-power``."""

    name = "maelstrom-power"
    title = "Wind power forecast: nearest-point features, hourly production (MAELSTROM A6)"
    prefixes = (archive.MODEL.prefix, archive.SURFACE.prefix)
    axes, fields = archive.MODEL.axes, archive.MODEL.fields
    options = (
        Option(
            "wind_turbine_id", "Which turbine.", "1",
            [str(each.number) for each in archive.TURBINES],
        ),
        DATE,
        Option(
            "model_level", "Where the wind is taken: 133 is about 100 m above ground.", "133",
            [str(level) for level in archive.MODEL.levels],
        ),
    )  # fmt: skip

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.number: str = self.chosen["wind_turbine_id"]
        self.others = tuple(
            {"file": name}
            for name in (archive.CONSTANTS_FILE, archive.PRODUCTION_FILE.format(self.number))
        )
        self.model_level = int(self.chosen["model_level"])
        self.n_runs = 0
        self.point: dict[str, int] = {}
        self.level = 0
        self.pressure = (0.0, 0.0)
        self.without_production = 0

    def open(self, files: Sequence[Path], locator: Locator) -> tuple[NetcdfFile, ...]:
        """Return what the files hold, each checked against the recipe of its kind."""
        every = inspect_files(files, cache_dir=locator.cache_dir, progress=locator.progress)
        *weather, constants, turbine = every
        self.n_runs = len(weather) // 2
        needed: list[NetcdfFile] = []
        for recipe, some in (
            (WeatherFields(levels="model"), weather[: self.n_runs]),
            (WeatherFields(levels="surface"), weather[self.n_runs :]),
            (LevelConstants(), [constants]),
            (Production(), [turbine]),
        ):
            names = [each.name for each in recipe.fields if some != [constants]]
            for file in some:
                recipe.check(file, some[0])
                needed.append(only_variables(file, names))
        self.keep(needed)
        self._place(weather[0], weather[self.n_runs], turbine)
        self.pressure = pressure_coefficients(constants, self.model_level)
        return tuple(every)

    def items(self, files: Sequence[NetcdfFile]) -> SampleIndex:
        model = run_times(files[: self.n_runs])
        surface = run_times(files[self.n_runs : 2 * self.n_runs])
        for run, (times, others) in enumerate(zip(model, surface, strict=True)):
            if not np.array_equal(times, others):
                raise FileFormatError(
                    f"{files[self.n_runs + run].path}: variable 'time' begins at {others[0]}, "
                    f"expected {times[0]} and the steps of {files[run].path}"
                )
        where = hours_with_production(model, files[-1])
        self.without_production = sum(map(len, model)) - len(where)
        return self.hour_index(where, [model[run][step] for run, step, *_ in where])

    def meteorology(
        self, files: Sequence[NetcdfFile], index: SampleIndex, cache_dir: Path
    ) -> SampleLabels:
        return super().meteorology(files[: self.n_runs], index, cache_dir)

    def spec(self) -> SampleSpec:
        units = self.opened[-1].variables["production"].attributes.get("units", "")
        features = Variable(
            "features", (len(FEATURES),), "<f4", ("feature",), FEATURE_UNITS, channels=FEATURES
        )
        return SampleSpec((features, Variable("production", (), "<f4", (), units, role="target")))

    def ranges(self, where: Where) -> dict[str, int | slice]:
        return {"time": where[1], "level": self.level, **self.point}

    def hyperslabs(self, where: Where) -> list[Hyperslab]:
        """Return ``t, q, u, v, sp`` at the point and the hour, and its ``production``."""
        run, _, start, stop, _ = where
        place = self.ranges(where)
        return [
            *(Hyperslab(name, place) for name in archive.MODEL.required),
            Hyperslab("sp", place, file=self.n_runs + run),
            Hyperslab("production", {"time": slice(start, stop)}, file=-1, of_all=True),
        ]

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return ``features``, in the order of `FEATURES`, and the hour's mean ``production``."""
        t, q, u, v, sp = (float(arrays[name].reshape(())) for name in ("t", "q", "u", "v", "sp"))
        a, b = self.pressure
        density = air_density(a + b * sp, t, q)
        day, second = divmod(where[4], 86400)
        features = [density, np.hypot(u, v), wind_direction(u, v), second / 86400, year_part(day)]
        mean = max(0.0, float(np.nanmean(arrays["production"].astype(np.float64))))
        return {
            "features": np.array(features, dtype=np.float32),
            "production": np.asarray(mean, dtype=np.float32),
        }

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        return {
            **super().provenance(files, fitted),
            "grid_point": list(self.point.values()),
            "hours_without_production": self.without_production,
            "production": "mean of the hour's ten-minute values, negatives 0",
        }

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        constants, production = self.others
        turbine = {"wind_turbine_id": int(self.number)}
        return [
            *super().plugin_calls(keys),
            self.call({}, [constants], "maelstrom-constants-a-b"),
            self.call(turbine, [production], "maelstrom-power-production"),
        ]

    def stand_in_urls(self, plan: StandIn) -> dict[str, Callable[[Path], None]]:
        files = {archive.CONSTANTS_FILE: archive.level_constants()}
        for each in archive.TURBINES:
            name = archive.PRODUCTION_FILE.format(each.number)
            files[name] = archive.production_contents(plan, each)
        return {
            **WeatherFields(levels="model").stand_in_urls(plan),
            **WeatherFields(levels="surface").stand_in_urls(plan),
            **{f"{archive.BUCKET_URL}/{name}": file.write for name, file in files.items()},
        }

    def _place(self, model: NetcdfFile, surface: NetcdfFile, turbine: NetcdfFile) -> None:
        """Find the model level and the grid point nearest to the turbine."""
        levels = whole_variable(model, "level").astype(int).tolist()
        if self.model_level not in levels:
            raise FileFormatError(
                f"{model.path}: variable 'level' is {', '.join(map(str, levels))}, expected "
                f"{self.model_level} among them"
            )
        self.level = levels.index(self.model_level)
        for dim in ("latitude", "longitude"):
            axis = whole_variable(model, dim).astype(np.float64)
            if not np.array_equal(axis, whole_variable(surface, dim).astype(np.float64)):
                raise FileFormatError(
                    f"{surface.path}: variable {dim!r} differs from that of {model.path}"
                )
            place = float(whole_variable(turbine, dim)[0])
            distances = np.abs(axis - place)
            self.point[dim] = nearest = int(np.argmin(distances))
            if not distances[nearest] <= np.abs(np.diff(axis)).max(initial=0.0):
                raise FileFormatError(
                    f"{turbine.path}: variable {dim!r} is {place:g}, outside of the weather's grid "
                    f"from {axis[0]:g} to {axis[-1]:g}"
                )


def air_density(pressure: Number, temperature: Number, humidity: Number) -> Number:
    """Return the density of moist air, kg m**-3, from Pa, K and kg kg**-1."""
    gas_constant = GAS_CONSTANT_DRY * (1 - humidity) + GAS_CONSTANT_VAPOUR * humidity
    return pressure / (gas_constant * temperature)


def wind_direction(u: float, v: float) -> float:
    """Return the notebook's angle in degrees, 0 to 180: opposite directions are one."""
    side = np.copysign(1.0, u)
    return float(90.0 - np.degrees(np.arctan2(v * side, abs(u))))


def year_part(day: int) -> float:
    """Return the part of its year before a day, counted from 1970; as the notebook does."""
    date = np.datetime64(day, "D")
    first = date.astype("datetime64[Y]").astype("datetime64[D]")
    return float((date - first).astype(int)) / DAYS_PER_YEAR


def pressure_coefficients(file: NetcdfFile, level: int) -> tuple[float, float]:
    """Return A and B of a full level: means of those of its bounds (IFS Cy47r1 III, eq. 2.11)."""
    a, b = (
        whole_variable(file, name)[0, level - 1 : level + 1].mean() for name in ("hyai", "hybi")
    )
    return float(a), float(b)


def hours_with_production(
    model: Sequence[NDArray[np.datetime64]], turbine: NetcdfFile
) -> list[Where]:
    """Return where the hours are that have weather, of ``model``'s times, and any production."""
    [times] = file_times([turbine], "time")
    if not (np.diff(times) > np.timedelta64(0, "s")).all():
        raise FileFormatError(f"{turbine.path}: variable 'time' does not grow throughout")
    known = np.isfinite(whole_variable(turbine, "production").reshape(-1))
    where = []
    for run, hours in enumerate(model):
        for step, hour in enumerate(hours):
            start, stop = np.searchsorted(times, [hour, hour + HOUR]).tolist()
            if known[start:stop].any():
                seconds = int(hour.astype("datetime64[s]").astype(int))
                where.append((run, step, start, stop, seconds))
    if not where:
        raise FileFormatError(
            f"{turbine.path}: holds production from {times[:1]} to {times[-1:]} but for no hour of "
            f"the weather, {model[0][0]} to {model[-1][-1]}"
        )
    return where
