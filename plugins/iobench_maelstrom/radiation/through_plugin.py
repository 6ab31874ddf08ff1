"""Columns as the real CliMetLab plugin's ``to_xarray`` gives them, behind a loader with workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.datasets import Arrays, Baseline, MapStyle, PluginRequest, SampleIndex
from iobench.errors import OptionError
from iobench_maelstrom.plugin_samples import PluginSamples, require_plugin
from iobench_maelstrom.radiation.schema import PATCHES, FilePair
from iobench_maelstrom.radiation.sequences import Starts
from iobench_maelstrom.radiation.upstream import UPSTREAM_BATCH_SIZE, in_upstream_order

if TYPE_CHECKING:
    from iobench.datasets import Dataset
    from iobench.samples import Sample
    from iobench_maelstrom.radiation.outputs import Outputs

__all__ = ["PLUGIN", "PluginColumns", "column_request", "columns_through_plugin"]

PLUGIN: Final = "climetlab_maelstrom_radiation"
INSTALL: Final = (
    "pip install 'iobench[climetlab]' and then "
    "pip install --no-deps climetlab-maelstrom-radiation==0.7.5"
)
SOURCE = (
    "climetlab-maelstrom-radiation 0.7.5: each variable of a column by isel from what its "
    "to_xarray gives, which is lazy, so that reading, decoding, heating rates and grouping cannot "
    "be told apart. Assumed: a PyTorch DataLoader and batches of 512"
)


def column_request(
    pairs: Sequence[FilePair], files: Sequence[Path], *, solver: str, **options: Any
) -> PluginRequest:
    """Return what to ask the plugin for, for these pairs and no more.

    Parameters
    ----------
    pairs : sequence of FilePair
        All combinations of some dates, time steps and patches.
    files : sequence of Path
        The files of inputs, then in the same order those of outputs.
    solver : str
        As in `Radiation`.
    **options : object
        Further arguments of the plugin.
    """
    urls = [pair.input_url() for pair in pairs] + [pair.output_url(solver) for pair in pairs]
    at_hand: dict[str, Path | None] = dict(zip(urls, files, strict=True))
    asked = list(pairs)
    if len(pairs) == 1:
        # A single pair skips the plugin's code that joins files, and with it the irradiance by
        # column that grouping needs. The pair once more, as another patch, which no sample uses.
        [pair] = pairs
        other = FilePair(pair.date, pair.timestep, PATCHES[pair.patch - 1])
        at_hand |= {other.input_url(): files[0], other.output_url(solver): files[1]}
        asked.append(other)
    return PluginRequest(
        "maelstrom-radiation",
        {
            "dataset": solver,
            "date": sorted({pair.date for pair in asked}),
            "timestep": sorted({pair.timestep for pair in asked}),
            "patch": sorted({pair.patch for pair in asked}),
            **options,
        },
        at_hand,
        install=INSTALL,
    )


def columns_through_plugin(
    own: Dataset,
    files: Sequence[Path],
    index: SampleIndex,
    n_columns: Sequence[int],
    *,
    pairs: Sequence[FilePair],
    solver: str,
    raw_inputs: bool,
    outputs: Outputs,
) -> Baseline:
    """Return how the samples of ``index`` are made by the real plugin.

    Parameters
    ----------
    own : Dataset
        Ours; travels to workers.
    files : sequence of Path
        Inputs, then outputs.
    index : SampleIndex
        Of all their columns: ``where`` says (pair, column).
    n_columns : sequence of int
        Columns of each pair.
    pairs, solver, raw_inputs, outputs
        As in `Radiation`.

    Raises
    ------
    MissingExtraError
        If the plugin is not installed.
    OptionError
        If the plugin cannot do what the options ask for.
    """
    require_plugin(own.name, PLUGIN, install=INSTALL)
    if outputs.all_outputs and not raw_inputs:
        raise OptionError(
            "--pipeline climetlab: the plugin fails on all_outputs=true with grouped inputs, whose "
            "pressure_hl has another shape; add raw_inputs=true"
        )
    request = column_request(
        pairs,
        files,
        solver=solver,
        raw_inputs=raw_inputs,
        **dataclasses.asdict(outputs),
    )
    columns = PluginColumns(own, request, index.spec.names, _first_columns(pairs, n_columns))
    return Baseline(MapStyle(columns, index), UPSTREAM_BATCH_SIZE, SOURCE)


class PluginColumns(PluginSamples):
    """Columns of what the plugin opens.

    Parameters
    ----------
    own : Dataset
        Ours, whose samples these are.
    request : PluginRequest
        What to ask the plugin for.
    names : sequence of str
        Variables of a sample.
    first : sequence of int
        Where each pair's columns begin among the plugin's.
    """

    fused: tuple[str, ...] = ("read", "decode", "preprocess")

    def __init__(
        self,
        own: Dataset,
        request: PluginRequest,
        names: Sequence[str],
        first: Sequence[int],
    ) -> None:
        super().__init__(own, {request.name: request})
        self._request = request.name
        self._names = tuple(names)
        self._first = tuple(first)

    def cut(self, where: tuple[int, int]) -> Any:
        """Return a sample: one dask graph for each of its variables."""
        import dask

        pair, column = where
        opened, pool = self.opened(self._request)
        number = self._first[pair] + column
        with dask.config.set(pool=pool):
            return {name: opened[name].isel(column=number).to_numpy() for name in self._names}

    def preprocess(self, arrays: Arrays, where: tuple[int, int]) -> Sample:
        """Return what `read` has made."""
        return dict(arrays)

    def kept(self, made: Any) -> tuple[Any, ThreadPoolExecutor]:
        """Return what the plugin made, and threads for dask: its own do not outlive a fork."""
        from dask.system import CPU_COUNT

        return made, ThreadPoolExecutor(CPU_COUNT)


def _first_columns(pairs: Sequence[FilePair], n_columns: Sequence[int]) -> tuple[int, ...]:
    """Return where each pair's columns begin among the plugin's, which sorts pairs by URL."""
    order = in_upstream_order(pairs)
    starts = Starts([n_columns[number] for number in order]).starts
    first = dict(zip(order, starts, strict=False))
    return tuple(first[number] for number in range(len(pairs)))
