"""The weather forecasts of application A6: one sample is the fields of one hour over Europe."""

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
    no_progress,
)
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.downloads import weather_downloads
from iobench_maelstrom.power.boxes import (
    BoxedSamples,
    NamedBox,
    hours_of,
    read_whole,
    stored_of,
)
from iobench_maelstrom.power.files import find_runs, open_runs
from iobench_maelstrom.power.schema import CITATION, HOURS_PER_RUN, TERMS, LevelType
from iobench_maelstrom.power.stand_in import STAND_IN_VERSION, PowerPlan, weather_files, write_plan
from iobench_maelstrom.power.through_plugin import plugin_baseline, take_fields, weather_request

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Baseline, Downloads, NetcdfFile, Raw
    from iobench_maelstrom.power.files import WeatherRuns

__all__ = ["WeatherFields"]


class WeatherFields(BoxedSamples):
    """Weather files of one kind of level; a `Dataset` and a `Synthesizer`.

    Of each forecast the first 12 hours are samples, as upstream.

    Parameters
    ----------
    name : str
        As given on the command line.
    level_type : LevelType
        Model levels, pressure levels or the surface.
    days : tuple of date
        Days whose files are all required; empty for those at hand.
    """

    published: PublishedStep | None = None
    synthesis_version = STAND_IN_VERSION

    def __init__(
        self,
        name: str,
        level_type: LevelType,
        *,
        days: tuple[datetime.date, ...] = (),
    ) -> None:
        self.name = name
        self.title = f"IFS HRES weather over Europe, {level_type.title} (MAELSTROM A6)"
        self.level_type = level_type
        self.days = days
        self._files: tuple[NetcdfFile, ...] = ()
        self._names: tuple[str, ...] = ()

    def files(self, locator: Locator) -> list[Path]:
        """Return two files for each day; raise MissingFileError listing what is missing by URL."""
        return find_runs(self.name, [self.level_type.prefix], self.days, locator)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per hour, in order of time.

        Raises
        ------
        FileFormatError
            If a file is cut short or of another schema, naming what differs.
        """
        runs = open_runs(files, self.level_type, locator.progress)
        first = runs.files[0]
        levels = read_whole(first, "level").astype(int).tolist() if self.level_type.levels else []
        self._names = runs.names
        self._files = runs.without_other_variables(runs.names)
        self.fused = runs.fused(runs.names)
        self._find_chunks("time", stored_of(self._files))
        return SampleIndex(
            spec=self._spec(first),
            where=runs.hours,
            coordinate=[str(runs.time(run, step))[:16] for run, step in runs.hours],
            positions=hours_of(runs.time(run, step) for run, step in runs.hours),
            position_units="hours",
            provenance=self._provenance(runs, levels, stand_in=locator.stand_in),
        )

    def boxes(self, where: tuple[int, int]) -> list[NamedBox]:
        """Return one hour's fields."""
        run, step = where
        return [(name, self._files[run], name, ((step, step + 1),)) for name in self._names]

    def read(self, where: tuple[int, int]) -> Any:
        """Return the bytes of the fields; the fields themselves where fused."""
        raw = super().read(where)
        return _without_time(raw) if self.fused else raw

    def decode(self, raw: Raw, where: tuple[int, int]) -> dict[str, NDArray[Any]]:
        """Return the fields by name, as upstream has them: (level,) latitude, longitude."""
        return _without_time(super().decode(raw, where))

    def preprocess(self, arrays: Arrays, where: tuple[int, int]) -> Sample:
        """Return the fields in float32."""
        return {name: np.asarray(values, "<f4", "C") for name, values in arrays.items()}

    def through_plugin(
        self,
        files: Sequence[Path],
        index: SampleIndex,
        locator: Locator,
        *,
        batch_size: int | None = None,
    ) -> Baseline:
        """Return how the hours are taken out of what the real plugin opens."""
        days = index.provenance["options"]["date"]
        request = weather_request(self.name, self.level_type.prefix, days, files)
        return plugin_baseline(self, index, [request], take_fields)

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches: two runs of each day."""
        return weather_downloads(self)

    def synthesis_nbytes(self, *, scale: float | None, tiny: bool) -> int:
        """Return about the bytes ``synthesize`` will write."""
        plan = PowerPlan.of_size(scale=scale, tiny=tiny, seed=0, days=self.days)
        return sum(file.nbytes for file in weather_files(plan, self.level_type))

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
        """Write the stand-in under ``root`` and return its files."""
        plan = PowerPlan.of_size(scale=scale, tiny=tiny, seed=seed, days=self.days)
        files = weather_files(plan, self.level_type)
        return write_plan(root, plan, files, self.name, progress=progress, processes=processes)

    def _spec(self, file: NetcdfFile) -> SampleSpec:
        return SampleSpec(
            tuple(
                Variable(
                    name,
                    file.variables[name].shape[1:],
                    "<f4",
                    self.level_type.dims[1:],
                    file.variables[name].attributes.get("units", ""),
                )
                for name in self._names
            )
        )

    def _provenance(
        self, runs: WeatherRuns, levels: Sequence[int], *, stand_in: bool
    ) -> Mapping[str, Any]:
        return {
            "dataset": self.name,
            "schema": f"maelstrom-ap6 {self.level_type.prefix}",
            "options": {"date": runs.days},
            "hours_per_run": HOURS_PER_RUN,
            "levels": list(levels),
            "normalisation": {},
            "terms_of_use": TERMS,
            "citation": CITATION,
            "files": [{"name": f.path.name, "nbytes": f.path.stat().st_size} for f in runs.files],
            "stand_in": stand_in,
        }


def _without_time(arrays: Arrays) -> dict[str, NDArray[Any]]:
    return {name: values[0] for name, values in arrays.items()}
