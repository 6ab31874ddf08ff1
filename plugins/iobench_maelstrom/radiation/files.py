"""What both data sets of application A3 share: files by scheme and subset, stand-ins of them."""

from __future__ import annotations

import bisect
import datetime
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    FileKey,
    Option,
    PublishedStep,
    RecipeVariable,
    StandIn,
    smooth_values,
    writing_library,
)
from iobench.errors import OptionError
from iobench.stores import FeatureKind, frame_example
from iobench_maelstrom.climetlab_plugin import PluginFiles
from iobench_maelstrom.radiation import columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

STAND_IN_VERSION = 12
"""Counts up when the same seed gives other bytes."""
AT_ONCE = 1024
HEADERS_NBYTES = 24 << 10
STORED_AEROSOLS = ("aerosol_type", "level")
"""No order is published; upstream transposes what it reads to (level, aerosol_type)."""
EXAMPLE_NBYTES = 20_576
NORM_COLUMNS, NORM_NBYTES = 2048, 16 << 10
FILES: dict[bool, dict[str, RecipeVariable]] = {
    True: {**columns.INPUTS, **columns.POSITIONS},
    False: {**columns.FLUXES, columns.PRESSURE.name: columns.PRESSURE},
}
"""Variables of a file of inputs, and of outputs."""


def _bounds(channels: tuple[str, ...]) -> tuple[list[float], list[float]]:
    """Return the bounds of channels, one of a variable's being ``name_number``."""
    fields = [
        columns.INPUTS.get(name) or columns.INPUTS[name.rpartition("_")[0]] for name in channels
    ]
    return [each.low for each in fields], [each.high for each in fields]


FEATURES: dict[str, tuple[tuple[int, ...], Any, Any, float]] = {
    "sca_inputs": (columns.GROUPS["sca_inputs"][1], *_bounds(columns.SCALAR_CHANNELS), 0.97),
    "col_inputs": (columns.GROUPS["col_inputs"][1], *_bounds(columns.COLUMN_CHANNELS), 0.77),
    "hl_inputs": (
        columns.GROUPS["hl_inputs"][1],
        *_bounds(("temperature_hl", "pressure_hl")),
        0.96,
    ),
    "inter_inputs": (columns.GROUPS["inter_inputs"][1], *_bounds(("overlap_param",)), 0.71),
    "sw": ((columns.LENGTHS["half_level"], 2), 0.0, 1407.0, 0.51),
    "lw": ((columns.LENGTHS["half_level"], 2), 0.0, 500.0, 0.95),
    "hr_sw": ((columns.LENGTHS["level"], 1), -3.4e-3, 1.8e-2, 0.48),
    "hr_lw": ((columns.LENGTHS["level"], 1), -1.1e-2, 8e-4, 0.95),
}
"""Of an example: shape, bounds and noise of each but pressure; heating rates in K s-1."""


def pair_file_nbytes(n_columns: int, *, is_inputs: bool) -> int:
    """Return about the bytes of a file of inputs or outputs."""
    return HEADERS_NBYTES + n_columns * _column_nbytes(FILES[is_inputs])


def _column_nbytes(fields: Mapping[str, RecipeVariable]) -> int:
    return sum(4 * int(np.prod(columns.shape_of(each))) for each in fields.values())


def write_pair_file(plan: StandIn, key: FileKey, path: Path, *, is_inputs: bool) -> None:
    """Write the file of inputs or outputs of a patch."""
    fields = FILES[is_inputs]
    numbers = (plan.seed, STAND_IN_VERSION, *(int(key[n]) for n in ("date", "timestep", "patch")))
    with writing_library("netCDF4", "maelstrom-radiation").Dataset(path, "w") as file:
        file.createDimension("column", plan.n_steps)
        for each in fields.values():
            _define(file, each)
        for start in range(0, plan.n_steps, AT_ONCE):
            stop = min(start + AT_ONCE, plan.n_steps)
            for name, each in fields.items():
                if name == columns.PRESSURE.name:
                    values = _pressure(stop - start, *numbers, start)
                else:
                    shape = (stop - start, *file[name].shape[1:]) if name != columns.SHARED else ()
                    what: tuple[int | str, ...] = (*numbers, name, start)
                    values = smooth_values(shape, each.low, each.high, *what, noise=each.noise)
                if name != columns.SHARED:
                    file[name][start:stop] = values
                elif not start:
                    file[name][...] = values


def _pressure(n_columns: int, *key: int) -> NDArray[np.float32]:
    """Return pressure at half levels, which grows downwards to that at the surface."""
    bounds = columns.PRESSURE.high / 2, columns.PRESSURE.high
    surface = smooth_values((n_columns, 1), *bounds, *key, noise=columns.PRESSURE.noise)
    height = np.arange(columns.LENGTHS["half_level"]) / columns.LENGTHS["level"]
    pressure: NDArray[np.float32] = (
        surface.astype(np.float64) * (1e-5 + 0.99999 * height**2)
    ).astype(np.float32)
    return pressure


def _define(file: Any, field: RecipeVariable) -> None:
    sizes = dict(zip(field.dims, columns.shape_of(field), strict=True))
    inner = STORED_AEROSOLS if field.name == "aerosol_mmr" else field.dims
    for dim in inner:
        if dim not in file.dimensions:
            file.createDimension(dim, sizes[dim])
    dims = () if field.name == columns.SHARED else ("column", *inner)
    stored = file.createVariable(field.name, "f4", dims, contiguous=bool(dims))
    stored.units = field.units


def write_examples(plan: StandIn, key: FileKey, path: Path) -> None:
    """Write a TFRecord file: shuffled columns of all days."""
    numbers = (plan.seed, STAND_IN_VERSION, int(key["timestep"]), int(key["filenum"]))
    with path.open("wb") as stream:
        for start in range(0, plan.n_steps, AT_ONCE):
            features = _features(min(AT_ONCE, plan.n_steps - start), *numbers, start)
            for number in range(len(features["sca_inputs"])):
                named = [(k, FeatureKind.FLOAT, v[number]) for k, v in features.items()]
                stream.writelines(frame_example(named))


def _features(n_columns: int, *key: int) -> dict[str, NDArray[np.float32]]:
    """Return the features of columns by name."""
    features = {
        name: smooth_values((n_columns, *shape), low, high, *key, name, noise=noise)
        for name, (shape, low, high, noise) in FEATURES.items()
    }
    features["pressure_hl"] = _pressure(n_columns, *key)[..., None]
    features["hl_inputs"][..., 1:] = features["pressure_hl"]
    order = (*columns.GROUPS, "sw", "hr_sw", "lw", "hr_lw")
    return {name: features[name] for name in order}


def write_norms(plan: StandIn, name: str, path: Path) -> None:
    """Write mean and deviation of a group over other columns."""
    values = _features(NORM_COLUMNS, plan.seed, STAND_IN_VERSION)[name]
    values = values.reshape(-1, values.shape[-1])
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    with writing_library("netCDF4", "maelstrom-radiation-tf").Dataset(path, "w") as file:
        file.createDimension("variable", len(mean))
        file.createVariable(f"{name}_mean", "f4", ("variable",), contiguous=True)[:] = mean
        # Of what is constant, the deviation is told as 1, so that it stays a number.
        divisor = np.where(deviation > 0, deviation, 1)
        file.createVariable(f"{name}_std", "f4", ("variable",), contiguous=True)[:] = divisor


BUCKET_URL = "https://object-store.os-api.cci1.ecmwf.int/maelstrom-ap3"
LICENCE = "CC BY 4.0, https://apps.ecmwf.int/datasets/licences/general/"
PACKAGE = "climetlab-maelstrom-radiation"
INSTALL = f"pip install 'iobench[climetlab]' && pip install --no-deps {PACKAGE}==0.7.5"
DATES_2020 = tuple(
    f"{datetime.date(2020, 1, 1) + datetime.timedelta(days=30 * number):%Y%m%d}"
    for number in range(13)
)
SPLITS_2019 = {
    "20190131": "validation", "20190531": "test", "20190829": "validation", "20191028": "test",
}  # fmt: skip
"""Days of 2019, as upstream's subsets of records choose them; all of 2020 is for training."""
TIMESTEPS = tuple(map(str, range(0, 3501, 125)))
SCHEME = Option(
    "dataset",
    "The radiation scheme whose outputs are the targets.",
    "tripleclouds",
    ("tripleclouds", "mcica", "3dcorrection", "spartacus"),
)
HR_SCALES = {"K s-1": 1, "K d-1": 24 * 3600}
"""Units of heating rates, and how many of them one kelvin per second is."""
HR_UNITS = Option("hr_units", "Units of heating rates.", "K d-1", tuple(HR_SCALES))


class RadiationFiles(PluginFiles):
    """Files of A3, by radiation scheme and ``keys``, all of which are required."""

    install = INSTALL

    published: PublishedStep | None = PublishedStep(
        forward_ns=42_000_000,
        backward_ns=0,
        batch_size=512,
        source=(
            "MAELSTROM D2.3, A3: CNN + self-attention, TensorFlow 2.9.1, one A100 40 GB; the whole "
            "step, in which I/O was not measured separately: at most"
        ),
        tables={
            "D2.3, A3, TensorFlow": {
                "epoch": (1801.48753, 1806.99452, 1807.31890, 1812.72032, 3.91004),
                "batch": (0.02241, 0.04203, 0.04195, 5.69129, 0.01004),
            },
        },
    )
    terms_of_use = (
        "By downloading data from this dataset, you agree to the terms and conditions defined at "
        "https://apps.ecmwf.int/datasets/licences/general/"
    )
    synthesis_version = STAND_IN_VERSION
    subsets: Mapping[str, tuple[Sequence[str], ...]]
    stand_in_subsets: tuple[str, ...]
    n_columns: tuple[int, int, int]

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.solver: str = self.chosen["dataset"]
        names = [key.name for key in self.keys]
        values = [self.chosen[name] for name in names]
        if "subset" in options:
            if also := sorted(set(names) & set(options)):
                raise OptionError(f"subset cannot be combined with {', '.join(also)}")
            values = list(self.subsets[self.chosen["subset"]])
        self.file_numbers = self.combined(values)

    def file_keys(self) -> list[FileKey]:
        return self.file_numbers

    @property
    def is_chosen(self) -> bool:
        return True

    def plugin_arguments(self) -> dict[str, Any]:
        """Return the arguments of the plugin for the files chosen: numbers, but for dates."""
        arguments: dict[str, Any] = {"dataset": self.solver}
        for name in (key.name for key in self.keys):
            values = dict.fromkeys(key[name] for key in self.file_numbers)
            arguments[name] = list(values) if name == "date" else list(map(int, values))
        return arguments

    def split_samples(self, lengths: Sequence[int]) -> dict[str, Sequence[int]]:
        """Return the samples of each split, given how many each file has."""
        starts = Starts(lengths).starts
        parts: dict[str, list[range]] = {}
        for number, key in enumerate(self.file_numbers):
            day = key.get("date", key["timestep"])[:8]
            part = range(starts[number], starts[number + 1])
            parts.setdefault(SPLITS_2019.get(day, "train"), []).append(part)
        return {name: _joined(each) for name, each in parts.items()}

    def stand_in_keys(self, keys: Sequence[FileKey]) -> list[FileKey]:
        """Return the files of a stand-in for these keys, of the default scheme."""
        raise NotImplementedError

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> StandIn:
        """Return what a stand-in holds; ``scale`` is the share of the columns of subset 2020.

        Up to the files of `stand_in_subsets` these get shorter, beyond there are more of them.
        """
        first = [key for name in self.stand_in_subsets for key in self.combined(self.subsets[name])]
        few, some, all_columns = self.n_columns
        keys, n_columns = first, few if tiny else some
        if scale is not None and not tiny:
            every = self.combined(self.subsets["2020"])
            share = scale * len(every)
            n_columns = all_columns
            if share < len(first):
                n_columns = max(1, round(share * all_columns / len(first)))
            else:
                others = [key for key in every if key not in first]
                keys = [*first, *others[: round(share) - len(first)]]
        return StandIn(seed, tuple(self.stand_in_keys(keys)), n_columns, tiny)


class Starts:
    """Where the samples of each file start, counted over all of them."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.starts = [0, *itertools.accumulate(lengths)]

    def __len__(self) -> int:
        return self.starts[-1]

    def locate(self, number: int) -> tuple[int, int]:
        """Return the file of a sample and its number in it."""
        file = bisect.bisect_right(self.starts, number) - 1
        return file, number - self.starts[file]


def _joined(parts: Sequence[range]) -> Sequence[int]:
    if all(before.stop == after.start for before, after in itertools.pairwise(parts)):
        return range(parts[0].start, parts[-1].stop)
    return [sample for part in parts for sample in part]
