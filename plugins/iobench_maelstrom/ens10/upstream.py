"""How the D2.3 U-Net loads today: xarray and dask on prepared NetCDF files, a sample a call."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.datasets import Baseline, MapStyle, stopwatch
from iobench.errors import MissingExtraError
from iobench_maelstrom.ens10.training_files import (
    N_TRAINING_TIMES,
    WORKERS,
    TrainingFiles,
    prepare_training_files,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.datasets import Arrays, Dataset, Locator, PublishedStep, Raw, SampleIndex
    from iobench.samples import Sample
    from iobench_maelstrom.ens10.messages import Layout
    from iobench_maelstrom.ens10.schema import UnetTask

__all__ = ["Ens10Upstream", "grid_loader"]

BATCH_SIZE: Final = 1
TIMES_PER_CHUNK: Final = 10
LIBRARIES: Final = ("xarray", "dask", "netCDF4")

Where = tuple[int, int, int]
"""A sample's number, and the first and last-plus-one field of the target that its loading reads."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """What one process has open."""

    process: int
    mean: Any
    deviation: Any
    target: Any
    pool: ThreadPoolExecutor


class Ens10Upstream:
    """The grid loader's samples; a `Dataset`.

    The files are opened once in each process, on first use.

    Parameters
    ----------
    own : Dataset
        Whose samples these are.
    training : TrainingFiles
        What is read.
    index : SampleIndex
        Of ``own``.
    """

    name = "maelstrom-ens10"
    title = "ENS-10's training files as the application's grid loader reads them (MAELSTROM A4)"
    fused: tuple[str, ...] = ("read", "decode")

    def __init__(self, own: Dataset, training: TrainingFiles, index: SampleIndex) -> None:
        self.published: PublishedStep | None = own.published
        self.training = training
        self.target = training.task.target
        ranges = training.target_ranges(index)
        where = [(number, *target) for number, target in enumerate(ranges)]
        self._index = dataclasses.replace(index, where=where, setup={})
        self._opened: _Opened | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def files(self, locator: Locator) -> list[Path]:
        """Return the training files."""
        return list(self.training.paths)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples; those of the dataset, to be read from the training files."""
        return self._index

    def read(self, where: Where) -> Any:
        """Return the sample's fields: two dask graphs over all variables, and the whole target."""
        import dask

        number, start, stop = where
        opened = self._files()
        # A pool of this process's own, as large as dask's: that of a parent is dead after a fork.
        with dask.config.set(pool=opened.pool):
            means = opened.mean.isel(time=number).compute()
            deviations = opened.deviation.isel(time=number).compute()
            arrays = {}
            for name in self.training.names:
                arrays[f"{name}_mean"] = means[name].to_numpy()
                arrays[f"{name}_std"] = deviations[name].to_numpy()
            if opened.target is not None:
                whole = opened.target.isel(time=slice(start, stop)).compute().to_numpy()
                arrays["target"] = whole[number - start].copy()  # nothing shall hold on to the rest
        return arrays

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Refuse: ``read`` decodes."""
        raise TypeError(f"{self.name}: read decodes, call preprocess next")

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return ``inputs``, mean and deviation of each variable in turn, and the target."""
        names = self.training.names
        shape = arrays[f"{names[0]}_mean"].shape
        inputs = np.zeros((2 * len(names), *shape), dtype=np.float32)
        for number, name in enumerate(names):
            inputs[2 * number] = arrays[f"{name}_mean"]
            inputs[2 * number + 1] = arrays[f"{name}_std"]
        sample = {"inputs": inputs}
        if self.training.has_target:
            sample[self.target] = arrays["target"]
        return sample

    def _files(self) -> _Opened:
        if self._opened is None or self._opened.process != os.getpid():
            self._opened = _open(self.training)
        return self._opened


def grid_loader(
    own: Dataset,
    layout: Layout,
    index: SampleIndex,
    locator: Locator,
    *,
    task: UnetTask,
    has_target: bool,
    batch_size: int | None,
) -> Baseline:
    """Return the grid loader on these samples, its training files written if they are new.

    Raises
    ------
    MissingExtraError
        If xarray or dask is not installed.
    StorageError
        If the training files do not fit on the disk.
    """
    _check_libraries()
    watch = stopwatch()
    training = prepare_training_files(own, layout, index, locator, task=task, has_target=has_target)
    made = Ens10Upstream(own, training, index)
    return Baseline(
        MapStyle(made, made.samples((), locator), workers=WORKERS, prefetch=2),
        batch_size or BATCH_SIZE,
        _source(training, stand_in=locator.stand_in),
        files=training.paths,
        setup_s=(("training files", watch()),),
    )


def _source(training: TrainingFiles, *, stand_in: bool) -> str:
    text = (
        "spcl/ens10, ENS10GridDataset behind torch's DataLoader (MAELSTROM D2.3), on normalised, "
        "uncompressed NetCDF files as its grib_copy and cdo steps leave them (assumed: contiguous)."
    )
    if not training.has_target:
        return f"{text} No target is read, as target=none asks, so its cost is not in this figure."
    times = training.n_target_times
    text = f"{text} The whole ERA5 target, {times} fields, is read for every sample"
    if not stand_in or times == training.n_times:
        return f"{text}."
    text = f"{text}; the stand-in's {training.n_times} fields are repeated to make them"
    if times < N_TRAINING_TIMES:
        return f"{text}, fewer than upstream's {N_TRAINING_TIMES} for want of memory."
    return f"{text} as many as upstream's."


def _open(training: TrainingFiles) -> _Opened:
    import dask.system

    mean, deviation = (_lazy(path, training) for path in (training.mean, training.deviation))
    target = None
    if training.has_target:
        target = _lazy(training.target, training)[training.target_name]
    pool = ThreadPoolExecutor(dask.system.CPU_COUNT)
    return _Opened(os.getpid(), mean, deviation, target, pool)


def _lazy(path: Path, training: TrainingFiles) -> Any:
    import xarray

    opened = xarray.open_dataset(path, engine="netcdf4", chunks={"time": TIMES_PER_CHUNK})
    return opened.sel(plev=training.task.level * 100) if training.task.level else opened


def _check_libraries() -> None:
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"--pipeline upstream of maelstrom-ens10 needs {', '.join(missing)}: "
            "pip install 'iobench[netcdf,convert]'"
        )
