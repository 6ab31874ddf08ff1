"""Columns as the networks read them: inputs in groups of like shape, heating rates, net fluxes.

The arithmetic is upstream's, in float32 and in its order, so that values are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iobench_maelstrom.radiation.schema import LENGTHS, ON_LEVELS, SCALARS, shape_of

Field = NDArray[Any]
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


def group_inputs(columns: Mapping[str, Field]) -> dict[str, Field]:
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


def heating_rate(down: Field, up: Field, pressure: Field, scale: int) -> Field:
    """Return how fast each layer is heated by the divergence of the net flux."""
    net = down - up
    rate: Field = (-(G_CP * scale)) * np.diff(net, axis=-1) / np.diff(pressure, axis=-1)
    return rate
