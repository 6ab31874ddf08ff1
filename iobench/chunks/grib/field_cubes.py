"""GRIB files as stored variables along the dimensions that cfgrib gives: a message is a chunk.

These are number, time, step and the type of level by its own name, then the grid's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.chunk_codecs import GRIB_MESSAGE
from iobench.chunks.chunked_variable import ChunkedVariable
from iobench.chunks.packing import Packing
from iobench.chunks.source_file import SourceFile
from iobench.errors import FileFormatError
from iobench.files.urls import range_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.grib.message_index import GribIndex

# cfgrib stores these from the ground up; all other dimensions ascend.
DESCENDING = ("isobaricInhPa", "isobaricInPa", "isobaricLayer")
LATITUDE_LONGITUDE = ("regular_ll", "regular_gg")
CONSECUTIVE_J, ALTERNATING_ROWS = 0x20, 0x10
FLOAT32 = Packing("<f4", "<f4")


class FieldCube:
    """A variable of GRIB files."""

    def __init__(self, index: GribIndex, name: str, rows: NDArray[np.int64]) -> None:
        self.index, self.name, self.rows = index, name, rows
        columns = {
            "number": index["number"][rows],
            "time": index["dataDate"][rows].astype(np.int64) * 10000 + index["dataTime"][rows],
            "step": index["step"][rows],
            str(index["typeOfLevel"][rows[0]]): _levels(index, rows),
        }
        self.axes: dict[str, NDArray[Any]] = {}
        places = []
        for dim, column in columns.items():
            values, place = np.unique(column, return_inverse=True)
            if dim in DESCENDING:
                values, place = values[::-1], len(values) - 1 - place
            self.axes[dim] = values
            places.append(place)
        self.shape = tuple(map(len, self.axes.values()))
        self.places = np.ravel_multi_index(tuple(places), self.shape)

    @property
    def units(self) -> str:
        """Of its values."""
        return str(self.index["units"][self.rows[0]])

    def axis(self, dim: str) -> int | None:
        """Return which axis a dimension is, ``level`` for any type of level; None: it lacks it."""
        dims = [*self.axes]
        return len(dims) - 1 if dim == "level" else dims.index(dim) if dim in dims else None

    def values(self, dim: str) -> list[Any]:
        """Return its values of a dimension, none where it lacks that."""
        axis = self.axis(dim)
        return [] if axis is None else [*self.axes.values()][axis].tolist()

    def check(self) -> None:
        """Raise FileFormatError unless each combination of coordinates has one message.

        Or unless they are on one grid, which is supported.
        """
        counts = np.bincount(self.places, minlength=math.prod(self.shape))
        if (doubled := np.flatnonzero(counts > 1)).size:
            first, second = map(int, self.rows[self.places == doubled[0]][:2])
            columns = ((key, self.index[key]) for key in _TOLD_APART)
            differs = [key for key, column in columns if column[first] != column[second]]
            by = f" (they differ in {', '.join(differs)})" if differs else ""
            raise FileFormatError(
                f"{self.index.where(first)} and {self.index.where(second)} are both "
                f"{self._spell(doubled[0])}{by}; choose other variables with --variables, or "
                "remove one of the two from the files"
            )
        if (missing := np.flatnonzero(counts == 0)).size:
            files = self.index.files
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            raise FileFormatError(
                f"{files[0]}{more}: {missing.size} of {counts.size} messages of {self.name} are "
                f"missing, the first: {self._spell(missing[0])}; add the files that hold them, or "
                "choose variables that are complete with --variables"
            )
        self._grid()

    def _spell(self, place: int) -> str:
        places = np.unravel_index(place, self.shape)
        axes = zip(self.axes.items(), places, strict=True)
        spelled = (spell_value(dim, values[at]) for (dim, values), at in axes)
        return f"{self.name}, {', '.join(spelled)}"

    def stored(self, sample_dims: Iterable[str]) -> ChunkedVariable:
        """Return it as a variable whose chunks are its messages, once checked.

        Dimensions of length one are left out, but for those of the samples.
        """
        grid_dims, grid = self._grid()
        own = {self.axis(dim): dim for dim in sample_dims}
        own_axes = [n for n, length in enumerate(self.shape) if length > 1 or n in own]
        dims = tuple(own.get(n, [*self.axes][n]) for n in own_axes)
        lengths = tuple(self.shape[n] for n in own_axes)
        rows = np.empty(len(self.rows), dtype=np.int64)
        rows[self.places] = self.rows
        rows = rows.reshape(*lengths, *(1 for _ in grid))
        chunk = (*(1 for _ in own_axes), *grid)
        index = self.index
        return ChunkedVariable(
            self.name, (*dims, *grid_dims), (*lengths, *grid), FLOAT32, np.nan,
            {"units": self.units}, chunk=chunk, codecs=(GRIB_MESSAGE,),
            offsets=index["offset"][rows], sizes=index["length"][rows],
            files=tuple(map(range_file, index.files)), numbers=index["file"][rows],
        )  # fmt: skip

    def _grid(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the names and lengths of its horizontal dimensions, as cfgrib has them."""
        index, rows, row = self.index, self.rows, self.rows[0]
        other = rows[
            (index["gridHash"][rows] != index["gridHash"][row])
            | (index["numberOfValues"][rows] != index["numberOfValues"][row])
        ]
        if other.size:
            raise FileFormatError(
                f"{index.where(int(other[0]))}: {self.name} is on another grid than "
                f"{index.where(int(row))}; profile them apart"
            )
        n_values, ni, nj = (int(index[key][row]) for key in ("numberOfValues", "Ni", "Nj"))
        if ni <= 0 or nj <= 0 or ni * nj != n_values:
            return ("values",), (n_values,)
        if int(index["scanningMode"][row]) & ALTERNATING_ROWS:
            raise FileFormatError(
                f"{index.where(int(row))}: alternate rows run in opposite directions, which is not "
                "supported; remap it first, e.g. with cdo"
            )
        regular = index["gridType"][row] in LATITUDE_LONGITUDE
        dims = ("latitude", "longitude") if regular else ("y", "x")
        if int(index["scanningMode"][row]) & CONSECUTIVE_J:
            return dims[::-1], (ni, nj)
        return dims, (nj, ni)


def find_fields(index: GribIndex, is_needed: Callable[[str], bool]) -> list[FieldCube]:
    """Return the variables of the files, in order of first appearance."""
    unnamed = np.where(index["paramId"] == 0, index["parameter"], "")
    keys = np.rec.fromarrays([unnamed, *(index[key] for key in _IDENTITY)])
    described = np.flatnonzero(index["problem"] == "")
    if not described.size:
        raise FileFormatError(
            f"{index.files[0]}: none of its {len(index)} GRIB messages can be described: "
            f"{index['problem'][0]}; convert them first, e.g. with grib_set or cdo"
        )
    _, first, group = np.unique(keys[described], return_index=True, return_inverse=True)
    rows = [described[group == number] for number in np.argsort(first)]
    parts = [part for each in rows for part in _by_period(index, each)]
    fields = []
    for name, (_, own) in zip(_names(index, parts), parts, strict=True):
        fields.append(FieldCube(index, name, own))
        if is_needed(name):
            fields[-1].check()
    return fields


_IDENTITY = ("paramId", "shortName", "typeOfLevel", "stepType", "kind")
_TOLD_APART = ("edition", "startStep", "bottomLevel", "dataType", "parameter", "bitsPerValue")


def undescribed_messages(index: GribIndex) -> tuple[str, ...]:
    """Return a line for each reason why messages are left out."""
    rows_of: dict[str, list[int]] = {}
    for row in np.flatnonzero(index["problem"] != "").tolist():
        rows_of.setdefault(str(index["problem"][row]), []).append(row)
    return tuple(
        f"{len(rows)} GRIB messages are left out, the first {index.where(rows[0])}: {reason}"
        for reason, rows in rows_of.items()
    )


def _levels(index: GribIndex, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return the levels of messages, as (top, bottom) where layers have one top."""
    top, bottom = index["level"][rows], index["bottomLevel"][rows]
    layers = np.empty(len(rows), dtype=[("top", "f8"), ("bottom", "f8")])
    layers["top"], layers["bottom"] = top, np.nan_to_num(bottom)
    return layers if len(np.unique(layers)) > len(np.unique(top)) else top


def _by_period(index: GribIndex, rows: NDArray[np.int64]) -> list[tuple[str, NDArray[np.int64]]]:
    """Return messages of one parameter, apart by the period they are of where one step has two.

    Of 0-6 h and 5-6 h one is since the forecast's start, the other of one hour; 0-1 h is both.
    """
    cube = FieldCube(index, "", rows)
    start, end = index["startStep"][rows], index["step"][rows]
    periods = np.rec.fromarrays([cube.places, start])
    if len(np.unique(periods)) == len(np.unique(cube.places)):
        return [("", rows)]
    since_start = start == 0
    parts = [("since_start", rows[since_start])] if since_start.any() else []
    for hours in np.unique((end - start)[~since_start]).tolist():
        own = rows[end - start == hours]
        parts.append((f"{hours:g}h", own))
    return parts


def _names(index: GribIndex, parts: Sequence[tuple[str, NDArray[np.int64]]]) -> list[str]:
    """Return a name for each variable: its parameter's, and as much more as tells it apart."""
    first = [int(rows[0]) for _, rows in parts]
    names = [str(index["shortName"][row]) for row in first]
    for at, row in enumerate(first):
        if names[at] == "unknown":
            number = index["paramId"][row] or f"_{index['parameter'][row]}"
            names[at] = f"param{number}"
    for key in ("typeOfLevel", "stepType", "kind", "period"):
        by_name: dict[str, list[int]] = {}
        for at, name in enumerate(names):
            by_name.setdefault(name, []).append(at)
        for alike in by_name.values():
            more = [parts[at][0] if key == "period" else str(index[key][first[at]]) for at in alike]
            if len(set(more)) > 1:
                for at, text in zip(alike, more, strict=True):
                    names[at] = f"{names[at]}_{text}" if text else names[at]
    return names


def field_dims(fields: Sequence[FieldCube]) -> dict[str, int]:
    """Return the dimensions of all fields with the number of their values."""
    values_of: dict[str, set[Any]] = {}
    for each in fields:
        for dim, values in each.axes.items():
            values_of.setdefault(dim, set()).update(values.tolist())
    levels = values_of.keys() - {"number", "time", "step"}
    if len(levels) == 1:
        values_of["level"] = values_of[next(iter(levels))]
    if values_of["number"] == {-1}:
        del values_of["number"]  # no message has one
    return {dim: len(values) for dim, values in values_of.items()}


def describe_fields(index: GribIndex) -> SourceFile:
    """Return dimensions and variables of files, complete or not, without where they lie."""
    fields = find_fields(index, lambda _: False)
    dims = field_dims(fields)
    variables = {each.name: _described(each, dims) for each in fields}
    return SourceFile(index.files[0], dims, variables, {}, kind="GRIB")


def _described(each: FieldCube, dims: Mapping[str, int]) -> ChunkedVariable:
    lengths = {dim: len(values) for dim, values in each.axes.items() if dim in dims}
    keys = ("numberOfValues", "gridType", "bitsPerValue")
    n_values, grid, bits = (each.index[key][each.rows[0]] for key in keys)
    packed = f", {bits} bits a value" if bits >= 0 else ""
    attributes = {
        "units": each.units,
        "messages": f"a message for each field of {n_values} values ({grid}){packed}",
    }
    return ChunkedVariable(
        each.name, tuple(lengths), tuple(lengths.values()), FLOAT32, np.nan, attributes, "GRIB"
    )


def spell_value(dim: str, value: Any) -> str:
    """Return a dimension and one of its values, for people."""
    if isinstance(value, tuple):
        return f"{dim}={value[0]:g}-{value[1]:g}"
    if dim == "time":
        digits = f"{int(value):012d}"
        return f"time={digits[:4]}-{digits[4:6]}-{digits[6:8]}T{digits[8:10]}:{digits[10:]}"
    return f"{dim}={value:g}{' h' if dim == 'step' else ''}"
