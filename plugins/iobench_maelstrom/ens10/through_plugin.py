"""Samples of ENS-10 and its toy out of what the real plugin's ``to_xarray`` gives."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.datasets import Baseline, Downloads, PluginDownload, PluginRequest, VariablePart
from iobench.errors import MissingFileError, OptionError
from iobench_maelstrom.ens10.schema import LEAD_HOURS, Task
from iobench_maelstrom.plugin_samples import joined_files, plugin_baseline

if TYPE_CHECKING:
    from iobench.datasets import PublishedFiles, SampleIndex
    from iobench_maelstrom.ens10.dataset import Ens10
    from iobench_maelstrom.ens10.ens5mini import Ens5mini

PACKAGE = "climetlab-maelstrom-ens10"


def ens10_through_plugin(own: Ens10, index: SampleIndex) -> Baseline:
    """Return how forecasts are taken out of the plugin's datasets, one a start date; no target."""
    where = [(start[5:7] + start[8:10], start) for start in index.coordinate]
    paths = [Path(ranges[0][0]) for ranges in index.where]
    requests = _requests(own, [date for date, _ in where], paths, {"dtype": own.task.dtype})
    index = msgspec.structs.replace(index, where=where)
    select = functools.partial(_parts_of, own.task)
    return plugin_baseline(own, index, requests, select, package=PACKAGE)


def _parts_of(task: Task, where: tuple[str, str]) -> list[VariablePart]:
    date, start = where
    labels: dict[str, Any] = {
        "time": np.datetime64(start, "ns"),
        "step": np.timedelta64(LEAD_HOURS, "h"),
    }
    if task.level:
        labels["isobaricInhPa"] = task.level
    return [
        VariablePart(date, each.short_name, {"surface": 0}, labels, each.name)
        for each in task.fields
    ]


def ens5mini_through_plugin(own: Ens5mini, index: SampleIndex) -> Baseline:
    """Return how forecasts are taken out of the plugin's datasets, one a month."""
    places = zip(index.where, index.coordinate, strict=True)
    months = {number: start[5:7] for (number, _), start in places}
    names = [months[number] for number in range(len(own.opened))]
    requests = _requests(own, names, [file.path for file in own.opened], {})
    select = joined_files(own, [(name, 0) for name in names])
    return plugin_baseline(own, index, requests, select, package=PACKAGE)


def _requests(
    own: Ens10 | Ens5mini,
    dates: Sequence[str],
    paths: Sequence[Path],
    arguments: Mapping[str, str],
) -> dict[str, PluginRequest]:
    """Return what to ask the plugin for by date or month, of which a file holds all years."""
    found: dict[str, Path] = {}
    for date, path in zip(dates, paths, strict=True):
        if found.setdefault(date, path) != path:
            raise MissingFileError(
                f"{own.name}: the plugin reads all years of {date} from "
                f"{own.file_url({'date': date})}, here they are in {found[date]} and {path}; fetch "
                "that file and name its folder with --data-dir"
            )
    return {
        date: PluginRequest(
            own.name, {"date": date, **arguments}, {own.file_url({"date": date}): path}
        )
        for date, path in found.items()
    }


def download_each(
    own: PublishedFiles, arguments: Mapping[str, str], example: str, others: tuple[str, ...] = ()
) -> Downloads:
    """Return what ``--download`` fetches of the dates chosen: the plugin takes one at a time."""
    if not own.chosen["date"]:
        raise OptionError(f"--download of {own.name}: say what to fetch, e.g. --option {example}")
    calls = tuple(
        PluginDownload(
            own.name,
            {"date": date, **arguments},
            (own.file_url({"date": date}),),
            terms_of_use=own.terms_of_use,
            citation=own.citation,
        )
        for date in own.chosen["date"]
    )
    return Downloads(calls, others=others)
