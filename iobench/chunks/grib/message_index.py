"""What each message of GRIB files is, and where: an index, made of headers alone."""

from __future__ import annotations

import datetime
import hashlib
import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.chunks.grib.decoding import load_eccodes
from iobench.chunks.grib.messages import GribMessage, damaged, dated_headers, grib_messages
from iobench.files.ranges import FileRange, open_source_file
from iobench.files.urls import range_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray

    from iobench.files.ranges import SourceBytes

GRIB_COLUMNS: Mapping[str, str] = {
    "file": "<i4",
    "offset": "<i8",
    "length": "<i8",
    "edition": "<i4",
    "paramId": "<i4",
    "shortName": "U",
    "name": "U",
    "units": "U",
    "dataDate": "<i4",
    "dataTime": "<i4",
    "startStep": "<f8",
    "step": "<f8",
    "stepType": "U",
    "dataType": "U",
    "typeOfLevel": "U",
    "level": "<f8",
    "bottomLevel": "<f8",
    "parameter": "U",
    "kind": "U",
    "number": "<i4",
    "Ni": "<i4",
    "Nj": "<i4",
    "numberOfValues": "<i8",
    "gridType": "U",
    "scanningMode": "<i4",
    "gridHash": "U",
    "bitsPerValue": "<i4",
    "problem": "U",
}
"""The index's columns and their dtypes (``U``: text). Names are ecCodes' where ecCodes has one;
``file`` counts from 0, ``startStep`` and ``step`` are the start and the end of the step in hours,
``dataTime`` is hhmm, and ``number``, ``Ni``, ``Nj`` and ``bitsPerValue`` are -1 where a message has
none. ``bottomLevel`` is NaN but for layers. ``parameter`` is discipline, category and number, or
table and indicator in edition 1; ``kind`` tells derived, percentile and other products apart.
``problem`` is why ecCodes cannot describe a message, empty where it can."""

_UNDESCRIBED: Mapping[str, Any] = {
    name: {"U": "", "<f8": math.nan}.get(dtype, -1) for name, dtype in GRIB_COLUMNS.items()
}
_PRODUCTS = ("derivedForecast", "percentileValue", "scaledValueOfLowerLimit",
             "scaledValueOfUpperLimit")  # fmt: skip
_PARAMETER = ("shortName", "name", "units")
_GRID = ("Ni", "Nj", "numberOfValues", "gridType", "scanningMode")


class GribIndex(msgspec.Struct, frozen=True, eq=False):
    """Every message of some GRIB files, one row each, in file order."""

    files: tuple[Path, ...]  # what the column ``file`` counts
    columns: Mapping[str, NDArray[Any]]  # (messages,): The columns of `GRIB_COLUMNS`

    def __len__(self) -> int:
        return len(self.columns["offset"])

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    def rows(self, **conditions: Any) -> NDArray[np.int64]:
        """Return the rows whose columns equal what is wanted, or are among it."""
        keep = np.ones(len(self), dtype=bool)
        for column, values in conditions.items():
            keep &= np.isin(self.columns[column], np.atleast_1d(values))
        return np.flatnonzero(keep).astype(np.int64)

    def extents(self, rows: Iterable[int]) -> list[FileRange[str]]:
        """Return where the messages of these rows are: (path, offset, length) each."""
        numbers = np.fromiter(rows, dtype=np.int64)
        files = self.columns["file"][numbers].tolist()
        offsets = self.columns["offset"][numbers].tolist()
        lengths = self.columns["length"][numbers].tolist()
        names = [range_file(file) for file in self.files]
        return [
            FileRange(names[file], offset, length)
            for file, offset, length in zip(files, offsets, lengths, strict=True)
        ]

    def where(self, row: int) -> str:
        """Return the file and offset of a message, for error messages."""
        file = self.files[int(self.columns["file"][row])]
        return f"{file}: the GRIB message at offset {int(self.columns['offset'][row])}"


def inspect_messages(path: Path, advance: Callable[[int], None]) -> GribIndex:
    """Return the index of one file; calls ``advance(nbytes)`` as it goes."""
    opened = open_source_file(path)
    columns = _columns(load_eccodes(), opened, path, advance)
    opened.check()
    return GribIndex((path,), columns)


def joined_index(indexes: Sequence[GribIndex]) -> GribIndex:
    """Return the index of files from that of each."""
    columns = {
        name: np.concatenate([each.columns[name] for each in indexes]) for name in GRIB_COLUMNS
    }
    columns["file"] += np.repeat(np.arange(len(indexes), dtype=np.int32), list(map(len, indexes)))
    return GribIndex(tuple(each.files[0] for each in indexes), columns)


def _columns(
    codes: ModuleType, opened: SourceBytes, path: Path, advance: Callable[[int], None]
) -> dict[str, NDArray[Any]]:
    """Return the columns of one file."""
    describe_message = _describer(codes, opened)
    rows: list[dict[str, Any]] = []
    done = 0
    for message in grib_messages(opened, path):
        try:
            rows.append(describe_message(message))
        except codes.CodesInternalError as error:
            raise damaged(path, message.offset, f"ecCodes says {error}") from error
        if len(rows) % 64 == 0:
            advance(message.offset - done)
            done = message.offset
    return {
        name: np.array([row[name] for row in rows], dtype=None if dtype == "U" else dtype)
        for name, dtype in GRIB_COLUMNS.items()
    }


def _describer(codes: ModuleType, opened: SourceBytes) -> Callable[[GribMessage], dict[str, Any]]:
    """Return a function that describes a message.

    Names of parameters and properties of grids are looked up once each: that is two thirds of
    the cost of a message. Nor is ecCodes asked about one that differs from an earlier one in its
    date alone, once it has said of two such that the date is all that differs.
    """
    parameters: dict[tuple[int, str], dict[str, Any]] = {}
    grids: dict[tuple[int, bytes], dict[str, Any]] = {}
    known: dict[bytes, dict[str, Any]] = {}
    is_certain: set[bytes] = set()  # that of another date ecCodes says the same

    def describe(message: GribMessage) -> dict[str, Any]:
        dated = dated_headers(message)
        if dated is None or not _is_date(dated.date, dated.time):
            return describe_message(message)
        own = {"offset": message.offset, "length": message.length}
        own |= {"dataDate": dated.date, "dataTime": dated.time}
        if dated.others in is_certain:
            return known[dated.others] | own
        row = describe_message(message)
        first = known.setdefault(dated.others, row)
        if first["dataDate"] != dated.date and first | own == row:
            is_certain.add(dated.others)
        return row

    def describe_message(message: GribMessage) -> dict[str, Any]:
        handle = codes.codes_new_from_message(message.headers)
        place: dict[str, Any] = {"file": 0, "offset": message.offset, "length": message.length}
        place |= {"edition": message.edition, "problem": ""}
        try:
            row = _message_keys(codes, handle, message.edition) | place
            parameter = (row["paramId"], row["typeOfLevel"])
            if parameter not in parameters or row["paramId"] == 0:
                parameters[parameter] = {
                    key: codes.codes_get_string(handle, key) for key in _PARAMETER
                }
            grid = (message.edition, message.grid)
            if grid not in grids or not message.grid:
                grids[grid] = _grid_keys(codes, handle, message.grid)
                if grids[grid]["numberOfValues"] <= 0:
                    grids[grid] = whole_grid_keys(message)
            row |= parameters[parameter] | grids[grid]
            problem = _problem(row)
            return {**_UNDESCRIBED, **place, "problem": problem} if problem else row
        except codes.CodesInternalError as error:
            return {**_UNDESCRIBED, **place, "problem": f"ecCodes says {error}"}
        finally:
            codes.codes_release(handle)

    def whole_grid_keys(message: GribMessage) -> dict[str, Any]:
        # Of Gaussian grids in edition 1 ecCodes counts the values in the data.
        content = bytearray(message.length)
        opened.fill(memoryview(content), message.offset)
        handle = codes.codes_new_from_message(bytes(content))
        try:
            return _grid_keys(codes, handle, message.grid)
        finally:
            codes.codes_release(handle)

    return describe


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


def _message_keys(codes: ModuleType, handle: int, edition: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        key: codes.codes_get_long(handle, key) for key in ("paramId", "dataDate", "dataTime")
    }
    row |= {key: codes.codes_get_string(handle, key) for key in ("stepType", "dataType")}
    # Products of satellites and radars have no level, some no step.
    has_level = codes.codes_is_defined(handle, "typeOfLevel")
    row["typeOfLevel"] = codes.codes_get_string(handle, "typeOfLevel") if has_level else "unknown"
    row["level"] = codes.codes_get_double(handle, "level") if has_level else 0.0
    row["bottomLevel"] = _bottom_level(codes, handle, edition) if has_level else math.nan
    row["startStep"] = _step_hours(codes, handle, "startStep")
    row["step"] = _step_hours(codes, handle, "endStep")
    row["number"] = _long_or_unknown(codes, handle, "perturbationNumber")
    row["bitsPerValue"] = _long_or_unknown(codes, handle, "bitsPerValue")
    names = ["discipline", "parameterCategory", "parameterNumber"]
    if edition == 1:
        names = ["table2Version", "indicatorOfParameter"]
    row["parameter"] = "_".join(str(codes.codes_get_long(handle, name)) for name in names)
    row["kind"] = "" if edition == 1 else _kind(codes, handle, has_level=has_level)
    return row


def _bottom_level(codes: ModuleType, handle: int, edition: int) -> float:
    """Return where a layer ends; NaN for a level."""
    if edition == 2 and _long_or_unknown(codes, handle, "typeOfSecondFixedSurface") in (-1, 255):
        return math.nan
    bottom = float(codes.codes_get_double(handle, "bottomLevel"))
    if edition == 1 and bottom == codes.codes_get_double(handle, "topLevel"):
        return math.nan
    return bottom


def _kind(codes: ModuleType, handle: int, *, has_level: bool) -> str:
    """Return what tells a product from others of its parameter, beside the statistics in time."""
    said = [(key, _long_or_unknown(codes, handle, key)) for key in _PRODUCTS]
    template = codes.codes_get_long(handle, "productDefinitionTemplateNumber")
    parts = [] if has_level else [f"template{template}"]
    return "_".join(parts + [f"{key}{value}" for key, value in said if value != -1])


def _step_hours(codes: ModuleType, handle: int, key: str) -> float:
    """Return an end of the step in hours; ecCodes spells steps under an hour ``"30m"``."""
    if not codes.codes_is_defined(handle, key):
        return 0.0
    text = codes.codes_get_string(handle, key)
    unit = {"s": 1 / 3600, "m": 1 / 60}.get(text[-1])
    return float(text) if unit is None else float(text[:-1]) * unit


def _long_or_unknown(codes: ModuleType, handle: int, key: str) -> int:
    if not codes.codes_is_defined(handle, key) or codes.codes_is_missing(handle, key):
        return -1
    return int(codes.codes_get_long(handle, key))


def _grid_keys(codes: ModuleType, handle: int, section: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {
        key: _long_or_unknown(codes, handle, key) for key in _GRID if key != "gridType"
    }
    if codes.codes_get_long(handle, "bitmapPresent"):
        # What ecCodes gives back has a value for each point; those that are coded are fewer.
        row["numberOfValues"] = codes.codes_get_long(handle, "numberOfDataPoints")
    row["gridType"] = codes.codes_get_string(handle, "gridType")
    row["gridHash"] = hashlib.blake2b(section, digest_size=8).hexdigest()
    return row
