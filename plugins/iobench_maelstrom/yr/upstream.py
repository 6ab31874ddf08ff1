"""How application A1 loads today: the stages of its training's tf.data pipeline, in its order.

Order and numbers: metno/maelstrom-train, ``maelstrom/loader.py`` with ``interleave_leadtime`` and
without lead times in a sample, as its benchmark runs it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Baseline, Stream, StreamStage, stopwatch
from iobench_maelstrom.hdf5_lock import LIBRARY
from iobench_maelstrom.xarray_files import open_file, require_xarray
from iobench_maelstrom.yr.schema import RAW_FORECAST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.samples import Sample, SampleSpec
    from iobench_maelstrom.yr.dataset import Yr

BATCH_SIZE = 32
THREADS = 12
"""``num_parallel_calls`` of everything between reading and the shuffle."""
SHUFFLED_GRIDS = 50
"""Grids (lead times of a file) whose patches the shuffle buffer holds."""
SHUFFLE_SHARE = 4
SHUFFLE_NBYTES = 4 << 30
SOURCE = (
    "metno/maelstrom-train, loader.py, lead times read in random order, reimplemented with numpy "
    "in place of TensorFlow. It opens all files as one xarray dataset; here each is opened by "
    "itself, for under today's dask the one dataset reads all lead times to give one. "
    "Its shuffle buffer of 50 grids' patches ({wanted}) holds {held} here: at most a quarter of "
    "the samples and 4 GiB."
)

Where = tuple[int, int]
"""The file's number and the lead time's."""


@dataclass(frozen=True, slots=True, eq=False)
class LeadField:
    """One lead time of one file on its way, leading axis 1 except for ``static`` as read."""

    lead: int
    predictors: NDArray[np.float32]
    static: NDArray[np.float32]
    targets: NDArray[np.float32]


def upstream_baseline(dataset: Yr, spec: SampleSpec, batch_size: int | None) -> Baseline:
    """Return the application's own loading of the files.

    Raises
    ------
    FileFormatError
        If xarray cannot open a file.
    """
    require_xarray(dataset.name)
    watch = stopwatch()
    steps = TrainingSteps(dataset)
    steps.open_all()
    opened_s = watch()
    grid = dataset.grid
    per_field = grid.patches_per_file // grid.n_leads
    wanted, held = _shuffle_buffer(per_field, len(grid), spec.nbytes)
    stages = (
        StreamStage("read+decode", steps.read),
        StreamStage("preprocess", steps.expand),
        StreamStage("preprocess", steps.append_features, threads=THREADS),
        StreamStage("preprocess", steps.subtract_forecast, threads=THREADS),
        StreamStage("preprocess", steps.normalise, threads=THREADS),
        StreamStage("preprocess", steps.cut, threads=THREADS, spreads=True),
    )
    stream = Stream(
        spec=spec,
        items=lambda epoch: shuffled_fields(grid.n_files, grid.n_leads, epoch),
        stages=stages,
        n_samples=lambda _: per_field,
        n_samples_all=len(grid),
        shuffle=held,
    )
    return Baseline(
        stream,
        batch_size or BATCH_SIZE,
        SOURCE.format(wanted=wanted, held=held),
        setup_s=(("opening all files", opened_s),),
    )


def shuffled_fields(n_files: int, n_leads: int, epoch: int) -> list[Where]:
    """Return every lead time of every file in the order of an epoch."""
    order = np.random.default_rng([n_files, n_leads, epoch]).permutation(n_files * n_leads)
    return [divmod(int(number), n_leads) for number in order]


def _shuffle_buffer(per_field: int, n_samples: int, sample_nbytes: int) -> tuple[int, int]:
    """Return the samples upstream's shuffle buffer holds, and how many of them are held here.

    A buffer that takes all of a stand-in in before the first batch would make a start-up of the
    whole run; what a larger one costs is memory and start-up, no time in the steady state.
    """
    wanted = SHUFFLED_GRIDS * per_field
    bounds = (wanted, n_samples // SHUFFLE_SHARE, SHUFFLE_NBYTES // sample_nbytes)
    return wanted, max(1, min(bounds))


@dataclass
class TrainingSteps:
    """The stages' functions, from (file, lead time) to samples.

    Each returns new arrays, as TensorFlow's do. Opened files belong to one process: a copy in
    another one opens them again.
    """

    dataset: Yr
    _opened: dict[tuple[int, int], Any] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "_opened": {}}

    def open_all(self) -> None:
        """Open every file, as upstream does before the first epoch."""
        for number in range(len(self.dataset.opened)):
            self._file(number)

    def read(self, where: Where) -> LeadField:
        """Return the whole grid at a lead time through xarray, which decodes what it reads."""
        number, lead = where
        with LIBRARY:
            file = self._file(number)
            targets = np.expand_dims(file["target_mean"][[lead]].values, -1)
            if self.dataset.n_targets == 2:
                std = np.expand_dims(file["target_std"][[lead]].values, -1)
                targets = np.concatenate((targets, std), axis=-1)
            predictors = file["predictors"][[lead]].values
            static = file["static_predictors"][...].values
        return LeadField(lead, predictors, static, targets)

    def expand(self, read: LeadField) -> LeadField:
        """Crop, and repeat the static predictors for the lead time."""
        grid = self.dataset.grid
        inside = (slice(*grid.y_range), slice(*grid.x_range))
        return LeadField(
            read.lead,
            read.predictors[:, *inside],
            np.tile(read.static[inside], (1, 1, 1, 1)),
            read.targets[:, *inside],
        )

    def append_features(self, expanded: LeadField) -> LeadField:
        """Return all channels in one array: predictors, static ones, lead time, x and y."""
        shape = (*expanded.predictors.shape[:-1], 1)
        _, n_y, n_x, _ = shape
        seconds = np.float32(self.dataset.leadtimes[expanded.lead])
        features = (
            np.full(shape, seconds),
            np.broadcast_to(np.arange(n_x, dtype=np.float32)[None, None, :, None], shape),
            np.broadcast_to(np.arange(n_y, dtype=np.float32)[None, :, None, None], shape),
        )
        together = np.concatenate((expanded.predictors, expanded.static, *features), axis=3)
        return LeadField(expanded.lead, together, expanded.static, expanded.targets)

    def subtract_forecast(self, full: LeadField) -> LeadField:
        """Return the target less the raw forecast, if that is what is predicted."""
        if not self.dataset.chosen["predict_diff"]:
            return full
        targets = full.targets.copy()
        targets[..., 0] -= full.predictors[..., RAW_FORECAST]
        return LeadField(full.lead, full.predictors, full.static, targets)

    def normalise(self, full: LeadField) -> LeadField:
        """Return the channels normalised."""
        if not self.dataset.chosen["normalize"]:
            return full
        predictors = full.predictors - self.dataset.mean
        predictors = predictors / self.dataset.std
        return LeadField(full.lead, predictors, full.static, full.targets)

    def cut(self, full: LeadField) -> Iterator[Sample]:
        """Yield the patches of the grid, row after row, each a copy of its own."""
        shape = self.dataset.grid.shape
        predictors, targets = _patches(full.predictors, shape), _patches(full.targets, shape)
        for patch, target in zip(predictors, targets, strict=True):
            yield {"predictors": patch[None].copy(), "targets": target[None].copy()}

    def _file(self, number: int) -> Any:
        key = os.getpid(), number
        if key not in self._opened:
            # ``cache`` would keep what was read: a lead time would be read from storage but once.
            how = {"decode_timedelta": False, "decode_times": False, "cache": False}
            self._opened[key] = open_file(self.dataset.opened[number].path, **how)
        return self._opened[key]


def _patches(values: NDArray[np.float32], shape: tuple[int, int]) -> NDArray[np.float32]:
    """Return an array (1, y, x, channel) as (patch, y, x, channel), what is left over cut off."""
    n_y, n_x = shape
    rows, columns = values.shape[1] // n_y, values.shape[2] // n_x
    whole = values[0, : rows * n_y, : columns * n_x]
    parted = whole.reshape(rows, n_y, columns, n_x, values.shape[3])
    return parted.swapaxes(1, 2).reshape(rows * columns, n_y, n_x, values.shape[3])
