"""How the D2.3 U-Net loads today: xarray and dask on prepared NetCDF files, a sample a call.

Upstream prepares: ``grib_copy`` takes out step 48 h (and of pressure levels 850 and 500), ``cdo``
makes ensemble means and deviations (divided by the number of members, as `member_moments`) and
normalises them by ``(x - timmean) / (timstd + 0.1)``, uncompressed NetCDF-4. Here the same values
come from the readers of `Ens10`; of two levels the task's alone is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.datasets import Baseline, MapStyle, make_sample, stopwatch
from iobench.errors import MissingExtraError, StorageError
from iobench_maelstrom.ens10.kept_folder import kept_folder
from iobench_maelstrom.ens10.schema import GRID
from iobench_maelstrom.ens10.target import hours_since_1900, new_netcdf, valid_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.datasets import Arrays, Locator, PublishedStep, Raw, SampleIndex
    from iobench.samples import Sample
    from iobench_maelstrom.ens10.dataset import Ens10
    from iobench_maelstrom.ens10.schema import Task

BATCH_SIZE: Final = 1
TIMES_PER_CHUNK: Final = 10
LIBRARIES: Final = ("xarray", "dask", "netCDF4")
N_TRAINING_TIMES: Final = 1890
"""Forecasts upstream trained on: 105 start dates in 18 years."""
WORKERS: Final = 2
COPIES: Final = 2
"""Of the whole target a worker holds at once: dask's chunks, and what it joins them to."""
VERSION = 1
OVERHEAD_NBYTES = 1 << 20
"""Headers and axes of all files."""
CDO_NAMES = {"sst": "SSTK", "u10": "U10M", "v10": "V10M"}

Where = tuple[int, int, int]
"""A sample's number, and the first and last-plus-one field of the target that its loading reads."""


@dataclass(frozen=True, slots=True)
class TrainingFiles:
    """Training files in a folder.

    Parameters
    ----------
    folder : Path
        Where they are.
    task : Task
        Whose.
    has_target : bool
        Whether there is a target's.
    n_times : int
        Forecasts in the inputs' files.
    n_target_times : int
        Fields in the target's; more than ``n_times`` where they are repeated.
    """

    folder: Path
    task: Task
    has_target: bool
    n_times: int
    n_target_times: int

    @property
    def paths(self) -> tuple[Path, ...]:
        """Those of the normalised means and deviations, and the target's."""
        dtype, target = self.task.dtype, self.task.target_url.rpartition("/")[2]
        names = [f"ENS10_{dtype}_{moment}_normalized.nc" for moment in ("mean", "std")]
        return tuple(self.folder / name for name in [*names, target][: 2 + self.has_target])

    @property
    def names(self) -> tuple[str, ...]:
        """The variables in the inputs' files, as ``cdo`` calls them."""
        names = [field.short_name for field in self.task.fields]
        return tuple(CDO_NAMES.get(name, name.upper()) for name in names)

    @property
    def target_name(self) -> str:
        """The variable in the target's file."""
        return self.task.target_variable.upper()

    def target_ranges(self, index: SampleIndex) -> list[tuple[int, int]]:
        """Return which fields of the target are read for each sample: those of all its split.

        Where the fields are repeated, all: as many as upstream's training has.
        """
        ranges = [(0, self.n_target_times)] * self.n_times
        if self.n_target_times == self.n_times:
            for numbers in index.splits.values():
                for number in numbers:
                    ranges[number] = min(numbers), max(numbers) + 1
        return ranges


def grid_loader(
    own: Ens10, index: SampleIndex, locator: Locator, batch_size: int | None
) -> Baseline:
    """Return the grid loader on these samples, its training files written if they are new.

    Raises
    ------
    MissingExtraError
        If xarray or dask is not installed.
    StorageError
        If the training files do not fit on the disk, before any is written, or cannot be written.
    """
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"--pipeline upstream of maelstrom-ens10 needs {', '.join(missing)}: "
            "pip install 'iobench[netcdf,convert]'"
        )
    watch = stopwatch()
    training = _training_files(own, index, locator)
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
        return f"{text}, fewer than upstream's {N_TRAINING_TIMES} for lack of memory."
    return f"{text} as many as upstream's."


def _training_files(own: Ens10, index: SampleIndex, locator: Locator) -> TrainingFiles:
    """Return the training files of these samples, written below ``locator.cache_dir`` if new."""
    task, n_times, shape = own.task, len(index), own.layout.shape
    n_target_times = _target_times(n_times, shape, stand_in=locator.stand_in)
    about = own.describe(index.where)
    about |= {
        "version": VERSION,
        "options": [task.dtype, task.target, own.has_target],
        "n_target_times": n_target_times,
        "normalisation": index.provenance["normalisation"]["sha256"],
    }
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    what = "the training files of maelstrom-ens10"

    def files_in(folder: Path) -> TrainingFiles:
        return TrainingFiles(folder, task, own.has_target, n_times, n_target_times)

    def write(folder: Path) -> None:
        n_fields = n_times * len(task.channels) + n_target_times * own.has_target
        nbytes = n_fields * 4 * own.layout.n_points + OVERHEAD_NBYTES
        free = shutil.disk_usage(locator.cache_dir).free
        if free < nbytes:
            raise StorageError(
                f"{locator.cache_dir}: {what} need {nbytes / 1e9:.1f} GB, {free / 1e9:.1f} GB are "
                "free; make room or give --store-dir"
            )
        _write(files_in(folder), own, index, locator)

    name = f"ens10-training-files-{key}"
    return files_in(kept_folder(locator.cache_dir, name, about, write, what)[0])


def _target_times(n_times: int, shape: tuple[int, int], *, stand_in: bool) -> int:
    """Return how many fields the target's file gets.

    A stand-in's are repeated up to the published number, halved until two workers can hold them;
    a tiny one's, of a coarser grid, are not.
    """
    import psutil

    if not stand_in or shape != GRID:
        return n_times
    n_target_times = N_TRAINING_TIMES
    available = psutil.virtual_memory().available
    while n_target_times > available // (WORKERS * COPIES * 4 * shape[0] * shape[1]):
        n_target_times //= 2
    return max(n_times, n_target_times)


def _write(files: TrainingFiles, own: Ens10, index: SampleIndex, locator: Locator) -> None:
    """Write all files, contiguous float32, one sample in memory at a time."""
    starts = [valid_time(start) for start in own.layout.starts]
    with contextlib.ExitStack() as opened:
        inputs = [
            opened.enter_context(_new_file(path, starts, own, files.names))
            for path in files.paths[:2]
        ]
        target = None
        if files.has_target:
            # Those given, then made-up ones, an hour apart.
            made_up = starts[-1] + np.arange(1, files.n_target_times).astype("m8[h]")
            times = [*starts, *made_up][: files.n_target_times]
            file = _new_file(files.paths[2], times, own, (files.target_name,))
            target = opened.enter_context(file)[files.target_name]
        for number, where in enumerate(index.where):
            sample = make_sample(own, where)
            for channel, name in enumerate(files.names):
                for moment, stored in enumerate(inputs):
                    stored[name][number] = sample["inputs"][2 * channel + moment]
            if target is not None:
                for row in range(number, files.n_target_times, len(index)):
                    target[row] = sample[files.task.target]
            locator.progress(number + 1, len(index))


def _new_file(path: Path, times: list[np.datetime64], own: Ens10, names: tuple[str, ...]) -> Any:
    """Return an open NetCDF-4 file with variables (time, plev, lat, lon)."""
    axes: dict[str, tuple[NDArray[Any], str]] = {"time": hours_since_1900(times)}
    if own.task.level:
        axes["plev"] = np.array([own.task.level * 100.0]), "Pa"
    n_latitudes, n_longitudes = own.layout.shape
    axes["lat"] = np.linspace(90, -90, n_latitudes), "degrees_north"
    axes["lon"] = np.arange(n_longitudes) * (360 / n_longitudes), "degrees_east"
    file = new_netcdf("--pipeline upstream of maelstrom-ens10", path, axes, fill=False)
    for name in names:
        file.createVariable(name, "f4", tuple(axes), contiguous=True)
    return file


class Ens10Upstream:
    """The grid loader's samples; a `Dataset`.

    The files are opened once in each process, on first use.

    Parameters
    ----------
    own : Ens10
        Whose samples these are.
    training : TrainingFiles
        What is read.
    index : SampleIndex
        Of ``own``.
    """

    name = "maelstrom-ens10"
    title = "ENS-10's training files as the application's grid loader reads them (MAELSTROM A4)"
    fused: tuple[str, ...] = ("read", "decode")

    def __init__(self, own: Ens10, training: TrainingFiles, index: SampleIndex) -> None:
        self.published: PublishedStep | None = own.published
        self.training = training
        where = [(number, *part) for number, part in enumerate(training.target_ranges(index))]
        self._index = dataclasses.replace(index, where=where, setup={})
        self._opened: tuple[list[Any], ThreadPoolExecutor] | None = None
        self._process = 0

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
        files, pool = self._files()
        # A pool of this process's own, as large as dask's: that of a parent is dead after a fork.
        with dask.config.set(pool=pool):
            means, deviations = (file.isel(time=number).compute() for file in files[:2])
            arrays = {}
            for name in self.training.names:
                arrays[f"{name}_mean"] = means[name].to_numpy()
                arrays[f"{name}_std"] = deviations[name].to_numpy()
            if self.training.has_target:
                target = files[2][self.training.target_name]
                whole = target.isel(time=slice(start, stop)).compute().to_numpy()
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
            sample[self.training.task.target] = arrays["target"]
        return sample

    def _files(self) -> tuple[list[Any], ThreadPoolExecutor]:
        if self._opened is None or self._process != os.getpid():
            import dask.system

            files = [self._lazy(path) for path in self.training.paths]
            self._opened = files, ThreadPoolExecutor(dask.system.CPU_COUNT)
            self._process = os.getpid()
        return self._opened

    def _lazy(self, path: Path) -> Any:
        import xarray

        opened = xarray.open_dataset(path, engine="netcdf4", chunks={"time": TIMES_PER_CHUNK})
        level = self.training.task.level
        return opened.sel(plev=level * 100) if level else opened
