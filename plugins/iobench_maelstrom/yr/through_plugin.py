"""Samples of application A1 out of what the real plugin's ``to_xarray`` gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Baseline, MapStyle, PluginRequest
from iobench.errors import FileFormatError
from iobench_maelstrom.plugin_samples import PluginSamples, require_plugin
from iobench_maelstrom.yr.schema import CHANNELS, FEATURES, start_name

if TYPE_CHECKING:
    from iobench.datasets import Arrays, SampleIndex
    from iobench.samples import Sample
    from iobench_maelstrom.yr.dataset import Yr
    from iobench_maelstrom.yr.patches import Patch

__all__ = ["YrThroughPlugin", "plugin_baseline"]

BATCH_SIZE = 32
SOURCE = (
    "climetlab-maelstrom-yr, to_xarray(), patches cut from it by isel, in one worker. The plugin "
    "reads all files into memory before the first sample; more workers would each hold a copy."
)
SOURCE_OF_ONE = (
    "climetlab-maelstrom-yr, to_xarray(), patches cut from it by isel, in one worker. Asked for "
    "one file alone the plugin hands out the file's own variables, read by need and neither joined "
    "nor normalised: the rest is done here."
)


def plugin_baseline(dataset: Yr, files: Sequence[Path], index: SampleIndex) -> Baseline:
    """Return how samples are made from the plugin's dataset.

    Raises
    ------
    MissingExtraError
        If CliMetLab or the plugin is not installed.
    """
    require_plugin(dataset.name, "climetlab_maelstrom_yr")
    names = ("size", "parameter", "normalize", "predict_diff", "probabilistic_target")
    arguments: dict[str, Any] = {name: dataset.chosen[name] for name in names}
    arguments["dates"] = [start[:8] for start in dataset.starts]
    urls = [dataset.file_url({"dates": date}) for date in arguments["dates"]]
    request = PluginRequest(dataset.name, arguments, dict(zip(urls, map(Path, files), strict=True)))
    source = SOURCE if len(files) > 1 else SOURCE_OF_ONE
    return Baseline(
        MapStyle(YrThroughPlugin(dataset, request), index, workers=1), BATCH_SIZE, source
    )


class YrThroughPlugin(PluginSamples):
    """Patches of the plugin's dataset.

    Parameters
    ----------
    dataset : Yr
        Whose samples these are.
    request : PluginRequest
        What the plugin is asked for.
    """

    def __init__(self, dataset: Yr, request: PluginRequest) -> None:
        super().__init__(dataset, {request.name: request})
        self._request = request
        self._dataset = dataset

    def cut(self, where: Patch) -> Any:
        """Return the patch's part of each variable the plugin made.

        Raises
        ------
        FileFormatError
            If the plugin does not have the dates it was asked for.
        """
        opened, places = self.opened(self._request.name)
        n_y, n_x = self._dataset.grid.shape
        part = {
            "time": places[where.file],
            "leadtime": where.lead,
            "y": slice(where.y, where.y + n_y),
            "x": slice(where.x, where.x + n_x),
        }
        wanted = [each.name for each in self._dataset.sample_fields]
        names = ["predictors", "targets"] if "targets" in opened else wanted
        # Variables without their coordinates, which would be read anew for each sample; in this
        # thread alone, for netCDF4 fails when several read at once.
        cut = {name: opened[name].variable.isel(part, missing_dims="ignore") for name in names}
        return {name: each.load(scheduler="synchronous").values for name, each in cut.items()}

    def preprocess(self, arrays: Arrays, where: Patch) -> Sample:
        """Return ``predictors`` with all 17 channels, normalised, and ``targets``."""
        if "targets" not in arrays:
            return super().preprocess(arrays, where)
        inputs = np.empty((1, *self._dataset.grid.shape, len(CHANNELS)), dtype=np.float32)
        n_features = len(FEATURES)
        inputs[0, ..., :-n_features] = arrays["predictors"]
        features = inputs[0, ..., -n_features:]
        for number, values in enumerate(self._dataset.coordinates(where)):
            features[..., number] = values
        if self._dataset.chosen["normalize"]:
            features -= self._dataset.mean[-n_features:]
            features /= self._dataset.std[-n_features:]
        return {"predictors": inputs, "targets": np.ascontiguousarray(arrays["targets"])[None]}

    def kept(self, made: Any) -> tuple[Any, tuple[int, ...]]:
        """Return what the plugin made, and where in it each file is."""
        return made, self._places(made)

    def _places(self, made: Any) -> tuple[int, ...]:
        starts = [
            np.datetime64(f"{start[:4]}-{start[4:6]}-{start[6:11]}", "h")
            for start in map(start_name, self._request.arguments["dates"])
        ]
        found = np.atleast_1d(made["time"].values).astype("datetime64[h]").tolist()
        missing = [start for start in starts if start.item() not in found]
        if missing:
            raise FileFormatError(
                f"{self.name}: the plugin made no {missing[0]} of the files it was given; expected "
                "each file to hold the time its name says"
            )
        return tuple(found.index(start.item()) for start in starts)
