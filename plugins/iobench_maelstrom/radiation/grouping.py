"""Columns as the networks read them: inputs in groups of like shape, heating rates, net fluxes.

The arithmetic is upstream's, in float32 and in its order, so that values are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iobench_maelstrom.radiation.schema import (
    N_AEROSOLS,
    N_HALF_LEVELS,
    N_INTERFACES,
    N_LEVELS,
    ON_LEVELS,
    SCALARS,
)

__all__ = [
    "CHANNELS",
    "GROUPS",
    "G_CP",
    "boundaries",
    "group_inputs",
    "heating_rate",
]  # fmt: skip

Field = NDArray[Any]
G_CP = 9.80665 / 1004
"""Gravity over the heat capacity of air: K s-1 per W m-2 Pa-1."""


def _channels(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}_{number}" for number in range(count)]


SCALAR_CHANNELS = tuple(
    channel
    for variable in SCALARS
    for channel in _channels(variable.name, variable.shape[0] if variable.shape else 1)
)
COLUMN_CHANNELS = tuple(
    channel
    for variable in ON_LEVELS
    for channel in _channels(variable.name, variable.shape[1] if len(variable.shape) > 1 else 1)
)
GROUPS = {
    "sca_inputs": (("channel",), (len(SCALAR_CHANNELS),)),
    "col_inputs": (("level", "channel"), (N_LEVELS, len(COLUMN_CHANNELS))),
    "hl_inputs": (("half_level", "channel"), (N_HALF_LEVELS, 2)),
    "pressure_hl": (("half_level", "channel"), (N_HALF_LEVELS, 1)),
    "inter_inputs": (("level_interface", "channel"), (N_INTERFACES, 1)),
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
    """Return the five groups of inputs.

    Parameters
    ----------
    columns : mapping of str to ndarray
        The 25 input variables, float32, without a column dimension or all with it in front;
        ``aerosol_mmr`` as (level, aerosol type).
    """
    first = columns["skin_temperature"]
    scalars = [_with_axis(columns[variable.name], variable.shape) for variable in SCALARS]
    inputs = np.empty((*first.shape, N_LEVELS, len(COLUMN_CHANNELS)), dtype=np.float32)
    channel = 0
    for variable in ON_LEVELS:
        if len(variable.shape) > 1:
            inputs[..., channel : channel + N_AEROSOLS] = columns[variable.name]
            channel += N_AEROSOLS
        else:
            inputs[..., channel] = columns[variable.name]
            channel += 1
    pressure = columns["pressure_hl"]
    return {
        "sca_inputs": np.concatenate(scalars, axis=-1),
        "col_inputs": inputs,
        "hl_inputs": np.stack([columns["temperature_hl"], pressure], axis=-1),
        "pressure_hl": pressure[..., None],
        "inter_inputs": columns["overlap_param"][..., None],
    }


def _with_axis(values: Field, shape: tuple[int, ...]) -> Field:
    return values if shape else values[..., None]


def heating_rate(down: Field, up: Field, pressure: Field, scale: int) -> Field:
    """Return how fast each layer is heated by the divergence of the net flux.

    Parameters
    ----------
    down, up : ndarray, shape (..., half levels)
        Fluxes, W m-2.
    pressure : ndarray, shape (..., half levels)
        Pa, increasing.
    scale : int
        1 for K s-1, 86400 for K d-1.

    Returns
    -------
    ndarray, shape (..., levels)
    """
    net = down - up
    rate: Field = (-(G_CP * scale)) * np.diff(net, axis=-1) / np.diff(pressure, axis=-1)
    return rate


def boundaries(down: Field, up: Field, *, net_at_top: bool) -> Field:
    """Return the flux that leaves (or the net one that enters) at the top, and both at the ground.

    Returns
    -------
    ndarray, shape (..., 3)
    """
    top = down[..., 0] - up[..., 0] if net_at_top else up[..., 0]
    return np.stack([top, down[..., -1], up[..., -1]], axis=-1)
