"""Samples of application A1 out of what the real plugin's ``to_xarray`` gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Baseline, MapStyle, PluginRequest
from iobench.errors import FileFormatError
from iobench_maelstrom.plugin_samples import PluginSamples, require_plugin
from iobench_maelstrom.yr.schema import CHANNELS, FEATURES, file_url, start_name

if TYPE_CHECKING:
    from iobench.datasets import Arrays, SampleIndex
    from iobench.samples import Sample
    from iobench_maelstrom.yr.dataset import Yr
    from iobench_maelstrom.yr.patches import Patch
    from iobench_maelstrom.yr.prepared import YrPrepared

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


def plugin_baseline(
    dataset: Yr, prepared: YrPrepared, files: Sequence[Path], index: SampleIndex
) -> Baseline:
    """Return how samples are made from the plugin's dataset.

    Raises
    ------
    MissingExtraError
        If CliMetLab or the plugin is not installed.
    """
    require_plugin(dataset.name, "climetlab_maelstrom_yr")
    made = YrThroughPlugin(dataset, prepared, _request(dataset, prepared, files))
    source = SOURCE if len(files) > 1 else SOURCE_OF_ONE
    return Baseline(MapStyle(made, index, workers=1), BATCH_SIZE, source)


def _request(dataset: Yr, prepared: YrPrepared, files: Sequence[Path]) -> PluginRequest:
    options = dataset.options
    dates = [file.start[:8] for file in prepared.files.files]
    urls = [file_url(options.parameter, options.size, date) for date in dates]
    return PluginRequest(
        "maelstrom-yr",
        {
            "size": options.size,
            "parameter": options.parameter,
            "dates": dates,
            "normalize": options.normalize,
            "predict_diff": options.predict_diff,
            "probabilistic_target": options.probabilistic_target,
        },
        dict(zip(urls, map(Path, files), strict=True)),
    )


class YrThroughPlugin(PluginSamples):
    """Patches of the plugin's dataset.

    Parameters
    ----------
    dataset : Yr
        Whose samples these are.
    prepared : YrPrepared
        What it learned of its files.
    request : PluginRequest
        What the plugin is asked for.
    """

    def __init__(self, dataset: Yr, prepared: YrPrepared, request: PluginRequest) -> None:
        super().__init__(dataset, {request.name: request})
        self._request = request
        self._options = dataset.options
        self._prepared = prepared

    def cut(self, where: Patch) -> Any:
        """Return the patch's part of each variable the plugin made, with its coordinates.

        Raises
        ------
        FileFormatError
            If the plugin does not have the dates it was asked for.
        """
        opened, places = self.opened(self._request.name)
        n_y, n_x = self._prepared.grid.shape
        part = {
            "time": places[where.file],
            "leadtime": where.lead,
            "y": slice(where.y, where.y + n_y),
            "x": slice(where.x, where.x + n_x),
        }
        names = [name for name in _names(opened) if self._is_wanted(name)]
        # Variables without their coordinates, which would be read anew for each sample; in this
        # thread alone, for netCDF4 fails when several read at once.
        cut = {name: opened[name].variable.isel(part, missing_dims="ignore") for name in names}
        arrays = {name: each.load(scheduler="synchronous").values for name, each in cut.items()}
        return {**arrays, **self._prepared.coordinates(where)}

    def preprocess(self, arrays: Arrays, where: Patch) -> Sample:
        """Return ``predictors`` with all 17 channels, normalised, and ``targets``."""
        if "targets" not in arrays:
            return super().preprocess(arrays, where)
        inputs = np.empty((1, *self._prepared.grid.shape, len(CHANNELS)), dtype=np.float32)
        n_features = len(FEATURES)
        inputs[0, ..., :-n_features] = arrays["predictors"]
        features = inputs[0, ..., -n_features:]
        features[..., 0] = arrays["leadtime"]
        features[..., 1] = arrays["x"]
        features[..., 2] = arrays["y"][:, None]
        if self._options.normalize:
            features -= self._prepared.mean[-n_features:]
            features /= self._prepared.std[-n_features:]
        return {"predictors": inputs, "targets": np.ascontiguousarray(arrays["targets"])[None]}

    def _is_wanted(self, name: str) -> bool:
        return name != "target_std" or self._options.probabilistic_target

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


def _names(opened: Any) -> tuple[str, ...]:
    """Return the plugin's variables; those of the file where it was handed out as it is."""
    if "targets" in opened:
        return ("predictors", "targets")
    return ("predictors", "static_predictors", "target_mean", "target_std")
