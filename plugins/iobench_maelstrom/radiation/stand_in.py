"""Writes the files of stand-ins of application A3: NetCDF pairs, TFRecords and norms.

Smooth values with noise: the bytes of a file follow from the seed, the file and its number of
columns alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Advance, Field, FileKey, StandIn, netcdf4, smooth_values
from iobench.stores import FeatureKind, frame_example
from iobench_maelstrom.radiation.grouping import COLUMN_CHANNELS, GROUPS, SCALAR_CHANNELS
from iobench_maelstrom.radiation.schema import (
    FLUXES,
    INPUTS,
    LENGTHS,
    POSITIONS,
    PRESSURE,
    SHARED,
    shape_of,
)

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
FILES: dict[bool, dict[str, Field]] = {
    True: {**INPUTS, **POSITIONS},
    False: {**FLUXES, PRESSURE.name: PRESSURE},
}
"""Variables of a file of inputs, and of outputs."""


def _bounds(channels: tuple[str, ...]) -> tuple[list[float], list[float]]:
    """Return the bounds of channels, one of a variable's being ``name_number``."""
    fields = [INPUTS.get(name) or INPUTS[name.rpartition("_")[0]] for name in channels]
    return [each.low for each in fields], [each.high for each in fields]


FEATURES: dict[str, tuple[tuple[int, ...], Any, Any, float]] = {
    "sca_inputs": (GROUPS["sca_inputs"][1], *_bounds(SCALAR_CHANNELS), 0.97),
    "col_inputs": (GROUPS["col_inputs"][1], *_bounds(COLUMN_CHANNELS), 0.77),
    "hl_inputs": (GROUPS["hl_inputs"][1], *_bounds(("temperature_hl", "pressure_hl")), 0.96),
    "inter_inputs": (GROUPS["inter_inputs"][1], *_bounds(("overlap_param",)), 0.71),
    "sw": ((LENGTHS["half_level"], 2), 0.0, 1407.0, 0.51),
    "lw": ((LENGTHS["half_level"], 2), 0.0, 500.0, 0.95),
    "hr_sw": ((LENGTHS["level"], 1), -3.4e-3, 1.8e-2, 0.48),
    "hr_lw": ((LENGTHS["level"], 1), -1.1e-2, 8e-4, 0.95),
}
"""Of an example: shape, bounds and noise of each but pressure; heating rates in K s-1."""


def pair_file_nbytes(n_columns: int, *, is_inputs: bool) -> int:
    """Return about the bytes of a file of inputs or outputs."""
    return HEADERS_NBYTES + n_columns * _column_nbytes(FILES[is_inputs])


def _column_nbytes(fields: Mapping[str, Field]) -> int:
    return sum(4 * int(np.prod(shape_of(each))) for each in fields.values())


def write_pair_file(
    plan: StandIn, key: FileKey, path: Path, advance: Advance, *, is_inputs: bool
) -> None:
    """Write the file of inputs or outputs of a patch."""
    fields = FILES[is_inputs]
    numbers = (plan.seed, STAND_IN_VERSION, *(int(key[n]) for n in ("date", "timestep", "patch")))
    with netcdf4("maelstrom-radiation").Dataset(path, "w", format="NETCDF4") as file:
        file.createDimension("column", plan.n_steps)
        for each in fields.values():
            _define(file, each)
        for start in range(0, plan.n_steps, AT_ONCE):
            stop = min(start + AT_ONCE, plan.n_steps)
            for name, each in fields.items():
                if name == PRESSURE.name:
                    values = _pressure(stop - start, *numbers, start)
                else:
                    shape = (stop - start, *file[name].shape[1:]) if name != SHARED else ()
                    what: tuple[int | str, ...] = (*numbers, name, start)
                    values = smooth_values(shape, each.low, each.high, *what, noise=each.noise)
                if name != SHARED:
                    file[name][start:stop] = values
                elif not start:
                    file[name][...] = values
            advance((stop - start) * _column_nbytes(fields))
    advance(HEADERS_NBYTES)


def _pressure(n_columns: int, *key: int) -> NDArray[np.float32]:
    """Return pressure at half levels, which grows downwards to that at the surface."""
    bounds = PRESSURE.high / 2, PRESSURE.high
    surface = smooth_values((n_columns, 1), *bounds, *key, noise=PRESSURE.noise)
    height = np.arange(LENGTHS["half_level"]) / LENGTHS["level"]
    pressure: NDArray[np.float32] = (
        surface.astype(np.float64) * (1e-5 + 0.99999 * height**2)
    ).astype(np.float32)
    return pressure


def _define(file: Any, field: Field) -> None:
    sizes = dict(zip(field.dims, shape_of(field), strict=True))
    inner = STORED_AEROSOLS if field.name == "aerosol_mmr" else field.dims
    for dim in inner:
        if dim not in file.dimensions:
            file.createDimension(dim, sizes[dim])
    dims = () if field.name == SHARED else ("column", *inner)
    stored = file.createVariable(field.name, "f4", dims, contiguous=bool(dims))
    stored.units = field.units


def write_examples(plan: StandIn, key: FileKey, path: Path, advance: Advance) -> None:
    """Write a TFRecord file: shuffled columns of all days."""
    numbers = (plan.seed, STAND_IN_VERSION, int(key["timestep"]), int(key["filenum"]))
    with path.open("wb") as stream:
        for start in range(0, plan.n_steps, AT_ONCE):
            features = _features(min(AT_ONCE, plan.n_steps - start), *numbers, start)
            for number in range(len(features["sca_inputs"])):
                named = [(k, FeatureKind.FLOAT, v[number]) for k, v in features.items()]
                stream.writelines(frame_example(named))
            advance(len(features["sca_inputs"]) * EXAMPLE_NBYTES)


def _features(n_columns: int, *key: int) -> dict[str, NDArray[np.float32]]:
    """Return the features of columns by name."""
    features = {
        name: smooth_values((n_columns, *shape), low, high, *key, name, noise=noise)
        for name, (shape, low, high, noise) in FEATURES.items()
    }
    features["pressure_hl"] = _pressure(n_columns, *key)[..., None]
    features["hl_inputs"][..., 1:] = features["pressure_hl"]
    order = (*GROUPS, "sw", "hr_sw", "lw", "hr_lw")
    return {name: features[name] for name in order}


def write_norms(plan: StandIn, name: str, path: Path, advance: Advance) -> None:
    """Write mean and deviation of a group over other columns."""
    values = _features(NORM_COLUMNS, plan.seed, STAND_IN_VERSION)[name]
    values = values.reshape(-1, values.shape[-1])
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    with netcdf4("maelstrom-radiation-tf").Dataset(path, "w", format="NETCDF4") as file:
        file.createDimension("variable", len(mean))
        file.createVariable(f"{name}_mean", "f4", ("variable",), contiguous=True)[:] = mean
        # Of what is constant, the deviation is told as 1, so that it stays a number.
        divisor = np.where(deviation > 0, deviation, 1)
        file.createVariable(f"{name}_std", "f4", ("variable",), contiguous=True)[:] = divisor
    advance(NORM_NBYTES)
