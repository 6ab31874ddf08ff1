"""Samples of application A5 out of what the real plugin's ``to_xarray`` gives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Baseline, PluginRequest
from iobench.errors import FileFormatError
from iobench_maelstrom.plugin_samples import Opened, plugin_baseline

if TYPE_CHECKING:
    from iobench.datasets import Arrays, SampleIndex
    from iobench_maelstrom.downscaling.dataset import Downscaling

SOURCE = (
    "climetlab-maelstrom-downscaling, to_xarray(), which opens the months with dask; each sample "
    "is taken from it by isel, loaded in the worker's own thread. Two loader workers are assumed."
)


MonthSpan = tuple[str, str, int]
"""A file's time steps: the first, the last (``2016-01-01T00``) and how many."""


def downscaling_through_plugin(
    dataset: Downscaling, files: Sequence[Path], index: SampleIndex
) -> Baseline:
    """Return how samples are made from the plugin's dataset."""
    hours: list[list[str]] = [[] for _ in files]
    for (file, _), hour in zip(index.where, index.coordinate, strict=True):
        hours[file].append(hour)
    spans = [(each[0], each[-1], len(each)) for each in hours]
    months = [first[:7] for first, _, _ in spans]
    arguments: dict[str, Any] = dataset.plugin_months(months)
    urls = [dataset.file_url({"months": month}) for month in months]
    if dataset.augmented_name:
        arguments, urls = {"dataset": dataset.augmented_name}, dataset.urls()
    by_url = dict(zip(urls, map(Path, files), strict=True))
    names = [each.name for each in dataset.sample_fields]
    return plugin_baseline(
        dataset,
        index,
        {"months": PluginRequest(dataset.name, arguments, by_url)},
        _cut,
        needs=["climetlab_maelstrom_downscaling"],
        source=SOURCE,
        keep=functools.partial(_with_places, names, spans),
    )


def _with_places(
    names: Sequence[str], spans: Sequence[MonthSpan], made: Any
) -> tuple[Any, tuple[int, ...]]:
    """Return the plugin's variables of a sample, and where in them each file begins."""
    hours = made["time"].values.astype("datetime64[h]")
    return made[names], tuple(_place(hours, each) for each in spans)


def _place(hours: Any, span: MonthSpan) -> int:
    """Return where a file begins: the plugin joins months by their times, not as listed."""
    first, last, n_steps = span
    # An augmented file may hold a time more than once; it is alone.
    for start in np.flatnonzero(hours == np.datetime64(first))[:1].tolist():
        part = hours[start : start + n_steps]
        if len(part) == n_steps and part[-1] == np.datetime64(last):
            return int(start)
    raise FileFormatError(
        f"the plugin made other time steps than {first} to {last} of the files it was "
        "given; fetch them again"
    )


def _cut(opened: Opened, where: tuple[int, int]) -> Arrays:
    """Return each variable at the time step, in its own units."""
    made, firsts = opened("months")
    # In this thread alone: netCDF4 fails when several read at once.
    step = made.isel(time=firsts[where[0]] + where[1]).load(scheduler="synchronous")
    return {str(name): each.values for name, each in step.data_vars.items()}
