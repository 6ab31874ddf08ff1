"""Writes the files of stand-ins of application A3: NetCDF pairs, TFRecords and norms.

The bytes of a file follow from the seed, the file and its number of columns alone.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Advance, Field, FileKey, StandIn, netcdf4
from iobench.stores import FeatureKind
from iobench_maelstrom.radiation.atmosphere import Atmosphere, solar_irradiance
from iobench_maelstrom.radiation.grouping import group_inputs, heating_rate
from iobench_maelstrom.radiation.schema import (
    FLUXES,
    INPUTS,
    POSITIONS,
    PRESSURE,
    SHARED,
    shape_of,
)
from iobench_maelstrom.tfrecords import framed

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    numbers = (int(key[name]) for name in ("date", "timestep", "patch"))
    atmosphere = Atmosphere((plan.seed, *numbers), plan.n_steps, shuffled=False)
    make = atmosphere.inputs if is_inputs else atmosphere.outputs
    with netcdf4("maelstrom-radiation").Dataset(path, "w", format="NETCDF4") as file:
        file.createDimension("column", plan.n_steps)
        for each in fields.values():
            _define(file, each)
        if is_inputs:
            day = datetime.datetime.strptime(key["date"], "%Y%m%d").timetuple().tm_yday
            file[SHARED][...] = solar_irradiance(day)
        for start in range(0, plan.n_steps, AT_ONCE):
            stop = min(start + AT_ONCE, plan.n_steps)
            for name, values in make(start, stop).items():
                stored = values.swapaxes(1, 2) if name == "aerosol_mmr" else values
                file[name][start:stop] = stored
            advance((stop - start) * _column_nbytes(fields))
    advance(HEADERS_NBYTES)


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
    numbers = (plan.seed, int(key["timestep"]), int(key["filenum"]))
    with path.open("wb") as stream:
        for features in _shuffled_columns(numbers, plan.n_steps):
            count = len(features["sca_inputs"])
            for number in range(count):
                named = [(k, FeatureKind.FLOAT, v[number]) for k, v in features.items()]
                stream.writelines(framed(named))
            advance(count * EXAMPLE_NBYTES)


def _shuffled_columns(
    key: tuple[int, ...], n_columns: int
) -> Iterator[Mapping[str, NDArray[np.float32]]]:
    """Yield the features of columns of any day, many at once, by name."""
    atmosphere = Atmosphere(key, n_columns, shuffled=True)
    days = np.random.default_rng(key).integers(1, 366, n_columns)
    irradiance = np.array([solar_irradiance(day) for day in range(366)], dtype=np.float32)[days]
    for start in range(0, n_columns, AT_ONCE):
        stop = min(start + AT_ONCE, n_columns)
        columns = atmosphere.inputs(start, stop) | atmosphere.outputs(start, stop)
        columns["solar_irradiance"] = irradiance[start:stop]
        features = group_inputs(columns)
        for band in ("sw", "lw"):
            down, up = columns[f"flux_dn_{band}"], columns[f"flux_up_{band}"]
            features[band] = np.stack([down, up], axis=-1)
            rate = heating_rate(down, up, columns["pressure_hl"], 1)
            features[f"hr_{band}"] = rate[..., None]
        yield features


def write_norms(plan: StandIn, name: str, path: Path, advance: Advance) -> None:
    """Write mean and deviation of a group over other columns of the same climate."""
    values = np.concatenate(
        [part[name] for part in _shuffled_columns((plan.seed, 1), NORM_COLUMNS)]
    )
    values = values.reshape(-1, values.shape[-1])
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    with netcdf4("maelstrom-radiation-tf").Dataset(path, "w", format="NETCDF4") as file:
        file.createDimension("variable", len(mean))
        file.createVariable(f"{name}_mean", "f4", ("variable",), contiguous=True)[:] = mean
        # Of what is constant, the deviation is told as 1, so that it stays a number.
        divisor = np.where(deviation > 0, deviation, 1)
        file.createVariable(f"{name}_std", "f4", ("variable",), contiguous=True)[:] = divisor
    advance(NORM_NBYTES)
