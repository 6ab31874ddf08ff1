"""Columns as the real CliMetLab plugin's ``to_xarray`` gives them, behind a loader with workers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.datasets import Arrays, Baseline, PluginRequest, SampleIndex
from iobench.errors import OptionError
from iobench_maelstrom.plugin_samples import Opened, plugin_baseline
from iobench_maelstrom.radiation.published import INSTALL, Starts

if TYPE_CHECKING:
    from iobench_maelstrom.radiation.dataset import Radiation

PLUGIN: Final = "climetlab_maelstrom_radiation"
SOURCE = (
    "climetlab-maelstrom-radiation 0.7.5: each variable of a column by isel from what its "
    "to_xarray gives, which is lazy, so that reading, decoding, heating rates and grouping cannot "
    "be separated. Assumed: a PyTorch DataLoader and batches of 512"
)


def columns_through_plugin(
    own: Radiation, files: Sequence[Path], index: SampleIndex, n_columns: Sequence[int]
) -> Baseline:
    """Return how the samples of ``index`` are made by the real plugin.

    Parameters
    ----------
    own : Radiation
        Travels to workers: without what is open.
    files : sequence of Path
        Inputs, then outputs.
    index : SampleIndex
        Of all their columns: ``where`` says (pair, column).
    n_columns : sequence of int
        Columns of each pair.

    Raises
    ------
    MissingExtraError
        If the plugin is not installed.
    OptionError
        If the plugin cannot do what the options ask for.
    """
    if own.outputs["all_outputs"] and not own.raw_inputs:
        raise OptionError(
            "--pipeline climetlab: the plugin fails on all_outputs=true with grouped inputs, whose "
            "pressure_hl has another shape; add raw_inputs=true"
        )
    # The plugin joins pairs in an order of its own: where each one's columns begin there.
    order = own.in_upstream_order()
    starts = Starts([n_columns[number] for number in order]).starts
    places = dict(zip(order, starts, strict=False))
    first = [places[number] for number in range(len(order))]
    return plugin_baseline(
        own,
        index,
        {own.name: _request(own, files)},
        functools.partial(_cut, own.name, index.spec.names, first),
        needs=[PLUGIN],
        install=INSTALL,
        source=SOURCE,
        keep=_with_threads,
        is_sample=True,
    )


def _request(own: Radiation, files: Sequence[Path]) -> PluginRequest:
    """Return what to ask the plugin for: these pairs and no more."""
    at_hand: dict[str, Path | None] = dict(zip(own.urls(), files, strict=True))
    asked = list(own.file_numbers)
    if len(asked) == 1:
        # A single pair skips the plugin's code that joins files, and with it the irradiance by
        # column that grouping needs. The pair once more, as another patch, which no sample uses.
        [pair] = asked
        other = {**pair, "patch": "1" if pair["patch"] == "0" else "0"}
        at_hand |= dict(zip(own.pair_urls(other), files, strict=True))
        asked.append(other)
    arguments = {**own.plugin_arguments(asked), "raw_inputs": own.raw_inputs, **own.outputs}
    return PluginRequest(own.name, arguments, at_hand, install=INSTALL)


def _with_threads(made: Any) -> tuple[Any, ThreadPoolExecutor]:
    """Return what the plugin made, and threads for dask: its own do not outlive a fork."""
    from dask.system import CPU_COUNT

    return made, ThreadPoolExecutor(CPU_COUNT)


def _cut(
    name: str, names: Sequence[str], first: Sequence[int], opened: Opened, where: tuple[int, int]
) -> Arrays:
    """Return a sample: one dask graph for each of its variables."""
    import dask

    pair, column = where
    made, pool = opened(name)
    with dask.config.set(pool=pool):
        return {each: made[each].isel(column=first[pair] + column).to_numpy() for each in names}
