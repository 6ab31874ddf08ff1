"""Samples of ENS-10 and its toy out of what the real plugin's ``to_xarray`` gives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Baseline, Downloads, PluginDownload, PluginRequest, read_extents
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench_maelstrom.ens10.schema import LEAD_HOURS, PRESSURE_VARIABLES, TOY_LEAD_HOURS
from iobench_maelstrom.plugin_samples import Opened, plugin_baseline

if TYPE_CHECKING:
    from iobench.datasets import Arrays, FileRange, PublishedFiles, SampleIndex
    from iobench_maelstrom.ens10.dataset import Ens10
    from iobench_maelstrom.ens10.ens5mini import Ens5mini

SOURCE = (
    "climetlab-maelstrom-ens10, to_xarray() of each start date's file (cfgrib, without dask), one "
    "year and step by isel and sel, mean and deviation by iobench. The plugin has no target: it "
    "is read by iobench."
)
TOY_SOURCE = (
    "climetlab-maelstrom-ens10's ens5mini, to_xarray() of each month's file (open_mfdataset), one "
    "start and step by sel, mean and deviation by iobench; loader settings as ENS-10's U-Net, "
    "since none are published."
)

Where = tuple[str, str, "tuple[FileRange[str], ...]"]
"""What the plugin's file is of; start as NumPy spells it; where the target's bytes are, if any."""


def ens10_through_plugin(own: Ens10, index: SampleIndex) -> Baseline:
    """Return how samples of ENS-10 are made from the plugin's datasets, one a start date."""
    dates = [start[5:7] + start[8:10] for start in index.coordinate]
    paths = [Path(where[0][0]) for where in index.where]
    targets = [tuple(where[len(where) - own.has_target :]) for where in index.where]
    cut = functools.partial(_cut, own)
    return _baseline(own, index, dates, paths, targets, {"dtype": own.task.dtype}, cut, SOURCE)


def ens5mini_through_plugin(own: Ens5mini, index: SampleIndex) -> Baseline:
    """Return how samples of ens5mini are made from the plugin's datasets, one a month."""
    months = [start[5:7] for start in index.coordinate]
    paths = [own.opened[number].path for number, _ in index.where]
    return _baseline(own, index, months, paths, [()] * len(paths), {}, _cut_toy, TOY_SOURCE)


def _baseline(
    own: Ens10 | Ens5mini,
    index: SampleIndex,
    dates: Sequence[str],
    paths: Sequence[Path],
    targets: Sequence[tuple[FileRange[str], ...]],
    arguments: Mapping[str, str],
    cut: Callable[[Opened, Where], Arrays],
    source: str,
) -> Baseline:
    """Ask the plugin by date or month, of which a file holds all years.

    Raises
    ------
    MissingFileError
        If one is spread over several files: the plugin reads the published one.
    """
    found: dict[str, Path] = {}
    for date, path in zip(dates, paths, strict=True):
        if found.setdefault(date, path) != path:
            raise MissingFileError(
                f"{own.name}: the plugin reads all years of {date} from "
                f"{own.file_url({'date': date})}, here they are in {found[date]} and {path}; fetch "
                "that file and name its folder with --data-dir"
            )
    where = list(zip(dates, index.coordinate, targets, strict=True))
    return plugin_baseline(
        own,
        dataclasses.replace(index, where=where, setup={}),
        {
            date: PluginRequest(
                own.name, {"date": date, **arguments}, {own.file_url({"date": date}): path}
            )
            for date, path in found.items()
        },
        cut,
        needs=["climetlab_maelstrom_ens10"],
        source=source,
    )


def _of_step(opened: Any, start: str, hours: int) -> Any:
    return opened.sel(time=np.datetime64(start, "ns"), step=np.timedelta64(hours, "h"))


def _cut(own: Ens10, opened: Opened, where: Where) -> Arrays:
    """Return each variable's members, shape (member, latitude, longitude), and the target.

    Raises
    ------
    FileFormatError
        If the plugin has other members or another grid than our index.
    """
    date, start, target = where
    task, layout = own.task, own.layout
    fields = _of_step(opened(date), start, LEAD_HOURS)
    fields = fields.sel(isobaricInhPa=task.level) if task.level else fields.isel(surface=0)
    members, shape = tuple(fields.number.values.tolist()), (layout.n_members, *layout.shape)
    arrays = {}
    for field in task.fields:
        values = fields[field.short_name].values
        if values.shape != shape or members != layout.members:
            raise FileFormatError(
                f"{own.name}: of {field.short_name} on {date} the plugin made {values.shape}, "
                f"members {members}, expected {shape}, {layout.members}; fetch the file again"
            )
        arrays[field.name] = values
    if target:
        arrays["target"] = own.target_array(read_extents(target)[0])
    return arrays


def _cut_toy(opened: Opened, where: Where) -> Arrays:
    """Return each variable, shape (member, level, latitude, longitude)."""
    month, start, _ = where
    # In this thread alone: netCDF4 fails when several read at once.
    loaded = _of_step(opened(month), start, TOY_LEAD_HOURS).load(scheduler="synchronous")
    return {variable.name: loaded[variable.name].values for variable in PRESSURE_VARIABLES}


def download_each(
    own: PublishedFiles, arguments: Mapping[str, str], example: str, others: tuple[str, ...] = ()
) -> Downloads:
    """Return what ``--download`` fetches of the dates chosen: the plugin takes one at a time.

    Raises
    ------
    OptionError
        If none was chosen: all of them are never fetched by default.
    """
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
