"""What the data sets of application A6 share: options, weather files, times, plugin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Field, FileKey, Items, Key, Option, file_times
from iobench.errors import FileFormatError, OptionError
from iobench_maelstrom.climetlab_plugin import PluginRecipe
from iobench_maelstrom.power.schema import (
    ALL_DAYS,
    BUCKET_URL,
    CITATION,
    HOURS_PER_RUN,
    INSTALL,
    LEVEL_TYPES,
    PACKAGE,
    RUNS,
    TERMS,
)
from iobench_maelstrom.power.stand_in import FIRST_DAYS, STAND_IN_VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets import Locator, NetcdfFile, PluginCall, Stack


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


class PowerFiles(PluginRecipe):
    """Weather forecasts of ``prefixes``, two runs a day, and ``others``: files of all days.

    Without days chosen it is those at hand; a day at hand only in part is an error.
    """

    package = PACKAGE
    install = INSTALL
    example = "date=2019-01-01,2019-01-02"
    prefixes: tuple[str, ...]
    others: tuple[FileKey, ...] = ()
    keys = (Key("date", ALL_DAYS), Key("hour", RUNS))
    tiny = FIRST_DAYS
    ordinary = FIRST_DAYS[:1]
    terms_of_use = TERMS
    citation = CITATION
    synthesis_version = STAND_IN_VERSION

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.days: Sequence[str] = self.chosen["date"]

    @classmethod
    def all_options(cls) -> list[Option]:
        """Return the options; the key ``hour`` is none."""
        return list(cls.options)

    def file_keys(self) -> list[FileKey]:
        """Return the runs of the first prefix, in order of time, those of the next, the others."""
        runs = [
            {"prefix": prefix, "date": day, "hour": hour}
            for prefix in self.prefixes
            for day in self.days or ALL_DAYS
            for hour in RUNS
        ]
        return [*runs, *self.others]

    def file_url(self, key: FileKey) -> str:
        """Return where a file is published."""
        if "file" in key:
            return f"{BUCKET_URL}/{key['file']}"
        prefix = key.get("prefix", self.prefixes[0])
        return f"{BUCKET_URL}/{prefix}_{key['date'].replace('-', '')}_{key['hour']}.nc"

    def needs_all(self, locator: Locator) -> bool:
        """Return True: of the days that there are."""
        return True

    def files(self, locator: Locator) -> list[Path]:
        """Return the files of the days chosen, else of those at hand."""
        if not self.chosen["date"]:
            runs = [key for key in self.file_keys() if "date" in key]
            paths = locator.find(list(map(self.file_url, runs)))
            at_hand = (key["date"] for key, path in zip(runs, paths, strict=True) if path)
            self.days = list(dict.fromkeys(at_hand))
        return super().files(locator)

    def stacks_of(self, first: NetcdfFile) -> tuple[Stack, ...]:
        """Take as fields what the file has along the recipe's axes; `check` names those missing."""
        dims = tuple(axis.name for axis in self.axes)
        present = {
            name: Field(name, each.attributes.get("units", ""))
            for name, each in first.variables.items()
            if each.dims == dims
        }
        required = type(self).fields
        self.fields = (*present.values(), *(each for each in required if each.name not in present))
        return ()

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        """Return what the samples follow from."""
        facts = super().provenance(files, fitted)
        options = {**facts["options"], "date": list(self.days)}
        return {**facts, "options": options, "hours_per_run": HOURS_PER_RUN}

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        """Return the calls: one for the runs of a prefix."""
        calls = []
        for prefix in self.prefixes:
            own = [key for key in keys if key.get("prefix") == prefix]
            days = list(dict.fromkeys(key["date"] for key in own))
            name = f"maelstrom-weather-{LEVEL_TYPES[prefix].kind}-level"
            calls.append(self.call({"date": days}, own, name))
        return calls

    def joined_length(self, file: NetcdfFile) -> int:
        """Return how much of a run the plugin takes."""
        return HOURS_PER_RUN


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
    for file, own in zip(files, times, strict=True):
        follows = last is None or own[0] > last
        if not follows or not (np.diff(own) > np.timedelta64(0, "s")).all():
            raise FileFormatError(
                f"{file.path}: its times {own[0]} to {own[-1]} do not follow on those of the "
                f"run before, which end at {last}; is it the file its name says?"
            )
        last = own[-1]
    return times


def hour_items(where: Sequence[Any], times: Sequence[np.datetime64]) -> Items:
    """Return samples that lie along the time, in hours."""
    seconds = np.array([*times], "M8[s]").astype(np.int64)
    names = [str(time)[:16] for time in times]
    return Items(where, names, (seconds / 3600).tolist(), "hours")
