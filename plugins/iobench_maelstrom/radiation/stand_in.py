"""Writes a stand-in of the radiation files: NetCDF pairs of inputs and outputs.

The bytes of a file follow from the seed, the file and its number of columns alone.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Advance, PlannedFile, StandIn, in_mirror, netcdf4
from iobench_maelstrom.radiation.atmosphere import ATMOSPHERE_VERSION, Atmosphere, solar_irradiance
from iobench_maelstrom.radiation.schema import (
    COLUMNS_PER_FILE,
    FLUXES,
    INPUTS,
    POSITIONS,
    PRESSURE,
    SHARED,
    SUBSETS,
    ColumnVariable,
    FilePair,
    files_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["STAND_IN_VERSION", "PairPlan", "planned_pairs"]

STAND_IN_VERSION = 10 * ATMOSPHERE_VERSION + 1
"""Counts up when the same seed gives other bytes."""
TINY_COLUMNS, DEFAULT_COLUMNS = 128, 4096
AT_ONCE = 1024
HEADERS_NBYTES = 24 << 10
SOLVER = "tripleclouds"
STORED_AEROSOLS = ("aerosol_type", "level")
"""No order is published; upstream transposes what it reads to (level, aerosol_type)."""


@dataclass(frozen=True, slots=True)
class PairPlan(StandIn):
    """What a stand-in of the NetCDF pairs holds, ``n_steps`` columns each, of tripleclouds."""

    pairs: tuple[FilePair, ...] = ()

    @classmethod
    def of_size(cls, *, scale: float | None, tiny: bool, seed: int) -> PairPlan:
        """Return the plan of a size; ``scale`` is the share of the columns of subset 2020.

        Up to the eight pairs of tier-1 files get shorter, beyond there are more of them.
        """
        tier_1 = files_of(*SUBSETS["tier-1"])
        if tiny or scale is None:
            return cls(seed, (), TINY_COLUMNS if tiny else DEFAULT_COLUMNS, pairs=tier_1)
        everything = files_of(*SUBSETS["2020"])
        share = scale * len(everything)
        if share < len(tier_1):
            return cls(
                seed, (), max(1, round(share * COLUMNS_PER_FILE / len(tier_1))), pairs=tier_1
            )
        others = [pair for pair in everything if pair not in set(tier_1)]
        more = others[: round(share) - len(tier_1)]
        return cls(seed, (), COLUMNS_PER_FILE, pairs=(*tier_1, *more))

    @property
    def input_nbytes(self) -> int:
        """Bytes of a file of inputs, about."""
        return HEADERS_NBYTES + self.n_steps * _column_nbytes({**INPUTS, **POSITIONS})

    @property
    def output_nbytes(self) -> int:
        """Bytes of a file of outputs, about."""
        return HEADERS_NBYTES + self.n_steps * _column_nbytes(_outputs())


def planned_pairs(plan: PairPlan) -> list[PlannedFile]:
    """Return the files of a stand-in of the NetCDF pairs."""
    files = []
    for pair in plan.pairs:
        inputs = functools.partial(_write_file, plan, pair, {**INPUTS, **POSITIONS})
        outputs = functools.partial(_write_file, plan, pair, _outputs())
        files += [
            PlannedFile(in_mirror(pair.input_url()), plan.input_nbytes, inputs),
            PlannedFile(in_mirror(pair.output_url(SOLVER)), plan.output_nbytes, outputs),
        ]
    return files


def _outputs() -> dict[str, ColumnVariable]:
    return {**FLUXES, PRESSURE.name: PRESSURE}


def _column_nbytes(variables: Mapping[str, ColumnVariable]) -> int:
    return sum(4 * int(np.prod(variable.shape)) for variable in variables.values())


def _write_file(
    plan: PairPlan,
    pair: FilePair,
    variables: Mapping[str, ColumnVariable],
    path: Path,
    advance: Advance,
) -> None:
    key = (plan.seed, int(pair.date), pair.timestep, pair.patch)
    atmosphere = Atmosphere(key, plan.n_steps, shuffled=False)
    make = atmosphere.inputs if SHARED in variables else atmosphere.outputs
    with netcdf4("maelstrom-radiation").Dataset(path, "w", format="NETCDF4") as file:
        file.createDimension("column", plan.n_steps)
        for variable in variables.values():
            _define(file, variable)
        if SHARED in variables:
            file[SHARED][...] = _irradiance(pair.date)
        for start in range(0, plan.n_steps, AT_ONCE):
            stop = min(start + AT_ONCE, plan.n_steps)
            for name, values in make(start, stop).items():
                file[name][start:stop] = _as_stored(name, values)
            advance((stop - start) * _column_nbytes(variables))
    advance(HEADERS_NBYTES)


def _define(file: Any, variable: ColumnVariable) -> None:
    sizes = dict(zip(variable.dims, variable.shape, strict=True))
    inner = STORED_AEROSOLS if variable.name == "aerosol_mmr" else variable.dims
    for dim in inner:
        if dim not in file.dimensions:
            file.createDimension(dim, sizes[dim])
    dims = () if variable.name == SHARED else ("column", *inner)
    stored = file.createVariable(variable.name, "f4", dims, contiguous=bool(dims))
    stored.units = variable.units


def _as_stored(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values.swapaxes(1, 2) if name == "aerosol_mmr" else values


def _irradiance(date: str) -> float:
    return solar_irradiance(datetime.datetime.strptime(date, "%Y%m%d").timetuple().tm_yday)
