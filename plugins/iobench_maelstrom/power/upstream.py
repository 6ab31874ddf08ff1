"""How application A6's forecast loads today: all of it, before the first batch.

Described after the notebook of climetlab-plugin-a6: xarray merges the files, numpy and pandas
compute.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Baseline, Stream
from iobench_maelstrom.power.points import DAYS_PER_YEAR, air_density
from iobench_maelstrom.power.schema import BATCH_SIZE, HOURS_PER_RUN
from iobench_maelstrom.xarray_files import (
    loading_threads,
    open_file,
    open_joined,
    require_xarray,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.samples import Sample, SampleSpec

__all__ = [
    "ForecastFiles",
    "first_steps",
    "forecast_baseline",
    "one_sample",
]

HOURS_PER_DAY = 24
FORECAST_SOURCE = (
    "demo notebook of climetlab-plugin-a6: all files merged by open_mfdataset, nearest point, "
    "features and hourly production before the regression. It fits all hours at once: batches of "
    "64 are assumed; hours without production are left out"
)


@dataclass(frozen=True, slots=True)
class ForecastFiles:
    """The files of the forecast: two for each day on model levels and at the surface, and two."""

    model: tuple[Path, ...]
    surface: tuple[Path, ...]
    constants: Path
    production: Path

    @classmethod
    def of(cls, files: Sequence[Path]) -> ForecastFiles:
        """Return the files told apart, from the list that holds them in this order."""
        *weather, constants, production = files
        half = len(weather) // 2
        return cls(tuple(weather[:half]), tuple(weather[half:]), constants, production)


class ForecastTable:
    """The hours' features and production, made of all files when the first hour is asked for.

    Parameters
    ----------
    files : ForecastFiles
        What to load.
    model_level : int
        Where the wind is taken.
    """

    def __init__(self, files: ForecastFiles, model_level: int) -> None:
        self._files = files
        self._model_level = model_level

    @functools.cached_property
    def samples(self) -> list[Sample]:
        """Features and production of every hour that has both, in order of time."""
        first_hours = functools.partial(first_steps, HOURS_PER_RUN)
        with (
            open_joined(self._files.model, "time", preprocess=first_hours) as model,
            open_joined(self._files.surface, "time", preprocess=first_hours) as surface,
            open_file(self._files.production) as turbine,
            open_file(self._files.constants) as constants,
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
    files: ForecastFiles,
    model_level: int,
    spec: SampleSpec,
    n_samples: int,
    batch_size: int | None,
) -> Baseline:
    """Return how the forecast's training code loads these files.

    Raises
    ------
    MissingExtraError
        If xarray, netCDF4 or dask is not installed.
    """
    require_xarray("maelstrom-power", "dask")
    table = ForecastTable(files, model_level)
    stream = Stream(
        spec=spec,
        items=table.items,
        stages=(),  # no thread of its own: the training waits for all of it
        n_samples=one_sample,
        n_samples_all=n_samples,
        makes="read+decode+preprocess",
        ahead=0,
    )
    return Baseline(stream, batch_size or BATCH_SIZE, FORECAST_SOURCE)


def first_steps(n_steps: int | None, data: Any) -> Any:
    """Return the first steps of a forecast; None: all."""
    return data.isel(time=slice(n_steps))


def one_sample(item: object) -> int:
    """Return how many samples an item of these streams becomes."""
    return 1
