"""Dataset ``deepcam``: extreme weather in CAM5, one HDF5 file a sample, as MLPerf HPC trains on it.

Published layout: mlcommons/hpc at 2c627d4, ``deepcam/README.md``, ``deepcam/src/deepCam/data/
cam_hdf5_dataset.py`` (what a sample is made of) and ``deepcam/src/utils`` (``split_data.py``,
``summarize_data.py``: splits and ``stats.h5``). The order of channels and what labels mean: README
of the data in hpcac/ISC19-SCC. Names of files as in the listing of the folder at NERSC:
``data-1996-01-01-00-3.h5``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from iobench.datasets import (
    Arrays,
    FileKey,
    Locator,
    PublishedStep,
    SampleIndex,
    StandIn,
    inspect_files,
    smooth_values,
    whole_variable,
    writing_library,
)
from iobench.errors import FileFormatError, MissingFileError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_mlperf_hpc.split_folders import SplitFolders, Where

GROUP: Final = "climate"
DATA, LABELS, RELAXED_LABELS = "data", "labels_0", "labels_1"
"""Variables of a file; the benchmark reads the first two."""
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
DATA_NOISE: Final = 0.91
LABEL_NOISE: Final = 0.01
ROWS_AT_ONCE: Final = 16
HEADERS_NBYTES: Final = 8 << 10
SHARES: Final = (0.983, 0.999)
"""Of pixels that are nothing, and that or an atmospheric river: 98.3 and 1.6 % (arXiv:1810.01993
has 98.2 and 1.7)."""


class DeepCam(SplitFolders):
    """CAM5's 16 variables on a global grid, and which pixels are an extreme event.

    ``data`` is ``(maxval - minval)^-1 * (x - minval)`` by channel, channels first, float32; the
    extremes are those of ``stats.h5``. ``label`` is 0, 1 (tropical cyclone) or 2 (atmospheric
    river), int64. Both are bit for bit what ``CamDataset`` returns.
    """

    name = "deepcam"
    title = "Extreme weather in CAM5: segmentation, HDF5 (MLPerf HPC)"
    url = "https://portal.nersc.gov/project/dasrepo/deepcam/climate-data/All-Hist"
    suffix = ".h5"
    group = GROUP
    xarray_options: Mapping[str, Any] = {**SplitFolders.xarray_options, "group": GROUP}
    left_out: Mapping[str, str] = {
        "time": "in names of files alone, whose parts of a day no source explains"
    }
    n_published = (121_266, 15_158, 15_159)
    """Logs of results (``train_samples``, ``eval_samples``); the rest by ``split_data.py``."""
    tiny_files, ordinary_files = (6, 3, 2), (16, 4, 2)
    citation = "Kurth et al. 2018, https://arxiv.org/abs/1810.01993"
    published = PublishedStep(
        forward_ns=89_360_000,
        backward_ns=0,
        batch_size=2,
        evaluation_ns=31_140_000,  # 1.844 s, the median, for 15,158 samples
        source=(
            "MLPerf HPC v2.0 closed, Dell, 32xXE8545x4A100-SXM4-40GB, result_0 to result_4: from "
            "epoch_start to eval_start, by its 473 steps, median of all epochs but the first; 128 "
            "GPUs, 2 samples each, mixed precision; the whole step with its collectives, in which "
            "I/O was not measured separately: at most"
        ),
        sample_nbytes=768 * 1152 * (16 * 4 + 8),
        tables={
            "MLPerf HPC v2.0, Dell, 128 A100": {
                "epoch": (42.945, 44.08212, 44.0525, 45.052, 0.5333),
            },
            "MLPerf HPC v1.0, NCSA, 64 V100": {
                "epoch": (525.672, 538.39353, 540.5625, 548.579, 5.80408),
            },
        },
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
        first = self.open_alike(paths, locator, DATA, LABELS)
        shape, labels = first.variables[DATA].shape, first.variables[LABELS]
        if len(shape) != 3 or shape[2] != len(CHANNELS) or labels.shape != shape[:2]:
            raise FileFormatError(
                f"{paths[0]}: {DATA} is {shape} and {LABELS} {labels.shape}, expected "
                f"(latitude, longitude, {len(CHANNELS)}) and its first two; fetch the file again"
            )
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
        extremes = []
        for name in ("minval", "maxval"):
            values = whole_variable(file, name) if name in file.variables else np.empty(0)
            if values.shape != (len(CHANNELS),):
                raise FileFormatError(
                    f"{stats}: {GROUP}/{name} has {values.size} numbers, expected one for each of "
                    f"{len(CHANNELS)} channels; fetch the file again"
                )
            extremes.append(values)
        low, high = extremes
        if not (high > low).all():
            raise FileFormatError(
                f"{stats}: channel {int(np.argmin(high - low))} has no maxval above its minval; "
                "fetch the file again"
            )
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

    def file_nbytes(self, key: FileKey, plan: StandIn) -> int:
        n_pixels = int(np.prod(TINY_GRID if plan.tiny else GRID))
        return HEADERS_NBYTES + ("split" in key) * n_pixels * 4 * (len(CHANNELS) + 2)

    def write(self, plan: StandIn, key: FileKey, path: Path) -> None:
        """Write a file of a stand-in.

        The dtype of labels is not published: of 4 bytes in both sets of them, all files take 8.8
        TiB, which are the 8.8 TB of https://mlcommons.org/en/news/mlperf-hpc-v07.
        """
        with writing_library("h5py", self.name).File(path, "w") as file:
            group = file.create_group(GROUP)
            if "split" not in key:
                low, high = np.array([*CHANNELS.values()], dtype=np.float32).T
                group["minval"], group["maxval"] = low, high
                group["mean"], group["sqmean"] = (low + high) / 2, (low**2 + high**2) / 2
                group["count"] = sum(self.n_published)
            else:
                shape = TINY_GRID if plan.tiny else GRID
                low, high = np.array([*CHANNELS.values()]).T
                what = plan.seed, self.synthesis_version, key["name"]
                group[DATA] = smooth_values(
                    (*shape, len(CHANNELS)), low, high, *what, noise=DATA_NOISE
                )
                field = smooth_values(shape, 0, 1, *what, LABELS, noise=LABEL_NOISE)
                kinds = np.array([0, 2, 1], dtype=np.int32)[
                    np.digitize(field, np.quantile(field, SHARES))
                ]
                group[LABELS] = group[RELAXED_LABELS] = kinds
