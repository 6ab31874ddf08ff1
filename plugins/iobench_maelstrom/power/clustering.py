"""Application A6's deep clustering: 25 channels of a time, cut out of the grid.

Source: the MAELSTROM benchmark of 4castRenewables/maelstrom-a6 (``jube/submit.yaml``: crops of 0.8
of the grid, batches of 64; level by level, and the variables of each, as channels). It crops anew
in each epoch and gives the mean and deviation of each channel to the model's input; here every time
has one crop of its own, in physical units, so that a store holds what the source gives.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench.datasets import (
    Arrays,
    Locator,
    Progress,
    PublishedStep,
    SampleIndex,
    no_progress,
    own_files,
)
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.downloads import weather_downloads
from iobench_maelstrom.power.boxes import (
    BoxedSamples,
    NamedBox,
    hours_of,
    read_whole,
    stored_of,
)
from iobench_maelstrom.power.clustering_upstream import WholeWeather, clustering_baseline
from iobench_maelstrom.power.crops import CROP_FRACTION, CROPS, CropSize
from iobench_maelstrom.power.files import find_runs, open_runs
from iobench_maelstrom.power.schema import (
    BUCKET_URL,
    CITATION,
    HOURS_PER_RUN,
    LEVEL_TYPES,
    TERMS,
)
from iobench_maelstrom.power.stand_in import STAND_IN_VERSION, PowerPlan, weather_files, write_plan
from iobench_maelstrom.power.through_plugin import plugin_baseline, take_crop, weather_request
from iobench_maelstrom.power.weather import WeatherFields

if TYPE_CHECKING:
    from iobench.datasets import Baseline, Downloads, NetcdfFile
    from iobench_maelstrom.power.files import WeatherRuns

__all__ = ["ERA5_NAMES", "ClusteringFields", "channel_order"]

CLUSTERING_VARIABLES = ("z", "r", "t", "u", "v")
CLUSTERING_LEVELS = (300, 500, 700, 850, 950)
ERA5_NAMES = ("era5_pl_1964_2023_12.nc", "era5_pl_2000_2023_12.nc")
"""What the benchmark trains on, daily at 12 UTC: in full, in short. Distributed nowhere."""
LEVELS = replace(LEVEL_TYPES["pressure"], required=CLUSTERING_VARIABLES)

Where = tuple[int, int, int, int]
"""File, step, first row and column of the crop."""


class ClusteringFields(BoxedSamples):
    """The 25 channels of deep clustering; a `Dataset` and a `Synthesizer`.

    They are taken from ERA5's file where it is at hand, else from the weather on pressure levels:
    of each forecast the first 12 hours.

    Parameters
    ----------
    days : tuple of date
        Days that are required; empty for those at hand.
    crop : {"moving", "centre", "none"}
        See `CropSize`.
    """

    name = "maelstrom-weather-pressure-level"
    title = "25 channels of weather on pressure levels for deep clustering (MAELSTROM A6)"
    published: PublishedStep | None = None
    synthesis_version = STAND_IN_VERSION

    def __init__(self, *, days: tuple[datetime.date, ...] = (), crop: str = "moving") -> None:
        if crop not in CROPS:
            raise OptionError(f"crop {crop!r}: expected {', '.join(CROPS[:-1])} or {CROPS[-1]}")
        self.days = days
        self.crop = crop
        self._files: tuple[NetcdfFile, ...] = ()
        self._parts: tuple[tuple[str, str, int], ...] = ()
        self._size = CropSize("none", (0, 0))
        self._n_steps: int | None = None

    def files(self, locator: Locator) -> list[Path]:
        """Return ERA5's files, else two forecasts for each day.

        Raises
        ------
        MissingFileError
            Naming what is missing by URL.
        """
        own = [file.path for file in own_files(locator) or () if is_era5(file.path)]
        era5 = own or locator.find([f"{BUCKET_URL}/{name}" for name in ERA5_NAMES])
        found = [path for path in era5 if path is not None]
        if found:
            return found if own else found[:1]
        try:
            return find_runs(self.name, [LEVELS.prefix], self.days, locator)
        except MissingFileError as error:
            raise MissingFileError(f"{error}; or have {ERA5_NAMES[0]} there") from error

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per time, in order.

        Raises
        ------
        FileFormatError
            If a file is cut short or of another schema, or lacks a level or a day.
        """
        in_era5 = is_era5(files[0])
        self._n_steps = None if in_era5 else HOURS_PER_RUN
        runs = open_runs(files, LEVELS, locator.progress, n_steps=self._n_steps)
        first = runs.files[0]
        self._parts = _channels(first, read_whole(first, "level").astype(int).tolist())
        *_, rows, columns = first.variables["z"].shape
        self._size = CropSize(self.crop, (rows, columns))
        self._files = runs.without_other_variables(CLUSTERING_VARIABLES)
        self.fused = runs.fused(CLUSTERING_VARIABLES)
        self._find_chunks("time", stored_of(self._files))
        hours = self._hours(runs)
        times = [runs.time(run, step) for run, step in hours]
        return SampleIndex(
            spec=self._spec(first),
            where=[
                (*hour, *self._size.corner(time)) for hour, time in zip(hours, times, strict=True)
            ],
            coordinate=[str(time)[:16] for time in times],
            positions=hours_of(times),
            position_units="hours",
            provenance={
                "dataset": self.name,
                "schema": f"maelstrom-ap6 {'era5_pl' if in_era5 else LEVELS.prefix}",
                "options": {
                    "date": [str(day) for day in self.days] or ([] if in_era5 else runs.days),
                    "sample": "clustering",
                    "crop": self.crop,
                },
                "crop_fraction": 1.0 if self.crop == "none" else CROP_FRACTION,
                "normalisation": {},
                "terms_of_use": TERMS,
                "citation": CITATION,
                "files": [{"name": f.name, "nbytes": f.stat().st_size} for f in files],
                "stand_in": locator.stand_in,
            },
        )

    def boxes(self, where: Where) -> list[NamedBox]:
        """Return the crop of each channel."""
        run, step, row, column = where
        height, width = self._size.shape
        place = ((row, row + height), (column, column + width))
        return [
            (part, self._files[run], name, ((step, step + 1), (level, level + 1), *place))
            for part, name, level in self._parts
        ]

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the channels stacked, in float32: ``fields``."""
        fields = np.empty((len(self._parts), *self._size.shape), dtype=np.float32)
        for channel, (part, _, _) in zip(fields, self._parts, strict=True):
            channel[:] = arrays[part].reshape(channel.shape)
        return {"fields": fields}

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return how deep clustering loads: all of it into memory, before the first batch."""
        whole = WholeWeather(
            files=tuple(files),
            n_steps=self._n_steps,
            variables=CLUSTERING_VARIABLES,
            levels=CLUSTERING_LEVELS,
            where=[(self._position(*where[:2]), *where[2:]) for where in index.where],
            shape=self._size.shape,
        )
        return clustering_baseline(whole, index.spec, batch_size)

    def through_plugin(
        self,
        files: Sequence[Path],
        index: SampleIndex,
        locator: Locator,
        *,
        batch_size: int | None = None,
    ) -> Baseline:
        """Return how the crops are taken out of what the real plugin opens.

        Raises
        ------
        OptionError
            If they are of ERA5's file, which the plugin does not know.
        """
        if is_era5(files[0]):
            raise OptionError(
                f"--pipeline climetlab: the plugin does not know {files[0]}; give --data-dir with "
                "the forecasts alone, or another pipeline"
            )
        days = index.provenance["options"]["date"]
        request = weather_request(self.name, LEVELS.prefix, days, files)
        take = functools.partial(take_crop, shape=self._size.shape, channels=channel_order())
        return plugin_baseline(self, index, [request], take)

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches: two forecasts of each day."""
        return weather_downloads(WeatherFields(self.name, LEVELS, days=self.days))

    def synthesis_nbytes(self, *, scale: float | None, tiny: bool) -> int:
        """Return about the bytes ``synthesize`` will write."""
        plan = PowerPlan.of_size(scale=scale, tiny=tiny, seed=0, days=self.days)
        return sum(file.nbytes for file in weather_files(plan, LEVEL_TYPES["pressure"]))

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
        """Write the stand-in, weather on pressure levels, under ``root``; return its files."""
        plan = PowerPlan.of_size(scale=scale, tiny=tiny, seed=seed, days=self.days)
        files = weather_files(plan, LEVEL_TYPES["pressure"])
        return write_plan(root, plan, files, self.name, progress=progress, processes=processes)

    def _hours(self, runs: WeatherRuns) -> list[tuple[int, int]]:
        """Return file and step of the times that are samples."""
        if not self.days:
            return runs.hours
        days = {str(day) for day in self.days}
        hours = [hour for hour in runs.hours if str(runs.time(*hour))[:10] in days]
        missing = sorted(days - {str(runs.time(*hour))[:10] for hour in hours})
        if missing:
            raise FileFormatError(
                f"{runs.files[-1].path}: has no time of {missing[0]}, which --option date asks "
                "for; it holds "
                f"{str(runs.time(*runs.hours[0]))[:10]} to {str(runs.time(*runs.hours[-1]))[:10]}"
            )
        return hours

    def _position(self, run: int, step: int) -> int:
        """Return which time of all files, those that are taken of each, a step of a file is."""
        return sum(self._n_steps or file.dims["time"] for file in self._files[:run]) + step

    def _spec(self, file: NetcdfFile) -> SampleSpec:
        units = [
            f"{name} {file.variables[name].attributes.get('units', '')}".strip()
            for name in CLUSTERING_VARIABLES
        ]
        return SampleSpec(
            (
                Variable(
                    "fields",
                    (len(self._parts), *self._size.shape),
                    "<f4",
                    ("channel", "latitude", "longitude"),
                    ", ".join(units),
                    channels=tuple(part for part, _, _ in self._parts),
                ),
            )
        )


def is_era5(path: Path) -> bool:
    """Return whether a file is ERA5's, not a forecast: by its name, as upstream tells them."""
    return path.match("era5_*.nc")


def channel_order() -> list[tuple[str, int]]:
    """Return variable and level of every channel: level by level, as upstream."""
    return [(name, level) for level in CLUSTERING_LEVELS for name in CLUSTERING_VARIABLES]


def _channels(file: NetcdfFile, levels: Sequence[int]) -> tuple[tuple[str, str, int], ...]:
    """Return channel, variable and place of the level, for the 25 channels."""
    missing = [level for level in CLUSTERING_LEVELS if level not in levels]
    if missing:
        raise FileFormatError(
            f"{file.path}: variable 'level' is {', '.join(map(str, levels))}, deep clustering "
            f"needs also {', '.join(map(str, missing))}; take --option sample=fields"
        )
    return tuple((f"{name}{level}", name, levels.index(level)) for name, level in channel_order())
