"""How application A5 loads today: groups of months in memory, batches drawn from them by xarray.

Order and numbers: downscaling_benchmark, ``handle_data_class.py`` (``StreamMonthlyNetCDF``,
``make_tf_dataset_dyn``), and the ``num_files`` and ``batch_size`` of its tier-2 configuration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Baseline, Stream, StreamStage, stopwatch
from iobench_maelstrom.hdf5_lock import LIBRARY
from iobench_maelstrom.xarray_files import open_file, open_joined, require_xarray

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import SampleIndex
    from iobench_maelstrom.downscaling.dataset import Downscaling

BATCH_SIZE = 32
GROUP_FILES = 22
"""``num_files``: months that are in memory together."""
GROUP_NBYTES = 4 << 30
POOL = 10
DRAWING_THREADS = 4
"""Upstream lets TensorFlow choose."""
SOURCE = (
    "downscaling_benchmark, StreamMonthlyNetCDF, reimplemented with numpy and xarray in place of "
    "TensorFlow. Groups of {size} of {n_files} months here: upstream's {wanted}, but at most half "
    "of the files and 4 GiB, so that a group is read while another is used. Its pool of 10 is of "
    "processes, which send months back through pipes; here it is of threads, which call the NetCDF "
    "library in turn. It repeats samples of short groups to the longest's length; here each comes "
    "once. {whole}Statistics are of one group's worth of months; upstream's are of all."
)
WHOLE = "Tier 1, one file upstream, is loaded whole there. "


def upstream_baseline(dataset: Downscaling, index: SampleIndex, batch_size: int | None) -> Baseline:
    """Return the application's own loading of the files.

    Raises
    ------
    MissingFileError, FileFormatError
        If xarray cannot open a file.
    """
    require_xarray(dataset.name, "dask")
    batch = batch_size or BATCH_SIZE
    groups = MonthGroups(dataset, index, batch)
    paths = [file.path for file in dataset.opened]
    statistics_of = paths[: groups.size]
    watch = stopwatch()
    opened = _open_all(paths)
    opened_s = watch()
    _scan(_open_all(statistics_of), groups.names)
    scanned_s = watch() - opened_s
    opened.close()
    stream = Stream(
        spec=index.spec,
        items=groups.of_epoch,
        stages=(
            StreamStage("read+decode+preprocess", groups.load),
            StreamStage("preprocess", groups.draw, spreads=True),
            StreamStage("preprocess", groups.gather, threads=DRAWING_THREADS),
        ),
        n_samples=groups.n_samples,
        n_samples_all=len(index),
        batched=True,
    )
    source = SOURCE.format(
        size=groups.size,
        n_files=len(paths),
        wanted=GROUP_FILES,
        whole=WHOLE if dataset.number == 1 else "",
    )
    return Baseline(
        stream,
        batch,
        source,
        setup_s=(
            ("opening all files", opened_s),
            (f"statistics of {len(statistics_of)} of {len(paths)} files", scanned_s),
        ),
    )


def group_size(n_files: int, month_nbytes: int) -> int:
    """Return how many months are in memory together."""
    return max(1, min(GROUP_FILES, n_files // 2, GROUP_NBYTES // month_nbytes))


Drawn = tuple[Any, "NDArray[np.int64]"]
"""Months in memory, and which of their samples in which order."""


class MonthGroups:
    """The stages' functions, from a group's months to batches; a group's last may have fewer.

    Parameters
    ----------
    dataset : Downscaling
        Ours, with its files open.
    index : SampleIndex
        Of it.
    batch_size : int
        Samples in a batch.
    """

    def __init__(self, dataset: Downscaling, index: SampleIndex, batch_size: int) -> None:
        n_files = len(dataset.opened)
        self.dataset, self.batch_size = dataset, batch_size
        self.names = [each.name for each in dataset.sample_fields]
        self.counts = Counter(file for file, _ in index.where)
        n_points = math.prod(axis.length for axis in dataset.axes[1:])
        month_nbytes = max(self.counts.values()) * 4 * len(self.names) * n_points
        self.size = group_size(n_files, month_nbytes)
        # Once, at the start: upstream's groups are the same in each epoch.
        order = np.random.default_rng(n_files).permutation(n_files).tolist()
        firsts = range(0, n_files, self.size)
        self.groups = [order[first : first + self.size] for first in firsts]

    def of_epoch(self, epoch: int) -> list[tuple[int, int]]:
        """Return the items of an epoch: its number and each group's."""
        return [(epoch, number) for number in range(len(self.groups))]

    def n_samples(self, item: tuple[int, int]) -> int:
        """Return how many samples a group holds."""
        return sum(self.counts[file] for file in self.groups[item[1]])

    def load(self, item: tuple[int, int]) -> Drawn:
        """Return a group's months scored and joined along time, several prepared at once."""
        import xarray

        epoch, number = item
        files = self.groups[number]
        with ThreadPoolExecutor(min(POOL, len(files))) as pool:
            months = list(pool.map(self._month, files))
        how: dict[str, Any] = {"data_vars": "all", "coords": "different", "compat": "equals"}
        data = xarray.concat(months, dim="time", join="outer", **how)
        order = np.random.default_rng([epoch, number]).permutation(self.n_samples(item))
        return data, order

    def draw(self, group: Drawn) -> Iterator[Drawn]:
        """Yield the group once for each batch, with the samples that are in it."""
        data, order = group
        for first in range(0, len(order), self.batch_size):
            yield data, order[first : first + self.batch_size]

    def gather(self, drawn: Drawn) -> dict[str, NDArray[np.float32]]:
        """Return a batch: gathered over its variables, channels last in memory, as upstream.

        Shown with channels first, as our samples are, which moves no number.
        """
        inputs, targets = (stack.fields for stack in self.dataset.stacks)
        data, order = drawn
        picked = data.isel(time=order).to_array("variables")
        together = picked.sel(variables=[*inputs, *targets]).transpose(..., "variables")
        batch = np.moveaxis(np.ascontiguousarray(together.values), -1, 1)
        return {"inputs": batch[:, : len(inputs)], "targets": batch[:, len(inputs) :]}

    def _month(self, number: int) -> Any:
        """Return a month's variables scored, float32."""
        import xarray

        with LIBRARY, open_file(self.dataset.opened[number].path, decode_times=False) as file:
            read = file[self.names].load()
        scored = {}
        for name in self.names:
            scale = self.dataset.normalisation.scales[name]
            scored[name] = ((read[name] - scale.mean) / scale.divisor).astype("float32")
        return xarray.Dataset(scored)


def _open_all(paths: list[Path]) -> Any:
    """Open files as one lazy dataset, as upstream does at its start."""
    return open_joined(paths, "time", decode_cf=False, cache=False, join="override")


def _scan(opened: Any, names: list[str]) -> None:
    """Take mean and deviation of each variable, whose cost is a part of upstream's start.

    Samples are scored by our own, which are exact over all training months: theirs would differ.
    """
    import dask

    wanted = opened[names]
    # In this thread alone: netCDF4 fails when several threads open files at once.
    dask.compute(wanted.mean(), wanted.std(), scheduler="synchronous")
    opened.close()
