"""What both data sets of application A3 share: what a column holds, files by scheme and subset.

Names and arithmetic, bit for bit, are those of climetlab-maelstrom-radiation 0.7.5.
"""

from __future__ import annotations

import bisect
import datetime
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iobench.datasets import (
    FileKey,
    Option,
    PublishedStep,
    RecipeVariable,
    Smooth,
    StandIn,
    recipe_variables,
)
from iobench.errors import OptionError
from iobench_maelstrom.climetlab_plugin import PluginFiles

LENGTHS = {
    "level": 137,
    "half_level": 138,
    "level_interface": 136,
    "aerosol_type": 12,
    "sw_albedo_band": 6,
    "lw_emissivity_band": 2,
}
"""Of the dimensions of a column, in the order of the samples; a file may hold another one."""


_LEVEL, _HALF_LEVEL = ("level",), ("half_level",)
ON_LEVELS = (
    *recipe_variables(
        ("q", "kg kg-1", 0.0, 3.0285e-2, 0.72),
        ("o3_mmr", "kg kg-1", 0.0, 1.7511e-5, 0.71),
        ("co2_vmr", "mol mol-1", 0.0004088, 4.2584e-4, 0.66),
        ("n2o_vmr", "mol mol-1", 3.194e-07, 3.3271e-7, 0.68),
        ("ch4_vmr", "mol mol-1", 1.968e-06, 2.0503e-6, 0.66),
        ("o2_vmr", "mol mol-1", 0.20106, 0.20944, 0.67),
        ("cfc11_vmr", "mol mol-1", 8.31e-10, 8.6566e-10, 0.65),
        ("cfc12_vmr", "mol mol-1", 4.775e-10, 4.9748e-10, 0.66),
        ("hcfc22_vmr", "mol mol-1", 0.0, 0.0, 0.0),
        ("ccl4_vmr", "mol mol-1", 0.0, 0.0, 0.0),
        ("cloud_fraction", "1", 0.0, 1.0, 0.09),
        dims=_LEVEL,
    ),
    RecipeVariable("aerosol_mmr", "kg kg-1", 0.0, 5.0795e-7, ("level", "aerosol_type"), noise=0.73),
    *recipe_variables(
        ("q_liquid", "kg kg-1", 0.0, 4.3274e-3, 0.0004),
        ("q_ice", "kg kg-1", 0.0, 1.2222e-2, 0.009),
        ("re_liquid", "m", 9e-06, 3.0e-5, 0.68),
        ("re_ice", "m", 3e-05, 1.0068e-4, 0.67),
        dims=_LEVEL,
    ),
)
SCALARS = (
    RecipeVariable("skin_temperature", "K", 220.0, 344.121, noise=0.66),
    RecipeVariable("cos_solar_zenith_angle", "1", 0.0, 0.9976, noise=0.44),
    RecipeVariable("sw_albedo", "1", 0.0, 1.0, ("sw_albedo_band",), noise=0.75),
    RecipeVariable("sw_albedo_direct", "1", 0.0, 1.0, ("sw_albedo_band",), noise=0.75),
    RecipeVariable("lw_emissivity", "1", 0.9, 1.0, ("lw_emissivity_band",), noise=0.72),
    RecipeVariable("solar_irradiance", "W m-2", 1314.0, 1407.193, noise=0.8),
)
PRESSURE = RecipeVariable("pressure_hl", "Pa", 0.0, 107193.5, _HALF_LEVEL, noise=0.9)
_INPUTS = (
    *ON_LEVELS,
    RecipeVariable("temperature_hl", "K", 190.0, 330.898, _HALF_LEVEL, noise=0.62),
    PRESSURE,
    RecipeVariable("overlap_param", "1", 0.0, 0.9932, ("level_interface",), noise=0.63),
    *SCALARS,
)
INPUTS = {each.name: each for each in _INPUTS}
"""In the order of upstream's grouped arrays."""
POSITIONS = {
    "lat": RecipeVariable("lat", "degrees_north", -90.0, 90.0, noise=0.72),
    "lon": RecipeVariable("lon", "degrees_east", 0.0, 360.0, noise=0.7),
}
_FLUXES = recipe_variables(
    ("flux_dn_sw", "W m-2", 0.0, 1407.0, 0.44),
    ("flux_up_sw", "W m-2", 0.0, 900.0, 0.41),
    ("flux_dn_lw", "W m-2", 0.0, 450.0, 0.67),
    ("flux_up_lw", "W m-2", 200.0, 500.0, 0.67),
    dims=_HALF_LEVEL,
)
FLUXES = {each.name: each for each in _FLUXES}
SHARED = "solar_irradiance"
"""The variable that all columns of a file share; upstream broadcasts it."""


Values = NDArray[Any]
G_CP = 9.80665 / 1004
"""Gravity over the heat capacity of air: K s-1 per W m-2 Pa-1."""
DAY_S = 24 * 3600


def _channels(dims: int) -> tuple[str, ...]:
    """Return names of what lies side by side, of variables with more dimensions one for each."""
    names: list[str] = []
    for each in ON_LEVELS if dims else SCALARS:
        many = [LENGTHS[dim] for dim in each.dims[dims:]]
        names += [f"{each.name}_{number}" for number in range(*many)] if many else [each.name]
    return tuple(names)


N_LEVELS, N_HALF_LEVELS = LENGTHS["level"], LENGTHS["half_level"]
CHANNELS = {
    "sca_inputs": _channels(0),
    "col_inputs": _channels(1),
    "hl_inputs": ("temperature_hl", "pressure_hl"),
    "pressure_hl": ("pressure_hl",),
    "inter_inputs": ("overlap_param",),
    "sw": ("flux_dn_sw", "flux_up_sw"),
    "lw": ("flux_dn_lw", "flux_up_lw"),
}
"""What the last axis of a group of inputs or fluxes holds."""
GROUPS = {
    "sca_inputs": (("channel",), (len(CHANNELS["sca_inputs"]),)),
    "col_inputs": (("level", "channel"), (N_LEVELS, len(CHANNELS["col_inputs"]))),
    "hl_inputs": (("half_level", "channel"), (N_HALF_LEVELS, 2)),
    "pressure_hl": (("half_level", "channel"), (N_HALF_LEVELS, 1)),
    "inter_inputs": (("level_interface", "channel"), (LENGTHS["level_interface"], 1)),
}
"""Dimensions and shape of each group of inputs."""


def group_inputs(columns: Mapping[str, Values]) -> dict[str, Values]:
    """Return the five groups of inputs of a column."""
    scalars = [np.atleast_1d(columns[each.name]) for each in SCALARS]
    # Channels last: arrays of a level have one, the aerosols one for each type.
    levels = [columns[each.name].reshape(N_LEVELS, -1) for each in ON_LEVELS]
    pressure = columns["pressure_hl"]
    return {
        "sca_inputs": np.concatenate(scalars),
        "col_inputs": np.concatenate(levels, axis=-1),
        "hl_inputs": np.stack([columns["temperature_hl"], pressure], axis=-1),
        "pressure_hl": pressure[..., None],
        "inter_inputs": columns["overlap_param"][..., None],
    }


def heating_rate(down: Values, up: Values, pressure: Values) -> Values:
    """Return how fast each layer is heated by the divergence of the net flux, K d-1."""
    net = down - up
    rate: Values = (-(G_CP * DAY_S)) * np.diff(net, axis=-1) / np.diff(pressure, axis=-1)
    return rate


def smooth_pressure(n_columns: int, key: Sequence[int | str]) -> NDArray[np.float32]:
    """Return pressure at half levels, which grows downwards to that at the surface."""
    smooth = Smooth(PRESSURE.high / 2, PRESSURE.high, PRESSURE.noise)
    height = np.arange(N_HALF_LEVELS) / N_LEVELS
    pressure = smooth((n_columns, 1), "f4", key).astype(np.float64) * (1e-5 + 0.99999 * height**2)
    return pressure.astype(np.float32)


BUCKET_URL = "https://object-store.os-api.cci1.ecmwf.int/maelstrom-ap3"
LICENCE = "CC BY 4.0, https://apps.ecmwf.int/datasets/licences/general/"
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


class RadiationFiles(PluginFiles):
    """Files of A3, by radiation scheme and ``keys``, all of which are required."""

    package = "climetlab-maelstrom-radiation==0.7.5"

    published: PublishedStep | None = PublishedStep(
        forward_ns=42_000_000,
        backward_ns=0,
        batch_size=512,
        source=(
            "MAELSTROM D2.3, A3: CNN + self-attention, TensorFlow 2.9.1, one A100 40 GB; the whole "
            "step, in which I/O was not measured separately: at most"
        ),
        tables={"D2.3, A3, TensorFlow": {"batch": (0.02241, 0.04203, 0.04195, 5.69129, 0.01004)}},
    )
    terms_of_use = (
        "By downloading data from this dataset, you agree to the terms and conditions defined at "
        "https://apps.ecmwf.int/datasets/licences/general/"
    )
    synthesis_version = 13
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

    def plugin_arguments(self) -> dict[str, Any]:
        """Return the arguments of the plugin for the files chosen: numbers, but for dates."""
        arguments: dict[str, Any] = {"dataset": self.solver}
        for name in (key.name for key in self.keys):
            values = dict.fromkeys(key[name] for key in self.file_numbers)
            arguments[name] = list(values) if name == "date" else list(map(int, values))
        return arguments

    def split_samples(self, lengths: Sequence[int]) -> dict[str, Sequence[int]]:
        """Return the samples of each split, given how many each file has."""
        parts: dict[str, list[range]] = {}
        pairs = itertools.pairwise(first_samples(lengths))
        for key, ends in zip(self.file_numbers, pairs, strict=True):
            day = key.get("date", key["timestep"])[:8]
            parts.setdefault(SPLITS_2019.get(day, "train"), []).append(range(*ends))
        return {
            name: range(some[0].start, some[-1].stop)
            if all(before.stop == after.start for before, after in itertools.pairwise(some))
            else [sample for part in some for sample in part]
            for name, some in parts.items()
        }

    def stand_in_keys(self, keys: Sequence[FileKey]) -> list[FileKey]:
        """Return the files of a stand-in for these keys, of the default scheme."""
        raise NotImplementedError

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> StandIn:
        """Return what a stand-in holds; ``scale`` is the share of the columns of subset 2020."""
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


def first_samples(lengths: Sequence[int]) -> list[int]:
    """Return the number of the first sample of each file, and of all."""
    return [0, *itertools.accumulate(lengths)]


def locate(starts: Sequence[int], number: int) -> tuple[int, int]:
    """Return the file of a sample and its number in it."""
    file = bisect.bisect_right(starts, number) - 1
    return file, number - starts[file]
