"""Samples of application A5 out of what the real plugin's ``to_xarray`` gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Baseline, MapStyle, PluginRequest
from iobench.errors import FileFormatError
from iobench_maelstrom.plugin_samples import PluginSamples, require_plugin

if TYPE_CHECKING:
    from iobench.datasets import SampleIndex
    from iobench_maelstrom.downscaling.dataset import Downscaling

__all__ = ["DownscalingThroughPlugin", "plugin_baseline"]

BATCH_SIZE = 32
SOURCE = (
    "climetlab-maelstrom-downscaling, to_xarray(), which opens the months with dask; each sample "
    "is taken from it by isel, loaded in the worker's own thread. Two loader workers are assumed."
)


@dataclass(frozen=True, slots=True)
class MonthSpan:
    """A file's time steps: the first, the last (``2016-01-01T00``) and how many."""

    first: str
    last: str
    n_steps: int


def plugin_baseline(dataset: Downscaling, files: Sequence[Path], index: SampleIndex) -> Baseline:
    """Return how samples are made from the plugin's dataset.

    Raises
    ------
    MissingExtraError
        If CliMetLab or the plugin is not installed.
    """
    require_plugin(dataset.name, "climetlab_maelstrom_downscaling")
    spans = _spans(index, len(files))
    months = [span.first[:7] for span in spans]
    arguments: dict[str, Any] = dataset.plugin_months(months)
    urls = [dataset.file_url({"months": month}) for month in months]
    if dataset.augmented_name:
        arguments, urls = {"dataset": dataset.augmented_name}, dataset.urls()
    by_url = dict(zip(urls, map(Path, files), strict=True))
    made = DownscalingThroughPlugin(dataset, PluginRequest(dataset.name, arguments, by_url), spans)
    return Baseline(MapStyle(made, index), BATCH_SIZE, SOURCE)


def _spans(index: SampleIndex, n_files: int) -> tuple[MonthSpan, ...]:
    hours: list[list[str]] = [[] for _ in range(n_files)]
    for (file, _), hour in zip(index.where, index.coordinate, strict=True):
        hours[file].append(hour)
    return tuple(MonthSpan(each[0], each[-1], len(each)) for each in hours)


class DownscalingThroughPlugin(PluginSamples):
    """Time steps of the plugin's dataset.

    Parameters
    ----------
    dataset : Downscaling
        Whose samples these are.
    request : PluginRequest
        What the plugin is asked for.
    spans : tuple of MonthSpan
        Of each file.
    """

    def __init__(
        self, dataset: Downscaling, request: PluginRequest, spans: tuple[MonthSpan, ...]
    ) -> None:
        super().__init__(dataset, {request.name: request})
        self._request = request.name
        self._names = [each.name for each in dataset.sample_fields]
        self._spans = spans

    def cut(self, where: tuple[int, int]) -> Any:
        """Return each variable at the time step, in its own units.

        Raises
        ------
        MissingFileError
            If a month is gone.
        FileFormatError
            If the plugin's time steps are not those of the files.
        """
        opened, firsts = self.opened(self._request)
        step = opened.isel(time=firsts[where[0]] + where[1])
        # In this thread alone: netCDF4 fails when several read at once.
        step = step.load(scheduler="synchronous")
        return {name: step[name].values for name in self._names}

    def kept(self, made: Any) -> tuple[Any, tuple[int, ...]]:
        """Return the plugin's variables of a sample, and where in them each file begins."""
        hours = made["time"].values.astype("datetime64[h]")
        return made[self._names], tuple(self._place(hours, each) for each in self._spans)

    def _place(self, hours: Any, span: MonthSpan) -> int:
        """Return where a file begins: the plugin joins months by their times, not as listed."""
        # An augmented file may hold a time more than once; it is alone.
        starts = np.flatnonzero(hours == np.datetime64(span.first))[:1].tolist()
        for start in starts:
            part = hours[start : start + span.n_steps]
            if len(part) == span.n_steps and part[-1] == np.datetime64(span.last):
                return int(start)
        raise FileFormatError(
            f"{self.name}: the plugin made other time steps than {span.first} to {span.last} of "
            "the files it was given; fetch them again"
        )
