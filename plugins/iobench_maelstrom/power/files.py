"""What all data sets of application A6 share: options, files, times, plugin, stand-in."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Downloads,
    Field,
    Items,
    Key,
    Option,
    PluginDownload,
    PluginRequest,
    Recipe,
    StandIn,
    existing_files,
    file_times,
)
from iobench.errors import FileFormatError, OptionError
from iobench_maelstrom.plugin_samples import joined_files, plugin_baseline
from iobench_maelstrom.power.schema import (
    ALL_DAYS,
    CITATION,
    HOURS_PER_RUN,
    PRODUCTION_URL,
    RUNS,
    TERMS,
    TURBINES,
    LevelType,
    run_url,
)
from iobench_maelstrom.power.stand_in import STAND_IN_VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets import (
        Baseline,
        Locator,
        NetcdfFile,
        SampleIndex,
        Stack,
    )


def parse_days(text: str) -> tuple[str, ...]:
    """Return the days of a comma list of ``YYYY-MM-DD``, in order."""
    days = {entry.strip() for entry in text.split(",")}
    for day in sorted(days - set(ALL_DAYS)):
        raise OptionError(
            f"date {day!r}: expected YYYY-MM-DD, several separated by commas, from {ALL_DAYS[0]} "
            f"to {ALL_DAYS[-1]}"
        )
    return tuple(sorted(days))


DATE = Option(
    "date",
    "Days, YYYY-MM-DD, separated by commas. By default all whose files are found.",
    (),
    parse=parse_days,
)
DAY = Key("date", ALL_DAYS)
TURBINE_NUMBERS = tuple(str(each.number) for each in TURBINES)
TURBINE = Option("wind_turbine_id", "Which turbine.", "1", TURBINE_NUMBERS)
INSTALL = (
    "pip install 'iobench[climetlab,netcdf]' dask && pip install --no-deps "
    "climetlab-maelstrom-power-production==0.2.2"
)
PACKAGE = "climetlab-maelstrom-power-production"
Call = tuple[str, dict[str, Any], list[str]]
"""A call of the plugin: its data set, the arguments, the URLs of its files."""


class PowerRecipe(Recipe):
    """A data set of A6; all variables of its files that have the recipe's axes are fields."""

    schema_name: str  # in provenances
    terms_of_use = TERMS
    citation = CITATION
    synthesis_version = STAND_IN_VERSION

    @classmethod
    def all_options(cls) -> list[Option]:
        """Return the options; of keys only those that are said to be ones."""
        return list(cls.options)

    def stacks_of(self, first: NetcdfFile) -> tuple[Stack, ...]:
        """Take as fields what the file has along the recipe's axes; `check` misses others."""
        dims = tuple(axis.name for axis in self.axes)
        found = {
            name: Field(name, each.attributes.get("units", ""))
            for name, each in first.variables.items()
            if each.dims == dims
        }
        required = type(self).fields
        self.fields = (*found.values(), *(each for each in required if each.name not in found))
        return ()

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        """Return what the samples follow from."""
        told = super().provenance(files, fitted)
        del told["source"]
        return {**told, "schema": f"maelstrom-ap6 {self.schema_name}", "normalisation": {}}

    def calls(self, days: Sequence[str]) -> list[Call]:
        """Return the calls of the plugin for some days, their files in the order of ours."""
        raise NotImplementedError

    def through_plugin(self, files: Sequence[Path], index: SampleIndex) -> Baseline:
        """Return how the samples are taken out of what the real plugin opens."""
        rest, requests, places = iter(files), {}, []
        for name, arguments, urls in self.calls(index.provenance["options"].get("date", ())):
            by_url = {url: next(rest) for url in urls}
            requests[name] = PluginRequest(f"maelstrom-{name}", arguments, by_url, install=INSTALL)
            # Forecasts are joined, the first hours of each; other calls have one file.
            places += [(name, number * HOURS_PER_RUN) for number in range(len(urls))]
        return plugin_baseline(
            self, index, requests, joined_files(self, places), package=PACKAGE, install=INSTALL
        )

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches, of weather that of the days asked for."""
        days = self.chosen.get("date", ())
        if "date" in self.chosen and not days:
            raise OptionError(
                f"--download of {self.name}: say what to fetch, e.g. --option "
                "date=2019-01-01,2019-01-02"
            )
        return Downloads(
            tuple(
                PluginDownload(
                    f"maelstrom-{name}",
                    arguments,
                    tuple(urls),
                    install=INSTALL,
                    terms_of_use=TERMS,
                    citation=CITATION,
                )
                for name, arguments, urls in self.calls(days)
            )
        )

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> StandIn:
        """Return what a stand-in holds: a share of all days, or of small files all."""
        if DAY in self.keys:
            return super().stand_in(scale=scale, tiny=tiny, seed=seed)
        every = itertools.product(*(key.values for key in self.keys))
        names = [key.name for key in self.keys]
        return StandIn(
            seed, tuple(dict(zip(names, each, strict=True)) for each in every), tiny=tiny
        )


def run_files(recipe: Recipe, prefixes: Sequence[str], locator: Locator) -> list[Path]:
    """Return the weather files, those of the first prefix first, each in order of time.

    Without days asked for it is those at hand; a day at hand only in part is an error.
    """
    days: Sequence[str] = recipe.chosen["date"]
    if not days:
        every = [
            (day, run_url(p, day, hour)) for day in ALL_DAYS for p in prefixes for hour in RUNS
        ]
        found = locator.find([url for _, url in every])
        at_hand = [day for (day, _), path in zip(every, found, strict=True) if path is not None]
        days = list(dict.fromkeys(at_hand)) or ALL_DAYS
    urls = [run_url(*each) for each in itertools.product(prefixes, days, RUNS)]
    return existing_files(recipe.name, urls, locator)


def run_times(files: Sequence[NetcdfFile], n_steps: int | None) -> list[NDArray[np.datetime64]]:
    """Return the times of weather files, the first ``n_steps`` of each; None for all."""
    for file in files:
        if file.dims["time"] < (n_steps or 1):
            raise FileFormatError(
                f"{file.path}: dimension 'time' is {file.dims['time']}, expected at least "
                f"{n_steps or 1}: one step an hour until the next run starts"
            )
    times = [each[:n_steps] for each in file_times(files, "time")]
    last = None
    for file, found in zip(files, times, strict=True):
        follows = last is None or found[0] > last
        if not follows or not (np.diff(found) > np.timedelta64(0, "s")).all():
            raise FileFormatError(
                f"{file.path}: its times {found[0]} to {found[-1]} do not follow on those of the "
                f"run before, which end at {last}; is it the file its name says?"
            )
        last = found[-1]
    return times


def hour_items(where: Sequence[Any], times: Sequence[np.datetime64]) -> Items:
    """Return samples that lie along the time, in hours."""
    seconds = np.array([*times], "M8[s]").astype(np.int64)
    names = [str(time)[:16] for time in times]
    return Items(where, names, (seconds / 3600).tolist(), "hours")


def weather_call(level_type: LevelType, days: Sequence[str]) -> Call:
    """Return the call for two runs of each day."""
    urls = [run_url(level_type.prefix, day, hour) for day in days for hour in RUNS]
    return f"weather-{level_type.kind}-level", {"date": list(days)}, urls


def production_call(number: str) -> Call:
    """Return the call for the production of a turbine."""
    url = PRODUCTION_URL.format(wind_turbine_id=number)
    return "power-production", {"wind_turbine_id": int(number)}, [url]
