"""Application A6's deep clustering: 25 channels of a time, cut out of the grid.

Source: the MAELSTROM benchmark of 4castRenewables/maelstrom-a6 (``jube/submit.yaml``: crops of 0.8
of the grid, batches of 64; level by level, and the variables of each, as channels). It crops anew
in each epoch and gives the mean and deviation of each channel to the model's input; here every time
has one crop of its own, in physical units, so that a store holds what the source gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from iobench.datasets import Hyperslab, Items, own_files
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.samples import SampleSpec, Variable
from iobench_maelstrom.power.schema import (
    BUCKET_URL,
    CLUSTERING_LEVELS,
    CLUSTERING_VARIABLES,
    HOURS_PER_RUN,
    PRESSURE,
)
from iobench_maelstrom.power.weather import (
    ModelLevels,
    PressureLevels,
    SurfaceLevels,
    WeatherFields,
)

if TYPE_CHECKING:
    from iobench.datasets import Arrays, Baseline, Locator, NetcdfFile, SampleIndex, Stack
    from iobench.samples import Sample

ERA5_NAMES = ("era5_pl_1964_2023_12.nc", "era5_pl_2000_2023_12.nc")
"""What the benchmark trains on, daily at 12 UTC: in full, in short. Distributed nowhere."""
CROP_FRACTION = 0.8
"""Of the grid, along both of its dimensions."""
CROP_SEED = 6


class CropSize(NamedTuple):
    """How much of a grid of latitudes and longitudes is cut out, and from where.

    ``kind`` is ``moving``: each time has a place of its own, which follows from it; ``centre``; or
    ``none``.
    """

    kind: str
    grid: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        """Latitudes and longitudes of a crop: 0.8 of the grid's, rounded down as upstream."""
        if self.kind == "none":
            return self.grid
        rows, columns = (max(1, int(CROP_FRACTION * length)) for length in self.grid)
        return rows, columns

    def corner(self, time: np.datetime64) -> tuple[int, int]:
        """Return the first row and column of the crop of a time."""
        spare = [whole - part for whole, part in zip(self.grid, self.shape, strict=True)]
        if self.kind != "moving":
            return spare[0] // 2, spare[1] // 2
        seconds = int(time.astype("datetime64[s]").astype(np.int64))
        random = np.random.default_rng([CROP_SEED, seconds % (1 << 63)])
        row, column = random.integers(0, [length + 1 for length in spare]).tolist()
        return row, column


Where = tuple[int, int, int, int]
"""File, step, first row and column of the crop."""


def weather_pressure_level(**options: str) -> WeatherFields:
    """Return the dataset ``maelstrom-weather-pressure-level``: fields, or clustering's channels."""
    levels = options.get("levels", PRESSURE.kind)
    if options.get("sample") == "clustering":
        if levels != PRESSURE.kind:
            raise OptionError(f"levels {levels}: sample=clustering is of pressure levels")
        return ClusteringFields(**options)
    kinds = {each.level_type.kind: each for each in (ModelLevels, SurfaceLevels)}
    return kinds.get(levels, PressureLevels)(**options)


class ClusteringFields(PressureLevels):
    """The 25 channels of deep clustering.

    They are taken from ERA5's file where it is at hand, else from the weather on pressure levels:
    of each forecast the first 12 hours.
    """

    level_type = replace(PRESSURE, required=CLUSTERING_VARIABLES)

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.title = "25 channels of weather on pressure levels for deep clustering (MAELSTROM A6)"
        self.size = CropSize("none", (0, 0))
        self.parts: tuple[tuple[str, str, int], ...] = ()

    def files(self, locator: Locator) -> list[Path]:
        """Return ERA5's files, else two forecasts for each day."""
        own = [file.path for file in own_files(locator) or () if is_era5(file.path)]
        if own:
            return own
        for path in locator.find([f"{BUCKET_URL}/{name}" for name in ERA5_NAMES]):
            if path is not None:
                return [path]
        try:
            return super().files(locator)
        except MissingFileError as error:
            raise MissingFileError(f"{error}; or have {ERA5_NAMES[0]} there") from error

    def stacks_of(self, first: NetcdfFile) -> tuple[Stack, ...]:
        """Take no other fields."""
        stacks = super().stacks_of(first)
        self.fields = tuple(each for each in self.fields if each.name in CLUSTERING_VARIABLES)
        return stacks

    def items(self, files: Sequence[NetcdfFile]) -> Items:
        """Return the times, of the days asked for, each with the corner of its crop."""
        first = files[0]
        self.n_taken = None if is_era5(first.path) else HOURS_PER_RUN
        items = super().items(files)
        self.parts = _channels(first, self.levels)
        *_, rows, columns = first.variables["z"].shape
        self.size = CropSize(self.chosen["crop"] or "moving", (rows, columns))
        chosen = list(range(len(items.where)))
        if days := self.chosen["date"]:
            chosen = [n for n in chosen if items.coordinate[n][:10] in days]
            missing = sorted(set(days) - {items.coordinate[n][:10] for n in chosen})
            if missing:
                raise FileFormatError(
                    f"{files[-1].path}: has no time of {missing[0]}, which --option date asks "
                    f"for; it holds {items.coordinate[0][:10]} to {items.coordinate[-1][:10]}"
                )
        times = [np.datetime64(round(3600 * hours), "s") for hours in items.positions]
        return Items(
            [(*items.where[n], *self.size.corner(times[n])) for n in chosen],
            [items.coordinate[n] for n in chosen],
            [items.positions[n] for n in chosen],
            items.position_units,
        )

    def hyperslabs(self, where: Where) -> list[Hyperslab]:
        """Return the crop of each channel."""
        _, step, row, column = where
        height, width = self.size.shape
        place = {"latitude": slice(row, row + height), "longitude": slice(column, column + width)}
        return [
            Hyperslab(name, {"time": step, "level": level, **place}, name=part)
            for part, name, level in self.parts
        ]

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the channels stacked, in float32: ``fields``."""
        fields = np.empty((len(self.parts), *self.size.shape), dtype=np.float32)
        for channel, (part, _, _) in zip(fields, self.parts, strict=True):
            channel[:] = arrays[part].reshape(channel.shape)
        return {"fields": fields}

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        """Return what the samples follow from."""
        facts = super().provenance(files, fitted)
        options = {**facts["options"], "crop": self.size.kind}
        if is_era5(files[0].path):
            options["date"] = list(self.chosen["date"])
        return {**facts, "options": options, "levels": list(CLUSTERING_LEVELS)}

    def through_plugin(self, files: Sequence[Path], index: SampleIndex) -> Baseline:
        """Return how the crops are taken out of what the real plugin opens."""
        if is_era5(files[0]):
            raise OptionError(
                f"--pipeline climetlab: the plugin does not know {files[0]}; give --data-dir with "
                "the forecasts alone, or another pipeline"
            )
        return super().through_plugin(files, index)

    def spec(self) -> SampleSpec:
        """Return the one array of all channels."""
        units_of = {each.name: each.units for each in self.fields}
        units = [f"{name} {units_of[name]}".strip() for name in CLUSTERING_VARIABLES]
        shape, dims = (len(self.parts), *self.size.shape), ("channel", "latitude", "longitude")
        channels = tuple(part for part, _, _ in self.parts)
        fields = Variable("fields", shape, "<f4", dims, ", ".join(units), channels=channels)
        return SampleSpec((fields,))


def is_era5(path: Path) -> bool:
    """Return whether a file is ERA5's, not a forecast: by its name, as upstream tells them."""
    return path.match("era5_*.nc")


def _channels(file: NetcdfFile, levels: Sequence[int]) -> tuple[tuple[str, str, int], ...]:
    """Return channel, variable and place of the level: level by level, as upstream."""
    missing = [level for level in CLUSTERING_LEVELS if level not in levels]
    if missing:
        raise FileFormatError(
            f"{file.path}: variable 'level' is {', '.join(map(str, levels))}, deep clustering "
            f"needs also {', '.join(map(str, missing))}; take --option sample=fields"
        )
    return tuple(
        (f"{name}{level}", name, levels.index(level))
        for level in CLUSTERING_LEVELS
        for name in CLUSTERING_VARIABLES
    )
