"""Columns of pairs of NetCDF files: where each variable's row of a column lies, and its numbers.

Where all variables lie in one piece, as published, a row's place is base + column x length; other
layouts are read by chunk, and only what just the NetCDF library can read goes through it.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from iobench.datasets import (
    Arrays,
    Contiguous,
    NetcdfFile,
    NetcdfVariable,
    Packing,
    Progress,
    Raw,
    Slab,
    decode_slab,
    inspect_netcdf,
    read_extents,
    read_through_library,
    slab_extents,
    unpack,
    where_slab,
)
from iobench.errors import FileFormatError, OptionError
from iobench_maelstrom.radiation_schema import FLUXES, INPUTS, POSITIONS, ColumnVariable

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["OUTPUT_PRESSURE", "Pairs", "open_pairs"]

DIM = "column"
OUTPUT_PRESSURE = "pressure_hl of outputs"
"""Both files hold ``pressure_hl``: how the second is called among decoded arrays."""
KNOWN = {**INPUTS, **POSITIONS, **FLUXES}
IRRADIANCE = "solar_irradiance"


class PairSequence(Sequence[tuple[int, int]]):
    """(number of the pair, column) of every column, made when asked for."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._starts = [0, *itertools.accumulate(lengths)]

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        pair = bisect.bisect_right(self._starts, number) - 1
        return pair, number - self._starts[pair]


class PairNames(Sequence[str]):
    """The name of every column: that of its pair, and its number in it."""

    def __init__(self, labels: Sequence[str], where: PairSequence) -> None:
        self._labels = tuple(labels)
        self._where = where

    def __len__(self) -> int:
        return len(self._where)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        pair, column = self._where[index]
        return f"{self._labels[pair]} column {column}"


class _RawColumn(list[memoryview]):
    """A column's bytes, with the slab and the number of extents of each variable."""

    def __init__(self, slabs: list[tuple[Slab, int]], content: list[memoryview]) -> None:
        super().__init__(content)
        self.slabs = slabs


@dataclass(frozen=True, slots=True)
class _Part:
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
    parts : tuple of _Part
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
        self, parts: tuple[_Part, ...], files: tuple[tuple[NetcdfFile, NetcdfFile], ...]
    ) -> None:
        self.n_columns = tuple(inputs.dims[DIM] for inputs, _ in files)
        self._parts = parts
        self._by_name = {part.decoded: part for part in parts}
        stored = [self._variable(pair, part).storage for pair in files for part in parts]
        self.needs_library = any(storage is None for storage in stored)
        self._rows = None
        self._files: tuple[tuple[NetcdfFile, NetcdfFile], ...] = files
        if all(isinstance(storage, Contiguous) and storage.offset >= 0 for storage in stored):
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

    def layout(self, name: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return dimensions and shape of a decoded variable."""
        part = self._by_name[name]
        return part.dims, part.shape

    def where(self) -> PairSequence:
        """Return where each column is."""
        return PairSequence(self.n_columns)

    def coordinate(self, labels: Sequence[str]) -> PairNames:
        """Return the name of each column."""
        return PairNames(labels, self.where())

    def columns_of(self, names: Sequence[str], name: str) -> Sequence[int]:
        """Return the samples of the pairs that have ``name``."""
        starts = [0, *itertools.accumulate(self.n_columns)]
        runs = [
            range(starts[number], starts[number + 1])
            for number, each in enumerate(names)
            if each == name
        ]
        if all(before.stop == after.start for before, after in itertools.pairwise(runs)):
            return range(runs[0].start, runs[-1].stop)
        return [sample for run in runs for sample in run]

    def read(self, where: tuple[int, int]) -> Any:
        """Return the bytes of a column; its arrays where the library must read them."""
        pair, column = where
        if self._rows is not None:
            rows, paths = self._rows, self._paths[pair]
            offsets = (rows.base[pair] + column * rows.step).tolist()
            return read_extents(
                [
                    (paths[part.in_outputs], offset, nbytes)
                    for part, offset, nbytes in zip(self._parts, offsets, rows.nbytes, strict=True)
                ]
            )
        files = self._files[pair]
        if self.needs_library:
            return {
                part.decoded: read_through_library(
                    files[part.in_outputs], self._variable(files, part), dim=DIM, index=column
                )
                for part in self._parts
            }
        slabs, extents = [], []
        for part in self._parts:
            slab = self._slab(files, part, column)
            found = slab_extents(slab)
            slabs.append((slab, len(found)))
            extents += found
        return _RawColumn(slabs, read_extents(extents))

    def decode(self, raw: Raw) -> Arrays:
        """Return the arrays of a column's bytes, float32, without the column dimension."""
        if not isinstance(raw, _RawColumn):
            return {
                part.decoded: _row(part, data) for part, data in zip(self._parts, raw, strict=True)
            }
        arrays, start = {}, 0
        for part, (slab, n_extents) in zip(self._parts, raw.slabs, strict=True):
            buffers = raw[start : start + n_extents]
            arrays[part.decoded] = decode_slab(slab, part.packing, buffers)
            start += n_extents
        return arrays

    def _find_rows(self, files: tuple[tuple[NetcdfFile, NetcdfFile], ...]) -> _Rows | None:
        base = np.empty((len(files), len(self._parts)), dtype=np.int64)
        for number, pair in enumerate(files):
            for place, part in enumerate(self._parts):
                first = slab_extents(self._slab(pair, part, 0))
                axis = self._variable(pair, part).dims[:1]
                if len(first) != 1 or (part.name != IRRADIANCE and axis != (DIM,)):
                    return None
                base[number, place] = first[0][1]
        nbytes = [
            int(np.prod(part.shape)) * np.dtype(part.packing.stored).itemsize
            for part in self._parts
        ]
        has_columns = [DIM in self._variable(files[0], part).dims for part in self._parts]
        step = np.where(has_columns, nbytes, 0).astype(np.int64)
        return _Rows(base, step, tuple(nbytes))

    @staticmethod
    def _variable(files: tuple[NetcdfFile, NetcdfFile], part: _Part) -> NetcdfVariable:
        return files[part.in_outputs].variables[part.name]

    def _slab(self, files: tuple[NetcdfFile, NetcdfFile], part: _Part, column: int) -> Slab:
        variable = self._variable(files, part)
        return where_slab(files[part.in_outputs], variable, dim=DIM, index=column)


def _row(part: _Part, data: memoryview) -> NDArray[Any]:
    stored = np.frombuffer(data, dtype=part.packing.stored).reshape(part.shape)
    return stored if part.is_plain else unpack(stored, part.packing)


def open_pairs(
    input_files: Sequence[Path],
    output_files: Sequence[Path],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str] | None,
    progress: Progress,
) -> Pairs:
    """Open pairs of files and check that all have the schema of the data set.

    Parameters
    ----------
    input_files, output_files : sequence of Path
        As many, in the same order.
    inputs : sequence of str
        The variables wanted of the inputs.
    outputs : sequence of str or None
        Those wanted of the outputs; None: all that have columns.
    progress : Progress
        Called with (files opened, files).

    Raises
    ------
    FileFormatError
        Naming the first variable or dimension that differs from the schema or the first file.
    """
    if not input_files or len(input_files) != len(output_files):
        raise OptionError(
            f"maelstrom-radiation: {len(input_files)} files of inputs and {len(output_files)} of "
            "outputs; give as many of each"
        )
    pairs: list[tuple[NetcdfFile, NetcdfFile]] = []
    parts: tuple[_Part, ...] = ()
    for number, paths in enumerate(zip(input_files, output_files, strict=True)):
        pair = inspect_netcdf(paths[0]), inspect_netcdf(paths[1])
        found = _parts(pair, inputs, outputs)
        parts = parts or found
        _check_same(parts, found, pair, pairs[0] if pairs else pair)
        pairs.append(pair)
        progress(2 * number + 2, 2 * len(input_files))
    return Pairs(parts, tuple(pairs))


def _parts(
    pair: tuple[NetcdfFile, NetcdfFile], inputs: Sequence[str], outputs: Sequence[str] | None
) -> tuple[_Part, ...]:
    for file in pair:
        if DIM not in file.dims:
            raise FileFormatError(
                f"{file.path}: lacks the dimension {DIM!r}; it has {', '.join(file.dims)}"
            )
    counts = [file.dims[DIM] for file in pair]
    if counts[0] != counts[1]:
        raise FileFormatError(
            f"{pair[1].path}: dimension {DIM!r} is {counts[1]}, expected {counts[0]} as in "
            f"{pair[0].path}"
        )
    if outputs is None:
        found = pair[1].variables.items()
        outputs = [*FLUXES, "pressure_hl"] + [
            name
            for name, variable in found
            if DIM in variable.dims and name not in FLUXES and name not in INPUTS
        ]
    return (
        *(_part(pair[0], name, in_outputs=False) for name in inputs),
        *(_part(pair[1], name, in_outputs=True) for name in outputs),
    )


def _part(file: NetcdfFile, name: str, *, in_outputs: bool) -> _Part:
    variable = file.variables.get(name)
    if variable is None:
        why = f" ({file.skipped[name]})" if name in file.skipped else ""
        raise FileFormatError(f"{file.path}: lacks the variable {name!r}{why}")
    _check_variable(file, variable, KNOWN.get(name))
    kept = [
        (dim, length)
        for dim, length in zip(variable.dims, variable.shape, strict=True)
        if dim != DIM
    ]
    return _Part(
        decoded=OUTPUT_PRESSURE if in_outputs and name == "pressure_hl" else name,
        in_outputs=in_outputs,
        name=name,
        dims=tuple(dim for dim, _ in kept),
        shape=tuple(length for _, length in kept),
        packing=variable.packing,
    )


def _check_variable(
    file: NetcdfFile, variable: NetcdfVariable, known: ColumnVariable | None
) -> None:
    """Check a variable against the schema; ``known`` None: one only `all_outputs` asks for."""
    if np.dtype(variable.packing.dtype) != np.float32:
        raise FileFormatError(
            f"{file.path}: variable {variable.name!r} is {variable.packing.dtype}, expected float32"
        )
    if known is None:
        return
    found = dict(zip(variable.dims, variable.shape, strict=True))
    has_columns = found.pop(DIM, None) is not None
    expected = dict(zip(known.dims, known.shape, strict=True))
    agrees = found == expected if known.sure else tuple(found.values()) == known.shape
    # Upstream broadcasts a scalar irradiance; one that comes by column needs no help.
    if not agrees or not (has_columns or variable.name == IRRADIANCE):
        wanted = ", ".join([DIM, *(f"{dim} {length}" for dim, length in expected.items())])
        there = ", ".join(
            f"{dim} {length}" for dim, length in zip(variable.dims, variable.shape, strict=True)
        )
        raise FileFormatError(
            f"{file.path}: variable {variable.name!r} is ({there}), expected ({wanted})"
        )


def _check_same(
    first: tuple[_Part, ...],
    found: tuple[_Part, ...],
    pair: tuple[NetcdfFile, NetcdfFile],
    first_pair: tuple[NetcdfFile, NetcdfFile],
) -> None:
    names = {part.decoded for part in found}
    for expected in first:
        file = pair[expected.in_outputs]
        if expected.decoded not in names:
            raise FileFormatError(f"{file.path}: lacks the variable {expected.name!r}")
    for expected, part in zip(first, found, strict=False):
        file, model = pair[part.in_outputs], first_pair[part.in_outputs]
        dims, wanted = file.variables[part.name].dims, model.variables.get(part.name)
        if part != expected or wanted is None or dims != wanted.dims:
            raise FileFormatError(
                f"{file.path}: variable {part.name!r} is {part.packing.stored} "
                f"({', '.join(dims)}), which differs from {model.path}"
            )
    if len(found) != len(first):
        more = next(part for part in found if part.decoded not in {p.decoded for p in first})
        raise FileFormatError(
            f"{pair[1].path}: holds the variable {more.name!r}, which {first_pair[1].path} lacks"
        )
