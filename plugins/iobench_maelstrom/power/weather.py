"""The weather forecasts of application A6: one sample is the fields of one hour over Europe.

Or the 25 channels of deep clustering, as 4castRenewables/maelstrom-a6 has them in ``jube/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from iobench.datasets import (
    Axis,
    FileKey,
    Hyperslab,
    Key,
    Option,
    Recipe,
    RecipeVariable,
    SampleIndex,
    whole_variable,
)
from iobench.errors import FileFormatError, OptionError
from iobench.samples import SampleSpec, Variable
from iobench_maelstrom.climetlab_plugin import PluginFiles
from iobench_maelstrom.power import files as archive

if TYPE_CHECKING:
    from iobench.datasets import Arrays, ChannelGroup, NetcdfFile, PluginCall, StandIn, StandInFile
    from iobench.samples import Sample


class PowerFiles(PluginFiles, Recipe):
    """Forecasts on some types of levels, two runs a day."""

    extras = ("climetlab", "netcdf", "convert")  # the plugin opens its files with dask
    package = "climetlab-maelstrom-power-production==0.2.2"
    example = "date=2019-01-01,2019-01-02"
    level_types: tuple[archive.LevelType, ...]
    keys = (Key("date", archive.ALL_DAYS),)
    first_steps = archive.HOURS_PER_RUN
    tiny = archive.FIRST_DAYS
    ordinary = archive.FIRST_DAYS[:1]
    terms_of_use = archive.TERMS
    citation = archive.CITATION
    synthesis_version = archive.STAND_IN_VERSION

    def combined(self, values: Sequence[Sequence[str]]) -> list[FileKey]:
        days = super().combined(values)
        return [{**day, "hour": hour} for day in days for hour in archive.RUNS]

    def file_keys(self) -> list[FileKey]:
        runs = super().file_keys()
        return [{"prefix": each.prefix, **run} for each in self.level_types for run in runs]

    def file_url(self, key: FileKey) -> str:
        prefix = key.get("prefix", self.level_types[0].prefix)
        return f"{archive.BUCKET_URL}/{prefix}_{key['date'].replace('-', '')}_{key['hour']}.nc"

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        calls = []
        for each in self.level_types:
            own = [key for key in keys if key.get("prefix") == each.prefix]
            days = list(dict.fromkeys(key["date"] for key in own))
            calls.append(self.call({"date": days}, own, f"maelstrom-weather-{each.kind}-level"))
        return calls


class WeatherFields(PowerFiles):
    """Weather files of one kind of level; of each forecast the first 12 hours are samples."""

    name = "maelstrom-weather-pressure-level"
    options = (
        Option(
            "levels",
            "Of which files: those on pressure levels, on model levels 128 to 137, of the surface.",
            archive.PRESSURE.kind,
            tuple(archive.LEVEL_TYPES),
        ),
        Option(
            "sample",
            "All fields, or the 25 channels of deep clustering (z, r, t, u, v on five levels).",
            "fields",
            ("fields", "clustering"),
        ),
    )

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.level_type = archive.LEVEL_TYPES[self.chosen["levels"]]
        self.level_types = (self.level_type,)
        self.axes, self.fields = tuple(map(Axis, self.level_type.dims)), self.level_type.fields
        self.title = f"IFS HRES weather over Europe, {self.level_type.title} (MAELSTROM A6)"

    @property
    def stand_in_name(self) -> str:
        return f"maelstrom-weather-{self.level_type.kind}-level"

    def channel_groups_of(self, first: NetcdfFile) -> tuple[ChannelGroup, ...]:
        """Take as fields what the file has along the recipe's axes; `check` names those missing."""
        present = {
            name: RecipeVariable(name, each.attributes.get("units", ""))
            for name, each in first.variables.items()
            if each.dims == self.level_type.dims
        }
        required = {each.name: each for each in self.level_type.fields}
        self.fields = tuple({**required, **present}[name] for name in {**present, **required})
        return ()

    def contents(self, key: FileKey, plan: StandIn) -> StandInFile:
        return archive.run_contents(plan, self.level_type, key["date"], key["hour"])


def weather_pressure_level(**options: str) -> WeatherFields:
    """Return the dataset ``maelstrom-weather-pressure-level``: fields, or clustering's channels."""
    is_clustering = options.get("sample") == "clustering"
    return (ClusteringFields if is_clustering else WeatherFields)(**options)


class ClusteringFields(WeatherFields):
    """The 25 channels of deep clustering."""

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        if self.level_type is not archive.PRESSURE:
            raise OptionError(
                f"levels {self.level_type.kind}: sample=clustering is of pressure levels"
            )
        self.title = "25 channels of weather on pressure levels for deep clustering (MAELSTROM A6)"
        self.parts: tuple[tuple[str, str, int], ...] = ()  # channel, variable, place of the level

    def channel_groups_of(self, first: NetcdfFile) -> tuple[ChannelGroup, ...]:
        """Take no other fields."""
        super().channel_groups_of(first)
        names = archive.CLUSTERING_VARIABLES
        self.fields = tuple(each for each in self.fields if each.name in names)
        return ()

    def items(self, files: Sequence[NetcdfFile]) -> SampleIndex:
        levels = whole_variable(files[0], "level").astype(int).tolist()
        missing = [level for level in archive.CLUSTERING_LEVELS if level not in levels]
        if missing:
            raise FileFormatError(
                f"{files[0].path}: variable 'level' is {', '.join(map(str, levels))}, deep "
                f"clustering needs also {', '.join(map(str, missing))}; take --option sample=fields"
            )
        self.parts = tuple(
            (f"{name}{level}", name, levels.index(level))
            for level in archive.CLUSTERING_LEVELS
            for name in archive.CLUSTERING_VARIABLES
        )
        return super().items(files)

    def hyperslabs(self, where: tuple[int, int]) -> list[Hyperslab]:
        """Return each channel."""
        place = self.ranges(where)
        return [
            Hyperslab(name, {**place, "level": level}, name=part)
            for part, name, level in self.parts
        ]

    def preprocess(self, arrays: Arrays, where: tuple[int, int]) -> Sample:
        """Return the channels stacked, in float32: ``fields``."""
        return {"fields": np.stack([arrays[part] for part, _, _ in self.parts], dtype=np.float32)}

    def spec(self) -> SampleSpec:
        units_of = {each.name: each.units for each in self.fields}
        units = [f"{name} {units_of[name]}".strip() for name in archive.CLUSTERING_VARIABLES]
        *_, rows, columns = self.opened[0].variables["z"].shape
        shape, dims = (len(self.parts), rows, columns), ("channel", "latitude", "longitude")
        channels = tuple(part for part, _, _ in self.parts)
        fields = Variable("fields", shape, "<f4", dims, ", ".join(units), channels=channels)
        return SampleSpec((fields,))
