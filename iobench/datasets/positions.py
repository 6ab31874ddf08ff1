"""Where the samples of files lie along dimensions: times decoded, positions, rows, names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast, overload

import numpy as np

from iobench.chunks.cf_times import decode_times
from iobench.datasets.contract import LazySequence, SampleAxis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

SHORTEST_MONTH_S: Final = 28 * 86400
SAME_DAY_DAYS: Final = 3
"""Monthly values are dated on one day of the month, its last or its middle: within these days."""


def time_positions(
    times: NDArray[Any], rows: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.float64], str]:
    """Return positions of times and their unit: months where the steps are months or years."""
    seconds = seconds_since_1970(times)
    neighbours = np.diff(np.zeros(len(times)) if rows is None else rows) == 0
    apart = np.abs(np.diff(seconds)[neighbours])
    if not apart.size or not np.isfinite(seconds).all():
        return seconds, "seconds"
    if apart.min() < SHORTEST_MONTH_S or np.ptp(apart) < 1:
        return seconds, "seconds"
    if times.dtype.kind == "M":
        whole = times.astype("M8[M]")
        months = whole.astype(np.float64)
        days = (times.astype("M8[D]") - whole.astype("M8[D]")).astype(np.int64)
    else:
        months = np.array([(time.year - 1970) * 12 + time.month - 1 for time in times], np.float64)
        days = np.array([time.day for time in times])
    # The last of a month is 28 to 31, its middle 14 to 17.
    if np.ptp(days) > SAME_DAY_DAYS or (np.diff(months)[neighbours] == 0).any():
        return seconds, "seconds"
    return months, "months"


def seconds_since_1970(times: NDArray[Any]) -> NDArray[np.float64]:
    """Return times (datetime64 or cftime objects) as seconds, NaN where unknown."""
    if times.dtype.kind == "M":
        seconds = (times - np.datetime64(0, "s")) / np.timedelta64(1, "s")
        return seconds.astype(np.float64)
    epoch = type(times[0])(1970, 1, 1) if len(times) else None
    return np.array([(time - epoch).total_seconds() for time in times], dtype=np.float64)


def spell_times(times: NDArray[Any]) -> list[str]:
    """Return times in one unit, hours unless that loses something; ``"unknown"`` where missing."""
    if times.dtype.kind != "M":
        whole = all((time.minute, time.second, time.microsecond) == (0, 0, 0) for time in times)
        return [time.isoformat(timespec="hours" if whole else "auto") for time in times]
    known = times[~np.isnat(times)]
    units = (unit for unit in "hms" if (known.astype(f"M8[{unit}]") == known).all())
    unit: Any = next(units, "us")
    spelled = np.datetime_as_string(times, unit=unit).tolist()
    return ["unknown" if each == "NaT" else each for each in spelled]


def decode_parts(
    parts: Sequence[NDArray[Any]], units: Sequence[str | None], calendars: Sequence[str | None]
) -> list[NDArray[Any]] | None:
    """Return the times that arrays mean, or None unless all mean times of one calendar."""
    # Those of one unit are decoded together: asking xarray takes as long for a time as for many.
    times: list[NDArray[Any]] = list(parts)
    alike: dict[Any, list[int]] = {}
    for number, part in enumerate(parts):
        if part.dtype.kind not in "MO":
            key = units[number] or "", calendars[number] or "", part.dtype.str
            alike.setdefault(key, []).append(number)
    for (unit, calendar, _), numbers in alike.items():
        joined = np.concatenate([parts[number].reshape(-1) for number in numbers])
        decoded = decode_times(joined, unit, calendar)
        if decoded is None:
            return None
        ends = np.cumsum([parts[number].size for number in numbers])[:-1]
        for number, each in zip(numbers, np.split(decoded, ends), strict=True):
            times[number] = each.reshape(parts[number].shape)
    kinds = {getattr(each.flat[0], "calendar", each.dtype.kind) for each in times if each.size}
    return times if len(kinds) == 1 else None


class FileCoordinates:
    """The coordinate of each file along a dimension, as times where all are of one calendar.

    ``order`` is that of the files by it, None where they overlap or are not comparable.
    """

    def __init__(
        self,
        stored: Sequence[NDArray[Any]],
        units: Sequence[str | None],
        calendars: Sequence[str | None],
    ) -> None:
        times = decode_parts(stored, units, calendars)
        self.is_time = times is not None
        self.values = values = stored if times is None else times
        one_unit = len(set(units)) == 1 and len(set(calendars)) == 1 and units[0] is not None
        self.is_comparable = self.is_time or one_unit
        self.units = (units[0] or "") if len(set(units)) == 1 else ""
        self.order: list[int] | None = None
        if self.is_comparable and all(map(len, values)):
            order = sorted(range(len(values)), key=lambda number: values[number].min())
            pairs = itertools.pairwise(order)
            if all(values[before].max() < values[after].min() for before, after in pairs):
                self.order = order


class SampleRows:
    """The samples of files: each combination of indexes along one or several dimensions.

    Files are put in the order of the first coordinate that orders all of them, else stay in the
    order given. Samples lie in one row along a dimension where their other coordinates are equal,
    whichever files they are of; files that hold the same samples, overlap, or whose coordinates
    along it mean different things, are rows of their own.
    """

    def __init__(self, dims: Sequence[str], along: Sequence[FileCoordinates]) -> None:
        orders = (each.order for each in along if each.order is not None)
        self.order = next(orders, list(range(len(along[0].values))))
        shapes = [[len(each.values[number]) for each in along] for number in self.order]
        inner = [np.indices(shape).reshape(len(shape), -1) for shape in shapes]
        numbers = np.repeat(np.arange(len(inner)), [each.shape[1] for each in inner])
        places = np.vstack([numbers, np.concatenate(inner, axis=1)]).T
        self.where = FileIndexes(places)
        self._file, self.dims, self.along = places[:, 0], dims, along
        # The coordinate of each sample along each dimension: as it is, and as a number.
        self.values: list[NDArray[Any]] = []
        for at, each in enumerate(along, start=1):
            parts = [each.values[number] for number in self.order]
            starts = np.cumsum([0, *map(len, parts)])[:-1]
            self.values.append(np.concatenate(parts)[starts[self._file] + places[:, at]])
        numbered = [
            seconds_since_1970(own) if each.is_time else own.astype(np.float64)
            for each, own in zip(along, self.values, strict=True)
        ]
        # One number for samples of equal coordinates.
        self._equal = [np.unique(each, return_inverse=True)[1] for each in numbered]
        n_distinct = int(_numbers_of(self._equal).max(initial=-1)) + 1
        self.is_doubled = n_distinct < len(places)
        self.axes = tuple(self._axis(at, numbered[at]) for at in range(len(dims)))

    def _axis(self, at: int, numbers: NDArray[np.float64]) -> SampleAxis:
        along, values = self.along[at], self.values[at]
        others = [each for number, each in enumerate(self._equal) if number != at]
        row = _numbers_of([np.zeros(len(values), dtype=np.int64), *others])
        in_rows = np.argsort(row, kind="stable")
        steps = np.diff(numbers[in_rows])[np.diff(row[in_rows]) == 0]
        is_in_order = bool((steps > 0).all() or (steps < 0).all())
        is_one = along.is_comparable or len(self.order) == 1
        if self.is_doubled or not is_one or not is_in_order:
            row = _numbers_of([self._file, *others])
            in_rows = np.argsort(row, kind="stable")
        positions, units = numbers, along.units
        if along.is_time:
            positions = np.empty(len(values))
            positions[in_rows], units = time_positions(values[in_rows], row[in_rows])
        rows: Any = row if row.any() else ()
        return SampleAxis(self.dims[at], cast("Any", positions), units, rows)

    def index_fields(self, files: Sequence[str] = ()) -> dict[str, Any]:
        """Return the fields of a `SampleIndex` that say where samples lie, and their names."""
        fields: dict[str, Any] = {"coordinate": self.names(files)}
        if len(self.axes) > 1:
            return {**fields, "axes": self.axes}
        (axis,) = self.axes
        own = {"positions": axis.positions, "position_units": axis.units, "rows": axis.rows}
        return {**fields, **own}

    def names(self, files: Sequence[str] = ()) -> Sequence[str]:
        """Return names of samples, as ``2010-01-01T00, number 3``; with the file where doubled."""
        parts: list[tuple[Sequence[str], NDArray[np.int64]]] = []
        if self.is_doubled and files:
            parts.append((files, self._file))
        for dim, each, own, numbers in zip(
            self.dims, self.along, self.values, self._equal, strict=True
        ):
            distinct = own[np.unique(numbers, return_index=True)[1]]
            before = "" if dim == "time" and each.is_time else f"{dim} "
            if each.is_time:
                spelled = [f"{before}{time}" for time in spell_times(distinct)]
            else:
                spelled = [f"{before}{value:g}" for value in distinct.tolist()]
            parts.append((spelled, numbers))
        return SampleNames(parts)


class SampleNames(LazySequence[str]):
    """The names of samples: parts, and which of these each sample has."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[tuple[Sequence[str], NDArray[np.int64]]]) -> None:
        super().__init__(len(parts[0][1]), partial(_name, parts))
        self._parts = parts

    def encoded(self, samples: NDArray[np.int64]) -> NDArray[np.bytes_]:
        """Return the names of some as UTF-8 of one width; millions are made at once."""
        joined: Any = None
        for spelled, own in self._parts:
            texts = np.array([each.encode("utf-8", "replace") for each in spelled])[own[samples]]
            joined = texts if joined is None else np.char.add(np.char.add(joined, b", "), texts)
        width = int(np.char.str_len(joined).max(initial=1))
        encoded: NDArray[np.bytes_] = joined.astype(f"S{width}")
        return encoded


def _name(parts: Sequence[tuple[Sequence[str], NDArray[np.int64]]], sample: int) -> str:
    return ", ".join(spelled[own[sample]] for spelled, own in parts)


def _numbers_of(keys: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return a number for each combination, counted in the order in which they appear."""
    row = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        row = row * (int(key.max(initial=0)) + 1) + key
        _, first, row = np.unique(row, return_index=True, return_inverse=True)
        row = np.argsort(np.argsort(first)).astype(np.int64)[row]
    return row


class FileIndexes(Sequence[tuple[int, ...]]):
    """The file of each sample and its indexes there: tuples, made as they are asked for."""

    __slots__ = ("rows",)

    def __init__(self, rows: ArrayLike) -> None:
        self.rows: NDArray[np.int64] = np.asarray(rows, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> tuple[int, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> FileIndexes: ...

    def __getitem__(self, index: int | slice) -> tuple[int, ...] | FileIndexes:
        if isinstance(index, slice):
            return FileIndexes(self.rows[index])
        return tuple(self.rows[index].tolist())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return map(tuple, self.rows.tolist())


def chosen(where: Sequence[Any], numbers: Sequence[int]) -> Sequence[Any]:
    """Return where some samples are, of whatever kind that is, by their numbers."""
    if isinstance(where, FileIndexes):
        return FileIndexes(where.rows[np.fromiter(numbers, np.int64, len(numbers))])
    return [where[number] for number in numbers]
