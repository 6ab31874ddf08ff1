"""The weather forecasts of application A6: one sample is the fields of one hour over Europe.

Or the 25 channels of deep clustering, as 4castRenewables/maelstrom-a6 has them in ``jube/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    FileKey,
    Hyperslab,
    Key,
    Option,
    Recipe,
    RecipeVariable,
    SampleIndex,
    file_times,
    whole_variable,
)
from iobench.errors import FileFormatError, OptionError
from iobench.samples import SampleSpec, Variable
from iobench_maelstrom.climetlab_plugin import PluginFiles
from iobench_maelstrom.power import files as archive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import (
        Arrays,
        ChannelGroup,
        Locator,
        NetcdfFile,
        PluginCall,
        StandIn,
        StandInFile,
    )
    from iobench.samples import Sample


DATE = Option(
    "date",
    "Days, YYYY-MM-DD, separated by commas. By default all whose files are found.",
    (),
    archive.ALL_DAYS,
    many=True,
)


class PowerFiles(PluginFiles, Recipe):
    """Forecasts of ``prefixes``, two runs a day, and ``others``; by default those at hand."""

    extras = ("climetlab", "netcdf", "convert")  # the plugin opens its files with dask
    package = "climetlab-maelstrom-power-production==0.2.2"
    example = "date=2019-01-01,2019-01-02"
    prefixes: tuple[str, ...]
    others: tuple[FileKey, ...] = ()
    keys = (Key("date", archive.ALL_DAYS), Key("hour", archive.RUNS))
    tiny = archive.FIRST_DAYS
    ordinary = archive.FIRST_DAYS[:1]
    terms_of_use = archive.TERMS
    citation = archive.CITATION
    synthesis_version = archive.STAND_IN_VERSION

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.days: Sequence[str] = self.chosen["date"]

    @classmethod
    def all_options(cls) -> list[Option]:
        return list(cls.options)

    def file_keys(self) -> list[FileKey]:
        runs = [
            {"prefix": prefix, "date": day, "hour": hour}
            for prefix in self.prefixes
            for day in self.days or archive.ALL_DAYS
            for hour in archive.RUNS
        ]
        return [*runs, *self.others]

    def file_url(self, key: FileKey) -> str:
        if "file" in key:
            return f"{archive.BUCKET_URL}/{key['file']}"
        prefix = key.get("prefix", self.prefixes[0])
        return f"{archive.BUCKET_URL}/{prefix}_{key['date'].replace('-', '')}_{key['hour']}.nc"

    @property
    def needs_all(self) -> bool:
        """Whether all files are needed: of the days that there are."""
        return True

    def files(self, locator: Locator) -> list[Path]:
        if not self.chosen["date"]:
            self.days = ()
            runs = [key for key in self.file_keys() if "date" in key]
            paths = locator.find(list(map(self.file_url, runs)))
            at_hand = (key["date"] for key, path in zip(runs, paths, strict=True) if path)
            self.days = list(dict.fromkeys(at_hand))
        return super().files(locator)

    def hour_index(self, where: Sequence[Any], times: Sequence[np.datetime64]) -> SampleIndex:
        """Return samples that lie along the time, in hours."""
        seconds = np.array([*times], "M8[s]").astype(np.int64)
        names = [str(time)[:16] for time in times]
        hours = (seconds / 3600).tolist()
        return SampleIndex(self.spec(), where, {}, names, hours, "hours")

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        calls = []
        for prefix in self.prefixes:
            own = [key for key in keys if key.get("prefix") == prefix]
            days = list(dict.fromkeys(key["date"] for key in own))
            name = f"maelstrom-weather-{archive.LEVEL_TYPES[prefix].kind}-level"
            calls.append(self.call({"date": days}, own, name))
        return calls


def run_times(files: Sequence[NetcdfFile]) -> list[NDArray[np.datetime64]]:
    """Return the times of weather files, as many of each as there are until the next run."""
    n_steps = archive.HOURS_PER_RUN
    for file in files:
        if file.dims["time"] < n_steps:
            raise FileFormatError(
                f"{file.path}: dimension 'time' is {file.dims['time']}, expected at least "
                f"{n_steps}: one step an hour until the next run starts"
            )
    times = [each[:n_steps] for each in file_times(files, "time")]
    last = None
    for file, own in zip(files, times, strict=True):
        follows = last is None or own[0] > last
        if not follows or not (np.diff(own) > np.timedelta64(0, "s")).all():
            raise FileFormatError(
                f"{file.path}: its times {own[0]} to {own[-1]} do not follow on those of the "
                f"run before, which end at {last}; is it the file its name says?"
            )
        last = own[-1]
    return times


class WeatherFields(PowerFiles):
    """Weather files of one kind of level; of each forecast the first 12 hours are samples."""

    name = "maelstrom-weather-pressure-level"
    options = (
        DATE,
        Option(
            "levels",
            "Of which files: those on pressure levels, on model levels 128 to 137, of the surface.",
            archive.PRESSURE.kind,
            (archive.PRESSURE.kind, archive.MODEL.kind, archive.SURFACE.kind),
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
        kinds = {each.kind: each for each in archive.LEVEL_TYPES.values()}
        self.level_type = kinds[self.chosen["levels"]]
        self.prefixes, self.axes = (self.level_type.prefix,), self.level_type.axes
        self.fields = self.level_type.fields
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

    def items(self, files: Sequence[NetcdfFile]) -> SampleIndex:
        times = run_times(files)
        where = [(run, step) for run, each in enumerate(times) for step in range(len(each))]
        return self.hour_index(where, [times[run][step] for run, step in where])

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
