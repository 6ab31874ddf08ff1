"""The files the D2.3 U-Net trained from, written as upstream's preparation leaves them.

Upstream: ``grib_copy`` takes out step 48 h (and of pressure levels 850 and 500), ``cdo`` makes
ensemble means and deviations (divided by the number of members, as `member_moments`) and
normalises them by ``(x - timmean) / (timstd + 0.1)``, uncompressed NetCDF-4. Here the same values
come from the readers of `Ens10`; of two levels the task's alone is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil

from iobench.datasets import make_index_folder, make_sample, netcdf4
from iobench.errors import IobenchError, StorageError
from iobench_maelstrom.ens10.normalisation import describe_messages
from iobench_maelstrom.ens10.schema import GRID, UnetTask
from iobench_maelstrom.ens10.target import EPOCH, valid_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from iobench.datasets import Dataset, Locator, Progress, SampleIndex
    from iobench_maelstrom.ens10.messages import Layout

__all__ = ["N_TRAINING_TIMES", "TrainingFiles", "prepare_training_files", "training_name"]

N_TRAINING_TIMES: Final = 1890
"""Forecasts upstream trained on: 105 start dates in 18 years."""
WORKERS: Final = 2
COPIES: Final = 2
"""Of the whole target a worker holds at once: dask's chunks, and what it joins them to."""
VERSION = 1
OVERHEAD_NBYTES = 1 << 20
"""Headers and axes of all files."""
MEMBER_NAMES = {"sst": "SSTK", "u10": "U10M", "v10": "V10M"}

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TrainingFiles:
    """Training files on disk.

    Parameters
    ----------
    folder : Path
        Where they are.
    task : UnetTask
        Whose.
    has_target : bool
        Whether there is a target's.
    n_times : int
        Forecasts in the inputs' files.
    n_target_times : int
        Fields in the target's; more than ``n_times`` where they are repeated.
    """

    folder: Path
    task: UnetTask
    has_target: bool
    n_times: int
    n_target_times: int

    @property
    def mean(self) -> Path:
        """The normalised means."""
        return self.folder / f"ENS10_{self.task.dtype}_mean_normalized.nc"

    @property
    def deviation(self) -> Path:
        """The normalised deviations."""
        return self.folder / f"ENS10_{self.task.dtype}_std_normalized.nc"

    @property
    def target(self) -> Path:
        """ERA5's fields."""
        return self.folder / self.task.target_url.rpartition("/")[2]

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        inputs = (self.mean, self.deviation)
        return (*inputs, self.target) if self.has_target else inputs

    @property
    def names(self) -> tuple[str, ...]:
        """The variables in the inputs' files."""
        return tuple(training_name(each.name, each.level) for each in self.task.variables)

    @property
    def target_name(self) -> str:
        """The variable in the target's file."""
        return self.task.target_variable.upper()

    def target_ranges(self, index: SampleIndex) -> list[Range]:
        """Return which fields of the target are read for each sample: those of all its split.

        Where the fields are repeated, all: as many as upstream's training has.
        """
        if self.n_target_times > self.n_times:
            return [(0, self.n_target_times)] * self.n_times
        ranges = [(0, self.n_times)] * self.n_times
        for numbers in index.splits.values():
            for number in numbers:
                ranges[number] = min(numbers), max(numbers) + 1
        return ranges


def training_name(name: str, level: int) -> str:
    """Return what ``cdo`` calls a variable, e.g. ``Z`` for ``z500``, ``U10M`` for ``u10``."""
    bare = name.removesuffix(str(level)) if level else name
    return MEMBER_NAMES.get(bare, bare.upper())


def prepare_training_files(
    own: Dataset,
    layout: Layout,
    index: SampleIndex,
    locator: Locator,
    *,
    task: UnetTask,
    has_target: bool,
) -> TrainingFiles:
    """Return the training files of these samples, written below ``locator.cache_dir`` if new.

    Parameters
    ----------
    own : Dataset
        Prepared: its ``samples`` returned ``index``.
    layout : Layout
        Its samples.
    index : SampleIndex
        The same.
    locator : Locator
        Says where to write, whether this is a stand-in, and is told of progress.
    task : UnetTask
        Whose.
    has_target : bool
        Whether samples have it.

    Raises
    ------
    StorageError
        If they do not fit, before anything is written, or cannot be written.
    """
    n_times = len(index)
    field_nbytes = 4 * layout.n_points
    n_target_times = _target_times(n_times, layout, stand_in=locator.stand_in)
    about = describe_messages(index.where, n_members=layout.n_members)
    about |= {
        "version": VERSION,
        "options": [task.dtype, task.target, has_target],
        "n_target_times": n_target_times,
        "normalisation": index.provenance["normalisation"]["sha256"],
    }
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    folder = locator.cache_dir / f"ens10-training-files-{key}"
    files = TrainingFiles(folder, task, has_target, n_times, n_target_times)
    if _holds(files, about):
        return files
    make_index_folder(locator.cache_dir)
    n_fields = n_times * len(task.channels) + n_target_times * has_target
    _check_room(locator.cache_dir, n_fields * field_nbytes + OVERHEAD_NBYTES)
    with _renamed_when_complete(folder) as unfinished:
        made = TrainingFiles(unfinished, task, has_target, n_times, n_target_times)
        _write(made, own, layout, index, locator.progress)
        about["nbytes"] = [path.stat().st_size for path in made.paths]
        (unfinished / "about.json").write_text(json.dumps(about))
    return files


def _target_times(n_times: int, layout: Layout, *, stand_in: bool) -> int:
    """Return how many fields the target's file gets.

    A stand-in's are repeated up to the published number, halved until two workers can hold them;
    a tiny one's, of a coarser grid, are not.
    """
    if not stand_in or layout.shape != GRID.shape:
        return n_times
    n_target_times = N_TRAINING_TIMES
    room = psutil.virtual_memory().available // (WORKERS * COPIES * 4 * layout.n_points)
    while n_target_times > room:
        n_target_times //= 2
    return max(n_times, n_target_times)


def _holds(files: TrainingFiles, about: dict[str, Any]) -> bool:
    try:
        nbytes = [path.stat().st_size for path in files.paths]
        kept = json.loads((files.folder / "about.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(kept == {**about, "nbytes": nbytes})


def _check_room(folder: Path, nbytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise StorageError(
            f"{folder}: the training files of maelstrom-ens10 need {nbytes / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free; make room or give --store-dir"
        )


@contextlib.contextmanager
def _renamed_when_complete(folder: Path) -> Iterator[Path]:
    """Yield a folder that gets its name at the end; another process's is as good."""
    try:
        unfinished = Path(tempfile.mkdtemp(prefix=".iobench-unfinished-", dir=folder.parent))
        try:
            yield unfinished
            unfinished.chmod(0o755)
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except IobenchError:
        raise
    except (OSError, RuntimeError) as error:  # netCDF4 raises RuntimeError where a disk is full
        raise StorageError(
            f"{folder}: the training files of maelstrom-ens10 cannot be written ({error}); make "
            "room or give --store-dir"
        ) from error


def _write(
    files: TrainingFiles, own: Dataset, layout: Layout, index: SampleIndex, progress: Progress
) -> None:
    """Write all files, one sample in memory at a time."""
    starts = [valid_time(start) for start in layout.starts]
    levels = (files.task.level * 100,) if files.task.level else ()
    with contextlib.ExitStack() as opened:
        inputs = [
            opened.enter_context(_new_file(path, starts, levels, layout.shape, files.names))
            for path in (files.mean, files.deviation)
        ]
        target = None
        if files.has_target:
            times = _repeated(starts, files.n_target_times)
            file = _new_file(files.target, times, levels, layout.shape, (files.target_name,))
            target = opened.enter_context(file)[files.target_name]
        for number, where in enumerate(index.where):
            sample = make_sample(own, where)
            for channel, name in enumerate(files.names):
                for moment, stored in enumerate(inputs):
                    stored[name][number] = sample["inputs"][2 * channel + moment]
            if target is not None:
                for row in range(number, files.n_target_times, len(index)):
                    target[row] = sample[files.task.target]
            progress(number + 1, len(index))
    for path in files.paths:
        with path.open("rb+") as stream:
            os.fsync(stream.fileno())  # else it is written while the first batches are timed


def _repeated(times: list[np.datetime64], count: int) -> list[np.datetime64]:
    """Return ``count`` ascending times: those given, then made-up ones, an hour apart."""
    made_up = [times[-1] + np.timedelta64(number, "h") for number in range(1, count)]
    return [*times, *made_up][:count]


def _new_file(
    path: Path,
    times: list[np.datetime64],
    levels: tuple[int, ...],
    shape: tuple[int, int],
    names: tuple[str, ...],
) -> Any:
    """Return an open NetCDF-4 file with float32 variables (time, plev, lat, lon), contiguous."""
    axes: dict[str, tuple[NDArray[Any], str]] = {
        "time": (
            np.array([(time - EPOCH).astype(int) for time in times]),
            "hours since 1900-01-01 00:00:00",
        )
    }
    if levels:
        axes["plev"] = np.array(levels, dtype=np.float64), "Pa"
    axes["lat"] = np.linspace(90, -90, shape[0]), "degrees_north"
    axes["lon"] = np.arange(shape[1]) * (360 / shape[1]), "degrees_east"
    file = netcdf4("--pipeline upstream of maelstrom-ens10").Dataset(path, "w", format="NETCDF4")
    file.set_fill_off()
    for name, (values, units) in axes.items():
        file.createDimension(name, len(values))
        axis = file.createVariable(name, values.dtype, (name,), contiguous=True)
        axis.units = units
        axis[:] = values
    for name in names:
        file.createVariable(name, "f4", tuple(axes), contiguous=True)
    return file
