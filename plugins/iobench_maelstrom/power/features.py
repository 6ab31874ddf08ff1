"""Application A6's training sample: five features at a turbine's nearest grid point, one hour.

As in the notebook of climetlab-plugin-a6, with the mean production of the hour, negatives 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.datasets import (
    Axis,
    FileKey,
    Hyperslab,
    Option,
    Recipe,
    RecipeVariable,
    SampleIndex,
    file_times,
    whole_variable,
)
from iobench.errors import FileFormatError
from iobench.samples import SampleSpec, Variable
from iobench_maelstrom.power import files as archive
from iobench_maelstrom.power.weather import PowerFiles, WeatherFields

if TYPE_CHECKING:
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


class Production(Recipe):
    """What a turbine reported every ten minutes: an input of the features."""

    name = "production"
    axes = (Axis("time"), Axis("level", 1), Axis("latitude", 1), Axis("longitude", 1))
    fields = (RecipeVariable("production"),)


class LevelConstants(Recipe):
    """Coefficients A and B of the model levels' bounds: an input of the features."""

    name = "constants"
    axes = (Axis("dim0", 1), Axis("dim0_0", archive.HALF_LEVELS))
    fields = (RecipeVariable("hyai"), RecipeVariable("hybi"))


class PowerFeatures(PowerFiles):
    """Features and production of a turbine, hour by hour: the dataset ``maelstrom-power``."""

    name = "maelstrom-power"
    title = "Wind power forecast: nearest-point features, hourly production (MAELSTROM A6)"
    level_types = (archive.MODEL, archive.SURFACE)
    axes, fields = tuple(map(Axis, archive.MODEL.dims)), archive.MODEL.fields
    needs_all = True  # of the days that there are
    options = (
        Option("wind_turbine_id", "Which turbine.", "1", tuple(archive.TURBINES)),
        Option(
            "model_level", "Where the wind is taken: 133 is about 100 m above ground.", "133",
            [str(level) for level in archive.MODEL.levels],
        ),
    )  # fmt: skip

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.number: str = self.chosen["wind_turbine_id"]
        self.model_level = int(self.chosen["model_level"])
        self.n_runs = 0
        self.days: Sequence[str] = ()
        self.place: dict[str, int] = {}
        self.pressure = (0.0, 0.0)
        self.without_production = 0

    def file_keys(self) -> list[FileKey]:
        days = self.chosen["date"] or self.days
        runs = [key for key in super().file_keys() if not days or key["date"] in days]
        return [*runs, *self.others]

    @property
    def others(self) -> list[FileKey]:
        """The files that are not of a forecast."""
        names = archive.CONSTANTS_FILE, archive.PRODUCTION_FILE.format(self.number)
        return [{"file": name} for name in names]

    def file_url(self, key: FileKey) -> str:
        return f"{archive.BUCKET_URL}/{key['file']}" if "file" in key else super().file_url(key)

    def files(self, locator: Locator) -> list[Path]:
        self.days = ()
        keys = self.file_keys()
        paths = locator.find(list(map(self.file_url, keys)))
        at_hand = [key for key, path in zip(keys, paths, strict=True) if path and "date" in key]
        self.days = list(dict.fromkeys(key["date"] for key in at_hand))
        return super().files(locator)

    def open(self, files: Sequence[Path], locator: Locator) -> tuple[NetcdfFile, ...]:
        """Return what the files hold, each checked against the recipe of its kind."""
        n = self.n_runs = len(files) // 2 - 1
        every: list[NetcdfFile] = []
        needed: list[NetcdfFile] = []
        for recipe, some in (
            (WeatherFields(levels="model"), files[:n]),
            (WeatherFields(levels="surface"), files[n : 2 * n]),
            (LevelConstants(), files[-2:-1]),
            (Production(), files[-1:]),
        ):
            every += recipe.open(some, locator)
            needed += recipe.opened
        self.keep(needed)
        self._find_place(every[0], every[n], every[-1])
        self.pressure = pressure_coefficients(every[-2], self.model_level)
        return tuple(every)

    def items(self, files: Sequence[NetcdfFile]) -> SampleIndex:
        """Return the hours that have weather and any production."""
        *weather, _, turbine = files
        times, steps = file_times([*weather, turbine], "time"), self.first_steps
        for run, (model, surface) in enumerate(zip(weather, weather[self.n_runs :], strict=False)):
            if not np.array_equal(times[run][:steps], times[self.n_runs + run][:steps]):
                raise FileFormatError(
                    f"{surface.path}: other times than {model.path}; fetch the files again"
                )
        produced = times[-1]
        if not (np.diff(produced) > np.timedelta64(0, "s")).all():
            raise FileFormatError(f"{turbine.path}: variable 'time' does not grow throughout")
        index = super().items(weather[: self.n_runs])
        hours = np.concatenate([each[:steps] for each in times[: self.n_runs]])
        starts, stops = np.searchsorted(produced, hours), np.searchsorted(produced, hours + HOUR)
        n_before = np.cumsum([0, *np.isfinite(whole_variable(turbine, "production").reshape(-1))])
        has_production = np.flatnonzero(n_before[stops] > n_before[starts])
        if not has_production.size:
            raise FileFormatError(
                f"{turbine.path}: holds production from {produced[:1]} to {produced[-1:]} but for "
                f"no hour of the weather, {hours[0]} to {hours[-1]}"
            )
        self.without_production = len(hours) - len(has_production)
        seconds = hours.astype(np.int64)
        return replace(
            index,
            where=[
                (*index.where[n], int(starts[n]), int(stops[n]), int(seconds[n]))
                for n in has_production.tolist()
            ],
            coordinate=[index.coordinate[n] for n in has_production.tolist()],
            positions=[index.positions[n] for n in has_production.tolist()],
            rows=[index.rows[n] for n in has_production.tolist()] if len(index.rows) else (),
        )

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
        return {"time": where[1], **self.place}

    def hyperslabs(self, where: Where) -> list[Hyperslab]:
        """Return ``t, q, u, v, sp`` at the point and the hour, and its ``production``."""
        run, _, start, stop, _ = where
        place = self.ranges(where)
        return [
            *(Hyperslab(each.name, place) for each in self.fields),
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
            "grid_point": [self.place[name] for name in ("latitude", "longitude")],
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
        for turbine in archive.TURBINES:
            name = archive.PRODUCTION_FILE.format(turbine)
            files[name] = archive.production_contents(plan, turbine)
        return {
            **WeatherFields(levels="model").stand_in_urls(plan),
            **WeatherFields(levels="surface").stand_in_urls(plan),
            **{f"{archive.BUCKET_URL}/{name}": file.write for name, file in files.items()},
        }

    def _find_place(self, model: NetcdfFile, surface: NetcdfFile, turbine: NetcdfFile) -> None:
        """Find the model level and the grid point nearest to the turbine."""
        levels = whole_variable(model, "level").astype(int).tolist()
        if self.model_level not in levels:
            raise FileFormatError(
                f"{model.path}: variable 'level' is {', '.join(map(str, levels))}, expected "
                f"{self.model_level} among them"
            )
        self.place["level"] = levels.index(self.model_level)
        for dim in ("latitude", "longitude"):
            axis = whole_variable(model, dim).astype(np.float64)
            if not np.array_equal(axis, whole_variable(surface, dim).astype(np.float64)):
                raise FileFormatError(
                    f"{surface.path}: variable {dim!r} differs from that of {model.path}"
                )
            place = float(whole_variable(turbine, dim)[0])
            distances = np.abs(axis - place)
            self.place[dim] = nearest = int(np.argmin(distances))
            if not distances[nearest] <= np.abs(np.diff(axis)).max(initial=0.0):
                raise FileFormatError(
                    f"{turbine.path}: variable {dim!r} is {place:g}, outside of the weather's grid "
                    f"from {axis[0]:g} to {axis[-1]:g}"
                )


def air_density(pressure: float, temperature: float, humidity: float) -> float:
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
