"""Columns of pairs of NetCDF files: where each variable's row of a column lies, and its numbers.

Where all variables lie in one piece, as published, a row's place is base + column x length; other
layouts are read by chunk, and only what just the NetCDF library can read goes through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Arrays,
    Box,
    FileRange,
    NetcdfFile,
    Packing,
    Raw,
    StoredVariable,
    box_ranges,
    read_boxes,
    read_extents,
    read_through_library,
    unpack,
    where_slab,
)
from iobench_maelstrom.radiation.schema import INPUTS, SHARED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from iobench.datasets import ChunkManifest, DecodedChunks

__all__ = ["COLUMN", "OUTPUT_PRESSURE", "Pairs", "Part"]

COLUMN = "column"
OUTPUT_PRESSURE = "pressure_hl of outputs"
"""Both files hold ``pressure_hl``: how the second is called among decoded arrays."""


@dataclass(frozen=True, slots=True)
class Part:
    """One variable of a column: its name when decoded, in which file it is under what name."""

    decoded: str
    in_outputs: bool
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    packing: Packing

    @property
    def is_plain(self) -> bool:
        """Whether stored numbers are the numbers."""
        packing = self.packing
        return not packing.fill_values and packing.scale is None and packing.offset is None


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Where rows are if every variable lies in one piece: ``base[pair] + column * length``.

    ``step`` is 0 for a variable that all columns of a file share.
    """

    base: NDArray[np.int64]
    step: NDArray[np.int64]
    nbytes: tuple[int, ...]


class Pairs:
    """The open pairs of files; picklable.

    Parameters
    ----------
    parts : tuple of Part
        The variables of a column, inputs first.
    files : tuple of pairs of NetcdfFile
        Inputs and outputs.

    Attributes
    ----------
    needs_library : bool
        Whether a variable can be read through the NetCDF library alone.
    n_columns : tuple of int
        Columns of each pair.
    """

    def __init__(
        self, parts: tuple[Part, ...], files: tuple[tuple[NetcdfFile, NetcdfFile], ...]
    ) -> None:
        self.n_columns = tuple(inputs.dims[COLUMN] for inputs, _ in files)
        self._parts = parts
        self._by_name = {part.decoded: part for part in parts}
        stored = [self._variable(pair, part).storage for pair in files for part in parts]
        self.needs_library = any(storage is None for storage in stored)
        self._rows = None
        self._files: tuple[tuple[NetcdfFile, NetcdfFile], ...] = files
        if all(how is not None and how.is_contiguous and how.offset >= 0 for how in stored):
            self._rows = self._find_rows(files)
        self._paths = tuple((str(inputs.path), str(outputs.path)) for inputs, outputs in files)
        if self._rows is not None:
            self._files = ()  # so that workers are not sent what they do not need

    @property
    def fluxes(self) -> tuple[str, ...]:
        """Variables of the outputs, but for the pressure."""
        return tuple(
            part.decoded
            for part in self._parts
            if part.in_outputs and part.decoded != OUTPUT_PRESSURE
        )

    @property
    def aerosols_first(self) -> bool:
        """Whether the files hold aerosols as (aerosol type, level), the transpose of samples."""
        return self._by_name["aerosol_mmr"].dims != INPUTS["aerosol_mmr"].dims

    def stored(self) -> Iterator[tuple[StoredVariable, ChunkManifest | None]]:
        """Yield each variable of all files and how it is stored; none if all are in one piece."""
        for pair in self._files:
            for part in self._parts:
                variable = self._variable(pair, part)
                yield variable, variable.storage

    def layout(self, name: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return dimensions and shape of a decoded variable."""
        part = self._by_name[name]
        return part.dims, part.shape

    def read(self, where: tuple[int, int], chunks: DecodedChunks) -> Any:
        """Return the bytes of a column; its arrays where the library must read them."""
        pair, column = where
        if self._rows is not None:
            rows, paths = self._rows, self._paths[pair]
            offsets = (rows.base[pair] + column * rows.step).tolist()
            files = [paths[part.in_outputs] for part in self._parts]
            return read_extents(list(map(FileRange, files, offsets, rows.nbytes)))
        opened = self._files[pair]
        if self.needs_library:
            return {
                part.decoded: read_through_library(
                    opened[part.in_outputs], self._variable(opened, part), dim=COLUMN, index=column
                )
                for part in self._parts
            }
        slabs = [self._slab(opened, part, column) for part in self._parts]
        return read_boxes(chunks, slabs, where)

    def decode(self, raw: Raw) -> Arrays:
        """Return the arrays of a column's bytes, float32, without the column dimension."""
        if self._rows is not None:
            return {
                part.decoded: _row(part, data) for part, data in zip(self._parts, raw, strict=True)
            }
        return {
            part.decoded: unpack(stored, part.packing)
            for part, stored in zip(self._parts, raw.arrays(), strict=True)
        }

    def _find_rows(self, files: tuple[tuple[NetcdfFile, NetcdfFile], ...]) -> _Rows | None:
        base = np.empty((len(files), len(self._parts)), dtype=np.int64)
        for number, pair in enumerate(files):
            for place, part in enumerate(self._parts):
                first = box_ranges(self._slab(pair, part, 0))
                axis = self._variable(pair, part).dims[:1]
                if len(first) != 1 or (part.name != SHARED and axis != (COLUMN,)):
                    return None
                base[number, place] = first[0][1]
        nbytes = [
            int(np.prod(part.shape)) * np.dtype(part.packing.stored).itemsize
            for part in self._parts
        ]
        has_columns = [COLUMN in self._variable(files[0], part).dims for part in self._parts]
        step = np.where(has_columns, nbytes, 0).astype(np.int64)
        return _Rows(base, step, tuple(nbytes))

    @staticmethod
    def _variable(files: tuple[NetcdfFile, NetcdfFile], part: Part) -> StoredVariable:
        return files[part.in_outputs].variables[part.name]

    def _slab(self, files: tuple[NetcdfFile, NetcdfFile], part: Part, column: int) -> Box:
        variable = self._variable(files, part)
        return where_slab(files[part.in_outputs], variable, dim=COLUMN, index=column)


def _row(part: Part, data: memoryview) -> NDArray[Any]:
    stored = np.frombuffer(data, dtype=part.packing.stored).reshape(part.shape)
    return stored if part.is_plain else unpack(stored, part.packing)
