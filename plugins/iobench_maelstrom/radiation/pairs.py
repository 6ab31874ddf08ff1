"""Columns of pairs of NetCDF files: where each variable's row of a column lies, and its numbers.

Where all variables lie in one piece, as published, a row's place is base + column x length; other
layouts are read by chunk, and only what just the NetCDF library can read goes through it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Arrays,
    Box,
    ChunkedVariable,
    FileRange,
    NetcdfFile,
    Packing,
    Raw,
    VariablePart,
    box_ranges,
    range_file,
    read_boxes,
    read_extents,
    read_through_library,
    unpack,
    where_slab,
)
from iobench.errors import FileFormatError
from iobench_maelstrom.radiation.schema import (
    FLUXES,
    INPUTS,
    POSITIONS,
    SHARED,
    is_assumed,
    shape_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import DecodedChunks, Field

COLUMN = "column"
OUTPUT_PRESSURE = "pressure_hl of outputs"
"""Both files hold ``pressure_hl``: how the second is called among decoded arrays."""
KNOWN = {**INPUTS, **POSITIONS, **FLUXES}

Pair = tuple[NetcdfFile, NetcdfFile]
"""Inputs and outputs."""


@dataclass(frozen=True, slots=True)
class Part:
    """One variable of a column: in which file it is under what name, and how it is stored."""

    in_outputs: bool
    name: str
    stored_dims: tuple[str, ...]
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    packing: Packing

    @property
    def decoded(self) -> str:
        """Its name when decoded."""
        return OUTPUT_PRESSURE if self.in_outputs and self.name == "pressure_hl" else self.name

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
    """The open pairs of files; picklable."""

    def __init__(
        self, files: Sequence[Pair], inputs: Sequence[str], outputs: Sequence[str] | None
    ) -> None:
        self._parts = _parts(files[0], inputs, outputs)
        for pair in files[1:]:
            _check_same(self._parts, _parts(pair, inputs, outputs), pair, files[0])
        self._by_name = {part.decoded: part for part in self._parts}
        names = (part.decoded for part in self._parts if part.in_outputs)
        self.fluxes = tuple(name for name in names if name != OUTPUT_PRESSURE)
        self.n_columns = tuple(inputs.dims[COLUMN] for inputs, _ in files)
        self._files = tuple(files)
        stored = list(self.stored())
        self.needs_library = any(each.only_library for each in stored)
        self._rows = None
        if all(each.is_contiguous and each.offset >= 0 for each in stored):
            self._rows = self._find_rows()
        self._paths = tuple(
            (range_file(inputs.path), range_file(outputs.path)) for inputs, outputs in files
        )
        if self._rows is not None:
            self._files = ()  # so that workers are not sent what they do not need

    def stored(self) -> Iterator[ChunkedVariable]:
        """Yield each variable of all files; none if all are in one piece."""
        for pair in self._files:
            for part in self._parts:
                yield pair[part.in_outputs].variables[part.name]

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
            found = {}
            for part in self._parts:
                file = opened[part.in_outputs]
                stored = file.variables[part.name]
                found[part.decoded] = read_through_library(file, stored, dim=COLUMN, index=column)
            return found
        return read_boxes(chunks, [_box(opened, part, column) for part in self._parts], where)

    def parts_of(self, where: tuple[int, int]) -> list[VariablePart]:
        """Return what xarray has to read of a column."""
        pair, column = where
        paths, at = self._paths[pair], {COLUMN: column}
        return [
            VariablePart(paths[part.in_outputs], part.name, at, name=part.decoded)
            for part in self._parts
        ]

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

    def _find_rows(self) -> _Rows | None:
        base = np.empty((len(self._files), len(self._parts)), dtype=np.int64)
        for number, pair in enumerate(self._files):
            for place, part in enumerate(self._parts):
                first = box_ranges(_box(pair, part, 0))
                if len(first) != 1 or (part.name != SHARED and part.stored_dims[:1] != (COLUMN,)):
                    return None
                base[number, place] = first[0][1]
        nbytes = [
            int(np.prod(part.shape)) * np.dtype(part.packing.stored).itemsize
            for part in self._parts
        ]
        has_columns = [COLUMN in part.stored_dims for part in self._parts]
        step = np.where(has_columns, nbytes, 0).astype(np.int64)
        return _Rows(base, step, tuple(nbytes))


def _box(pair: Pair, part: Part, column: int) -> Box:
    file = pair[part.in_outputs]
    return where_slab(file, file.variables[part.name], dim=COLUMN, index=column)


def _row(part: Part, data: memoryview) -> NDArray[Any]:
    stored = np.frombuffer(data, dtype=part.packing.stored).reshape(part.shape)
    return stored if part.is_plain else unpack(stored, part.packing)


def _parts(pair: Pair, inputs: Sequence[str], outputs: Sequence[str] | None) -> tuple[Part, ...]:
    """Return the variables wanted of a pair, checked against the schema; inputs first."""
    for file in pair:
        if COLUMN not in file.dims:
            raise FileFormatError(
                f"{file.path}: lacks the dimension {COLUMN!r}; it has {', '.join(file.dims)}"
            )
    counts = [file.dims[COLUMN] for file in pair]
    if counts[0] != counts[1]:
        raise FileFormatError(
            f"{pair[1].path}: dimension {COLUMN!r} is {counts[1]}, expected {counts[0]} as in "
            f"{pair[0].path}"
        )
    if outputs is None:
        more = (name for name, each in pair[1].variables.items() if COLUMN in each.dims)
        known = {*FLUXES, *INPUTS}
        outputs = [*FLUXES, "pressure_hl", *(name for name in more if name not in known)]
    return (
        *(_part(pair[0], name, in_outputs=False) for name in inputs),
        *(_part(pair[1], name, in_outputs=True) for name in outputs),
    )


def _part(file: NetcdfFile, name: str, *, in_outputs: bool) -> Part:
    variable = file.variables.get(name)
    if variable is None:
        why = f" ({file.skipped[name]})" if name in file.skipped else ""
        raise FileFormatError(f"{file.path}: lacks the variable {name!r}{why}")
    if np.dtype(variable.packing.dtype) != np.float32:
        raise FileFormatError(
            f"{file.path}: variable {name!r} is {variable.packing.dtype}, expected float32"
        )
    found = dict(zip(variable.dims, variable.shape, strict=True))
    if name in KNOWN:
        _check_shape(file, KNOWN[name], found)
    inner = {dim: length for dim, length in found.items() if dim != COLUMN}
    return Part(
        in_outputs, name, variable.dims, tuple(inner), tuple(inner.values()), variable.packing
    )


def _check_shape(file: NetcdfFile, field: Field, found: dict[str, int]) -> None:
    expected = dict(zip(field.dims, shape_of(field), strict=True))
    inner = {dim: length for dim, length in found.items() if dim != COLUMN}
    by_shape = is_assumed(field) and tuple(inner.values()) == shape_of(field)
    # Upstream broadcasts a scalar irradiance; one that comes by column needs no help.
    if not (by_shape or inner == expected) or not (COLUMN in found or field.name == SHARED):
        wanted, there = (
            ", ".join(f"{dim} {length}" if length else dim for dim, length in dims.items())
            for dims in ({COLUMN: 0, **expected}, found)
        )
        raise FileFormatError(
            f"{file.path}: variable {field.name!r} is ({there}), expected ({wanted})"
        )


def _check_same(first: Sequence[Part], found: Sequence[Part], pair: Pair, like: Pair) -> None:
    for expected, part in itertools.zip_longest(first, found):
        if part == expected:
            continue
        name, in_outputs = (part or expected).name, (part or expected).in_outputs
        told = "missing"
        if part is not None:
            told = f"{part.packing.stored} ({', '.join(part.stored_dims)})"
        raise FileFormatError(
            f"{pair[in_outputs].path}: variable {name!r} is {told}, which differs from "
            f"{like[in_outputs].path}"
        )
