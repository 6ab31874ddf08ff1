"""How application A6's deep clustering loads today: into the memory of each rank, then cropped."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from iobench.datasets import Baseline, Stream, StreamStage
from iobench.errors import StorageError
from iobench_maelstrom.hdf5_lock import LIBRARY
from iobench_maelstrom.power.schema import BATCH_SIZE
from iobench_maelstrom.power.upstream import first_steps, one_sample
from iobench_maelstrom.xarray_files import loading_threads, open_joined, require_xarray

if TYPE_CHECKING:
    from iobench.samples import Sample, SampleSpec

__all__ = ["WholeWeather", "clustering_baseline"]

CLUSTERING_SOURCE = (
    "maelstrom-a6, deep clustering: the whole data set in the memory of each rank, then one sample "
    "after the other, cropped, batches of 64, one loading worker. Assumed: loaded before the first "
    "batch; crops as ours, one each; not normalised"
)


class WholeWeather:
    """Weather on pressure levels, all in memory when the first sample is asked for.

    Parameters
    ----------
    files : tuple of Path
        In order of time.
    n_steps : int or None
        Steps taken of each, the first ones; None for all.
    variables, levels : sequence
        What is loaded: 5 and 5.
    where : sequence of tuple of int
        Time among all, first row and first column of every sample.
    shape : tuple of int
        Rows and columns of a sample.
    """

    def __init__(
        self,
        *,
        files: tuple[Path, ...],
        n_steps: int | None,
        variables: Sequence[str],
        levels: Sequence[int],
        where: Sequence[tuple[int, ...]],
        shape: tuple[int, int],
    ) -> None:
        self._files = files
        self._n_steps = n_steps
        self._variables = list(variables)
        self._levels = list(levels)
        self._where = where
        self._shape = shape

    def __len__(self) -> int:
        return len(self._where)

    @functools.cached_property
    def data(self) -> Any:
        """The ``xarray.Dataset``, loaded.

        Raises
        ------
        StorageError
            If that takes more memory than is free.
        """
        first = functools.partial(first_steps, self._n_steps)
        with LIBRARY, open_joined(self._files, "time", preprocess=first) as data:
            chosen = data[self._variables].sel(level=self._levels)
            free = psutil.virtual_memory().available
            if chosen.nbytes > free:
                raise StorageError(
                    f"{self._files[0].parent}: --pipeline upstream loads all of it into memory, "
                    f"{chosen.nbytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; take less "
                    "data or more memory"
                )
            with loading_threads():
                return chosen.load()

    def items(self, epoch: int) -> Iterator[int]:
        """Yield the numbers of all samples, in an order that follows from the epoch."""
        _ = self.data
        yield from np.random.default_rng([epoch]).permutation(len(self._where)).tolist()

    def sample(self, number: int) -> Sample:
        """Return a sample: the fields of a time, level by level, cropped."""
        time, row, column = self._where[number]
        step = self.data.isel(time=time)
        fields = np.concatenate(
            [step.sel(level=level).to_dataarray().to_numpy() for level in self._levels]
        )
        rows, columns = self._shape
        crop = fields[:, row : row + rows, column : column + columns]
        return {"fields": np.asarray(crop, dtype=np.float32, order="C")}


def clustering_baseline(whole: WholeWeather, spec: SampleSpec, batch_size: int | None) -> Baseline:
    """Return how deep clustering's training code loads.

    Raises
    ------
    MissingExtraError
        If xarray, netCDF4 or dask is not installed.
    """
    require_xarray("maelstrom-weather-pressure-level", "dask")
    stream = Stream(
        spec=spec,
        items=whole.items,
        stages=(StreamStage("preprocess", whole.sample),),
        n_samples=one_sample,
        n_samples_all=len(whole),
        makes="read+decode",
        ahead=2,
    )
    return Baseline(stream, batch_size or BATCH_SIZE, CLUSTERING_SOURCE)
