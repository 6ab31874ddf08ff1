"""Which samples are taken: of a split, of intervals of their coordinates, of windows."""

from __future__ import annotations

import datetime
import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.coordinates import SAMPLE_DIM
from iobench.datasets.positions import coordinate_times, spell_times, time_positions
from iobench.errors import OptionError, UnknownNameError
from iobench.stores.sample_numbers import sample_numbers
from iobench.stores.value_statistics import ALL_SAMPLES
from iobench.windows import WindowPlacement, place_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.contract import SampleIndex
    from iobench.samples import Window

DATE: Final = re.compile(
    r"(\d{4})(?:-(\d{2})(?:-(\d{2})(?:[T ](\d{2})(?::?(\d{2})(?::?(\d{2}))?)?)?)?)?Z?"
)
LEAST: Final = (0, 1, 1, 0, 0, 0)
MOST: Final = (9999, 12, 31, 23, 59, 59)
OPEN: Final = ("", "..")
MOST_GAPS: Final = 3
STEP_TOLERANCE: Final = 1.5
"""Neighbours further apart than so many of the commonest step have a gap between them."""


class CoordinateInterval(msgspec.Struct, frozen=True):
    """A closed interval of a coordinate of samples."""

    name: str  # of the split; ``""``: it holds for all splits
    coordinate: str
    # dates or numbers as text; ``""`` for no bound. A date includes all that begins with it: 2015
    # the whole year, 2015-12-31 the whole day
    first: str
    last: str
    given: str = ""  # how it was given, for messages

    @classmethod
    def parse(cls, text: str) -> CoordinateInterval:
        """Return what ``--split-by`` spells.

        Examples
        --------
        >>> CoordinateInterval.parse("valid:time=2016").spelled
        'time=2016'
        """
        named, equals, interval = text.partition("=")
        name, colon, coordinate = named.rpartition(":")
        first, is_range, last = (part.strip() for part in interval.partition("/"))
        ends = [first, last if is_range else first]
        is_wrong = not coordinate.strip() or (colon and not name.strip()) or "/" in last
        if not equals or is_wrong or all(end in OPEN for end in ends):
            raise OptionError(
                f"--split-by {text}: expected a coordinate and an interval, as "
                "time=2010-01-01/2015-12-31 or valid:time=2016, one end perhaps open: time=2017/.."
            )
        if name.strip() == ALL_SAMPLES:
            raise OptionError(
                f"--split-by {text}: {ALL_SAMPLES} is the name of all samples; name the split "
                "otherwise"
            )
        first, last = ("" if end in OPEN else end for end in ends)
        return cls(name.strip(), coordinate.strip(), first, last)

    @property
    def spelled(self) -> str:
        """The interval as `parse` takes it, without the name."""
        if self.first == self.last:
            return f"{self.coordinate}={self.first}"
        return f"{self.coordinate}={self.first or '..'}/{self.last or '..'}"

    def __str__(self) -> str:
        name = f"{self.name}:" if self.name else ""
        return self.given or f"--split-by {name}{self.spelled}"


def select_samples(index: SampleIndex, select: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return the numbers of the samples whose coordinates lie in closed intervals.

    Parameters
    ----------
    index : SampleIndex
        Of a dataset, or of a store.
    select : mapping of str to value, or to pair of values
        By coordinate, the first and the last value that are taken, either of them None for no
        bound, or one value. A coordinate is a dimension that samples are along, or another that has
        a value for each sample. Dates are texts, in UTC, and include all that begins with them
        (``"2020"``, ``"2020-01"``, ``"2020-01-31T18"``), or datetime objects of any kind, to the
        second; bounds of other coordinates are numbers.

    Returns
    -------
    ndarray of int64
        Sample numbers, ascending: samples that lie in all intervals.

    Raises
    ------
    UnknownNameError
        If samples have no such coordinate; lists those they have.
    OptionError
        If a bound is neither date nor number, or no sample is left.

    Examples
    --------
    >>> select_samples(index, {"time": ("2020-01", "2020-06"), "number": 0})  # doctest: +SKIP
    array([  0,  10,  20, ...])
    """
    if not isinstance(select, Mapping):
        raise OptionError(
            f"select={select!r}: expected intervals by coordinate, as "
            "{'time': ('2020-01', '2020-06')}"
        )
    inside = np.ones(len(index), dtype=np.bool_)
    for name, bounds in select.items():
        given = f"select={{{name!r}: {bounds!r}}}"
        ends = bounds if isinstance(bounds, list | tuple) else (bounds, bounds)
        if len(ends) != 2 or all(end is None for end in ends):
            raise OptionError(f"{given}: expected one value, or the first and the last one")
        first, last = map(_bound, ends)
        interval = CoordinateInterval("", name, first, last, given)
        inside &= _Values(index, interval).within(interval, inside, allow_gaps=True)
    return np.flatnonzero(inside)


def _bound(value: Any) -> str:
    """Return a bound of `select_samples` as text."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="s"))
    if isinstance(value, datetime.date) or hasattr(value, "calendar"):
        return str(value.isoformat())[:19]
    return str(value)


def split_index(
    index: SampleIndex, given: Sequence[CoordinateInterval], *, allow_gaps: bool = False
) -> SampleIndex:
    """Return the index with the splits that intervals make.

    Intervals of one name and coordinate are joined; of several coordinates a sample has to lie in
    all. Those without a name hold for every split; their samples are a split of that spelling.
    """
    if not given:
        return index
    known = {each.coordinate: _Values(index, each) for each in given}
    taken = np.ones(len(index), dtype=np.bool_)
    chosen: dict[str, NDArray[np.bool_]] = {}
    # Those that hold for all come first: gaps are looked for in what they leave.
    for name in sorted({each.name for each in given}):
        parts = [each for each in given if each.name == name]
        inside = taken.copy()
        for coordinate in dict.fromkeys(each.coordinate for each in parts):
            own = [each for each in parts if each.coordinate == coordinate]
            values = known[coordinate]
            within = [values.within(each, inside, allow_gaps=allow_gaps) for each in own]
            inside &= np.logical_or.reduce(within)
        if not inside.any():
            raise OptionError(f"{' and '.join(map(str, parts))}: no sample lies in all of them")
        if name:
            chosen[name] = inside
        else:
            taken = inside
    _check_disjoint(index, chosen, given)
    if chosen:
        order = dict.fromkeys(each.name for each in given if each.name)
        splits = {name: sample_numbers(np.flatnonzero(chosen[name])) for name in order}
    else:
        splits = {}
        for name, numbers in index.splits.items():
            members = np.asarray(numbers, dtype=np.int64)
            splits[name] = sample_numbers(members[taken[members]])
        splits[_joined(given)] = sample_numbers(np.flatnonzero(taken))
    return replace(index, splits=splits)


def _joined(given: Sequence[CoordinateInterval]) -> str:
    return ", ".join(each.spelled for each in given if not each.name)


def chosen_splits(split: str | None, given: Sequence[CoordinateInterval]) -> tuple[str, ...]:
    """Return the splits whose samples are taken; none where all samples are."""
    if split is not None:
        return (split,)
    named = tuple(dict.fromkeys(each.name for each in given if each.name))
    return named or ((_joined(given),) if given else ())


def _check_disjoint(
    index: SampleIndex, chosen: Mapping[str, NDArray[np.bool_]], given: Sequence[CoordinateInterval]
) -> None:
    for one, other in itertools.combinations(chosen, 2):
        both = np.flatnonzero(chosen[one] & chosen[other])
        if both.size:
            spelled = [
                f"{name} ({', '.join(each.spelled for each in given if each.name == name)})"
                for name in (one, other)
            ]
            names = index.coordinate
            first = names[both[0]] if len(names) else f"sample {both[0]}"
            raise OptionError(
                f"--split-by: {' and '.join(spelled)} have {both.size} samples in common, the "
                f"first: {first}; let one end before the other begins"
            )


class _Values:
    """The value of a coordinate for each sample, as times and as numbers that bounds compare to."""

    def __init__(self, index: SampleIndex, interval: CoordinateInterval) -> None:
        values, self.times = _values_of(index, interval)
        self.numbers = values if self.times is None else date_numbers(self.times)
        if self.numbers.dtype.kind not in "biuf":
            raise OptionError(f"{interval}: {interval.coordinate} is text, expected dates, numbers")

    def within(
        self, interval: CoordinateInterval, among: NDArray[np.bool_], *, allow_gaps: bool
    ) -> NDArray[np.bool_]:
        """Return which samples lie in an interval; raise where none does, or some are missing."""
        bound = _number_bound if self.times is None else date_bound
        low, high = bound(interval, interval.first, LEAST), bound(interval, interval.last, MOST)
        if low > high:
            raise OptionError(f"{interval}: {interval.first} is after {interval.last}")
        inside: NDArray[np.bool_] = (low <= self.numbers) & (self.numbers <= high)
        if not (inside & among).any():
            there = np.flatnonzero(among)
            ends = there[np.unique(self.numbers[among], return_index=True)[1][[0, -1]]]
            has = " to ".join(self._spell(ends))
            raise OptionError(f"{interval}: no sample lies in it; {interval.coordinate} is {has}")
        if not allow_gaps and (gaps := self._gaps(interval, inside & among, low, high)):
            raise OptionError(
                f"{interval}: there is {', '.join(gaps)}; add the files that hold it, ask for what "
                "is there, or take it with --allow-gaps"
            )
        return inside

    def _spell(self, samples: NDArray[np.int64]) -> list[str]:
        if self.times is not None:
            return spell_times(self.times[samples])
        return [f"{value:g}" for value in self.numbers[samples].tolist()]

    def _gaps(
        self, interval: CoordinateInterval, inside: NDArray[np.bool_], low: float, high: float
    ) -> list[str]:
        """Return what is missing in an interval or at its ends, in words."""
        numbers, samples = np.unique(self.numbers, return_index=True)
        positions, units = numbers.astype(np.float64), ""
        if self.times is not None:
            positions, units = time_positions(self.times[samples])
        steps, counts = np.unique(np.round(np.diff(positions), 6), return_counts=True)
        if not steps.size:
            return []
        step = float(steps[np.argmax(counts)])
        held = np.searchsorted(numbers, np.unique(self.numbers[inside]))
        first, last = held[0], held[-1]
        gaps = []
        if interval.first and self._moved(samples[first], positions[first] - step, units) >= low:
            gaps.append(f"nothing before {self._spell(samples[[first]])[0]}")
        wide = np.flatnonzero(np.diff(positions[held]) > STEP_TOLERANCE * step)
        for at in wide[:MOST_GAPS].tolist():
            before, after = self._spell(samples[held[[at, at + 1]]])
            gaps.append(f"nothing between {before} and {after}")
        if interval.last and self._moved(samples[last], positions[last] + step, units) <= high:
            gaps.append(f"nothing after {self._spell(samples[[last]])[0]}")
        return gaps

    def _moved(self, sample: int, position: float, units: str) -> float:
        """Return the number of a sample that lies at another position, as bounds are."""
        if self.times is None:
            return position
        if units == "months":
            years, month = divmod(int(position), 12)
            return float(((1970 + years) * 100 + month + 1) * 10**8 + self.numbers[sample] % 10**8)
        one = self.times[sample : sample + 1]
        seconds = position - time_positions(one)[0][0]
        distance = np.timedelta64(round(seconds * 10**6), "us")
        moved = one + (distance if one.dtype.kind == "M" else distance.astype(object))
        return float(date_numbers(moved)[0])


def _values_of(
    index: SampleIndex, interval: CoordinateInterval
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the values of a coordinate, one for each sample, and as times if it is of times."""
    name, labels = interval.coordinate, index.meteorology
    coordinate = next(
        (one for one in labels.coordinates if one.name == name and one.dims in ((SAMPLE_DIM,), ())),
        None,
    )
    if coordinate is not None and "grid_mapping_name" not in coordinate.attributes:
        values = np.broadcast_to(coordinate.values, (len(index),))
        return values, coordinate_times(values, coordinate.attributes)
    if name in index.dims or (not index.dims and name == "time"):
        axis = index.along(name if index.dims else "")
        if len(axis.positions):
            positions = np.asarray(axis.positions, dtype=np.float64)
            if axis.units == "seconds":
                return positions, np.rint(positions * 10**6).astype("M8[us]")
            if axis.units == "months":
                return positions, np.rint(positions).astype("M8[M]").astype("M8[us]")
            return positions, None
    there = [each.name for each in labels.coordinates if each.of_samples and each.values.ndim == 1]
    listed = dict.fromkeys([*index.dims, *there])
    near = difflib.get_close_matches(name, listed, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UnknownNameError(
        f"{interval}: samples have no coordinate {name!r}; {hint}they have "
        f"{', '.join(listed) or 'none'}"
    )


def date_numbers(times: NDArray[Any]) -> NDArray[np.float64]:
    """Return times as the digits of their dates, YYYYMMDDhhmmss, whatever the calendar.

    So they are compared with dates that their calendar may lack: 31 December of 360 days.
    """
    if times.dtype.kind == "M":
        parts = [times.astype(f"M8[{unit}]") for unit in "YMDhms"]
        fields = [parts[0].astype(np.int64) + 1970] + [
            (inner - outer.astype(inner.dtype)).astype(np.int64) + least
            for (outer, inner), least in zip(itertools.pairwise(parts), LEAST[1:], strict=True)
        ]
    else:
        names = ("year", "month", "day", "hour", "minute", "second")
        fields = [np.array([getattr(time, name) for time in times]) for name in names]
    numbers = np.zeros(len(times), dtype=np.int64)
    for field in fields:
        numbers = numbers * 100 + field
    floats = numbers.astype(np.float64)
    if times.dtype.kind == "M":
        floats[np.isnat(times)] = np.nan
    return floats


def date_bound(interval: CoordinateInterval, text: str, rest: tuple[int, ...]) -> float:
    """Return a bound as `date_numbers` are; fields it does not have are those of ``rest``."""
    match = DATE.fullmatch(text) if text else None
    given = [int(part) for part in match.groups() if part is not None] if match else []
    fields = [*given, *rest[len(given) :]]
    is_date = all(low <= n <= high for low, n, high in zip(LEAST, fields, MOST, strict=True))
    if text and (match is None or not is_date):
        raise OptionError(
            f"{interval}: {text!r} is no date; expected one as 2015, 2015-12, 2015-12-31 or "
            "2015-12-31T18:00, in UTC"
        )
    number = 0
    for field in fields:
        number = number * 100 + field
    return float(number)


def _number_bound(interval: CoordinateInterval, text: str, rest: tuple[int, ...]) -> float:
    try:
        return float(text) if text else (-np.inf if rest is LEAST else np.inf)
    except ValueError:
        raise OptionError(
            f"{interval}: {text!r} is no number, and {interval.coordinate} has no dates"
        ) from None


def select_split(index: SampleIndex, name: str) -> Sequence[int]:
    """Return the sample numbers of a split, e.g. ``"train"``."""
    splits = index.splits
    if not splits:
        raise UnknownNameError(f"--split {name}: this dataset has no splits; leave out --split")
    if name not in splits:
        listed = ", ".join(f"{split} ({len(numbers)})" for split, numbers in splits.items())
        near = difflib.get_close_matches(name, splits, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnknownNameError(f"--split {name}: no such split; {hint}splits (samples): {listed}")
    if not len(splits[name]):
        raise OptionError(f"--split {name}: no sample of it is in these files")
    return splits[name]


def select_splits(index: SampleIndex, names: Sequence[str]) -> Sequence[int]:
    """Return the sample numbers of some splits, ascending where they are several."""
    if len(names) == 1:
        return select_split(index, names[0])
    every = [np.asarray(select_split(index, name), dtype=np.int64) for name in names]
    return sample_numbers(np.unique(np.concatenate(every)))


def place_index_windows(
    index: SampleIndex, window: Window, *, split: str | Sequence[str] | None = None
) -> WindowPlacement:
    """Return where a window fits in the samples of a dataset, or of one or more of its splits.

    Of several, all items of a window are of the same one.
    """
    option = f"--window={window.spelled}"
    try:
        axis = index.along(window.dim)
    except OptionError as error:
        hint = f"{index.dims[0]}={window.spelled}"
        raise OptionError(f"{option}: {error}, as --window {hint}") from None
    except UnknownNameError as error:
        raise UnknownNameError(f"{option}: {error}") from None
    if not len(axis.positions):
        raise OptionError(f"{option}: no evenly spaced sample coordinate: windows need one")
    splits = (split,) if isinstance(split, str) else tuple(split or ())
    within = select_splits(index, splits) if splits else None
    placed = place_windows(
        axis.positions, window, rows=axis.rows, within=within, names=index.coordinate
    )
    if len(splits) > 1:
        placed = _within_one_split(placed, [select_split(index, name) for name in splits])
    if not len(placed):
        n_samples = len(index) if within is None else len(within)
        of_split = f" of {' and '.join(splits)}" if splits else ""
        raise OptionError(
            f"{option}: fits nowhere in the {n_samples} samples{of_split} ({placed.n_at_ends} too "
            f"near an end, {placed.n_at_gaps} too near a gap, {placed.n_at_split} at the edge of "
            "the split); take a shorter window or more files"
        )
    return placed


def _within_one_split(placed: WindowPlacement, splits: Sequence[Sequence[int]]) -> WindowPlacement:
    """Return the windows all of whose items are of one split."""
    whole = np.zeros(len(placed), dtype=np.bool_)
    for numbers in splits:
        whole |= np.isin(placed.centres, numbers) & np.isin(placed.items, numbers).all(axis=1)
    return replace(
        placed,
        centres=placed.centres[whole],
        items=placed.items[whole],
        n_at_split=placed.n_at_split + len(placed) - int(whole.sum()),
    )
