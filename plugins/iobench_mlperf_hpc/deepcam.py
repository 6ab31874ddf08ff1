"""Dataset ``deepcam``: extreme weather in CAM5, one HDF5 file a sample, as MLPerf HPC trains on it.

Layout of mlcommons/hpc at 2c627d4: ``deepcam/README.md``, ``deepcam/src/deepCam/data/
cam_hdf5_dataset.py``, ``deepcam/src/utils`` (splits and ``stats.h5``); the order of channels and
what labels mean: README of the data in hpcac/ISC19-SCC; names of files: the folder at NERSC.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from iobench.datasets import (
    Arrays,
    Axis,
    FileKey,
    Locator,
    PublishedStep,
    Recipe,
    SampleIndex,
    Smooth,
    StandIn,
    inspect_files,
    only_variables,
    whole_variable,
    writing_library,
)
from iobench.errors import FileFormatError, MissingFileError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_mlperf_hpc.split_folders import SplitFolders, Where

GROUP: Final = "climate"
DATA, LABELS = "data", "labels_0"
STATS: Final = "stats.h5"
CHANNELS: Final = {
    "TMQ": (0.1, 80.0), "U850": (-45.0, 50.0), "V850": (-45.0, 45.0), "UBOT": (-35.0, 35.0),
    "VBOT": (-35.0, 35.0), "QREFHT": (1e-5, 0.025), "PS": (5.0e4, 1.05e5), "PSL": (9.4e4, 1.06e5),
    "T200": (195.0, 240.0), "T500": (220.0, 280.0), "PRECT": (0.0, 1e-6), "TS": (210.0, 330.0),
    "TREFHT": (210.0, 320.0), "Z1000": (-500.0, 500.0), "Z200": (1.0e4, 1.27e4),
    "ZBOT": (50.0, 75.0),
}  # fmt: skip
"""Variables of CAM5 in their order, and about what values they have: those of a stand-in."""
GRID, TINY_GRID = (768, 1152), (48, 72)
ROWS_AT_ONCE: Final = 16
SHARES: Final = (0.983, 0.999)
"""Of pixels that are nothing, and that or an atmospheric river (arXiv:1810.01993: 98.2 %)."""


class DeepCam(SplitFolders, Recipe):
    """CAM5's 16 variables on a global grid, and which pixels are an extreme event.

    ``data`` is ``(maxval - minval)^-1 * (x - minval)`` by channel, channels first, float32; the
    extremes are those of ``stats.h5``. ``label`` is 0, 1 (tropical cyclone) or 2 (atmospheric
    river), int64. Both are bit for bit what ``CamDataset`` returns.
    """

    name = "deepcam"
    title = "Extreme weather in CAM5: segmentation, HDF5 (MLPerf HPC)"
    url = "https://portal.nersc.gov/project/dasrepo/deepcam/climate-data/All-Hist"
    suffix = ".h5"
    axes = (Axis("sample"),)
    fields = ()
    xarray_options: Mapping[str, Any] = {
        "engine": "h5netcdf", "phony_dims": "access", "group": GROUP
    }  # fmt: skip
    left_out: Mapping[str, str] = {"time": "in names of files alone, in parts of a day"}
    n_published = (121_266, 15_158, 15_159)
    """Logs of results (``train_samples``, ``eval_samples``); the rest by ``split_data.py``."""
    tiny_files, ordinary_files = (6, 3, 2), (16, 4, 2)
    citation = "Kurth et al. 2018, https://arxiv.org/abs/1810.01993"
    published = PublishedStep(
        forward_ns=89_360_000,
        backward_ns=0,
        batch_size=2,
        source=(
            "MLPerf HPC v2.0 closed, Dell, 32xXE8545x4A100-SXM4-40GB: epoch_start to eval_start by "
            "its 473 steps, median of epochs but the first; 128 GPUs, 2 samples each, mixed "
            "precision; the whole step with collectives and unmeasured I/O: at most"
        ),
        sample_nbytes=768 * 1152 * (16 * 4 + 8),
    )

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self._shift = self._scale = np.empty(0, dtype=np.float32)

    def files(self, locator: Locator) -> list[Path]:
        files = super().files(locator)
        (stats,) = locator.find([f"{self.url}/{STATS}"])
        if stats is None:
            raise MissingFileError(
                f"{self.name}: {STATS} not found in {locator.searched()}; it lies beside the "
                "folders of the splits"
            )
        return [*files, stats]

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        *paths, stats = files
        every = inspect_files(
            paths, cache_dir=locator.cache_dir, progress=locator.progress, group=GROUP
        )
        first = every[0].variables.get(DATA)
        shape = (*(() if first is None else first.shape[:2]), len(CHANNELS))
        expected = {DATA: shape, LABELS: shape[:2]}
        for file in every:
            result = {name: each.shape for name, each in file.variables.items() if name in expected}
            if result != expected:
                raise FileFormatError(
                    f"{file.path}: {GROUP} has {result}, expected {expected}; fetch the file again"
                )
        self.keep([only_variables(file, (DATA, LABELS)) for file in every])
        self._read_extremes(stats, locator)
        dims, by_channel = ("latitude", "longitude"), (shape[2], *shape[:2])
        spec = SampleSpec((
            Variable(
                "data", by_channel, "<f4", ("channel", *dims), "1", channels=tuple(CHANNELS)
            ),
            Variable("label", shape[:2], "<i8", dims, "1", "target"),
        ))  # fmt: skip
        normalisation = {
            "formula": "(x - minval) * (1 / (maxval - minval)), by channel",
            "files": [stats.name],
            "sha256": hashlib.sha256(self._shift.tobytes() + self._scale.tobytes()).hexdigest(),
        }
        return self.index(spec, paths, locator, normalisation=normalisation)

    def _read_extremes(self, stats: Path, locator: Locator) -> None:
        """Find out each channel's minimum, and what its distance from there is divided by."""
        (file,) = inspect_files([stats], cache_dir=locator.cache_dir, group=GROUP)
        names = [name for name in ("minval", "maxval") if name in file.variables]
        extremes = [whole_variable(file, name) for name in names]
        shapes = [each.shape for each in extremes]
        if shapes != [(len(CHANNELS),)] * 2 or not (extremes[1] > extremes[0]).all():
            raise FileFormatError(
                f"{stats}: expected {GROUP}/minval and maxval, above it, of {len(CHANNELS)} "
                "channels; fetch the file again"
            )
        low, high = extremes
        scale = 1.0 / (high - low)  # in the dtype of the file, as upstream
        self._shift, self._scale = low.astype(np.float32), scale.astype(np.float32)

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return data between 0 and 1, channels first, and labels of 64 bits."""
        stored = arrays[DATA]
        data = np.empty((stored.shape[2], *stored.shape[:2]), dtype=np.float32)
        shift, scale = self._shift[:, None, None], self._scale[:, None, None]
        # While some rows are in the cache; in one go it takes twice the time.
        for row in range(0, len(stored), ROWS_AT_ONCE):
            part = data[:, row : row + ROWS_AT_ONCE]
            np.subtract(stored[row : row + ROWS_AT_ONCE].transpose(2, 0, 1), shift, out=part)
            np.multiply(part, scale, out=part)
        return {"data": data, "label": arrays[LABELS].astype(np.int64)}

    # ---- the stand-in

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> StandIn:
        plan = super().stand_in(scale=scale, tiny=tiny, seed=seed)
        return StandIn(plan.seed, (*plan.keys, {"name": STATS}), 0, tiny)

    def stand_in_file(self, number: int) -> str:
        """Return a name as published: eight files a day, of the first of the runs."""
        day = np.datetime64("1996-01-01") + np.timedelta64(number // 8, "D")
        return f"data-{day}-{number % 8:02}-1.h5"

    def write(self, plan: StandIn, key: FileKey, path: Path) -> None:
        """Write a file: with both sets of labels of 4 bytes all take the published 8.8 TiB."""
        with writing_library("h5py").File(path, "w") as file:
            group = file.create_group(GROUP)
            low, high = np.array([*CHANNELS.values()]).T
            if "split" not in key:
                group["minval"], group["maxval"] = low.astype("f4"), high.astype("f4")
            else:
                shape = TINY_GRID if plan.tiny else GRID
                what = plan.seed, self.synthesis_version, key["name"]
                group[DATA] = Smooth(low, high, 0.91)((*shape, len(CHANNELS)), "f4", what)
                field = Smooth(0, 1, 0.01)(shape, "f4", (*what, LABELS))
                kinds = np.digitize(field, np.quantile(field, SHARES))
                group[LABELS] = group["labels_1"] = np.array([0, 2, 1], dtype=np.int32)[kinds]
