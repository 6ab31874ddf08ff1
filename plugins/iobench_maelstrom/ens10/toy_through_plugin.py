"""Samples of ens5mini out of what the real plugin's ``to_xarray`` gives, through dask."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from iobench.datasets import Baseline, PluginRequest
from iobench.errors import MissingFileError
from iobench_maelstrom.ens10.ens5mini_schema import LEAD_HOURS, PRESSURE_VARIABLES, month_url
from iobench_maelstrom.ens10.through_plugin import PLUGIN
from iobench_maelstrom.plugin_samples import Opened, plugin_baseline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.datasets import Arrays, Dataset, SampleIndex

__all__ = ["toy_plugin_baseline"]

BATCH_SIZE = 1
SOURCE = (
    "climetlab-maelstrom-ens10's ens5mini, to_xarray() of each month's file (open_mfdataset), one "
    "start and step by sel, mean and deviation by iobench; loader settings as ENS-10's U-Net, "
    "since none are published."
)

Where = tuple[str, str]
"""Which file's forecasts, and the start as NumPy spells it."""


def toy_plugin_baseline(own: Dataset, paths: Sequence[Path], index: SampleIndex) -> Baseline:
    """Return how samples are made from the plugin's datasets, of the files at ``paths``.

    Raises
    ------
    MissingExtraError
        If CliMetLab or the plugin is not installed.
    MissingFileError
        If a month is spread over several files: the plugin reads the published one.
    """
    where = [(start[5:7], start) for start in index.coordinate]
    return plugin_baseline(
        own,
        dataclasses.replace(index, where=where, setup={}),
        _requests(paths, index),
        _cut,
        needs=[PLUGIN],
        batch_size=BATCH_SIZE,
        source=SOURCE,
    )


def _requests(paths: Sequence[Path], index: SampleIndex) -> dict[str, PluginRequest]:
    """Return what the plugin is asked for, by month."""
    found: dict[str, Path] = {}
    for (number, _), start in zip(index.where, index.coordinate, strict=True):
        month, path = start[5:7], paths[number]
        if found.setdefault(month, path) != path:
            raise MissingFileError(
                f"maelstrom-ens5mini: the plugin reads all of month {month} from "
                f"{month_url(month)}, here it is in {found[month]} and {path}; fetch that file "
                "and name its folder with --data-dir"
            )
    return {
        month: PluginRequest("maelstrom-ens5mini", {"date": month}, {month_url(month): path})
        for month, path in found.items()
    }


def _cut(opened: Opened, where: Where) -> Arrays:
    """Return each variable, shape (member, level, latitude, longitude)."""
    month, start = where
    fields = opened(month).sel(
        time=np.datetime64(start, "ns"), step=np.timedelta64(LEAD_HOURS, "h")
    )
    # In this thread alone: netCDF4 fails when several read at once.
    loaded = fields.load(scheduler="synchronous")
    return {variable.name: loaded[variable.name].values for variable in PRESSURE_VARIABLES}
