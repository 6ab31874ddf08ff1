"""Samples of application A1 out of what the real plugin's ``to_xarray`` gives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Baseline, PluginRequest
from iobench.errors import FileFormatError
from iobench_maelstrom.plugin_samples import Opened, plugin_baseline
from iobench_maelstrom.yr.schema import CHANNELS, FEATURES, start_name

if TYPE_CHECKING:
    from iobench.datasets import Arrays, SampleIndex
    from iobench.samples import Sample
    from iobench_maelstrom.yr.dataset import Yr
    from iobench_maelstrom.yr.patches import Patch

SOURCE = (
    "climetlab-maelstrom-yr, to_xarray(), patches cut from it by isel, in one worker. The plugin "
    "reads all files into memory before the first sample; more workers would each hold a copy."
)
SOURCE_OF_ONE = (
    "climetlab-maelstrom-yr, to_xarray(), patches cut from it by isel, in one worker. Asked for "
    "one file alone the plugin hands out the file's own variables, read by need and neither joined "
    "nor normalised: the rest is done here."
)


def yr_through_plugin(dataset: Yr, files: Sequence[Path], index: SampleIndex) -> Baseline:
    """Return how samples are made from the plugin's dataset."""
    names = ("size", "parameter", "normalize", "predict_diff", "probabilistic_target")
    dates = [start[:8] for start in dataset.starts]
    arguments = {**{name: dataset.chosen[name] for name in names}, "dates": dates}
    urls = [dataset.file_url({"dates": date}) for date in dates]
    request = PluginRequest(dataset.name, arguments, dict(zip(urls, map(Path, files), strict=True)))
    return plugin_baseline(
        dataset,
        index,
        {dataset.name: request},
        functools.partial(_cut, dataset),
        needs=["climetlab_maelstrom_yr"],
        source=SOURCE if len(files) > 1 else SOURCE_OF_ONE,
        workers=1,
        keep=functools.partial(_with_places, dates),
        finish=functools.partial(_finished, dataset),
    )


def _with_places(dates: Sequence[str], made: Any) -> tuple[Any, tuple[int, ...]]:
    """Return what the plugin made, and where in it each file is."""
    starts = [
        np.datetime64(f"{start[:4]}-{start[4:6]}-{start[6:11]}", "h")
        for start in map(start_name, dates)
    ]
    found = np.atleast_1d(made["time"].values).astype("datetime64[h]").tolist()
    missing = [start for start in starts if start.item() not in found]
    if missing:
        raise FileFormatError(
            f"maelstrom-yr: the plugin made no {missing[0]} of the files it was given; expected "
            "each file to hold the time its name says"
        )
    return made, tuple(found.index(start.item()) for start in starts)


def _cut(dataset: Yr, opened: Opened, where: Patch) -> Arrays:
    """Return the patch's part of each variable the plugin made."""
    made, places = opened(dataset.name)
    n_y, n_x = dataset.grid.shape
    part = {
        "time": places[where.file],
        "leadtime": where.lead,
        "y": slice(where.y, where.y + n_y),
        "x": slice(where.x, where.x + n_x),
    }
    wanted = [each.name for each in dataset.sample_fields]
    names = ["predictors", "targets"] if "targets" in made else wanted
    # Variables without their coordinates, which would be read anew for each sample; in this thread
    # alone, for netCDF4 fails when several read at once.
    cut = {name: made[name].variable.isel(part, missing_dims="ignore") for name in names}
    return {name: each.load(scheduler="synchronous").values for name, each in cut.items()}


def _finished(dataset: Yr, arrays: Arrays, where: Patch) -> Sample:
    """Return ``predictors`` with all 17 channels, normalised, and ``targets``."""
    if "targets" not in arrays:
        return dataset.preprocess(arrays, where)
    inputs = np.empty((1, *dataset.grid.shape, len(CHANNELS)), dtype=np.float32)
    n_features = len(FEATURES)
    inputs[0, ..., :-n_features] = arrays["predictors"]
    features = inputs[0, ..., -n_features:]
    for number, values in enumerate(dataset.coordinates(where)):
        features[..., number] = values
    if dataset.chosen["normalize"]:
        features -= dataset.mean[-n_features:]
        features /= dataset.std[-n_features:]
    return {"predictors": inputs, "targets": np.ascontiguousarray(arrays["targets"])[None]}
