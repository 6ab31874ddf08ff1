"""Columns as the real CliMetLab plugin's ``to_xarray`` gives them, behind a loader with workers."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.datasets import (
    Arrays,
    Baseline,
    Locator,
    MapStyle,
    PluginRequest,
    PublishedStep,
    Raw,
    SampleIndex,
    open_through_plugin,
)
from iobench.errors import FileFormatError, IobenchError, MissingExtraError, OptionError
from iobench_maelstrom.radiation.schema import PATCHES, FilePair
from iobench_maelstrom.radiation.sequences import Starts
from iobench_maelstrom.radiation.upstream import UPSTREAM_BATCH_SIZE, in_upstream_order

if TYPE_CHECKING:
    from iobench.samples import Sample
    from iobench_maelstrom.radiation.dataset import Radiation

__all__ = ["INSTALL", "PluginColumns", "column_request", "columns_through_plugin", "require_plugin"]

INSTALL: Final = (
    "pip install 'iobench[climetlab]' and then "
    "pip install --no-deps climetlab-maelstrom-radiation==0.7.5"
)
SOURCE = (
    "climetlab-maelstrom-radiation 0.7.5: each variable of a column by isel from what its "
    "to_xarray gives, which is lazy, so that reading, decoding, heating rates and grouping cannot "
    "be told apart. Assumed: a PyTorch DataLoader and batches of 512"
)


def require_plugin(install: str = INSTALL) -> None:
    """Raise MissingExtraError if the plugin or CliMetLab is not installed; import neither."""
    for module in ("climetlab", "climetlab_maelstrom_radiation"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(f"--pipeline climetlab needs {module}: {install}")


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
    dataset: Radiation, files: Sequence[Path], index: SampleIndex, n_columns: Sequence[int]
) -> Baseline:
    """Return how the samples of ``index`` are made by the real plugin.

    Parameters
    ----------
    dataset : Radiation
        Ours; travels to workers.
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
    require_plugin()
    wanted = dataset.outputs
    if wanted.all_outputs and not dataset.raw_inputs:
        raise OptionError(
            "--pipeline climetlab: the plugin fails on all_outputs=true with grouped inputs, whose "
            "pressure_hl has another shape; add raw_inputs=true"
        )
    options = {field.name: getattr(wanted, field.name) for field in fields(wanted)}
    request = column_request(
        dataset.pairs, files, solver=dataset.solver, raw_inputs=dataset.raw_inputs, **options
    )
    columns = PluginColumns(dataset, request, index.spec.names, n_columns)
    return Baseline(MapStyle(columns, index), UPSTREAM_BATCH_SIZE, SOURCE)


class PluginColumns:
    """Columns of what the plugin opens, on first use and once in each process; a `Dataset`.

    Parameters
    ----------
    dataset : Radiation
        Ours, whose samples these are.
    request : PluginRequest
        What to ask the plugin for.
    names : sequence of str
        Variables of a sample.
    n_columns : sequence of int
        Columns of each pair.
    """

    fused: tuple[str, ...] = ("read", "decode", "preprocess")

    def __init__(
        self,
        dataset: Radiation,
        request: PluginRequest,
        names: Sequence[str],
        n_columns: Sequence[int],
    ) -> None:
        self.name, self.title = dataset.name, dataset.title
        self.published: PublishedStep | None = dataset.published
        self._like = dataset
        self._request = request
        self._names = tuple(names)
        self._first = _first_columns(dataset.pairs, n_columns)
        self._opened: tuple[int, Any, ThreadPoolExecutor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave what this process has opened behind."""
        return {**self.__dict__, "_opened": None}

    def files(self, locator: Locator) -> list[Path]:
        """Return the same files as our own dataset."""
        return self._like.files(locator)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the same samples as our own dataset."""
        return self._like.samples(files, locator)

    def read(self, where: tuple[int, int]) -> Any:
        """Return a sample: one dask graph for each of its variables."""
        import dask

        pair, column = where
        opened, pool = self._in_this_process()
        number = self._first[pair] + column
        with dask.config.set(pool=pool):
            return {name: opened[name].isel(column=number).to_numpy() for name in self._names}

    def decode(self, raw: Raw) -> Arrays:
        """Return what `read` has made."""
        arrays: Any = raw
        return arrays  # type: ignore[no-any-return]

    def preprocess(self, arrays: Arrays) -> Sample:
        """Return what `read` has made."""
        return dict(arrays)

    def _in_this_process(self) -> tuple[Any, ThreadPoolExecutor]:
        if self._opened is None or self._opened[0] != os.getpid():
            from dask.system import CPU_COUNT

            # Neither HDF5's handles nor dask's own threads outlive a fork.
            pool = ThreadPoolExecutor(CPU_COUNT)
            self._opened = os.getpid(), self._open(), pool
        return self._opened[1:]

    def _open(self) -> Any:
        try:
            return open_through_plugin(self._request)
        except IobenchError:
            raise
        except (OSError, ValueError) as error:
            raise FileFormatError(
                f"{next(iter(self._request.files.values()))} and the files beside it: the plugin "
                f"of {self.name} cannot open them as one: {' '.join(str(error).split())}"
            ) from error


def _first_columns(pairs: Sequence[FilePair], n_columns: Sequence[int]) -> tuple[int, ...]:
    """Return where each pair's columns begin among the plugin's, which sorts pairs by URL."""
    order = in_upstream_order(pairs)
    starts = Starts([n_columns[number] for number in order]).starts
    first = dict(zip(order, starts, strict=False))
    return tuple(first[number] for number in range(len(pairs)))
