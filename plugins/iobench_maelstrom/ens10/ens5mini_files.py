"""Reads forecasts from ens5mini's NetCDF files: their starts, the bytes of one, its arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Box,
    NetcdfFile,
    StoredVariable,
    inspect_netcdf,
    read_box,
    read_boxes,
    read_through_library,
    unpack,
    where_slab,
)
from iobench.errors import FileFormatError
from iobench_maelstrom.ens10.ens5mini_schema import DIMS, LEAD_HOURS, LEVELS, PRESSURE_VARIABLES
from iobench_maelstrom.ens10.target import hourly_times

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import DecodedChunks, Raw

__all__ = ["NAMES", "Forecasts", "open_forecasts"]

HOURS = {"nanosecond": 1 / 3.6e12, "second": 1 / 3600, "minute": 1 / 60, "hour": 1.0, "day": 24.0}
NAMES = tuple(variable.name for variable in PRESSURE_VARIABLES)


@dataclass(frozen=True, slots=True)
class Forecasts:
    """The forecasts in a set of files.

    Parameters
    ----------
    files : tuple of NetcdfFile
        One a month.
    lead : tuple of int
        For each file, where along ``step`` the lead time is.
    starts : tuple of str
        Start (``YYYYMMDD``) of each forecast, ascending.
    where : tuple of (int, int)
        For each forecast the file's number and the index along ``time``.
    """

    files: tuple[NetcdfFile, ...]
    lead: tuple[int, ...]
    starts: tuple[str, ...]
    where: tuple[tuple[int, int], ...]

    @property
    def fused(self) -> bool:
        """Whether only the library can read some variable, which then decodes it as well."""
        return any(file.variables[name].storage is None for file in self.files for name in NAMES)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Members, levels, latitudes and longitudes of a variable of one forecast."""
        dims = self.files[0].dims
        members, levels, latitudes, longitudes = (dims[dim] for dim in (DIMS[0], *DIMS[3:]))
        return members, levels, latitudes, longitudes

    def without_starts(self) -> Forecasts:
        """Return what reading and decoding need."""
        return dataclasses.replace(self, starts=(), where=())

    def read(self, where: tuple[int, int], chunks: DecodedChunks) -> Any:
        """Return the bytes of a forecast; its arrays where the library must read them."""
        if self.fused:
            return {name: self._through_library(where, name) for name in NAMES}
        return read_boxes(chunks, [self._slab(where, name) for name in NAMES], where)

    def decode(self, raw: Raw, where: tuple[int, int]) -> dict[str, NDArray[np.float32]]:
        """Return each variable, shape (member, level, latitude, longitude)."""
        variables = self.files[where[0]].variables
        return {
            name: self._at_lead(where, unpack(stored, variables[name].packing))
            for name, stored in zip(NAMES, raw.arrays(), strict=True)
        }

    def _slab(self, where: tuple[int, int], name: str) -> Box:
        """Return the forecast's part of a variable: of contiguous ones the lead time's alone."""
        number, index = where
        file = self.files[number]
        slab = where_slab(file, file.variables[name], dim="time", index=index)
        if not slab.variable.manifest.is_contiguous:
            return slab
        start, stop, lead = list(slab.start), list(slab.stop), self.lead[number]
        start[2], stop[2] = lead, lead + 1
        return dataclasses.replace(slab, start=tuple(start), stop=tuple(stop))

    def _through_library(self, where: tuple[int, int], name: str) -> NDArray[np.float32]:
        file = self.files[where[0]]
        found = read_through_library(file, file.variables[name], dim="time", index=where[1])
        return self._at_lead(where, found)

    def _at_lead(self, where: tuple[int, int], values: NDArray[Any]) -> NDArray[np.float32]:
        if values.ndim == len(self.shape) + 1:
            values = values[:, self.lead[where[0]] if values.shape[1] > 1 else 0]
        return values.astype(np.float32, copy=False)


def open_forecasts(paths: Sequence[Path]) -> Forecasts:
    """Return the forecasts in ens5mini's files, in order of time.

    Raises
    ------
    FileFormatError
        If a file is of another schema (naming what differs), or holds a start that another has.
    """
    files = tuple(inspect_netcdf(path) for path in paths)
    found: dict[str, tuple[int, int]] = {}
    for number, file in enumerate(files):
        _check_schema(file, files[0])
        for index, start in enumerate(_starts(file)):
            if start in found:
                other = files[found[start][0]].path
                raise FileFormatError(
                    f"{file.path}: holds the forecast of {start}, which is in {other} already; "
                    "expected each once: are two files copies of one?"
                )
            found[start] = number, index
    starts = tuple(sorted(found))
    lead = tuple(_lead_index(file) for file in files)
    return Forecasts(files, lead, starts, tuple(found[start] for start in starts))


def _check_schema(file: NetcdfFile, first: NetcdfFile) -> None:
    for name in (*DIMS[1:4], *NAMES):
        if name not in file.variables:
            raise FileFormatError(
                f"{file.path}: has no variable {name!r}; expected a file ens5mini.MM.nc with "
                f"{', '.join(NAMES)} ({', '.join(DIMS)})"
            )
    for name in NAMES:
        variable = file.variables[name]
        if variable.dims != DIMS or np.dtype(variable.packing.dtype).kind != "f":
            raise FileFormatError(
                f"{file.path}: variable {name!r} is {variable.packing.dtype} "
                f"({', '.join(variable.dims)}), expected floats ({', '.join(DIMS)})"
            )
    for dim in (DIMS[0], *DIMS[4:]):
        if file.dims[dim] != first.dims[dim]:
            raise FileFormatError(
                f"{file.path}: dimension {dim!r} has {file.dims[dim]}, expected "
                f"{first.dims[dim]} as in {first.path}"
            )
    levels = _axis(file, "isobaricInhPa")
    if levels.tolist() != list(LEVELS):
        told = " ".join(f"{level:g}" for level in levels)
        raise FileFormatError(
            f"{file.path}: isobaricInhPa is {told}, expected {' '.join(map(str, LEVELS))}"
        )


def _axis(file: NetcdfFile, name: str) -> NDArray[Any]:
    variable = file.variables[name]
    if variable.dims != (name,):
        raise FileFormatError(
            f"{file.path}: {name!r} has dimensions ({', '.join(variable.dims)}), expected a "
            f"coordinate along {name!r}"
        )
    return _all_of(file, variable)


def _all_of(file: NetcdfFile, variable: StoredVariable) -> NDArray[Any]:
    if variable.storage is None:
        return read_through_library(file, variable, dim=None, index=-1)
    slab = where_slab(file, variable, dim=None, index=-1)
    return read_box(slab)


def _starts(file: NetcdfFile) -> list[str]:
    attributes = file.variables["time"].attributes
    units, calendar = (attributes.get(key, "") for key in ("units", "calendar"))
    times = hourly_times(file.path, _axis(file, "time"), units, calendar)
    return [str(time)[:10].replace("-", "") for time in times]


def _lead_index(file: NetcdfFile) -> int:
    units = file.variables["step"].attributes.get("units", "")
    hours = HOURS.get(units.removesuffix("s"))
    if hours is None:
        raise FileFormatError(f"{file.path}: step has units {units!r}, expected 'hours'")
    found = np.flatnonzero(np.isclose(_axis(file, "step") * hours, LEAD_HOURS))
    if found.size != 1:
        raise FileFormatError(
            f"{file.path}: expected the step {LEAD_HOURS} h once, found it {found.size} times"
        )
    return int(found[0])
