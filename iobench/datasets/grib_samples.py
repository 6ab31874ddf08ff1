"""Samples of users' own GRIB files: one index along a dimension of the fields they hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.decoded_chunks import ChunkRow, DecodedChunks, count_decoded, count_used
from iobench.chunks.grib.decoding import decode_message
from iobench.datasets.contract import SampleIndex, no_progress
from iobench.datasets.grib_index import index_grib, read_messages
from iobench.datasets.positions import time_positions
from iobench.datasets.selection import Selection, check_sample_dim
from iobench.errors import FileFormatError, OptionError
from iobench.files.ranges import FileRange
from iobench.files.urls import range_file
from iobench.samples import SampleSpec, SharedBytes, Variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.decoded_chunks import ChunkKey, DecodedChunk, Stored
    from iobench.chunks.grib.message_index import GribIndex
    from iobench.datasets.contract import Arrays, Locator, Raw

__all__ = ["GribSamples"]

# cfgrib stores these from the ground up; all other dimensions ascend.
DESCENDING = ("isobaricInhPa", "isobaricInPa", "isobaricLayer")
LATITUDE_LONGITUDE = ("regular_ll", "regular_gg")
PRESSURE_UNITS = {"isobaricInhPa": "hPa", "isobaricInPa": "Pa"}
EPOCH = 197001010000
CONSECUTIVE_J, ALTERNATING_ROWS = 0x20, 0x10


@dataclass(frozen=True, slots=True, eq=False)
class _Field:
    """A variable: the rows of its messages as an array over its dimensions."""

    name: str
    units: str
    dims: tuple[str, ...]
    coordinates: tuple[NDArray[Any], ...]
    rows: NDArray[np.int64]
    grid_dims: tuple[str, ...]
    grid_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a sample's messages become one array: ``n_messages`` stacked to ``shape``."""

    name: str
    n_messages: int
    grid_shape: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _SharedMessages(SharedBytes):
    """What was read of a sample's messages, its own first.

    ``kept`` has of each that is shared the decoded one, or the way to it.
    """

    kept: dict[FileRange[str], DecodedChunk]


class GribSamples:
    """Reads and decodes samples of GRIB files, float32.

    Dimensions are those cfgrib gives: number, time, step and the type of level by its own name
    (``level`` stands for any), then the grid's; those of length one are left out.
    """

    kind = "GRIB"
    fused: tuple[str, ...] = ()

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self._files: tuple[str, ...] = ()
        self._plans: tuple[_Plan, ...] = ()
        self._chunks = DecodedChunks()
        self._shared: frozenset[tuple[int, int]] = frozenset()
        self._numbers: dict[tuple[int, int], int] = {}
        self._overlap = False

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples; a missing or doubled message is an error."""
        index = index_grib(files, cache_dir=locator.cache_dir, progress=locator.progress)
        fields = _fields(index, self.selection)
        sample_dim = check_sample_dim(self.selection.sample_dim, _dimensions(fields), files)
        asked = self.selection.variables
        self.selection.check_names([field.name for field in fields])
        chosen, skipped = [], {}
        for field in fields:
            if asked and field.name not in asked:
                skipped[field.name] = "not asked for"
            elif not self.selection.asks_for(field.name) and _axis(field, sample_dim) is None:
                skipped[field.name] = f"lacks the dimension {sample_dim}"
            else:
                chosen.append(field)
        coordinates = _sample_coordinates(chosen, sample_dim)
        positions, units = _positions(chosen, sample_dim, coordinates)
        stacks = [
            _by_sample(field, sample_dim, coordinates, self.selection.asks_for(field.name))
            for field in chosen
        ]
        self._files = tuple(map(range_file, files))
        self._plans = tuple(_plan(f, s) for f, s in zip(chosen, stacks, strict=True))
        where = _where(index, stacks, len(coordinates))
        self._find_shared(where)
        return SampleIndex(
            spec=SampleSpec(
                tuple(
                    self._variable(f, p, sample_dim)
                    for f, p in zip(chosen, self._plans, strict=True)
                )
            ),
            where=where,
            coordinate=[_spell(sample_dim, value) for value in coordinates],
            positions=positions.tolist(),
            position_units=units,
            provenance={"sample_dim": sample_dim, "skipped": skipped},
        )

    def _variable(self, field: _Field, plan: _Plan, sample_dim: str) -> Variable:
        axis = _axis(field, sample_dim)
        dims = [
            dim
            for number, (dim, values) in enumerate(zip(field.dims, field.coordinates, strict=True))
            if number != axis and len(values) > 1
        ]
        return Variable(
            name=field.name,
            shape=plan.shape,
            dtype="<f4",
            dims=(*dims, *field.grid_dims),
            units=field.units,
            role=self.selection.role(field.name),
        )

    def _find_shared(self, where: Sequence[NDArray[np.int64]]) -> None:
        """Find which messages, by file and offset, are in more than one sample."""
        first, *others = [{(file, offset) for file, offset, _ in each.tolist()} for each in where]
        # A variable without the sample dimension is in all samples, any other message in one.
        self._shared = frozenset(first & others[0]) if others else frozenset()
        self._numbers = {
            place: number
            for number, each in enumerate((first, *others))
            for place in list(each - self._shared)[:1]
        }

    @property
    def has_chunks(self) -> bool:
        """Whether messages may be kept decoded: windows that overlap are told by their order."""
        return True

    def chunking(self) -> None:
        """Return None: what samples share they need whole."""

    def expect(self, where: Sequence[NDArray[np.int64]], *, follows: bool) -> None:
        """Say which samples will be asked for, in order; some twice where windows overlap."""
        numbers = [self._number(each) for each in where]
        self._overlap = len(set(numbers)) < len(numbers)
        if self._overlap:
            indexes = np.array(numbers, dtype=np.int64)
            self._chunks.expect(np.zeros_like(indexes), indexes, follows=follows)

    def _number(self, where: NDArray[np.int64]) -> int:
        places = ((file, offset) for file, offset, _ in where.tolist())
        return next((self._numbers[each] for each in places if each in self._numbers), 0)

    def read(self, where: NDArray[np.int64]) -> Raw:
        """Return the sample's messages, but for those that are kept, or that others read."""
        extents = self._extents(where)
        if not self._shared and not self._overlap:
            return read_messages(extents)
        number = self._number(where)
        keys: dict[ChunkKey, FileRange[str]] = {}
        for (file, offset, _), extent in zip(where.tolist(), extents, strict=True):
            if (file, offset) in self._shared:
                keys[ChunkRow(-1, "", 0, 0), (file, offset)] = extent
            elif self._overlap:
                keys[ChunkRow(0, "", 1, number), (file, offset)] = extent
        chunks, found = self._chunks.take(
            list(keys),
            (0, number),
            lambda wanted: [[each] for each in read_messages([keys[key] for key in wanted])],
        )
        kept = dict(zip(keys.values(), chunks, strict=True))
        own = [extent for extent in extents if extent not in kept]
        return _SharedMessages([*read_messages(own), *found], kept)

    def _extents(self, where: NDArray[np.int64]) -> list[FileRange[str]]:
        return [
            FileRange(self._files[file], offset, length) for file, offset, length in where.tolist()
        ]

    def stored_nbytes(self, where: NDArray[np.int64]) -> int:
        """Return the bytes that `read` will return."""
        return int(where[:, 2].sum())

    def decode(self, raw: Raw, where: NDArray[np.int64]) -> Arrays:
        """Return the arrays of the sample's messages."""
        own, extents = iter(raw), iter(self._extents(where))
        kept = raw.kept if isinstance(raw, _SharedMessages) else {}
        return {plan.name: _stack(plan, own, extents, kept) for plan in self._plans}


def describe_messages(files: Sequence[Path], *, cache_dir: Path) -> dict[str, Any]:
    """Return dimensions and variables of GRIB files, complete or not, as values for JSON."""
    index = index_grib(files, cache_dir=cache_dir, progress=no_progress)
    # A variable that nobody asks for need not have all its messages.
    fields = _fields(index, Selection(None, ("",), ()))
    lengths = _dimensions(fields)
    variables = []
    for field in fields:
        pairs = [
            (dim, len(values))
            for dim, values in zip(field.dims, field.coordinates, strict=True)
            if dim in lengths or dim not in ("number", "time", "step")
        ]
        first = index.rows(shortName=field.name)[:1]
        variables.append(
            {
                "name": field.name,
                "dims": [dim for dim, _ in pairs],
                "shape": [length for _, length in pairs],
                "dtype": "float32",
                "units": field.units,
                "chunk": None,
                "codec": _packed_as(index, first),
            }
        )
    return {"dims": lengths, "variables": variables, "coordinates": [], "skipped": {}}


def _packed_as(index: GribIndex, rows: NDArray[np.int64]) -> str:
    if not len(rows):
        return "a message for each field"
    bits, values = (int(index[name][rows[0]]) for name in ("bitsPerValue", "numberOfValues"))
    grid = str(index["gridType"][rows[0]])
    packed = f", {bits} bits a value" if bits >= 0 else ""
    return f"a message for each field of {values} values ({grid}){packed}"


def _stack(
    plan: _Plan,
    messages: Iterator[memoryview],
    extents: Iterator[FileRange[str]],
    kept: Mapping[FileRange[str], DecodedChunk],
) -> NDArray[np.float32]:
    """Return the variable that the next messages hold; ``messages`` are those not kept."""
    n_values = math.prod(plan.grid_shape)
    values = np.empty((plan.n_messages, n_values), dtype=np.float32)
    for row in values:
        extent = next(extents)
        where = f"{extent[0]}: the GRIB message at offset {extent[1]}"
        chunk = kept.get(extent)
        if chunk is None:
            decode_message(next(messages), where=where, out=row)
            continue

        def decode(_: tuple[int, ...], stored: Stored, where: str = where) -> NDArray[Any]:
            made = np.empty(n_values, dtype=np.float32)
            decode_message(stored[0] or b"", where=where, out=made)
            count_decoded(made.nbytes)
            return made

        row[:] = chunk.values(decode)
        count_used(row.nbytes, chunk.n_chunks)
    return values.reshape(plan.shape)


def _fields(index: GribIndex, selection: Selection) -> list[_Field]:
    """Return the variables of the files, in order of first appearance.

    Those not asked for need not be complete: their rows are not put in order.
    """
    keys = np.rec.fromarrays([index["paramId"], index["shortName"], index["typeOfLevel"]])
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    short_names = [str(index["shortName"][first[number]]) for number in order]
    fields = []
    for number, short_name in zip(order, short_names, strict=True):
        row = first[number]
        name = short_name if short_name != "unknown" else f"param{index['paramId'][row]}"
        if short_names.count(short_name) > 1:
            name = f"{name}_{index['typeOfLevel'][row]}"
        needed = not selection.variables or selection.asks_for(name)
        fields.append(_field(index, name, np.flatnonzero(group == number), needed=needed))
    return fields


def _field(index: GribIndex, name: str, rows: NDArray[np.int64], *, needed: bool) -> _Field:
    level = str(index["typeOfLevel"][rows[0]])
    dims = ("number", "time", "step", level)
    columns = (
        index["number"][rows],
        index["dataDate"][rows].astype(np.int64) * 10000 + index["dataTime"][rows],
        index["step"][rows],
        index["level"][rows],
    )
    coordinates, places = [], []
    for dim, column in zip(dims, columns, strict=True):
        values, place = np.unique(column, return_inverse=True)
        if dim in DESCENDING:
            values, place = values[::-1], len(values) - 1 - place
        coordinates.append(values)
        places.append(place)
    shape = tuple(len(values) for values in coordinates)
    units = str(index["units"][rows[0]])
    if not needed:
        unordered = np.empty(0, dtype=np.int64)
        return _Field(name, units, dims, tuple(coordinates), unordered, (), ())
    flat = np.ravel_multi_index(tuple(places), shape)
    _check_complete(index, name, rows, flat, dims, coordinates)
    cube = np.empty(math.prod(shape), dtype=np.int64)
    cube[flat] = rows
    grid_dims, grid_shape = _grid(index, name, rows)
    return _Field(name, units, dims, tuple(coordinates), cube.reshape(shape), grid_dims, grid_shape)


def _check_complete(
    index: GribIndex,
    name: str,
    rows: NDArray[np.int64],
    flat: NDArray[np.int64],
    dims: Sequence[str],
    coordinates: Sequence[NDArray[Any]],
) -> None:
    """Check that each combination of coordinates has one message."""
    shape = tuple(len(values) for values in coordinates)
    counts = np.bincount(flat, minlength=math.prod(shape))

    def spell(place: int) -> str:
        places = np.unravel_index(place, shape)
        spelled = (
            _spell(dim, values[at])
            for dim, values, at in zip(dims, coordinates, places, strict=True)
        )
        return f"{name}, {', '.join(spelled)}"

    if (doubled := np.flatnonzero(counts > 1)).size:
        first, second = rows[flat == doubled[0]][:2]
        raise FileFormatError(
            f"{index.where(int(first))} and {index.where(int(second))} are both "
            f"{spell(int(doubled[0]))}; keep one of them"
        )
    if (missing := np.flatnonzero(counts == 0)).size:
        raise FileFormatError(
            f"{_named(index.files)}: {missing.size} of {counts.size} messages of {name} are "
            f"missing, the first: {spell(int(missing[0]))}; add the files that hold them, or "
            "choose variables that are complete with --variables"
        )


def _named(files: Sequence[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def _grid(
    index: GribIndex, name: str, rows: NDArray[np.int64]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the names and lengths of a field's horizontal dimensions, as cfgrib has them."""
    row = rows[0]
    other = rows[
        (index["gridHash"][rows] != index["gridHash"][row])
        | (index["numberOfValues"][rows] != index["numberOfValues"][row])
    ]
    if other.size:
        raise FileFormatError(
            f"{index.where(int(other[0]))}: {name} is on another grid than "
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
    dims = ("latitude", "longitude") if index["gridType"][row] in LATITUDE_LONGITUDE else ("y", "x")
    if int(index["scanningMode"][row]) & CONSECUTIVE_J:
        return dims[::-1], (ni, nj)
    return dims, (nj, ni)


def _dimensions(fields: Sequence[_Field]) -> dict[str, int]:
    """Return the dimensions of all fields with the number of their values."""
    found: dict[str, set[Any]] = {}
    for field in fields:
        for dim, values in zip(field.dims, field.coordinates, strict=True):
            found.setdefault(dim, set()).update(values.tolist())
    levels = {name for name in found if name not in ("number", "time", "step")}
    if len(levels) == 1:
        found["level"] = found[next(iter(levels))]
    if found["number"] == {-1}:
        del found["number"]  # no message has one
    return {dim: len(values) for dim, values in found.items()}


def _axis(field: _Field, sample_dim: str) -> int | None:
    if sample_dim == "level":
        return len(field.dims) - 1
    return field.dims.index(sample_dim) if sample_dim in field.dims else None


def _sample_coordinates(fields: Sequence[_Field], sample_dim: str) -> list[Any]:
    """Return the values of the sample dimension over all fields, in order."""
    values: set[Any] = set()
    descending = False
    for field in fields:
        axis = _axis(field, sample_dim)
        if axis is not None:
            values.update(field.coordinates[axis].tolist())
            descending = field.dims[axis] in DESCENDING
    if not values:
        names = ", ".join(field.name for field in fields)
        raise OptionError(f"--sample-dim {sample_dim}: none of the variables {names} has it")
    return sorted(values, reverse=descending)


def _positions(
    fields: Sequence[_Field], sample_dim: str, coordinates: Sequence[Any]
) -> tuple[NDArray[np.float64], str]:
    """Return where samples lie: valid times along time and step, else the values themselves.

    A valid time needs one step for all times, or one time for all steps; of several, along time
    it is the forecasts' start, along step the seconds since then.
    """
    if sample_dim not in ("time", "step"):
        return np.asarray(coordinates, dtype=np.float64), PRESSURE_UNITS.get(sample_dim, "")
    other = "step" if sample_dim == "time" else "time"
    others = {
        value
        for field in fields
        if (axis := _axis(field, other)) is not None
        for value in field.coordinates[axis].tolist()
    }
    start, steps = (coordinates, others) if sample_dim == "time" else (others, coordinates)
    if len(others) != 1:
        start, steps = (start, [0]) if sample_dim == "time" else ([EPOCH], steps)
    starts = np.array([_spell("time", value)[5:] for value in start], "datetime64[ms]")
    hours = np.array(list(steps), dtype=np.float64)
    times = starts + np.rint(hours * 3_600_000).astype("timedelta64[ms]")
    return time_positions(times)


def _by_sample(
    field: _Field, sample_dim: str, coordinates: Sequence[Any], asked: bool
) -> NDArray[np.int64]:
    """Return the rows of each sample's messages, shape (samples or 1, ...)."""
    axis = _axis(field, sample_dim)
    if axis is None:
        return field.rows[np.newaxis]
    rows = np.moveaxis(field.rows, axis, 0)
    own = field.coordinates[axis].tolist()
    if own == list(coordinates) or (len(own) == 1 and asked):
        return rows
    missing = [value for value in coordinates if value not in own]
    hint = " (named there, a variable with one value is repeated in every sample)"
    raise FileFormatError(
        f"{field.name} lacks {len(missing)} of {len(coordinates)} values of {sample_dim}, the "
        f"first: {_spell(sample_dim, missing[0])}; add the files that hold them, or choose with "
        f"--variables{hint if len(own) == 1 else ''}"
    )


def _plan(field: _Field, stack: NDArray[np.int64]) -> _Plan:
    n_messages = stack[0].size
    kept = tuple(n for n in stack.shape[1:] if n > 1)
    return _Plan(field.name, n_messages, field.grid_shape, (*kept, *field.grid_shape))


def _where(
    index: GribIndex, stacks: Sequence[NDArray[np.int64]], n_samples: int
) -> list[NDArray[np.int64]]:
    """Return for each sample its messages as rows of (file, offset, length)."""
    table = np.stack([index["file"], index["offset"], index["length"]], axis=1).astype(np.int64)
    return [
        np.concatenate([table[stack[number if len(stack) > 1 else 0].ravel()] for stack in stacks])
        for number in range(n_samples)
    ]


def _spell(dim: str, value: Any) -> str:
    if dim == "time":
        digits = f"{int(value):012d}"
        return f"time={digits[:4]}-{digits[4:6]}-{digits[6:8]}T{digits[8:10]}:{digits[10:]}"
    return f"{dim}={value:g}{' h' if dim == 'step' else ''}"
