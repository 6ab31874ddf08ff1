"""Columns out of what the real CliMetLab plugin's ``to_xarray`` gives."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.datasets import Baseline, PluginRequest, SampleIndex, VariablePart
from iobench.errors import OptionError
from iobench_maelstrom.plugin_samples import plugin_baseline
from iobench_maelstrom.radiation.published import INSTALL, Starts

if TYPE_CHECKING:
    from iobench_maelstrom.radiation.dataset import Radiation


def columns_through_plugin(
    own: Radiation, files: Sequence[Path], index: SampleIndex, n_columns: Sequence[int]
) -> Baseline:
    """Return how columns are taken out of the plugin's dataset; ``n_columns`` are each pair's."""
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
    select = functools.partial(_parts_of, own.name, index.spec.names, first)
    return plugin_baseline(
        own,
        index,
        {own.name: _request(own, files)},
        select,
        package="climetlab-maelstrom-radiation",
        install=INSTALL,
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


def _parts_of(
    name: str, names: Sequence[str], first: Sequence[int], where: tuple[int, int]
) -> list[VariablePart]:
    pair, column = where
    at = {"column": first[pair] + column}
    return [VariablePart(name, each, at) for each in names]
