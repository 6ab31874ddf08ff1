"""Samples of application A1 out of what the real plugin's ``to_xarray`` gives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.datasets import Baseline, PluginRequest, VariablePart
from iobench_maelstrom.plugin_samples import plugin_baseline

if TYPE_CHECKING:
    from iobench.datasets import SampleIndex
    from iobench_maelstrom.yr.dataset import Yr
    from iobench_maelstrom.yr.patches import Patch


def yr_through_plugin(dataset: Yr, files: Sequence[Path], index: SampleIndex) -> Baseline:
    """Return how patches are taken out of the plugin's dataset.

    It reads all files into memory when it is opened, so one worker has it. Asked for one file alone
    it gives the file's own variables.
    """
    names = ("size", "parameter", "normalize", "predict_diff", "probabilistic_target")
    dates = [start[:8] for start in dataset.starts]
    arguments = {**{name: dataset.chosen[name] for name in names}, "dates": dates}
    urls = [dataset.file_url({"dates": date}) for date in dates]
    request = PluginRequest(dataset.name, arguments, dict(zip(urls, map(Path, files), strict=True)))
    variables = ["predictors", "targets"]
    if len(files) == 1:
        variables = [each.name for each in dataset.sample_fields]
    places = [sorted(dates).index(date) for date in dates]
    select = functools.partial(_parts_of, dataset.name, variables, places, dataset.grid.shape)
    return plugin_baseline(
        dataset,
        index,
        {dataset.name: request},
        select,
        package="climetlab-maelstrom-yr",
        workers=1,
    )


def _parts_of(
    name: str,
    variables: Sequence[str],
    places: Sequence[int],
    shape: tuple[int, int],
    where: Patch,
) -> list[VariablePart]:
    part: dict[str, int | slice] = {
        "time": places[where.file],
        "leadtime": where.lead,
        "y": slice(where.y, where.y + shape[0]),
        "x": slice(where.x, where.x + shape[1]),
    }
    return [VariablePart(name, variable, part) for variable in variables]
