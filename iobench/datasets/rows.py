"""Files put in a row along a dimension: their order, and where each sample lies."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.positions import (
    decode_times_of_files,
    one_row_each,
    row_numbers,
    seconds_since_1970,
    time_positions,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["SampleRows"]


class SampleRows:
    """The samples of files along a dimension.

    Files are put in the order of their coordinate where it orders all of them: none overlaps, and
    all are times of one calendar or numbers of one unit. They are then in one row; else each is a
    row of its own, in the order given.

    Parameters
    ----------
    coordinates : sequence of ndarray
        What each file has along the dimension: numbers, datetime64, or counts without a coordinate.
    units, calendars : sequence of str or None
        Attributes of each coordinate; ``""`` where it lacks it, None without a coordinate.

    Attributes
    ----------
    order : list of int
        The files in order.
    values : list of ndarray
        In this order: times (datetime64, or cftime objects) where all coordinates are, else as
        given.
    positions : ndarray of float64, shape (samples,)
        See `iobench.datasets.SampleIndex`.
    units : str
        Of the positions.
    numbers : ndarray of int64, shape (samples,)
        Which row each sample is in.
    """

    def __init__(
        self,
        coordinates: Sequence[NDArray[Any]],
        units: Sequence[str | None],
        calendars: Sequence[str | None],
    ) -> None:
        times = _all_times(coordinates, units, calendars)
        values: Sequence[NDArray[Any]] = coordinates if times is None else times
        one_unit = len(set(units)) == 1 and len(set(calendars)) == 1 and units[0] is not None
        comparable = times is not None or one_unit
        self.order = _order(values) if comparable else list(range(len(values)))
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
        if told[0].dtype.kind != "M":
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


def _order(values: Sequence[NDArray[Any]]) -> list[int]:
    """Return the order of the files: by coordinate where it orders them, else as given."""
    given = list(range(len(values)))
    if any(len(part) == 0 for part in values):
        return given
    ordered = sorted(given, key=lambda number: values[number].min())
    apart = all(
        values[before].max() < values[after].min() for before, after in itertools.pairwise(ordered)
    )
    return ordered if apart else given
