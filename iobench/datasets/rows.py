"""The samples of files along dimensions: the order of files, and where each sample lies."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from iobench.chunks.file_indexes import FileIndexes
from iobench.datasets.contract import SampleAxis
from iobench.datasets.positions import (
    decode_parts,
    seconds_since_1970,
    spell_times,
    time_positions,
)
from iobench.datasets.recipe_data import LazySequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class FileCoordinates:
    """The coordinate of each file along a dimension, and the order of files by it.

    ``values`` are times where all are times of one calendar. ``order`` is None where none orders
    the files: some overlap, or are not comparable.
    """

    def __init__(
        self,
        stored: Sequence[NDArray[Any]],
        units: Sequence[str | None],
        calendars: Sequence[str | None],
    ) -> None:
        times = decode_parts(stored, units, calendars)
        self.is_time = times is not None
        self.values: Sequence[NDArray[Any]] = stored if times is None else times
        one_unit = len(set(units)) == 1 and len(set(calendars)) == 1 and units[0] is not None
        self.is_comparable = self.is_time or one_unit
        self.units = (units[0] or "") if len(set(units)) == 1 else ""
        self.order = _order(self.values) if self.is_comparable else None


def _order(values: Sequence[NDArray[Any]]) -> list[int] | None:
    """Return the order of the files by their coordinate; None where some overlap."""
    if any(len(part) == 0 for part in values):
        return None
    ordered = sorted(range(len(values)), key=lambda number: values[number].min())
    disjoint = all(
        values[before].max() < values[after].min() for before, after in itertools.pairwise(ordered)
    )
    return ordered if disjoint else None


class SampleRows:
    """The samples of files: each combination of indexes along one or several dimensions.

    Files are put in the order of the first coordinate that orders all of them, else stay in the
    order given. Samples lie in one row along a dimension where their other coordinates are equal,
    whichever files they are of; files that hold the same samples, overlap, or whose coordinates
    along it mean different things, are rows of their own.
    """

    def __init__(self, dims: Sequence[str], along: Sequence[FileCoordinates]) -> None:
        n_files = len(along[0].values)
        orders = (each.order for each in along if each.order is not None)
        self.order = next(orders, list(range(n_files)))
        shapes = [tuple(len(each.values[number]) for each in along) for number in self.order]
        places = np.concatenate([_places(number, shape) for number, shape in enumerate(shapes)])
        self._places = places
        self.where = FileIndexes(places)
        self.dims, self.along = dims, along
        self.values = [self._spread(each, at) for at, each in enumerate(along, start=1)]
        numbers = [
            seconds_since_1970(own) if each.is_time else own.astype(np.float64)
            for each, own in zip(along, self.values, strict=True)
        ]
        # One number for samples of equal coordinates.
        self._equal = [np.unique(each, return_inverse=True)[1] for each in numbers]
        n_distinct = int(_row_numbers(self._equal).max(initial=-1)) + 1
        self.is_doubled = n_distinct < len(places)
        self.axes = tuple(self._axis(at, numbers[at]) for at in range(len(dims)))

    def _spread(self, each: FileCoordinates, at: int) -> NDArray[Any]:
        """Return the coordinate of each sample along a dimension."""
        parts = [each.values[number] for number in self.order]
        starts = np.cumsum([0, *map(len, parts)])[:-1]
        at_file, at_index = self._places[:, 0], self._places[:, at]
        spread: NDArray[Any] = np.concatenate(parts)[starts[at_file] + at_index]
        return spread

    def _axis(self, at: int, numbers: NDArray[np.float64]) -> SampleAxis:
        along, values = self.along[at], self.values[at]
        others = [each for number, each in enumerate(self._equal) if number != at]
        row = _row_numbers([np.zeros(len(values), dtype=np.int64), *others])
        is_one = along.is_comparable or len(self.order) == 1
        if self.is_doubled or not is_one or not _is_in_order(numbers, row):
            row = _row_numbers([self._places[:, 0], *others])
        positions, units = numbers, along.units
        if along.is_time:
            in_rows = np.argsort(row, kind="stable")
            positions = np.empty(len(values))
            positions[in_rows], units = time_positions(values[in_rows], row[in_rows])
        rows: Any = row if row.any() else ()
        return SampleAxis(self.dims[at], cast("Any", positions), units, rows)

    def names(self, files: Sequence[str] = ()) -> Sequence[str]:
        """Return names of samples by their coordinates, as ``2010-01-01T00, number 3``.

        With those of files, where samples of several have the same coordinates.
        """
        parts: list[tuple[Sequence[str], NDArray[np.int64]]] = []
        for dim, each, own, numbers in zip(
            self.dims, self.along, self.values, self._equal, strict=True
        ):
            distinct = own[np.unique(numbers, return_index=True)[1]]
            if each.is_time:
                spelled = spell_times(distinct)
            else:
                spelled = [f"{value:g}" for value in distinct.tolist()]
            if not (dim == "time" and each.is_time):
                spelled = [f"{dim} {one}" for one in spelled]
            parts.append((spelled, numbers))
        if self.is_doubled and files:
            parts.insert(0, (files, self._places[:, 0]))
        return LazySequence(len(self.where), partial(_name, parts))


def _name(parts: Sequence[tuple[Sequence[str], NDArray[np.int64]]], sample: int) -> str:
    return ", ".join(spelled[own[sample]] for spelled, own in parts)


def _places(number: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the number of a file and all combinations of indexes, the last one fastest."""
    indexes = np.indices(shape).reshape(len(shape), -1)
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
