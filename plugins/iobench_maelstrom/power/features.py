"""Application A6's training sample: five features at a turbine's nearest grid point, one hour.

As in the notebook of climetlab-plugin-a6: air density, wind speed and direction on one model level,
time of day and of year, and the mean production of the hour with negatives set to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Hyperslab,
    Items,
    Option,
    existing_files,
    inspect_files,
    only_variables,
    whole_variable,
)
from iobench.errors import FileFormatError
from iobench.samples import SampleSpec, Variable
from iobench_maelstrom.power.files import (
    DATE,
    TURBINE,
    Call,
    PowerRecipe,
    hour_items,
    production_call,
    run_files,
    run_times,
    weather_call,
)
from iobench_maelstrom.power.points import (
    Where,
    air_density,
    hours_with_production,
    nearest_index,
    pressure_coefficients,
    wind_direction,
    year_part,
)
from iobench_maelstrom.power.production import LevelConstants, Production
from iobench_maelstrom.power.schema import (
    CONSTANTS_URL,
    HOURS_PER_RUN,
    MODEL,
    PRODUCTION_URL,
    SURFACE,
)
from iobench_maelstrom.power.stand_in import FIRST_DAYS
from iobench_maelstrom.power.weather import ModelLevels, SurfaceLevels

if TYPE_CHECKING:
    from iobench.coordinates import Meteorology
    from iobench.datasets import (
        Arrays,
        Locator,
        NetcdfFile,
        PlannedFile,
        StandIn,
    )
    from iobench.samples import Sample

FEATURES = ("air_density", "wind_speed", "wind_direction", "time_of_day", "time_of_year")
FEATURE_UNITS = "kg m**-3, m s**-1, degree, 1, 1"


class PowerFeatures(PowerRecipe):
    """Features and production of a turbine, hour by hour: the dataset ``maelstrom-power``."""

    name = "maelstrom-power"
    title = "Wind power forecast: nearest-point features, hourly production (MAELSTROM A6)"
    schema_name = "ml, sfc, production, constants"
    keys = ModelLevels.keys
    axes = ModelLevels.axes
    fields = ModelLevels.fields
    options = (
        TURBINE,
        DATE,
        Option(
            "model_level", "Where the wind is taken: 133 is about 100 m above ground.", "133",
            [str(level) for level in MODEL.levels],
        ),
    )  # fmt: skip
    tiny = FIRST_DAYS
    ordinary = FIRST_DAYS[:1]

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.number: str = self.chosen["wind_turbine_id"]
        self.model_level = int(self.chosen["model_level"])
        self.n_runs = 0
        self.point: dict[str, int] = {}
        self.level = 0
        self.pressure = (0.0, 0.0)
        self.without_production = 0
        self.days: list[str] = []

    def files(self, locator: Locator) -> list[Path]:
        """Return the model-level and as many surface files, the constants, the production."""
        weather = run_files(self, [MODEL.prefix, SURFACE.prefix], locator)
        others = [CONSTANTS_URL, PRODUCTION_URL.format(wind_turbine_id=self.number)]
        return [*weather, *existing_files(self.name, others, locator)]

    def open(self, files: Sequence[Path], locator: Locator) -> tuple[NetcdfFile, ...]:
        """Return what the files hold, each checked as a data set of its own."""
        found = inspect_files(files, cache_dir=locator.cache_dir, progress=locator.progress)
        *weather, constants, turbine = found
        self.n_runs = len(weather) // 2
        kept: list[NetcdfFile] = []
        for recipe, some in (
            (ModelLevels(), weather[: self.n_runs]),
            (SurfaceLevels(), weather[self.n_runs :]),
            (Production(), [turbine]),
        ):
            recipe.fields = type(recipe).fields
            for file in some:
                recipe.check(file, some[0])
                kept.append(only_variables(file, [each.name for each in recipe.fields]))
        LevelConstants().check(constants, constants)
        kept.insert(-1, only_variables(constants, []))  # a place for each file
        self.keep(kept)
        self._place(weather[0], weather[self.n_runs], turbine)
        self.pressure = pressure_coefficients(constants, self.model_level)
        return tuple(found)

    def items(self, files: Sequence[NetcdfFile]) -> Items:
        """Return the hours that have weather and production, in order of time."""
        model = run_times(files[: self.n_runs], HOURS_PER_RUN)
        surface = run_times(files[self.n_runs : 2 * self.n_runs], HOURS_PER_RUN)
        for run, (times, others) in enumerate(zip(model, surface, strict=True)):
            if not np.array_equal(times, others):
                raise FileFormatError(
                    f"{files[self.n_runs + run].path}: variable 'time' begins at {others[0]}, "
                    f"expected {times[0]} and the steps of {files[run].path}"
                )
        where = hours_with_production(model, files[-1])
        self.days = sorted({str(each[0])[:10] for each in model})
        self.without_production = sum(map(len, model)) - len(where)
        return hour_items(where, [model[run][step] for run, step, *_ in where])

    def meteorology(
        self, files: Sequence[NetcdfFile], items: Items, cache_dir: Path
    ) -> Meteorology:
        """Return when and where the features are of, as the model-level files have it."""
        return super().meteorology(files[: self.n_runs], items, cache_dir)

    def spec(self) -> SampleSpec:
        """Return the features and the hour's production."""
        units = self.opened[-1].variables["production"].attributes.get("units", "")
        features = Variable(
            "features", (len(FEATURES),), "<f4", ("feature",), FEATURE_UNITS, channels=FEATURES
        )
        return SampleSpec((features, Variable("production", (), "<f4", (), units, role="target")))

    def hyperslabs(self, where: Where) -> list[Hyperslab]:
        """Return ``t, q, u, v, sp`` at the point and the hour, and its ``production``."""
        run, step, start, stop, _ = where
        place = {"time": step, "level": self.level, **self.point}
        return [
            *(Hyperslab(name, place) for name in MODEL.required),
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
        produced = arrays["production"].astype(np.float64)
        mean = max(0.0, float(np.nanmean(produced)))
        return {
            "features": np.array(features, dtype=np.float32),
            "production": np.asarray(mean, dtype=np.float32),
        }

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        """Return what the samples follow from."""
        return {
            **super().provenance(files, fitted),
            "options": {
                "wind_turbine_id": int(self.number),
                "date": self.days,
                "model_level": self.model_level,
            },
            "grid_point": list(self.point.values()),
            "hours_without_production": self.without_production,
            "production": "mean of the hour's ten-minute values, negatives 0",
        }

    def calls(self, days: Sequence[str]) -> list[Call]:
        """Return the calls: of each day four forecasts, and two files."""
        return [
            *(weather_call(each, days) for each in (MODEL, SURFACE)),
            ("constants-a-b", {}, [CONSTANTS_URL]),
            production_call(self.number),
        ]

    def planned_files(self, plan: StandIn) -> list[PlannedFile]:
        """Return the files of the stand-in: of the weather, the constants and all turbines."""
        small = [
            each.planned_files(each.stand_in(scale=None, tiny=plan.tiny, seed=plan.seed))
            for each in (LevelConstants(), Production())
        ]
        weather = [*ModelLevels().planned_files(plan), *SurfaceLevels().planned_files(plan)]
        return [*weather, *(file for files in small for file in files)]

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
            turbine_at = float(whole_variable(turbine, dim)[0])
            self.point[dim] = nearest_index(axis, turbine_at, dim, turbine)
