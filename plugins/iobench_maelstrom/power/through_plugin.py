"""Application A6's samples made from what the real plugin's ``to_xarray`` gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Arrays, Baseline, MapStyle, PluginRequest, SampleIndex
from iobench_maelstrom.plugin_samples import PluginSamples, require_plugin
from iobench_maelstrom.power.merging import loading_threads
from iobench_maelstrom.power.schema import BATCH_SIZE, HOURS_PER_RUN, RUNS, run_url

if TYPE_CHECKING:
    from iobench.datasets import Dataset, Where

__all__ = [
    "PowerThroughPlugin",
    "plugin_baseline",
    "plugin_request",
    "take_crop",
    "take_fields",
    "take_hour",
    "take_step",
    "take_whole",
    "weather_request",
]

PACKAGES = ("climetlab_maelstrom_power_production", "netCDF4", "dask")
INSTALL = (
    "pip install 'iobench[climetlab,netcdf]' dask && pip install --no-deps "
    "climetlab-maelstrom-power-production==0.2.2"
)
SOURCE = (
    "climetlab-maelstrom-power-production 0.2.2, to_xarray(); a sample is what isel and sel take "
    "out of it, then as ours. Batches of 64 are assumed but for deep clustering, loader workers are"
)

Channels = Sequence[tuple[str, int]]
Opened = Mapping[str, Any]
"""What ``to_xarray`` gave, by the data set's name."""


class PowerThroughPlugin(PluginSamples):
    """The samples of a data set of A6, taken out of what the plugin opens.

    Parameters
    ----------
    own : Dataset
        Ours, indexed: finishes the samples, whose numbers it gets by the same names.
    requests : sequence of PluginRequest
        What to open.
    take : callable
        ``take(opened, where)`` returns the arrays our ``decode`` returns; picklable.
    """

    def __init__(
        self,
        own: Dataset,
        requests: Sequence[PluginRequest],
        take: Callable[[Opened, Where], Arrays],
    ) -> None:
        super().__init__(own, {request.name: request for request in requests})
        self._names = tuple(request.name for request in requests)
        self._take = take

    def cut(self, where: Where) -> Any:
        """Return the numbers of one sample."""
        opened = {name: self.opened(name) for name in self._names}
        with loading_threads():
            return self._take(opened, where)


def plugin_baseline(
    own: Dataset,
    index: SampleIndex,
    requests: Sequence[PluginRequest],
    take: Callable[[Opened, Where], Arrays],
) -> Baseline:
    """Return how these samples are made through the plugin.

    Raises
    ------
    MissingExtraError
        If the plugin or what it needs is not installed; says what installs it.
    """
    require_plugin(own.name, *PACKAGES, install=INSTALL)
    samples = PowerThroughPlugin(own, requests, take)
    return Baseline(MapStyle(samples, index), BATCH_SIZE, SOURCE)


def plugin_request(name: str, files: Mapping[str, Path], **arguments: object) -> PluginRequest:
    """Return what to ask the plugin for: a data set, its files by URL, its arguments."""
    return PluginRequest(name, arguments, dict(files), install=INSTALL)


def weather_request(
    name: str, prefix: str, days: Sequence[str], files: Sequence[Path]
) -> PluginRequest:
    """Return the request for weather of some days.

    Parameters
    ----------
    name : str
        Of the data set.
    prefix : str
        Of the files' names.
    days : sequence of str
        ``YYYY-MM-DD``, in order.
    files : sequence of Path
        In order of time, one for each run.
    """
    urls = [run_url(prefix, day, hour) for day in days for hour in RUNS]
    by_url = dict(zip(urls, files, strict=True))
    return plugin_request(name, by_url, date=list(days))


def take_fields(opened: Opened, where: tuple[int, int]) -> Arrays:
    """Return the fields of an hour, of the one data set opened: (level,) latitude, longitude."""
    [data] = opened.values()
    return values_of(data.isel(time=position(*where)))


def take_crop(
    opened: Opened, where: tuple[int, int, int, int], *, shape: tuple[int, int], channels: Channels
) -> Arrays:
    """Return the crop of each channel (variable and level), of the one data set opened."""
    [data] = opened.values()
    run, step, row, column = where
    crop = data[list(dict.fromkeys(name for name, _ in channels))].isel(
        time=position(run, step),
        latitude=slice(row, row + shape[0]),
        longitude=slice(column, column + shape[1]),
    )
    crop = crop.sel(level=list(dict.fromkeys(level for _, level in channels))).load()
    return {f"{name}{level}": crop[name].sel(level=level).values for name, level in channels}


def take_hour(
    opened: Opened,
    where: tuple[int, int, int, int, int],
    *,
    model: str,
    surface: str,
    production: str,
    place: Mapping[str, int],
) -> Arrays:
    """Return a point's weather in an hour and its production, of the data sets named.

    ``place`` holds the indices of level and grid point.
    """
    run, step, start, stop, seconds = where
    point = {dim: index for dim, index in place.items() if dim != "level"}
    time = position(run, step)
    return {
        **values_of(opened[model][["t", "q", "u", "v"]].isel(time=time, **place)),
        **values_of(opened[surface][["sp"]].isel(time=time, **point)),
        **values_of(opened[production][["production"]].isel(time=slice(start, stop))),
        "time": np.asarray(seconds),
    }


def take_step(opened: Opened, where: int, *, names: Sequence[str]) -> Arrays:
    """Return what a turbine reported in one step, of the one data set opened."""
    [data] = opened.values()
    return values_of(data[list(names)].isel(time=where))


def take_whole(opened: Opened, where: int, *, names: Sequence[str]) -> Arrays:
    """Return all numbers of the one data set opened."""
    [data] = opened.values()
    return values_of(data[list(names)])


def values_of(data: Any) -> Arrays:
    """Return the numbers of an ``xarray.Dataset``, by variable, all loaded at once."""
    loaded = data.load()
    return {name: loaded[name].values for name in loaded.data_vars}


def position(run: int, step: int) -> int:
    """Return which time of the merged forecasts a step of a run is."""
    return run * HOURS_PER_RUN + step
