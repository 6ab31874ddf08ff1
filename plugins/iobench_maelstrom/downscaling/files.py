"""Reads time steps from the monthly files of application A5: each variable's bytes by extent."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    NetcdfFile,
    Progress,
    read_fields,
    read_through_library,
    unpack,
    where_slab,
)
from iobench.errors import FileFormatError
from iobench_maelstrom.downscaling.month_index import months_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import DecodedChunks, Raw
    from iobench_maelstrom.downscaling.schema import Channels, Field, Tier

__all__ = ["MonthlyFiles", "open_monthly_files"]

Where = tuple[int, int]
"""The file's number and the index along time."""


@dataclass(frozen=True, slots=True)
class MonthlyFiles:
    """A set of monthly files of one tier.

    Parameters
    ----------
    tier : Tier
        Which tier.
    variant : str
        Which of the tier's variants the samples are of.
    files : tuple of NetcdfFile
        With the variables of a sample alone.
    times : tuple of ndarray of datetime64[h]
        Of each file.
    fused : bool
        Whether only the library can read some variable, which then decodes it as well.
    """

    tier: Tier
    variant: str
    files: tuple[NetcdfFile, ...]
    times: tuple[NDArray[np.datetime64], ...]
    fused: bool

    @property
    def channels(self) -> Channels:
        """The variables of a sample."""
        return self.tier.variants[self.variant]

    def where(self) -> list[Where]:
        """Return where each time step is, in the order of the files."""
        return [(n, index) for n, times in enumerate(self.times) for index in range(len(times))]

    def without_times(self) -> MonthlyFiles:
        """Return what reading and decoding need."""
        return dataclasses.replace(self, times=())

    def read(self, where: Where, chunks: DecodedChunks) -> Any:
        """Return the bytes of a time step; its arrays where the library must read them."""
        names = self.channels.names
        if self.fused:
            return {name: self._through_library(where, name) for name in names}
        return read_fields(chunks, [self._slab(where, name) for name in names], where)

    def decode(self, raw: Raw, where: Where) -> dict[str, NDArray[Any]]:
        """Return each variable at the time step, shape of a field, dtype as xarray decodes it."""
        variables = self.files[where[0]].variables
        return {
            name: unpack(stored, variables[name].packing)
            for name, stored in zip(self.channels.names, raw.arrays(), strict=True)
        }

    def _slab(self, where: Where, name: str) -> Any:
        file = self.files[where[0]]
        return where_slab(file, file.variables[name], dim=self.tier.dims[0], index=where[1])

    def _through_library(self, where: Where, name: str) -> NDArray[Any]:
        file = self.files[where[0]]
        dim = self.tier.dims[0]
        return read_through_library(file, file.variables[name], dim=dim, index=where[1])


def open_monthly_files(
    paths: Sequence[Path],
    tier: Tier,
    *,
    variant: str,
    distinct: bool,
    cache_dir: Path,
    progress: Progress,
) -> MonthlyFiles:
    """Return the files of a tier, in the order given.

    Parameters
    ----------
    paths : sequence of Path
        The files.
    tier : Tier
        Whose schema they must have.
    variant : str
        Of the samples; "" for the first whose variables the first file has.
    distinct : bool
        Whether each time may be there but once.
    cache_dir : Path
        Where indexes go whose files lie in a folder that cannot be written.
    progress : Progress
        Called with (files opened, files).

    Raises
    ------
    FileFormatError
        If a file is of another schema, naming the variable or dimension that differs.
    """
    files, times = [], []
    seen: dict[Any, Path] = {}
    for file, own_times in months_of(paths, tier, cache_dir=cache_dir, progress=progress):
        variant = variant or _variant_of(file, tier)
        _check_schema(file, tier, tier.variants[variant])
        times.append(own_times)
        if distinct:
            _check_distinct(file.path, own_times, seen)
        kept = {name: file.variables[name] for name in tier.variants[variant].names}
        files.append(dataclasses.replace(file, variables=kept))
    fused = any(v.storage is None for file in files for v in file.variables.values())
    return MonthlyFiles(tier, variant, tuple(files), tuple(times), fused)


def _variant_of(file: NetcdfFile, tier: Tier) -> str:
    """Return the first variant a file has the variables of; the last, to name what it lacks."""
    whole = (
        name
        for name, channels in tier.variants.items()
        if all(variable in file.variables for variable in channels.names)
    )
    return next(whole, list(tier.variants)[-1])


def _check_schema(file: NetcdfFile, tier: Tier, channels: Channels) -> None:
    time, *field_dims = tier.dims
    for name in (time, *channels.names):
        if name not in file.variables:
            raise FileFormatError(
                f"{file.path}: has no variable {name!r}; expected a file of {tier.name} with "
                f"{', '.join(channels.names)} ({', '.join(tier.dims)})"
            )
    for field in tier.fields:
        if field.name in channels.names:
            _check_variable(file, tier, field)
    for dim, length in zip(field_dims, tier.shape, strict=True):
        if file.dims[dim] != length:
            raise FileFormatError(
                f"{file.path}: dimension {dim!r} has {file.dims[dim]}, expected {length}"
            )


def _check_variable(file: NetcdfFile, tier: Tier, field: Field) -> None:
    variable = file.variables[field.name]
    dtype = np.dtype(variable.packing.dtype)
    expected = (tier.dims, tier.dims[1:]) if field.static else (tier.dims,)
    if variable.dims not in expected or dtype.kind != "f":
        raise FileFormatError(
            f"{file.path}: variable {field.name!r} is {dtype.name} "
            f"({', '.join(variable.dims)}), expected floats "
            + " or ".join(f"({', '.join(dims)})" for dims in expected)
        )


def _check_distinct(path: Path, times: NDArray[np.datetime64], seen: dict[Any, Path]) -> None:
    for time in times.tolist():
        if time in seen:
            raise FileFormatError(
                f"{path}: holds {time:%Y-%m-%dT%H}, which is in {seen[time]} already; expected "
                "each time once: are two files copies of one?"
            )
        seen[time] = path
