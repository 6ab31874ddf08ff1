"""How application A6 loads today: all of it into memory, before the first batch.

The forecast is described after the notebook of climetlab-plugin-a6, in which xarray merges the
files, numpy and pandas compute; deep clustering after 4castRenewables/maelstrom-a6.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Baseline, Stream, StreamStage
from iobench.errors import StorageError
from iobench_maelstrom.hdf5_lock import LIBRARY
from iobench_maelstrom.power.points import DAYS_PER_YEAR, air_density
from iobench_maelstrom.power.schema import (
    BATCH_SIZE,
    CLUSTERING_LEVELS,
    CLUSTERING_VARIABLES,
    HOURS_PER_RUN,
)
from iobench_maelstrom.xarray_files import (
    loading_threads,
    open_file,
    open_joined,
    require_xarray,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import SampleIndex
    from iobench.samples import Sample
    from iobench_maelstrom.power.clustering import ClusteringFields

HOURS_PER_DAY = 24
FORECAST_SOURCE = (
    "demo notebook of climetlab-plugin-a6: all files merged by open_mfdataset, nearest point, "
    "features and hourly production before the regression. It fits all hours at once: batches of "
    "64 are assumed; hours without production are left out"
)
CLUSTERING_SOURCE = (
    "maelstrom-a6, deep clustering: the whole data set in the memory of each rank, then one sample "
    "after the other, cropped, batches of 64, one loading worker. Assumed: loaded before the first "
    "batch; crops as ours, one each; not normalised"
)


class ForecastTable:
    """The hours' features and production, made of all files when the first hour is asked for.

    Parameters
    ----------
    files : sequence of Path
        Forecasts on model levels, as many at the surface, the constants, the production.
    model_level : int
        Where the wind is taken.
    """

    def __init__(self, files: Sequence[Path], model_level: int) -> None:
        self._files = files
        self._model_level = model_level

    @functools.cached_property
    def samples(self) -> list[Sample]:
        """Features and production of every hour that has both, in order of time."""
        *weather, constants_file, turbine_file = self._files
        half = len(weather) // 2
        with (
            _joined(weather[:half], HOURS_PER_RUN) as model,
            _joined(weather[half:], HOURS_PER_RUN) as surface,
            open_file(turbine_file) as turbine,
            open_file(constants_file) as constants,
        ):
            produced = _hourly(turbine["production"])
            place = {dim: float(turbine[dim][0]) for dim in ("latitude", "longitude")}
            point = model.sel(place, method="nearest").sel(level=self._model_level)
            pressure = surface["sp"].sel(place, method="nearest")
            with loading_threads():
                point, pressure = point.load(), pressure.load()
            features = self._features(point, pressure, constants.load())
            times = point.indexes["time"]
        both = produced.dropna().index.intersection(times)
        chosen = times.get_indexer(both)
        table = features[chosen].astype(np.float32)
        targets = produced.loc[both].clip(lower=0).to_numpy(np.float32)
        return [
            {"features": row, "production": np.asarray(target)}
            for row, target in zip(table, targets, strict=True)
        ]

    def items(self, epoch: int) -> Iterator[Sample]:
        """Yield all samples; the order is the same in each pass."""
        yield from self.samples

    def _features(self, point: Any, pressure: Any, constants: Any) -> NDArray[np.float64]:
        """Return the five features of every hour, shape (hour, feature)."""
        bounds = slice(self._model_level - 1, self._model_level + 1)
        a, b = (float(constants[name].values[0, bounds].mean()) for name in ("hyai", "hybi"))
        t, q, u, v = (point[name].values.astype(np.float64) for name in ("t", "q", "u", "v"))
        density = air_density(a + b * pressure.values.astype(np.float64), t, q)
        side = np.copysign(1.0, u)
        direction = 90.0 - np.degrees(np.arctan2(v * side, np.abs(u)))
        times = point.indexes["time"]
        day = np.asarray(times.hour) / HOURS_PER_DAY
        year = (np.asarray(times.day_of_year) - 1) / DAYS_PER_YEAR
        return np.stack([density, np.hypot(u, v), direction, day, year], axis=1)


def _hourly(production: Any) -> Any:
    """Return the mean production of every hour, a ``pandas.Series``."""
    return production.isel(level=0, latitude=0, longitude=0).to_series().resample("1h").mean()


def forecast_baseline(
    files: Sequence[Path], model_level: int, index: SampleIndex, batch_size: int | None
) -> Baseline:
    """Return how the forecast's training code loads these files.

    Raises
    ------
    MissingExtraError
        If xarray, netCDF4 or dask is not installed.
    """
    require_xarray("maelstrom-power", "dask")
    stream = Stream(
        spec=index.spec,
        items=ForecastTable(files, model_level).items,
        stages=(),  # no thread of its own: the training waits for all of it
        n_samples=lambda _: 1,
        n_samples_all=len(index),
        makes="read+decode+preprocess",
        ahead=0,
    )
    return Baseline(stream, batch_size or BATCH_SIZE, FORECAST_SOURCE)


class WholeWeather:
    """Weather on pressure levels, all in memory when the first sample is asked for."""

    def __init__(self, own: ClusteringFields, files: Sequence[Path], index: SampleIndex) -> None:
        self._own, self._files, self._index = own, files, index

    @functools.cached_property
    def data(self) -> Any:
        """The ``xarray.Dataset``, loaded.

        Raises
        ------
        StorageError
            If that takes more memory than is free.
        """
        import psutil

        with LIBRARY, _joined(self._files, self._own.n_taken) as data:
            chosen = data[list(CLUSTERING_VARIABLES)].sel(level=list(CLUSTERING_LEVELS))
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
        yield from np.random.default_rng([epoch]).permutation(len(self._index)).tolist()

    def sample(self, number: int) -> Sample:
        """Return a sample: the fields of a time, level by level, cropped."""
        run, step, row, column = self._index.where[number]
        fields_of = self.data.isel(time=self._own.position(run, step))
        fields = np.concatenate(
            [fields_of.sel(level=n).to_dataarray().to_numpy() for n in CLUSTERING_LEVELS]
        )
        rows, columns = self._own.size.shape
        crop = fields[:, row : row + rows, column : column + columns]
        return {"fields": np.asarray(crop, dtype=np.float32, order="C")}


def clustering_baseline(
    own: ClusteringFields, files: Sequence[Path], index: SampleIndex, batch_size: int | None
) -> Baseline:
    """Return how deep clustering's training code loads.

    Raises
    ------
    MissingExtraError
        If xarray, netCDF4 or dask is not installed.
    """
    require_xarray(own.name, "dask")
    whole = WholeWeather(own, files, index)
    stream = Stream(
        spec=index.spec,
        items=whole.items,
        stages=(StreamStage("preprocess", whole.sample),),
        n_samples=lambda _: 1,
        n_samples_all=len(index),
        makes="read+decode",
        ahead=2,
    )
    return Baseline(stream, batch_size or BATCH_SIZE, CLUSTERING_SOURCE)


def _joined(paths: Sequence[Path], n_steps: int | None) -> Any:
    """Return forecasts as one data set along the time, the first steps of each; None: all."""
    return open_joined(paths, "time", preprocess=lambda data: data.isel(time=slice(n_steps)))
