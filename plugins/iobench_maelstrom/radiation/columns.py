"""What a column of the radiation files (A3) holds, and how the networks read it.

Names are those of climetlab-maelstrom-radiation 0.7.5; ranges those of its normalisation file. The
arithmetic is upstream's, in float32 and in its order, so that values are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iobench.datasets import RecipeVariable

LENGTHS = {
    "level": 137,
    "half_level": 138,
    "level_interface": 136,
    "aerosol_type": 12,
    "sw_albedo_band": 6,
    "lw_emissivity_band": 2,
}
"""Of the dimensions of a column, in the order of the samples; a file may hold another one."""
ASSUMED = ("level_interface", "sw_albedo_band", "lw_emissivity_band")
"""Dimensions that are called after ecRad, and may be called otherwise in a real file."""


def _fields(
    dims: tuple[str, ...], *rows: tuple[str, str, float, float, float]
) -> tuple[RecipeVariable, ...]:
    """Return variables of a column: name, units, bounds, and a stand-in's noise."""
    return tuple(RecipeVariable(*row[:4], dims=dims, noise=row[4]) for row in rows)


ON_LEVELS = (
    *_fields(
        ("level",),
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
    ),
    *_fields(("level", "aerosol_type"), ("aerosol_mmr", "kg kg-1", 0.0, 5.0795e-7, 0.73)),
    *_fields(
        ("level",),
        ("q_liquid", "kg kg-1", 0.0, 4.3274e-3, 0.0004),
        ("q_ice", "kg kg-1", 0.0, 1.2222e-2, 0.009),
        ("re_liquid", "m", 9e-06, 3.0e-5, 0.68),
        ("re_ice", "m", 3e-05, 1.0068e-4, 0.67),
    ),
)
SCALARS = (
    *_fields(
        (),
        ("skin_temperature", "K", 220.0, 344.121, 0.66),
        ("cos_solar_zenith_angle", "1", 0.0, 0.9976, 0.44),
    ),
    *_fields(
        ("sw_albedo_band",),
        ("sw_albedo", "1", 0.0, 1.0, 0.75),
        ("sw_albedo_direct", "1", 0.0, 1.0, 0.75),
    ),
    *_fields(("lw_emissivity_band",), ("lw_emissivity", "1", 0.9, 1.0, 0.72)),
    *_fields((), ("solar_irradiance", "W m-2", 1314.0, 1407.193, 0.8)),
)
_INPUTS = (
    *ON_LEVELS,
    *_fields(
        ("half_level",),
        ("temperature_hl", "K", 190.0, 330.898, 0.62),
        ("pressure_hl", "Pa", 0.0, 107193.5, 0.9),
    ),
    *_fields(("level_interface",), ("overlap_param", "1", 0.0, 0.9932, 0.63)),
    *SCALARS,
)
INPUTS = {each.name: each for each in _INPUTS}
"""In the order of upstream's grouped arrays."""
POSITIONS = {
    "lat": RecipeVariable("lat", "degrees_north", -90.0, 90.0, noise=0.72),
    "lon": RecipeVariable("lon", "degrees_east", 0.0, 360.0, noise=0.7),
}
_FLUXES = _fields(
    ("half_level",),
    ("flux_dn_sw", "W m-2", 0.0, 1407.0, 0.44),
    ("flux_up_sw", "W m-2", 0.0, 900.0, 0.41),
    ("flux_dn_lw", "W m-2", 0.0, 450.0, 0.67),
    ("flux_up_lw", "W m-2", 200.0, 500.0, 0.67),
)
FLUXES = {each.name: each for each in _FLUXES}
PRESSURE = INPUTS["pressure_hl"]
SHARED = "solar_irradiance"
"""The variable that all columns of a file share; upstream broadcasts it."""


def shape_of(field: RecipeVariable) -> tuple[int, ...]:
    """Return the shape of a variable of a column."""
    return tuple(LENGTHS[dim] for dim in field.dims)


def is_assumed(field: RecipeVariable) -> bool:
    """Return whether only the shape of a variable is known, not what its dimensions are called."""
    return not set(field.dims).isdisjoint(ASSUMED)


Values = NDArray[Any]
G_CP = 9.80665 / 1004
"""Gravity over the heat capacity of air: K s-1 per W m-2 Pa-1."""


def _channels(dims: int) -> tuple[str, ...]:
    """Return names of what lies side by side, of variables with more dimensions one for each."""
    names: list[str] = []
    for each in ON_LEVELS if dims else SCALARS:
        many = shape_of(each)[dims:]
        names += [f"{each.name}_{number}" for number in range(*many)] if many else [each.name]
    return tuple(names)


SCALAR_CHANNELS, COLUMN_CHANNELS = _channels(0), _channels(1)
COLUMN_PLACES: dict[str, int | slice] = {
    each.name: COLUMN_CHANNELS.index(each.name) for each in ON_LEVELS if len(each.dims) == 1
}
_FIRST = COLUMN_CHANNELS.index("aerosol_mmr_0")
COLUMN_PLACES["aerosol_mmr"] = slice(_FIRST, _FIRST + LENGTHS["aerosol_type"])
N_LEVELS, N_HALF_LEVELS = LENGTHS["level"], LENGTHS["half_level"]
GROUPS = {
    "sca_inputs": (("channel",), (len(SCALAR_CHANNELS),)),
    "col_inputs": (("level", "channel"), (N_LEVELS, len(COLUMN_CHANNELS))),
    "hl_inputs": (("half_level", "channel"), (N_HALF_LEVELS, 2)),
    "pressure_hl": (("half_level", "channel"), (N_HALF_LEVELS, 1)),
    "inter_inputs": (("level_interface", "channel"), (LENGTHS["level_interface"], 1)),
}
"""Dimensions and shape of each group of inputs."""
CHANNELS = {
    "sca_inputs": SCALAR_CHANNELS,
    "col_inputs": COLUMN_CHANNELS,
    "hl_inputs": ("temperature_hl", "pressure_hl"),
    "pressure_hl": ("pressure_hl",),
    "inter_inputs": ("overlap_param",),
    "sw": ("flux_dn_sw", "flux_up_sw"),
    "lw": ("flux_dn_lw", "flux_up_lw"),
}
"""What the last axis of a group of inputs or fluxes holds."""


def group_inputs(columns: Mapping[str, Values]) -> dict[str, Values]:
    """Return the five groups of inputs."""
    scalars = [
        columns[each.name] if each.dims else columns[each.name][..., None] for each in SCALARS
    ]
    leading = columns["skin_temperature"].shape
    inputs = np.empty((*leading, N_LEVELS, len(COLUMN_CHANNELS)), dtype=np.float32)
    for name, place in COLUMN_PLACES.items():
        inputs[..., place] = columns[name]
    pressure = columns["pressure_hl"]
    return {
        "sca_inputs": np.concatenate(scalars, axis=-1),
        "col_inputs": inputs,
        "hl_inputs": np.stack([columns["temperature_hl"], pressure], axis=-1),
        "pressure_hl": pressure[..., None],
        "inter_inputs": columns["overlap_param"][..., None],
    }


def heating_rate(down: Values, up: Values, pressure: Values, scale: int) -> Values:
    """Return how fast each layer is heated by the divergence of the net flux."""
    net = down - up
    rate: Values = (-(G_CP * scale)) * np.diff(net, axis=-1) / np.diff(pressure, axis=-1)
    return rate
