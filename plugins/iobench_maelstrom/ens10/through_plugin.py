"""Samples of ENS-10 out of what the real plugin's ``to_xarray`` gives, through cfgrib."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Baseline,
    MapStyle,
    PluginRequest,
    open_through_plugin,
    read_messages,
)
from iobench.errors import FileFormatError, MissingExtraError, MissingFileError
from iobench_maelstrom.ens10.schema import LEAD_HOURS, forecast_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.datasets import Arrays, FileExtent, Locator, PublishedStep, Raw, SampleIndex
    from iobench.samples import Sample
    from iobench_maelstrom.ens10.dataset import Ens10
    from iobench_maelstrom.ens10.messages import Layout

__all__ = ["Ens10ThroughPlugin", "OpenedByPlugin", "check_plugin", "plugin_baseline"]

BATCH_SIZE = 1
SOURCE = (
    "climetlab-maelstrom-ens10, to_xarray() of each start date's file (cfgrib, without dask), one "
    "year and step by isel and sel, mean and deviation by iobench. The plugin has no target: it "
    "is read by iobench."
)

Where = tuple[str, str, "tuple[FileExtent, ...]"]
"""Start date (``MMDD``); start as NumPy spells it; where the target's bytes are, if any."""


def plugin_baseline(dataset: Ens10, layout: Layout, index: SampleIndex) -> Baseline:
    """Return how samples are made from the plugin's datasets.

    Raises
    ------
    MissingExtraError
        If CliMetLab or the plugin is not installed.
    MissingFileError
        If a start date is spread over several files: the plugin reads the published one.
    """
    check_plugin()
    made = Ens10ThroughPlugin(dataset, layout, _requests(dataset, index))
    n_targets = 1 if dataset.has_target else 0
    where = [
        (_date(start), start, tuple(extents[len(extents) - n_targets :]))
        for start, extents in zip(index.coordinate, index.where, strict=True)
    ]
    own = dataclasses.replace(index, where=where, setup={})
    return Baseline(MapStyle(made, own), BATCH_SIZE, SOURCE)


def check_plugin() -> None:
    """Check that CliMetLab and the plugin are installed, importing neither.

    They start threads, which do not live through the fork that makes the workers.

    Raises
    ------
    MissingExtraError
        If one is not; says what installs both.
    """
    for module in ("climetlab", "climetlab_maelstrom_ens10"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(
                f"--pipeline climetlab needs {module}: pip install 'iobench[climetlab]'"
            )


def _date(coordinate: str) -> str:
    return coordinate[5:7] + coordinate[8:10]


def _requests(dataset: Ens10, index: SampleIndex) -> dict[str, PluginRequest]:
    """Return what the plugin is asked for, by start date; a file holds one in all years."""
    dtype = dataset.task.dtype
    found: dict[str, str] = {}
    for start, extents in zip(index.coordinate, index.where, strict=True):
        date, path = _date(start), extents[0][0]
        if found.setdefault(date, path) != path:
            raise MissingFileError(
                f"maelstrom-ens10: the plugin reads all years of {date} from "
                f"{forecast_url(date, dtype)}, here they are in {found[date]} and {path}; fetch "
                "that file and name its folder with --data-dir"
            )
    return {
        date: PluginRequest(
            "maelstrom-ens10",
            {"date": date, "dtype": dtype},
            {forecast_url(date, dtype): Path(path)},
        )
        for date, path in found.items()
    }


class OpenedByPlugin:
    """What the plugin opened in this process, each on first use; small in a pickle.

    Parameters
    ----------
    requests : mapping of str to PluginRequest
        By what they are asked for.
    """

    def __init__(self, requests: Mapping[str, PluginRequest]) -> None:
        self.requests = requests
        self._opened: dict[str, Any] = {}
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def __getitem__(self, key: str) -> Any:
        """Return the ``xarray.Dataset`` of a request."""
        if self._process != os.getpid():
            self._opened, self._process = {}, os.getpid()
        if key not in self._opened:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the plugin's, cfgrib's and xarray's own
                self._opened[key] = open_through_plugin(self.requests[key])
        return self._opened[key]


class Ens10ThroughPlugin:
    """Samples of the plugin's datasets; a `Dataset`.

    Parameters
    ----------
    dataset : Ens10
        Prepared: whose samples these are, and what makes a sample of arrays.
    layout : Layout
        Its members and grid.
    requests : mapping of str to PluginRequest
        By start date (``MMDD``).
    """

    name = "maelstrom-ens10"
    title = "ENS-10 ensemble forecasts through the CliMetLab plugin (MAELSTROM A4)"
    fused: tuple[str, ...] = ("read", "decode")

    def __init__(
        self, dataset: Ens10, layout: Layout, requests: Mapping[str, PluginRequest]
    ) -> None:
        self.dataset = dataset
        self.published: PublishedStep | None = dataset.published
        self._layout = layout.without_rows()
        self._opened = OpenedByPlugin(requests)

    def files(self, locator: Locator) -> list[Path]:
        """Return the files of the dataset."""
        return self.dataset.files(locator)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples of the dataset, where its own reader finds them."""
        return self.dataset.samples(files, locator)

    def read(self, where: Where) -> Any:
        """Return each variable's members, shape (member, latitude, longitude), and the target.

        Raises
        ------
        FileFormatError
            If the plugin has other members or another grid than our index.
        """
        date, start, target = where
        fields = self._opened[date].sel(
            time=np.datetime64(start, "ns"), step=np.timedelta64(LEAD_HOURS, "h")
        )
        task, shape = self.dataset.task, (self._layout.n_members, *self._layout.shape)
        fields = fields.sel(isobaricInhPa=task.level) if task.level else fields.isel(surface=0)
        members = tuple(fields.number.values.tolist())
        arrays = {}
        for variable in task.variables:
            name = variable.name.removesuffix(str(task.level)) if task.level else variable.name
            values = fields[name].values
            if values.shape != shape or members != self._layout.members:
                raise FileFormatError(
                    f"maelstrom-ens10: of {name} on {date} the plugin made {values.shape}, members "
                    f"{members}, expected {shape}, {self._layout.members}; fetch the file again"
                )
            arrays[variable.name] = values
        if target:
            arrays["target"] = self.dataset.target_array(read_messages(target)[0])
        return arrays

    def decode(self, raw: Raw) -> Arrays:
        """Refuse: ``read`` decodes."""
        raise TypeError(f"{self.name}: read decodes, call preprocess next")

    def preprocess(self, arrays: Arrays) -> Sample:
        """Return ``inputs``, normalised mean and deviation by channel, and the target."""
        return self.dataset.preprocess(arrays)
