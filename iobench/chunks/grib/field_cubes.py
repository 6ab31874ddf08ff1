"""GRIB files as stored variables along the dimensions that cfgrib gives: a message is a chunk.

An index of what each message is, and where, is made of headers alone. Dimensions are number, time,
step and the type of level by its own name, then the grid's.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray  # noqa: TC002 - msgspec asks

from iobench.chunks.chunk_codecs import GRIB_MESSAGE
from iobench.chunks.chunked_variable import ChunkedVariable
from iobench.chunks.grib.messages import (
    GribMessage,
    damaged,
    dated_headers,
    grib_messages,
    load_eccodes,
)
from iobench.chunks.packing import Packing
from iobench.chunks.source_file import SourceFile
from iobench.coordinates import Coordinate
from iobench.errors import FileFormatError
from iobench.files.ranges import FileRange, open_source_file
from iobench.files.urls import range_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from iobench.files.ranges import SourceBytes
else:
    Path = Any  # or a URL

GRIB_COLUMNS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("file", "edition", "paramId", "dataDate", "dataTime", "number"), "<i4"),
    **dict.fromkeys(("Ni", "Nj", "scanningMode", "bitsPerValue"), "<i4"),
    **dict.fromkeys(("offset", "length", "numberOfValues"), "<i8"),
    **dict.fromkeys(("startStep", "step", "level", "bottomLevel"), "<f8"),
    **dict.fromkeys(("shortName", "units", "stepType", "dataType", "typeOfLevel"), "U"),
    **dict.fromkeys(("parameter", "kind", "gridType", "gridHash", "problem"), "U"),
}
"""The index's columns and their dtypes (``U``: text). Names are ecCodes' where ecCodes has one;
``file`` counts from 0, ``startStep`` and ``step`` are the start and the end of the step in hours,
``dataTime`` is hhmm, and ``number``, ``Ni``, ``Nj`` and ``bitsPerValue`` are -1 where a message has
none. ``bottomLevel`` is NaN but for layers. ``parameter`` is discipline, category and number, or
table and indicator in edition 1; ``kind`` tells derived, percentile and other products apart.
``problem`` is why ecCodes cannot describe a message, empty where it can."""
UNDESCRIBED: Final[Mapping[str, Any]] = {
    name: {"U": "", "<f8": math.nan}.get(dtype, -1) for name, dtype in GRIB_COLUMNS.items()
}
PRODUCTS: Final = (
    "derivedForecast", "percentileValue", "scaledValueOfLowerLimit", "scaledValueOfUpperLimit",
)  # fmt: skip
IDENTITY: Final = ("paramId", "shortName", "typeOfLevel", "stepType", "kind")
TOLD_APART: Final = ("edition", "startStep", "bottomLevel", "dataType", "parameter", "bitsPerValue")
# cfgrib stores these from the ground up; all other dimensions ascend.
DESCENDING: Final = ("isobaricInhPa", "isobaricInPa", "isobaricLayer")
CONSECUTIVE_J, ALTERNATING_ROWS = 0x20, 0x10
FLOAT32: Final = Packing("<f4", "<f4")

MAPPING_NAME: Final = "crs"
CELL_METHODS: Final = {
    "accum": "time: sum", "avg": "time: mean", "max": "time: maximum", "min": "time: minimum",
}  # fmt: skip
LATITUDE: Final = {"standard_name": "latitude", "units": "degrees_north"}
LONGITUDE: Final = {"standard_name": "longitude", "units": "degrees_east"}
GLOBAL_GRIDS: Final = ("regular_ll", "regular_gg", "reduced_ll", "reduced_gg")


# -- the index ---------------------------------------------------------------------------------


class GribIndex(msgspec.Struct, frozen=True, eq=False):
    """Every message of some GRIB files, one row each, in file order."""

    files: tuple[Path, ...]  # what the column ``file`` counts
    columns: Mapping[str, NDArray[Any]]  # (messages,): The columns of `GRIB_COLUMNS`

    def __len__(self) -> int:
        return len(self.columns["offset"])

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    def extents(self, rows: Sequence[int]) -> list[FileRange[str]]:
        """Return where the messages of these rows are."""
        names = [range_file(file) for file in self.files]
        columns = (self.columns[name][rows].tolist() for name in ("file", "offset", "length"))
        return [FileRange(names[file], *place) for file, *place in zip(*columns, strict=True)]

    def rows(self, **conditions: Any) -> NDArray[np.int64]:
        """Return the rows whose columns equal what is wanted, or are among it."""
        keep = [np.isin(self.columns[name], values) for name, values in conditions.items()]
        return np.flatnonzero(np.all(keep, axis=0)).astype(np.int64)

    def where(self, row: int) -> str:
        """Return the file and offset of a message, for error messages."""
        file = self.files[int(self.columns["file"][row])]
        return f"{file}: the GRIB message at offset {int(self.columns['offset'][row])}"


def inspect_messages(path: Path) -> GribIndex:
    """Return the index of one file."""
    opened, codes = open_source_file(path), load_eccodes()
    describer = _Describer(opened)
    rows: list[dict[str, Any]] = []
    for message in grib_messages(opened, path):
        try:
            rows.append(describer.describe(message))
        except codes.CodesInternalError as error:
            raise damaged(path, message.offset, f"ecCodes says {error}") from error
    opened.check()
    columns = {
        name: np.array([row[name] for row in rows], dtype=None if dtype == "U" else dtype)
        for name, dtype in GRIB_COLUMNS.items()
    }
    return GribIndex((path,), columns)


def joined_index(indexes: Sequence[GribIndex]) -> GribIndex:
    """Return the index of files from that of each."""
    columns = {
        name: np.concatenate([each.columns[name] for each in indexes]) for name in GRIB_COLUMNS
    }
    columns["file"] += np.repeat(np.arange(len(indexes), dtype=np.int32), list(map(len, indexes)))
    return GribIndex(tuple(each.files[0] for each in indexes), columns)


class _Keys:
    """The keys of a message, as ecCodes has them."""

    def __init__(self, codes: Any, handle: int) -> None:
        self._codes, self._handle = codes, handle

    def get(self, key: str, kind: type = int) -> Any:
        """Return a key that every message has: a number, or a text."""
        return self._codes.codes_get(self._handle, key, kind)

    def array(self, key: str) -> NDArray[Any]:
        return self._codes.codes_get_array(self._handle, key)  # type: ignore[no-any-return]

    def has(self, key: str) -> bool:
        return bool(self._codes.codes_is_defined(self._handle, key))

    def number(self, key: str) -> int:
        """Return a key that is -1 where a message lacks it."""
        if not self.has(key) or self._codes.codes_is_missing(self._handle, key):
            return -1
        return int(self.get(key))

    def hours(self, key: str) -> float:
        """Return an end of the step in hours; ecCodes spells steps under an hour ``"30m"``."""
        text = self.get(key, str) if self.has(key) else "0"
        unit = {"s": 1 / 3600, "m": 1 / 60}.get(text[-1])
        return float(text) if unit is None else float(text[:-1]) * unit


@contextmanager
def _opened(message: bytearray | memoryview | bytes) -> Iterator[_Keys]:
    codes = load_eccodes()
    handle = codes.codes_new_from_message(bytes(message))
    try:
        yield _Keys(codes, handle)
    finally:
        codes.codes_release(handle)


class _Describer:
    """Describes the messages of a file.

    Names of parameters and properties of grids are looked up once each: that is two thirds of
    the cost of a message. Nor is ecCodes asked about one that differs from an earlier one in its
    date alone, once it has said of two such that the date is all that differs.
    """

    def __init__(self, opened: SourceBytes) -> None:
        self._file, self._error = opened, load_eccodes().CodesInternalError
        self._parameters: dict[tuple[int, str], dict[str, Any]] = {}
        self._grids: dict[tuple[int, bytes], dict[str, Any]] = {}
        self._known: dict[bytes, dict[str, Any]] = {}
        self._certain: set[bytes] = set()  # that of another date ecCodes says the same

    def describe(self, message: GribMessage) -> dict[str, Any]:
        """Return the row of a message."""
        date, time, others = dated_headers(message) or (0, 0, b"")
        if not others or not _is_date(date, time):
            return self._described(message)
        own = {"offset": message.offset, "length": message.length}
        own |= {"dataDate": date, "dataTime": time}
        if others in self._certain:
            return self._known[others] | own
        row = self._described(message)
        first = self._known.setdefault(others, row)
        if first["dataDate"] != date and first | own == row:
            self._certain.add(others)
        return row

    def _described(self, message: GribMessage) -> dict[str, Any]:
        place: dict[str, Any] = {"file": 0, "offset": message.offset, "length": message.length}
        place |= {"edition": message.edition, "problem": ""}
        with _opened(message.headers) as keys:
            try:
                row = _message_keys(keys, message.edition) | place
                parameter = (row["paramId"], row["typeOfLevel"])
                if parameter not in self._parameters or row["paramId"] == 0:
                    names = ("shortName", "units")
                    self._parameters[parameter] = {key: keys.get(key, str) for key in names}
                row |= self._parameters[parameter] | self._grid(keys, message)
                problem = _problem(row)
            except self._error as error:
                problem = f"ecCodes says {error}"
        return {**UNDESCRIBED, **place, "problem": problem} if problem else row

    def _grid(self, keys: _Keys, message: GribMessage) -> dict[str, Any]:
        grid = (message.edition, message.grid)
        if grid not in self._grids or not message.grid:
            row = _grid_keys(keys, message.grid)
            if row["numberOfValues"] <= 0:
                # Of Gaussian grids in edition 1 ecCodes counts the values in the data.
                content = bytearray(message.length)
                self._file.fill(memoryview(content), message.offset)
                with _opened(content) as whole:
                    row = _grid_keys(whole, message.grid)
            self._grids[grid] = row
        return self._grids[grid]


def _is_date(date: int, time: int) -> bool:
    """Return whether there is such a date, yyyymmdd, and hhmm; a climatology has no year."""
    try:
        datetime.datetime(date // 10000 or 4, date // 100 % 100, date % 100, *divmod(time, 100))
    except (ValueError, OverflowError):
        return False
    return True


def _problem(row: Mapping[str, Any]) -> str:
    """Return what of a message's keys no message has, ``""`` where there is nothing."""
    if not _is_date(row["dataDate"], row["dataTime"]):
        return f"its date is {row['dataDate']}, {row['dataTime']:04d}"
    large = [name for name, dtype in GRIB_COLUMNS.items() if dtype == "<i4" and row[name] >> 31 > 0]
    return f"its {large[0]} is {row[large[0]]}" if large else ""


def _message_keys(keys: _Keys, edition: int) -> dict[str, Any]:
    row: dict[str, Any] = {key: keys.get(key) for key in ("paramId", "dataDate", "dataTime")}
    row |= {key: keys.get(key, str) for key in ("stepType", "dataType")}
    # Products of satellites and radars have no level, some no step.
    has_level, bottom = keys.has("typeOfLevel"), math.nan
    if has_level and (edition == 1 or keys.number("typeOfSecondFixedSurface") not in (-1, 255)):
        bottom = float(keys.get("bottomLevel", float))
        if edition == 1 and bottom == keys.get("topLevel", float):
            bottom = math.nan
    row["typeOfLevel"] = keys.get("typeOfLevel", str) if has_level else "unknown"
    row["level"] = keys.get("level", float) if has_level else 0.0
    row |= {"bottomLevel": bottom, "kind": ""}
    row |= {"startStep": keys.hours("startStep"), "step": keys.hours("endStep")}
    row |= {
        "number": keys.number("perturbationNumber"),
        "bitsPerValue": keys.number("bitsPerValue"),
    }
    names = ["table2Version", "indicatorOfParameter"]
    if edition == 2:
        names = ["discipline", "parameterCategory", "parameterNumber"]
        # What tells a product from others of its parameter, beside the statistics in time.
        kinds = [] if has_level else [f"template{keys.get('productDefinitionTemplateNumber')}"]
        kinds += [f"{key}{n}" for key in PRODUCTS if (n := keys.number(key)) != -1]
        row["kind"] = "_".join(kinds)
    row["parameter"] = "_".join(str(keys.get(name)) for name in names)
    return row


def _grid_keys(keys: _Keys, section: bytes) -> dict[str, Any]:
    names = ("Ni", "Nj", "numberOfValues", "scanningMode")
    row: dict[str, Any] = {key: keys.number(key) for key in names}
    if keys.get("bitmapPresent"):
        # What ecCodes gives back has a value for each point; those that are coded are fewer.
        row["numberOfValues"] = keys.get("numberOfDataPoints")
    row["gridType"] = keys.get("gridType", str)
    row["gridHash"] = hashlib.blake2b(section, digest_size=8).hexdigest()
    return row


def undescribed_messages(index: GribIndex) -> tuple[str, ...]:
    """Return a line for each reason why messages are left out."""
    rows_of: dict[str, list[int]] = {}
    for row in np.flatnonzero(index["problem"] != "").tolist():
        rows_of.setdefault(str(index["problem"][row]), []).append(row)
    return tuple(
        f"{len(rows)} GRIB messages are left out, the first {index.where(rows[0])}: {reason}"
        for reason, rows in rows_of.items()
    )


# -- the variables -----------------------------------------------------------------------------


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

    def values(self, dim: str) -> list[Any]:
        """Return its values of a dimension, none where it lacks that."""
        return self.axes[dim].tolist() if dim in self.axes else []

    def check(self) -> None:
        """Raise FileFormatError unless each combination of coordinates has one message.

        Or unless they are on one grid, which is supported.
        """
        counts = np.bincount(self.places, minlength=math.prod(self.shape))
        if (doubled := np.flatnonzero(counts > 1)).size:
            first, second = map(int, self.rows[self.places == doubled[0]][:2])
            columns = {key: self.index[key][[first, second]] for key in TOLD_APART}
            differs = [key for key, pair in columns.items() if len(np.unique(pair)) > 1]
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
        axes = zip(self.axes.items(), np.unravel_index(place, self.shape), strict=True)
        spelled = (spell_value(dim, values[at]) for (dim, values), at in axes)
        return f"{self.name}, {', '.join(spelled)}"

    def stored(
        self, sample_dims: Collection[str], names: Mapping[str, str] = MappingProxyType({})
    ) -> ChunkedVariable:
        """Return it as a variable whose chunks are its messages, once checked.

        ``names`` has what others of its dimensions are called instead.
        """
        grid_dims, grid = self._grid()
        own = [dim for dim, each in self.axes.items() if len(each) > 1 or dim in sample_dims]
        dims = tuple(names.get(dim, dim) for dim in own)
        lengths = tuple(len(self.axes[dim]) for dim in own)
        rows = np.empty(len(self.rows), dtype=np.int64)
        rows[self.places] = self.rows
        rows = rows.reshape(*lengths, *(1 for _ in grid))
        index = self.index
        return ChunkedVariable(
            self.name, (*dims, *grid_dims), (*lengths, *grid), FLOAT32, np.nan,
            {"units": self.units}, chunk=(*(1 for _ in own), *grid), codecs=(GRIB_MESSAGE,),
            offsets=index["offset"][rows], sizes=index["length"][rows],
            files=tuple(map(range_file, index.files)), numbers=index["file"][rows],
        )  # fmt: skip

    def _grid(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the names and lengths of its horizontal dimensions, as cfgrib has them."""
        index, rows, row = self.index, self.rows, self.rows[0]
        alike = [index[key][rows] == index[key][row] for key in ("gridHash", "numberOfValues")]
        if (other := rows[~np.logical_and(*alike)]).size:
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
        regular = index["gridType"][row] in ("regular_ll", "regular_gg")
        dims = ("latitude", "longitude") if regular else ("y", "x")
        if int(index["scanningMode"][row]) & CONSECUTIVE_J:
            return dims[::-1], (ni, nj)
        return dims, (nj, ni)


def find_fields(index: GribIndex, is_needed: Callable[[str], bool]) -> list[FieldCube]:
    """Return the variables of the files, in order of first appearance."""
    unnamed = np.where(index["paramId"] == 0, index["parameter"], "")
    keys = np.rec.fromarrays([unnamed, *(index[key] for key in IDENTITY)])
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
    places = FieldCube(index, "", rows).places
    start, end = index["startStep"][rows], index["step"][rows]
    if len(np.unique(np.rec.fromarrays([places, start]))) == len(np.unique(places)):
        return [("", rows)]
    since_start = start == 0
    parts = [("since_start", rows[since_start])] if since_start.any() else []
    periods = np.unique((end - start)[~since_start]).tolist()
    return parts + [(f"{hours:g}h", rows[end - start == hours]) for hours in periods]


def _names(index: GribIndex, parts: Sequence[tuple[str, NDArray[np.int64]]]) -> list[str]:
    """Return a name for each variable: its parameter's, and as much more as tells it apart."""
    first = [int(rows[0]) for _, rows in parts]
    names = [str(index["shortName"][row]) for row in first]
    for at, row in enumerate(first):
        if names[at] == "unknown":
            number = index["paramId"][row] or f"_{index['parameter'][row]}"
            names[at] = f"param{number}"
    for key in ("typeOfLevel", "stepType", "kind", "period"):
        more = [
            period if key == "period" else str(index[key][row])
            for (period, _), row in zip(parts, first, strict=True)
        ]
        texts_of: dict[str, set[str]] = {}
        for name, text in zip(names, more, strict=True):
            texts_of.setdefault(name, set()).add(text)
        names = [
            f"{name}_{text}" if text and len(texts_of[name]) > 1 else name
            for name, text in zip(names, more, strict=True)
        ]
    return names


def field_dims(fields: Sequence[FieldCube]) -> dict[str, int]:
    """Return the dimensions of all fields with the number of their values."""
    values_of: dict[str, set[Any]] = {}
    for each in fields:
        for dim, values in each.axes.items():
            values_of.setdefault(dim, set()).update(values.tolist())
    if values_of["number"] == {-1}:
        del values_of["number"]  # no message has one
    return {dim: len(values) for dim, values in values_of.items()}


def describe_fields(index: GribIndex) -> SourceFile:
    """Return dimensions and variables of files, complete or not, without where they lie."""
    fields = find_fields(index, lambda _: False)
    dims, variables = field_dims(fields), {}
    for each in fields:
        lengths = {dim: len(values) for dim, values in each.axes.items() if dim in dims}
        keys = ("numberOfValues", "gridType", "bitsPerValue")
        n_values, grid, bits = (index[key][each.rows[0]] for key in keys)
        packed = f", {bits} bits a value" if bits >= 0 else ""
        said = f"a message for each field of {n_values} values ({grid}){packed}"
        variables[each.name] = ChunkedVariable(
            each.name, tuple(lengths), tuple(lengths.values()), FLOAT32, np.nan,
            {"units": each.units, "messages": said}, "GRIB",
        )  # fmt: skip
    return SourceFile(index.files[0], dims, variables, {}, kind="GRIB")


def spell_value(dim: str, value: Any) -> str:
    """Return a dimension and one of its values, for people."""
    if isinstance(value, tuple):
        return f"{dim}={value[0]:g}-{value[1]:g}"
    if dim == "time":
        digits = f"{int(value):012d}"
        return f"time={digits[:4]}-{digits[4:6]}-{digits[6:8]}T{digits[8:10]}:{digits[10:]}"
    return f"{dim}={value:g}{' h' if dim == 'step' else ''}"


# -- coordinates -------------------------------------------------------------------------------


def describe_grid(message: memoryview | bytes, dims: Sequence[str]) -> list[Coordinate]:
    """Return latitudes and longitudes of a message's points, and its grid mapping."""
    error = load_eccodes().CodesInternalError
    with _opened(message) as keys:
        grid = keys.get("gridType", str)
        attributes: dict[str, Any] = {}
        if grid in GLOBAL_GRIDS:
            attributes["grid_mapping_name"] = "latitude_longitude"
        if keys.number("radius") > 0:
            attributes["earth_radius"] = keys.get("radius", float)
        attributes["GRIB_gridType"] = grid
        mapping = Coordinate(MAPPING_NAME, (), np.zeros((), np.int32), attributes)
        try:
            lat, lon = keys.array("latitudes"), keys.array("longitudes")
        except error:
            return [mapping]
        lat_dims = lon_dims = tuple(dims)
        if len(dims) > 1:
            shape = (keys.number("Nj"), keys.number("Ni"))
            if keys.number("jPointsAreConsecutive") > 0:
                shape = shape[::-1]
            if math.prod(shape) != lat.size:
                return [mapping]
            lat, lon = lat.reshape(shape), lon.reshape(shape)
        if set(dims) == {"latitude", "longitude"}:
            lat, lon = (lat[:, 0], lon[0]) if dims[0] == "latitude" else (lat[0], lon[:, 0])
            lat_dims, lon_dims = ("latitude",), ("longitude",)
    return [
        Coordinate("latitude", lat_dims, lat, LATITUDE),
        Coordinate("longitude", lon_dims, lon, LONGITUDE),
        mapping,
    ]


def describe_parameter(message: memoryview | bytes) -> dict[str, Any]:
    """Return the attributes of a message's parameter, without units."""
    with _opened(message) as keys:
        said = {
            "standard_name": keys.get("cfName", str) if keys.has("cfName") else "unknown",
            "long_name": keys.get("name", str) if keys.has("name") else "unknown",
            "cell_methods": CELL_METHODS.get(keys.get("stepType", str), "unknown"),
            "grid_mapping": MAPPING_NAME,
        }
    return {key: text for key, text in said.items() if text != "unknown"}
