"""Samples of application A5 out of what the real plugin's ``to_xarray`` gives."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Baseline, MapStyle, PluginRequest, open_through_plugin
from iobench.errors import FileFormatError
from iobench_maelstrom.yr.through_plugin import check_plugin

if TYPE_CHECKING:
    from iobench.datasets import Arrays, Locator, PublishedStep, Raw, SampleIndex
    from iobench.samples import Sample
    from iobench_maelstrom.downscaling.dataset import Downscaling
    from iobench_maelstrom.downscaling.files import Where
    from iobench_maelstrom.downscaling.schema import Tier

__all__ = ["DownscalingThroughPlugin", "MonthSpan", "plugin_baseline"]

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


def plugin_baseline(
    dataset: Downscaling, names: Sequence[str], files: Sequence[Path], index: SampleIndex
) -> Baseline:
    """Return how samples are made from the plugin's dataset.

    Raises
    ------
    MissingExtraError
        If CliMetLab or the plugin is not installed.
    """
    check_plugin("climetlab_maelstrom_downscaling", dataset.name)
    spans = _spans(index, len(files))
    request = _request(dataset.tier, dataset.augmented_name, files, spans)
    made = DownscalingThroughPlugin(dataset, tuple(names), request, spans)
    return Baseline(MapStyle(made, index), BATCH_SIZE, SOURCE)


def _spans(index: SampleIndex, n_files: int) -> tuple[MonthSpan, ...]:
    hours: list[list[str]] = [[] for _ in range(n_files)]
    for (file, _), hour in zip(index.where, index.coordinate, strict=True):
        hours[file].append(hour)
    return tuple(MonthSpan(each[0], each[-1], len(each)) for each in hours)


def _request(
    tier: Tier, augmented: str, files: Sequence[Path], spans: Sequence[MonthSpan]
) -> PluginRequest:
    if augmented:
        urls = [tier.augmented[augmented][0]]
        arguments: dict[str, Any] = {"dataset": augmented}
    else:
        months = [span.first[:7] for span in spans]
        urls = [tier.month_url(month) for month in months]
        arguments = {"months": [f"{month}-01" for month in months]}
    return PluginRequest(tier.name, arguments, dict(zip(urls, map(Path, files), strict=True)))


class DownscalingThroughPlugin:
    """Time steps of the plugin's dataset; a `Dataset`.

    What the plugin opened stays with the process: a copy in another one opens it again on first
    use.

    Parameters
    ----------
    dataset : Downscaling
        Whose samples these are.
    names : tuple of str
        Variables of a sample.
    request : PluginRequest
        What the plugin is asked for.
    spans : tuple of MonthSpan
        Of each file.
    """

    fused: tuple[str, ...] = ("read", "decode")

    def __init__(
        self,
        dataset: Downscaling,
        names: tuple[str, ...],
        request: PluginRequest,
        spans: tuple[MonthSpan, ...],
    ) -> None:
        self.dataset = dataset
        self.request = request
        self.name = dataset.name
        self.title = f"{dataset.title}, through the CliMetLab plugin"
        self.published: PublishedStep | None = dataset.published
        self._names = names
        self._spans = spans
        self._opened: tuple[int, Any, tuple[int, ...]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def files(self, locator: Locator) -> list[Path]:
        """Return the files of the dataset."""
        return self.dataset.files(locator)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples of the dataset."""
        return self.dataset.samples(files, locator)

    def read(self, where: Where) -> Any:
        """Return each variable at the time step, in its own units.

        Raises
        ------
        MissingFileError
            If a month is gone.
        FileFormatError
            If the plugin's time steps are not those of the files.
        """
        opened, firsts = self._plugin_dataset()
        time = self.dataset.tier.dims[0]
        step = opened.isel({time: firsts[where[0]] + where[1]})
        # In this thread alone: netCDF4 fails when several read at once.
        step = step.load(scheduler="synchronous")
        return {name: step[name].values for name in self._names}

    def decode(self, raw: Raw) -> Arrays:
        """Refuse: ``read`` decodes."""
        raise TypeError(f"{self.name}: read decodes, call preprocess next")

    def preprocess(self, arrays: Arrays) -> Sample:
        """Return ``inputs`` and ``targets``, z-scored."""
        return self.dataset.preprocess(arrays)

    def _plugin_dataset(self) -> tuple[Any, tuple[int, ...]]:
        """Return what the plugin made of a sample's variables, and where in it each file begins."""
        if self._opened is None or self._opened[0] != os.getpid():
            with warnings.catch_warnings():
                # xarray's, on defaults of open_mfdataset that will change
                warnings.simplefilter("ignore")
                made = open_through_plugin(self.request)[list(self._names)]
            hours = made[self.dataset.tier.dims[0]].values.astype("datetime64[h]")
            self._opened = (
                os.getpid(),
                made,
                tuple(self._place(hours, each) for each in self._spans),
            )
        return self._opened[1], self._opened[2]

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
