"""Which samples are taken: of a split, of intervals of their coordinates, of windows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.chunks.cf_times import coordinate_times
from iobench.coordinates import SAMPLE_DIM
from iobench.datasets.positions import spell_times
from iobench.errors import OptionError, UnknownNameError
from iobench.stores.sample_numbers import sample_numbers
from iobench.stores.value_statistics import ALL_SAMPLES
from iobench.windows import WindowPlacement, place_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.contract import SampleIndex
    from iobench.samples import Window

DATE: Final = re.compile(
    r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01])(T([01]\d|2[0-3])(:[0-5]\d){0,2})?)?)?"
)
OPEN: Final = ("", "..")


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
        name, colon, coordinate = (part.strip() for part in named.rpartition(":"))
        first, is_range, last = (part.strip() for part in interval.partition("/"))
        ends = [first, last if is_range else first]
        is_wrong = not coordinate or (colon and not name) or "/" in last
        if not equals or is_wrong or all(end in OPEN for end in ends):
            raise OptionError(
                f"--split-by {text}: expected a coordinate and an interval, as "
                "time=2010-01-01/2015-12-31 or valid:time=2016, one end perhaps open: time=2017/.."
            )
        if name == ALL_SAMPLES:
            raise OptionError(
                f"--split-by {text}: {ALL_SAMPLES} is the name of all samples; name the split "
                "otherwise"
            )
        first, last = ("" if end in OPEN else end for end in ends)
        return cls(name, coordinate, first, last, f"--split-by {text}")

    @property
    def spelled(self) -> str:
        """The interval as `parse` takes it, without the name."""
        if self.first == self.last:
            return f"{self.coordinate}={self.first}"
        return f"{self.coordinate}={self.first or '..'}/{self.last or '..'}"


def select_samples(index: SampleIndex, select: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return the numbers, ascending, of the samples whose coordinates lie in closed intervals.

    ``select`` has by coordinate the first and the last value, either of them None for no bound, or
    one value: texts of dates, in UTC, which include all that begins with them, datetime objects, or
    numbers.
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
        numbers = int, float, np.number, str
        first, last = (  # of dates, to the second
            "" if end is None else str(end)[: None if isinstance(end, numbers) else 19]
            for end in ends
        )
        inside &= _within(index, CoordinateInterval("", name, first, last, given), inside)
    return np.flatnonzero(inside)


def split_index(index: SampleIndex, given: Sequence[CoordinateInterval]) -> SampleIndex:
    """Return the index with the splits that intervals make.

    Intervals of one name and coordinate are joined, those of several coordinates all hold. Those
    without a name hold for every split; their samples are a split of that spelling.
    """
    if not given:
        return index
    taken = np.ones(len(index), dtype=np.bool_)
    chosen: dict[str, NDArray[np.bool_]] = {}
    for name in ["", *dict.fromkeys(each.name for each in given if each.name)]:
        inside = taken.copy()
        by_coordinate: dict[str, list[CoordinateInterval]] = {}
        for each in given:
            if each.name == name:
                by_coordinate.setdefault(each.coordinate, []).append(each)
        for own in by_coordinate.values():
            inside &= np.logical_or.reduce([_within(index, each, inside) for each in own])
        chosen[name] = inside
        taken = chosen[""]
    del chosen[""]
    if not chosen:
        for name, numbers in index.splits.items():
            chosen[name] = np.zeros(len(index), dtype=np.bool_)
            chosen[name][np.asarray(numbers, dtype=np.int64)] = True
            chosen[name] &= taken
        chosen[_joined(given)] = taken
    elif (both := np.flatnonzero(np.sum(list(chosen.values()), axis=0) > 1)).size:
        names = [name for name, inside in chosen.items() if inside[both[0]]]
        first = index.coordinate[both[0]] if len(index.coordinate) else f"sample {both[0]}"
        raise OptionError(
            f"--split-by: {' and '.join(names)} have {both.size} samples in common, the "
            f"first: {first}; let one end before the other begins"
        )
    splits = {name: sample_numbers(np.flatnonzero(inside)) for name, inside in chosen.items()}
    return replace(index, splits=splits)


def _joined(given: Sequence[CoordinateInterval]) -> str:
    return ", ".join(each.spelled for each in given if not each.name)


def chosen_splits(split: str | None, given: Sequence[CoordinateInterval]) -> tuple[str, ...]:
    """Return the splits whose samples are taken; none where all samples are."""
    if split is not None:
        return (split,)
    named = tuple(dict.fromkeys(each.name for each in given if each.name))
    return named or ((_joined(given),) if given else ())


def _within(
    index: SampleIndex, interval: CoordinateInterval, among: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which samples lie in an interval; raise where none of ``among`` does."""
    values, times = _values_of(index, interval)
    inside: NDArray[np.bool_]
    if times is not None:
        inside = within_dates(times, interval.first, interval.last, interval.given)
    elif values.dtype.kind not in "biuf":
        raise OptionError(
            f"{interval.given}: {interval.coordinate} is text, expected dates, numbers"
        )
    else:
        bounds = zip((interval.first, interval.last), (-np.inf, np.inf), strict=True)
        try:
            low, high = (float(text) if text else end for text, end in bounds)
        except ValueError:
            raise OptionError(
                f"{interval.given}: {interval.coordinate} has numbers, expected numbers as bounds"
            ) from None
        inside = (low <= values) & (values <= high)
    if not (inside & among).any():
        there = np.sort((values if times is None else times)[among])[[0, -1]]
        spelled = spell_times(there) if times is not None else [f"{each:g}" for each in there]
        raise OptionError(
            f"{interval.given}: no sample lies in it; {interval.coordinate} is "
            f"{' to '.join(dict.fromkeys(spelled))}"
        )
    return inside


def _values_of(
    index: SampleIndex, interval: CoordinateInterval
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the values of a coordinate, one for each sample, and as times if it is of times."""
    name, labels = interval.coordinate, index.meteorology
    for one in labels.coordinates:
        is_value = one.dims in ((SAMPLE_DIM,), ()) and "grid_mapping_name" not in one.attributes
        if one.name == name and is_value:
            values = np.broadcast_to(one.values, (len(index),))
            return values, coordinate_times(values, one.attributes)
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
    raise UnknownNameError(
        f"{interval.given}: samples have no coordinate {name!r}; they have "
        f"{', '.join(listed) or 'none'}"
    )


def within_dates(times: NDArray[Any], first: str, last: str, given: str) -> NDArray[np.bool_]:
    """Return which times lie between two dates, both with all that begins with them.

    Those of other calendars are compared as texts, with dates that their calendar may lack.
    """
    low, high = (_date(text, given) for text in (first, last))
    inside: NDArray[np.bool_]
    if times.dtype.kind != "M":
        spelled = np.array([time.isoformat()[:19] for time in times], dtype="U19")
        inside = spelled.astype(f"U{len(low) or 1}") >= low
        if high:
            inside &= spelled.astype(f"U{len(high)}") <= high
        return inside
    seconds = times.astype("M8[s]")
    inside = ~np.isnat(seconds)
    try:
        if low:
            inside &= seconds >= np.datetime64(low)
        if high:
            end = np.datetime64(high)  # a year, or a day: with all of it
            inside &= seconds.astype(end.dtype) <= end
    except ValueError as error:  # 30 February
        raise OptionError(f"{given}: {error}; expected dates that there are") from error
    return inside


def _date(text: str, given: str) -> str:
    result = text.replace(" ", "T").removesuffix("Z")
    if text and not DATE.fullmatch(result):
        raise OptionError(
            f"{given}: {text!r} is no date; expected one as 2015, 2015-12, 2015-12-31 or "
            "2015-12-31T18:00, in UTC"
        )
    return result


def select_split(index: SampleIndex, *names: str) -> Sequence[int]:
    """Return the sample numbers of some splits, ascending where they are several."""
    splits = index.splits
    for name in names:
        if not splits:
            raise UnknownNameError(f"--split {name}: this dataset has no splits; leave out --split")
        if name not in splits:
            listed = ", ".join(f"{split} ({len(numbers)})" for split, numbers in splits.items())
            raise UnknownNameError(f"--split {name}: no such split; splits (samples): {listed}")
        if not len(splits[name]):
            raise OptionError(f"--split {name}: no sample of it is in these files")
    if len(names) == 1:
        return splits[names[0]]
    every = [np.asarray(splits[name], dtype=np.int64) for name in names]
    return sample_numbers(np.unique(np.concatenate(every)))


def place_index_windows(
    index: SampleIndex, window: Window, *, split: str | Sequence[str] | None = None
) -> WindowPlacement:
    """Return where a window fits in the samples of a dataset, or of one or more of its splits."""
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
    names = (split,) if isinstance(split, str) else tuple(split or ())
    splits = [select_split(index, name) for name in names]
    placed = place_windows(
        axis.positions, window, rows=axis.rows, splits=splits or None, names=index.coordinate
    )
    if not len(placed):
        n_samples = sum(map(len, splits)) if splits else len(index)
        of_split = f" of {' and '.join(names)}" if names else ""
        raise OptionError(
            f"{option}: fits nowhere in the {n_samples} samples{of_split} ({placed.n_at_ends} too "
            f"near an end, {placed.n_at_gaps} too near a gap, {placed.n_at_split} at the edge of "
            "the split); take a shorter window or more files"
        )
    return placed
