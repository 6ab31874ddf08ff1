"""The weather forecasts of application A6: one sample is the fields of one hour over Europe."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Arrays, Locator, Progress, PublishedStep, SampleIndex, no_progress
from iobench.errors import FileFormatError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.power.boxes import (
    Ranges,
    box_of,
    decode_boxes,
    read_boxes,
    read_boxes_through_library,
    read_whole,
    without_other_variables,
)
from iobench_maelstrom.power.files import find_runs, open_runs
from iobench_maelstrom.power.schema import CITATION, HOURS_PER_RUN, TERMS, LevelType
from iobench_maelstrom.power.stand_in import STAND_IN_VERSION, PowerPlan, weather_files, write_plan

if TYPE_CHECKING:
    from iobench.datasets import NetcdfFile, NetcdfVariable, Raw
    from iobench_maelstrom.power.files import WeatherRuns

__all__ = ["CLUSTERING_LEVELS", "CLUSTERING_VARIABLES", "WeatherFields", "parse_sample_option"]

CLUSTERING_VARIABLES = ("z", "r", "t", "u", "v")
CLUSTERING_LEVELS = (300, 500, 700, 850, 950)


class WeatherFields:
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
    clustering : bool
        Samples are the 25 channels of deep clustering (5 variables on 5 pressure levels) instead
        of all fields.
    """

    published: PublishedStep | None = None
    synthesis_version = STAND_IN_VERSION

    def __init__(
        self,
        name: str,
        level_type: LevelType,
        *,
        days: tuple[datetime.date, ...] = (),
        clustering: bool = False,
    ) -> None:
        self.name = name
        self.title = f"IFS HRES weather over Europe, {level_type.title} (MAELSTROM A6)"
        self.level_type = level_type
        self.days = days
        self.clustering = clustering
        self.fused: tuple[str, ...] = ()
        self._files: tuple[NetcdfFile, ...] = ()
        self._parts: tuple[tuple[str, str, int | None], ...] = ()

    @property
    def thread_safe(self) -> bool:
        """Whether threads may make samples at once: the HDF5 library cannot."""
        return not self.fused

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
        self._parts = (
            _clustering_parts(first, levels)
            if self.clustering
            else tuple((name, name, None) for name in runs.names)
        )
        names = tuple(dict.fromkeys(name for _, name, _ in self._parts))
        self._files = tuple(without_other_variables(file, names) for file in runs.files)
        unknown = any(v.storage is None for file in self._files for v in file.variables.values())
        self.fused = ("read", "decode") if unknown else ()
        return SampleIndex(
            spec=self._spec(first),
            where=runs.hours,
            coordinate=[str(runs.time(run, step))[:16] for run, step in runs.hours],
            provenance=self._provenance(runs, levels, stand_in=locator.stand_in),
        )

    def read(self, where: tuple[int, int]) -> Any:
        """Return the bytes of one hour's fields; the fields themselves where fused."""
        run, step = where
        file = self._files[run]
        wanted = [(part, *_ranges(file, name, step, level)) for part, name, level in self._parts]
        if self.fused:
            return _without_time(read_boxes_through_library(file, wanted))
        return read_boxes([(part, box_of(file, variable, r)) for part, variable, r in wanted])

    def decode(self, raw: Raw) -> Arrays:
        """Return the fields by name, as upstream has them: (level,) latitude, longitude."""
        return _without_time(decode_boxes(raw))

    def preprocess(self, arrays: Arrays) -> Sample:
        """Return the fields in float32; for clustering the channels ``fields``."""
        if not self.clustering:
            return {name: np.asarray(values, "<f4", "C") for name, values in arrays.items()}
        parts = [arrays[part] for part, _, _ in self._parts]
        fields = np.empty((len(parts), *parts[0].shape[-2:]), dtype=np.float32)
        for channel, values in zip(fields, parts, strict=True):
            channel[:] = values.reshape(channel.shape)
        return {"fields": fields}

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
        if self.clustering:
            channels = tuple(part for part, _, _ in self._parts)
            units = [file.variables[name].attributes.get("units", "") for _, name, _ in self._parts]
            grid = file.variables[self._parts[0][1]].shape[-2:]
            variable = Variable(
                "fields",
                (len(channels), *grid),
                "<f4",
                ("channel", "latitude", "longitude"),
                ", ".join(dict.fromkeys(units)),
                channels=channels,
            )
            return SampleSpec((variable,))
        return SampleSpec(
            tuple(
                Variable(
                    part,
                    file.variables[name].shape[1:],
                    "<f4",
                    self.level_type.dims[1:],
                    file.variables[name].attributes.get("units", ""),
                )
                for part, name, _ in self._parts
            )
        )

    def _provenance(
        self, runs: WeatherRuns, levels: Sequence[int], *, stand_in: bool
    ) -> Mapping[str, Any]:
        return {
            "dataset": self.name,
            "schema": f"maelstrom-ap6 {self.level_type.prefix}",
            "options": {
                "date": sorted({str(times[0])[:10] for times in runs.times}),
                "sample": "clustering" if self.clustering else "fields",
            },
            "hours_per_run": HOURS_PER_RUN,
            "levels": list(levels),
            "normalisation": {},
            "terms_of_use": TERMS,
            "citation": CITATION,
            "files": [{"name": f.path.name, "nbytes": f.path.stat().st_size} for f in runs.files],
            "stand_in": stand_in,
        }


def _ranges(
    file: NetcdfFile, name: str, step: int, level: int | None
) -> tuple[NetcdfVariable, Ranges]:
    """Return a variable and the box of it: one step, and one level or all."""
    time = (step, step + 1)
    ranges: Ranges = (time,) if level is None else (time, (level, level + 1))
    return file.variables[name], ranges


def _without_time(arrays: Arrays) -> Arrays:
    return {name: values[0] for name, values in arrays.items()}


def _clustering_parts(
    file: NetcdfFile, levels: Sequence[int]
) -> tuple[tuple[str, str, int | None], ...]:
    """Return channel, variable and place of the level, for the 25 channels of deep clustering."""
    missing = [level for level in CLUSTERING_LEVELS if level not in levels]
    if missing:
        raise FileFormatError(
            f"{file.path}: variable 'level' is {', '.join(map(str, levels))}, deep clustering "
            f"needs also {', '.join(map(str, missing))}; take --option sample=fields"
        )
    return tuple(
        (f"{name}{level}", name, levels.index(level))
        for name in CLUSTERING_VARIABLES
        for level in CLUSTERING_LEVELS
    )


def parse_sample_option(text: str) -> bool:
    """Return whether ``--option sample`` asks for the channels of deep clustering.

    Raises
    ------
    OptionError
        If it is neither of the two.
    """
    if text not in ("fields", "clustering"):
        raise OptionError(f"sample {text!r}: expected fields or clustering")
    return text == "clustering"
