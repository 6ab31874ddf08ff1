"""Files put in a row along a dimension: their order, and where each sample lies."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.file_indexes import FileIndexes
from iobench.datasets.contract import SampleAxis
from iobench.datasets.positions import (
    decode_times_of_files,
    one_row_each,
    row_numbers,
    seconds_since_1970,
    spell_times,
    time_positions,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class SampleRows:
    """The samples of files along a dimension.

    Files are put in the order of their coordinate where it orders all of them: none overlaps, and
    all are times of one calendar or numbers of one unit. They are then in one row; else each is a
    row of its own, in the order given.
    """

    def __init__(
        self,
        coordinates: Sequence[NDArray[Any]],
        units: Sequence[str | None],
        calendars: Sequence[str | None],
    ) -> None:
        times = _all_times(coordinates, units, calendars)
        self.is_time = times is not None
        values: Sequence[NDArray[Any]] = coordinates if times is None else times
        one_unit = len(set(units)) == 1 and len(set(calendars)) == 1 and units[0] is not None
        comparable = times is not None or one_unit
        ordered = _ordered(values) if comparable else None
        self.is_ordered = ordered is not None
        self.is_comparable = comparable
        self.order = list(range(len(values))) if ordered is None else ordered
        self.values = [values[number] for number in self.order]
        if times is None:
            numbers = [part.astype(np.float64) for part in self.values]
        else:
            numbers = [seconds_since_1970(part) for part in self.values]
        self.positions = np.concatenate(numbers)
        self.numbers = row_numbers(numbers) if comparable else one_row_each(numbers)
        self.units = (units[0] or "") if len(set(units)) == 1 else ""
        if times is not None:
            self.positions, self.units = time_positions(np.concatenate(self.values), self.numbers)


def _all_times(
    coordinates: Sequence[NDArray[Any]],
    units: Sequence[str | None],
    calendars: Sequence[str | None],
) -> list[NDArray[Any]] | None:
    """Return the coordinates as times, or None unless all are, of one calendar."""
    times: list[NDArray[Any]] = list(coordinates)
    counted: dict[tuple[str | None, str], list[int]] = {}
    for number, told in enumerate(zip(coordinates, units, calendars, strict=True)):
        if told[0].dtype.kind not in "MO":
            counted.setdefault((told[1], told[2] or ""), []).append(number)
    for (unit, calendar), numbers in counted.items():
        parts = [coordinates[number] for number in numbers]
        decoded = decode_times_of_files(parts, unit, calendar) if unit else None
        if decoded is None:
            return None
        for number, part in zip(numbers, decoded, strict=True):
            times[number] = part
    kinds = {getattr(part[0], "calendar", part.dtype.kind) for part in times if len(part)}
    return times if len(kinds) == 1 else None


def _ordered(values: Sequence[NDArray[Any]]) -> list[int] | None:
    """Return the order of the files by their coordinate; None where it orders them not."""
    if any(len(part) == 0 for part in values):
        return None
    ordered = sorted(range(len(values)), key=lambda number: values[number].min())
    apart = all(
        values[before].max() < values[after].min() for before, after in itertools.pairwise(ordered)
    )
    return ordered if apart else None


class SampleGrid:
    """The samples of files along several dimensions: each combination of their indexes.

    Files are put in the order of the first coordinate that orders all of them, else stay in the
    order given. Samples lie in one row along a dimension where their other coordinates are equal,
    whichever files they are of; files that hold the same samples, or whose coordinates along it
    mean different things, are rows of their own.
    """

    def __init__(
        self, dims: Sequence[str], along: Sequence[SampleRows], lengths: Sequence[Sequence[int]]
    ) -> None:
        given = list(range(len(lengths)))
        self.order = next((rows.order for rows in along if rows.is_ordered), given)
        grids = [_places(number, lengths[at]) for number, at in enumerate(self.order)]
        places = np.concatenate(grids)
        self.where = FileIndexes(places)
        values = [self._spread(rows, number, places) for number, rows in enumerate(along, start=1)]
        numbers = [
            seconds_since_1970(each) if rows.is_time else each.astype(np.float64)
            for rows, each in zip(along, values, strict=True)
        ]
        every = [np.unique(each, return_inverse=True)[1] for each in numbers]
        self.is_doubled = int(_row_numbers(every).max(initial=-1)) + 1 < len(places)
        self.axes = tuple(
            self._axis(dims[at], along[at], values[at], numbers[at], every, at, places[:, 0])
            for at in range(len(dims))
        )
        self.names = _names(dims, along, values, every)

    def _spread(self, rows: SampleRows, number: int, places: NDArray[np.int64]) -> NDArray[Any]:
        """Return the coordinate of each sample along a dimension."""
        by_file = dict(zip(rows.order, rows.values, strict=True))
        parts = [by_file[at] for at in self.order]
        starts = np.cumsum([0, *map(len, parts)])[:-1]
        found: NDArray[Any] = np.concatenate(parts)[starts[places[:, 0]] + places[:, number]]
        return found

    def _axis(
        self,
        dim: str,
        rows: SampleRows,
        values: NDArray[Any],
        numbers: NDArray[np.float64],
        every: Sequence[NDArray[np.int64]],
        at: int,
        files: NDArray[np.int64],
    ) -> SampleAxis:
        others = [each for number, each in enumerate(every) if number != at]
        row = _row_numbers(others)
        apart = self.is_doubled or not (rows.is_comparable or len(self.order) == 1)
        if apart or not _is_in_order(numbers, row):
            row = _row_numbers([files, *others])
        positions, units = numbers, rows.units
        if rows.is_time:
            in_rows = np.argsort(row, kind="stable")
            positions = np.empty(len(values))
            positions[in_rows], units = time_positions(values[in_rows], row[in_rows])
        return SampleAxis(dim, positions.tolist(), units, row.tolist() if row.any() else ())


def _places(number: int, lengths: Sequence[int]) -> NDArray[np.int64]:
    """Return the number of a file and all combinations of indexes, the last one fastest."""
    indexes = np.indices(tuple(lengths)).reshape(len(lengths), -1)
    return np.vstack([np.full((1, indexes.shape[1]), number), indexes]).T.astype(np.int64)


def _row_numbers(keys: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return a number for each combination, counted in the order in which they appear."""
    row = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        row = row * (int(key.max(initial=0)) + 1) + key
        _, first, row = np.unique(row, return_index=True, return_inverse=True)
        row = np.argsort(np.argsort(first)).astype(np.int64)[row]
    return row


def _is_in_order(numbers: NDArray[np.float64], row: NDArray[np.int64]) -> bool:
    """Return whether the values of all rows ascend, or those of all descend."""
    in_rows = np.argsort(row, kind="stable")
    steps = np.diff(numbers[in_rows])[np.diff(row[in_rows]) == 0]
    return bool((steps > 0).all() or (steps < 0).all())


def _names(
    dims: Sequence[str],
    along: Sequence[SampleRows],
    values: Sequence[NDArray[Any]],
    every: Sequence[NDArray[np.int64]],
) -> list[str]:
    """Return names of samples, as ``2010-01-01T00, number 3``; ``every`` numbers values."""
    parts = []
    for dim, rows, own, numbers in zip(dims, along, values, every, strict=True):
        distinct = own[np.unique(numbers, return_index=True)[1]]
        if rows.is_time:
            spelled = spell_times(distinct)
        else:
            spelled = [f"{value:g}" for value in distinct.tolist()]
        if not (dim == "time" and rows.is_time):
            spelled = [f"{dim} {each}" for each in spelled]
        parts.append([spelled[number] for number in numbers.tolist()])
    return [", ".join(each) for each in zip(*parts, strict=True)]
