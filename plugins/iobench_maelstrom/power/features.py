"""Application A6's training sample: five features at a turbine's nearest grid point, one hour.

As in the notebook of climetlab-plugin-a6: air density, wind speed and direction on one model level,
time of day and of year, and the mean production of the hour with negatives set to 0.
"""

from __future__ import annotations

import datetime
import functools
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
from iobench_maelstrom.downloads import power_downloads
from iobench_maelstrom.power.boxes import (
    BoxedSamples,
    NamedBox,
    Ranges,
    hours_of,
    read_whole,
    stored_of,
    without_other_variables,
)
from iobench_maelstrom.power.files import find_all, find_runs, open_runs
from iobench_maelstrom.power.points import (
    Where,
    air_density,
    check_same_hours,
    hours_with_production,
    nearest_index,
    pressure_coefficients,
    wind_direction,
    year_part,
)
from iobench_maelstrom.power.production import check_single_point
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
from iobench_maelstrom.power.through_plugin import (
    plugin_baseline,
    plugin_request,
    take_hour,
    weather_request,
)
from iobench_maelstrom.power.upstream import ForecastFiles, forecast_baseline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Baseline, Downloads, NetcdfFile, PlannedFile, Raw
    from iobench_maelstrom.power.files import WeatherRuns

__all__ = ["FEATURES", "PowerFeatures"]

FEATURES = ("air_density", "wind_speed", "wind_direction", "time_of_day", "time_of_year")
FEATURE_UNITS = "kg m**-3, m s**-1, degree, 1, 1"
MODEL, SURFACE = LEVEL_TYPES["model"], LEVEL_TYPES["surface"]


class PowerFeatures(BoxedSamples):
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
        self._model: tuple[NetcdfFile, ...] = ()
        self._surface: tuple[NetcdfFile, ...] = ()
        self._point: Ranges = ()
        self._level: tuple[int, int] = (0, 0)
        self._pressure = (0.0, 0.0)

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
        found = ForecastFiles.of(files)
        model = open_runs(found.model, MODEL, locator.progress)
        surface = open_runs(found.surface, SURFACE, locator.progress)
        check_same_hours(model, surface)
        turbine = inspect_netcdf(found.production)
        check_single_point(turbine)
        self._place(model.files[0], surface.files[0], turbine)
        self._pressure = pressure_coefficients(inspect_netcdf(found.constants), self.model_level)
        self._model = model.without_other_variables(MODEL.required)
        self._surface = surface.without_other_variables(SURFACE.required)
        self._of_all = without_other_variables(turbine, ["production"])
        kept = (*self._model, *self._surface, self._of_all)
        unknown = any(v.storage is None for file in kept for v in file.variables.values())
        self.fused = ("read", "decode") if unknown else ()
        self._find_chunks("time", stored_of(kept))
        where = hours_with_production(model, turbine)
        return SampleIndex(
            spec=_spec(turbine),
            where=where,
            coordinate=[str(model.time(run, step))[:16] for run, step, *_ in where],
            positions=hours_of(model.time(run, step) for run, step, *_ in where),
            position_units="hours",
            provenance={
                **self._provenance(files, model, len(where)),
                "stand_in": locator.stand_in,
            },
        )

    def boxes(self, where: Where) -> list[NamedBox]:
        """Return ``t, q, u, v, sp`` at the point and the hour, and its ``production``."""
        run, step, start, stop, _ = where
        if self._of_all is None:
            raise OptionError("maelstrom-power: call samples() before read()")
        time = (step, step + 1)
        return [
            *(
                (name, self._model[run], name, (time, self._level, *self._point))
                for name in MODEL.required
            ),
            ("sp", self._surface[run], "sp", (time, *self._point)),
            ("production", self._of_all, "production", ((start, stop),)),
        ]

    def read(self, where: Where) -> Any:
        """Return the few bytes of the point and the hour; the numbers themselves where fused."""
        raw = super().read(where)
        return {"time": np.asarray(where[4]), **raw} if self.fused else raw

    def decode(self, raw: Raw, where: Where) -> dict[str, NDArray[Any]]:
        """Return the numbers of the boxes, and ``time`` in s."""
        return {**super().decode(raw, where), "time": np.asarray(where[4])}

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return ``features``, in the order of `FEATURES`, and the hour's mean ``production``."""
        t, q, u, v, sp = (float(arrays[name].reshape(())) for name in ("t", "q", "u", "v", "sp"))
        a, b = self._pressure
        density = air_density(a + b * sp, t, q)
        day, second = divmod(int(arrays["time"]), 86400)
        features = [density, np.hypot(u, v), wind_direction(u, v), second / 86400, year_part(day)]
        produced = arrays["production"].astype(np.float64)
        mean = max(0.0, float(np.nanmean(produced)))
        return {
            "features": np.array(features, dtype=np.float32),
            "production": np.asarray(mean, dtype=np.float32),
        }

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return how the forecast application loads: all of it, before the first batch."""
        return forecast_baseline(
            ForecastFiles.of(files), self.model_level, index.spec, len(index), batch_size
        )

    def through_plugin(
        self,
        files: Sequence[Path],
        index: SampleIndex,
        locator: Locator,
        *,
        batch_size: int | None = None,
    ) -> Baseline:
        """Return how the hours are taken out of what the real plugin opens."""
        found = ForecastFiles.of(files)
        days = index.provenance["options"]["date"]
        model, surface, production = (
            f"maelstrom-{name}"
            for name in ("weather-model-level", "weather-surface-level", "power-production")
        )
        url = production_url(self.wind_turbine_id)
        requests = [
            weather_request(model, MODEL.prefix, days, found.model),
            weather_request(surface, SURFACE.prefix, days, found.surface),
            plugin_request(
                production, {url: found.production}, wind_turbine_id=self.wind_turbine_id
            ),
        ]
        (latitude, _), (longitude, _) = self._point
        take = functools.partial(
            take_hour,
            model=model,
            surface=surface,
            production=production,
            place={"level": self._level[0], "latitude": latitude, "longitude": longitude},
        )
        return plugin_baseline(self, index, requests, take)

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches: of each day four forecasts, and two files."""
        return power_downloads(self)

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
            nearest = nearest_index(axis, float(read_whole(turbine, dim)[0]), dim, turbine)
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
                "date": model.days,
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


def _planned(plan: PowerPlan) -> list[PlannedFile]:
    weather = [*weather_files(plan, MODEL), *weather_files(plan, SURFACE)]
    return [*weather, *constants_files(), *production_files(plan)]


def _spec(turbine: NetcdfFile) -> SampleSpec:
    units = turbine.variables["production"].attributes.get("units", "")
    features = Variable(
        "features", (len(FEATURES),), "<f4", ("feature",), FEATURE_UNITS, channels=FEATURES
    )
    return SampleSpec((features, Variable("production", (), "<f4", (), units, role="target")))
