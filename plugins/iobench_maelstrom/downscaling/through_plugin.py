"""Samples of application A5 out of what the real plugin's ``to_xarray`` gives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.datasets import Baseline, PluginRequest
from iobench_maelstrom.plugin_samples import joined_files, plugin_baseline

if TYPE_CHECKING:
    from iobench.datasets import SampleIndex
    from iobench_maelstrom.downscaling.dataset import Downscaling


def downscaling_through_plugin(
    dataset: Downscaling, files: Sequence[Path], index: SampleIndex
) -> Baseline:
    """Return how time steps are taken out of the plugin's dataset, which joins months by time."""
    hours: list[list[str]] = [[] for _ in files]
    for (file, _), hour in zip(index.where, index.coordinate, strict=True):
        hours[file].append(hour)
    arguments: dict[str, Any] = dataset.plugin_months([each[0][:7] for each in hours])
    urls = [dataset.file_url({"months": each[0][:7]}) for each in hours]
    if dataset.augmented_name:
        arguments, urls = {"dataset": dataset.augmented_name}, dataset.urls()
    request = PluginRequest(dataset.name, arguments, dict(zip(urls, map(Path, files), strict=True)))
    in_time = sorted(range(len(files)), key=lambda number: hours[number][0])
    begins = [0, *itertools.accumulate(len(hours[number]) for number in in_time)]
    places = [(dataset.name, begins[in_time.index(number)]) for number in range(len(files))]
    return plugin_baseline(
        dataset,
        index,
        {dataset.name: request},
        joined_files(dataset, places),
        package="climetlab-maelstrom-downscaling",
    )
