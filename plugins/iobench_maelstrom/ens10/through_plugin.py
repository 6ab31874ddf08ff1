"""Samples of ENS-10 out of what the real plugin's ``to_xarray`` gives, through cfgrib."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Baseline, PluginRequest, read_messages
from iobench.errors import FileFormatError, MissingFileError
from iobench_maelstrom.ens10.schema import LEAD_HOURS, forecast_url
from iobench_maelstrom.plugin_samples import Opened, plugin_baseline

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.datasets import Arrays, Dataset, FileRange, SampleIndex
    from iobench_maelstrom.ens10.messages import Layout
    from iobench_maelstrom.ens10.schema import UnetTask

__all__ = ["PLUGIN", "ens10_through_plugin"]

PLUGIN = "climetlab_maelstrom_ens10"
BATCH_SIZE = 1
SOURCE = (
    "climetlab-maelstrom-ens10, to_xarray() of each start date's file (cfgrib, without dask), one "
    "year and step by isel and sel, mean and deviation by iobench. The plugin has no target: it "
    "is read by iobench."
)

Where = tuple[str, str, "tuple[FileRange[str], ...]"]
"""Start date (``MMDD``); start as NumPy spells it; where the target's bytes are, if any."""


def ens10_through_plugin(
    own: Dataset,
    layout: Layout,
    index: SampleIndex,
    task: UnetTask,
    target_array: Callable[[Any], Any] | None,
) -> Baseline:
    """Return how samples are made from the plugin's datasets.

    ``target_array`` makes the target's field of its bytes; None: samples have none.

    Raises
    ------
    MissingExtraError
        If CliMetLab or the plugin is not installed.
    MissingFileError
        If a start date is spread over several files: the plugin reads the published one.
    """
    n_targets = 0 if target_array is None else 1
    where = [
        (_date(start), start, tuple(extents[len(extents) - n_targets :]))
        for start, extents in zip(index.coordinate, index.where, strict=True)
    ]
    return plugin_baseline(
        own,
        dataclasses.replace(index, where=where, setup={}),
        _requests(task.dtype, index),
        functools.partial(_cut, layout.without_rows(), task, target_array),
        needs=[PLUGIN],
        batch_size=BATCH_SIZE,
        source=SOURCE,
    )


def _date(coordinate: str) -> str:
    return coordinate[5:7] + coordinate[8:10]


def _requests(dtype: str, index: SampleIndex) -> dict[str, PluginRequest]:
    """Return what the plugin is asked for, by start date; a file holds one in all years."""
    found: dict[str, str] = {}
    for start, extents in zip(index.coordinate, index.where, strict=True):
        date, path = _date(start), extents[0][0]
        if found.setdefault(date, path) != path:
            raise MissingFileError(
                f"maelstrom-ens10: the plugin reads all years of {date} from "
                f"{forecast_url(date, dtype)}, here they are in {found[date]} and {path}; fetch "
                "that file and name its folder with --data-dir"
            )
    return {
        date: PluginRequest(
            "maelstrom-ens10",
            {"date": date, "dtype": dtype},
            {forecast_url(date, dtype): Path(path)},
        )
        for date, path in found.items()
    }


def _cut(
    layout: Layout,
    task: UnetTask,
    target_array: Callable[[Any], Any] | None,
    opened: Opened,
    where: Where,
) -> Arrays:
    """Return each variable's members, shape (member, latitude, longitude), and the target.

    Raises
    ------
    FileFormatError
        If the plugin has other members or another grid than our index.
    """
    date, start, target = where
    fields = opened(date).sel(time=np.datetime64(start, "ns"), step=np.timedelta64(LEAD_HOURS, "h"))
    shape = (layout.n_members, *layout.shape)
    fields = fields.sel(isobaricInhPa=task.level) if task.level else fields.isel(surface=0)
    members = tuple(fields.number.values.tolist())
    arrays = {}
    for variable in task.variables:
        name = variable.name.removesuffix(str(task.level)) if task.level else variable.name
        values = fields[name].values
        if values.shape != shape or members != layout.members:
            raise FileFormatError(
                f"maelstrom-ens10: of {name} on {date} the plugin made {values.shape}, members "
                f"{members}, expected {shape}, {layout.members}; fetch the file again"
            )
        arrays[variable.name] = values
    if target_array is not None:
        arrays["target"] = target_array(read_messages(target)[0])
    return arrays
