"""Splits by a coordinate of the samples: ``--split-by train:time=2010-01-01/2015-12-31``."""

from __future__ import annotations

import difflib
import itertools
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.coordinates import SAMPLE_DIM
from iobench.datasets.positions import coordinate_times, spell_times, time_positions
from iobench.errors import OptionError, UnknownNameError
from iobench.stores.value_statistics import ALL_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.datasets.contract import SampleIndex

DATE: Final = re.compile(
    r"(\d{4})(?:-(\d{2})(?:-(\d{2})(?:[T ](\d{2})(?::?(\d{2})(?::?(\d{2}))?)?)?)?)?Z?"
)
LEAST: Final = (0, 1, 1, 0, 0, 0)
MOST: Final = (9999, 12, 31, 23, 59, 59)
OPEN: Final = ("", "..")
GAPS_TOLD: Final = 3
STEP_TOLERANCE: Final = 1.5
"""Neighbours further apart than so many of the commonest step have a gap between them."""


class SplitBy(msgspec.Struct, frozen=True):
    """Samples whose coordinate lies in a closed interval."""

    name: str  # of the split; ``""``: no other samples are taken at all
    # of the samples: a dimension that they are along, or another that has a value for each
    coordinate: str
    # dates or numbers as they were given; ``""`` for no bound. A date includes all that begins with
    # it: ``2015`` the whole year, ``2015-12-31`` the whole day
    first: str
    last: str

    @classmethod
    def parse(cls, text: str) -> SplitBy:
        """Return what ``--split-by`` spells.

        Examples
        --------
        >>> SplitBy.parse("valid:time=2016")
        SplitBy(name='valid', coordinate='time', first='2016', last='2016')
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
                f"--split-by {text}: {ALL_SAMPLES} is what all samples are called; name the split "
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
        return f"--split-by {name}{self.spelled}"


def split_index(
    index: SampleIndex, given: Sequence[SplitBy], *, allow_gaps: bool = False
) -> SampleIndex:
    """Return the index with the splits that were asked for.

    Intervals of one name and coordinate are joined; of several coordinates a sample has to lie in
    all. Those without a name hold for every split, and for the dataset's own where no other is
    named; their samples are a split of that spelling.
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
            values = known[coordinate]
            own = [each for each in parts if each.coordinate == coordinate]
            within = [values.within(each, inside, allow_gaps=allow_gaps) for each in own]
            inside &= np.logical_or.reduce(within)
        if not inside.any():
            raise OptionError(f"{' and '.join(map(str, parts))}: no sample lies in all of them")
        if name:
            chosen[name] = inside
        else:
            taken = inside
    _check_apart(index, chosen, given)
    if chosen:
        order = dict.fromkeys(each.name for each in given if each.name)
        splits = {name: np.flatnonzero(chosen[name]).tolist() for name in order}
    else:
        splits = {
            name: [number for number in numbers if taken[number]]
            for name, numbers in index.splits.items()
        }
        splits[_joined(given)] = np.flatnonzero(taken).tolist()
    return replace(index, splits=splits)


def _joined(given: Sequence[SplitBy]) -> str:
    return ", ".join(each.spelled for each in given if not each.name)


def chosen_splits(split: str | None, given: Sequence[SplitBy]) -> tuple[str, ...]:
    """Return the splits whose samples are wanted; none where all samples are."""
    if split is not None:
        return (split,)
    named = tuple(dict.fromkeys(each.name for each in given if each.name))
    return named or ((_joined(given),) if given else ())


def _check_apart(
    index: SampleIndex, chosen: Mapping[str, NDArray[np.bool_]], given: Sequence[SplitBy]
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
    """What samples have of a coordinate."""

    def __init__(self, index: SampleIndex, asked: SplitBy) -> None:
        self.name = asked.coordinate
        values, times = _found(index, asked)
        self.times = times
        self.numbers = _keys(times) if times is not None else values
        if times is None and values.dtype.kind not in "biuf":
            raise OptionError(f"{asked}: {self.name} is text, expected times or numbers")

    def within(
        self, asked: SplitBy, among: NDArray[np.bool_], *, allow_gaps: bool
    ) -> NDArray[np.bool_]:
        """Return which samples lie in an interval; raise where none of some does, or of a gap."""
        first, last = (
            (_date(asked, asked.first, LEAST), _date(asked, asked.last, MOST))
            if self.times is not None
            else (_number(asked, asked.first, -np.inf), _number(asked, asked.last, np.inf))
        )
        if first > last:
            raise OptionError(f"{asked}: {asked.first} is behind {asked.last}")
        inside: NDArray[np.bool_] = (first <= self.numbers) & (self.numbers <= last)
        if not (inside & among).any():
            there = self._spelled(np.unique(self.numbers[among], return_index=True)[1], among)
            raise OptionError(f"{asked}: no sample lies in it; {self.name} is {there}")
        if not allow_gaps:
            self._check_gaps(asked, inside & among, first, last)
        return inside

    def _spelled(self, places: NDArray[np.int64], among: NDArray[np.bool_]) -> str:
        ends = places[[0, -1]]
        return " to ".join(self._spell(np.flatnonzero(among)[ends]))

    def _spell(self, samples: NDArray[np.int64]) -> list[str]:
        if self.times is not None:
            return spell_times(self.times[samples])
        return [f"{value:g}" for value in self.numbers[samples].tolist()]

    def _check_gaps(
        self, asked: SplitBy, inside: NDArray[np.bool_], first: float, last: float
    ) -> None:
        """Raise OptionError of what is missing in an interval or at its ends."""
        _, one_of_each = np.unique(self.numbers, return_index=True)
        every = _Steps(self, one_of_each)
        if every.step is None:
            return
        _, found = np.unique(self.numbers[inside], return_index=True)
        held = np.flatnonzero(inside)[found]
        told = []
        if asked.first and every.beyond(held[0], -1) >= first:
            told.append(f"nothing before {self._spell(held[:1])[0]}")
        for at in every.gaps(held)[:GAPS_TOLD]:
            before, after = self._spell(held[[at, at + 1]])
            told.append(f"nothing between {before} and {after}")
        if asked.last and every.beyond(held[-1], 1) <= last:
            told.append(f"nothing behind {self._spell(held[-1:])[0]}")
        if told:
            raise OptionError(
                f"{asked}: there is {', '.join(told)}; add the files that hold it, ask for what is "
                "there, or take it with --allow-gaps"
            )


class _Steps:
    """How far apart the values of a coordinate lie: of samples, one for each value, ascending."""

    def __init__(self, values: _Values, samples: NDArray[np.int64]) -> None:
        self.values = values
        self.in_months = False
        times = values.times
        if times is None:
            self._positions: NDArray[Any] = values.numbers.astype(np.float64)
        else:
            positions, units = time_positions(times[samples])
            self.in_months = units == "months"
            self._positions = np.full(len(times), np.nan)
            at = np.searchsorted(values.numbers[samples], values.numbers)
            self._positions = positions[at]
        apart = np.diff(self._positions[samples])
        self.step: float | None = None
        if apart.size:
            each, counts = np.unique(np.round(apart, 6), return_counts=True)
            self.step = float(each[np.argmax(counts)])

    def gaps(self, samples: NDArray[np.int64]) -> list[int]:
        """Return behind which of some samples, in order, others are missing."""
        apart = np.diff(self._positions[samples])
        found: list[int] = np.flatnonzero(apart > STEP_TOLERANCE * (self.step or 0)).tolist()
        return found

    def beyond(self, sample: int, sign: int) -> float:
        """Return where the one before (-1) or behind (1) a sample would be, as bounds are."""
        step = sign * (self.step or 0)
        times = self.values.times
        if times is None:
            return float(self._positions[sample] + step)
        if not self.in_months:
            apart = np.timedelta64(round(step * 10**6), "us")
            one = times[sample : sample + 1]
            moved = one + (apart if times.dtype.kind == "M" else apart.astype(object))
            return float(_keys(moved)[0])
        month = int(self._positions[sample] + step)
        day = int(self.values.numbers[sample] % 10**8)
        return float(((1970 + month // 12) * 100 + month % 12 + 1) * 10**8 + day)


def _found(index: SampleIndex, asked: SplitBy) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the values of a coordinate, one for each sample, and as times if it is of times."""
    name, known = asked.coordinate, index.meteorology
    coordinate = next(
        (one for one in known.coordinates if one.name == name and one.dims in ((SAMPLE_DIM,), ())),
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
    there = [each.name for each in known.coordinates if each.of_samples and each.values.ndim == 1]
    listed = dict.fromkeys([*index.dims, *there])
    near = difflib.get_close_matches(name, listed, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UnknownNameError(
        f"{asked}: samples have no coordinate {name!r}; {hint}they have "
        f"{', '.join(listed) or 'none'}"
    )


def _keys(times: NDArray[Any]) -> NDArray[np.float64]:
    """Return times as the digits of their dates, YYYYMMDDhhmmss, whatever the calendar.

    So they are compared with dates that their calendar may lack: 31 December of 360 days.
    """
    if times.dtype.kind == "M":
        parts = [times.astype(f"M8[{unit}]") for unit in "YMDhms"]
        offsets = (1970, 1, 1, 0, 0, 0)
        fields = [parts[0].astype(np.int64)] + [
            (inner - outer.astype(inner.dtype)).astype(np.int64)
            for outer, inner in itertools.pairwise(parts)
        ]
        fields = [field + offset for field, offset in zip(fields, offsets, strict=True)]
    else:
        names = ("year", "month", "day", "hour", "minute", "second")
        fields = [np.array([getattr(time, name) for time in times]) for name in names]
    keys = np.zeros(len(times), dtype=np.int64)
    for field in fields:
        keys = keys * 100 + field
    found = keys.astype(np.float64)
    if times.dtype.kind == "M":
        found[np.isnat(times)] = np.nan
    return found


def _date(asked: SplitBy, text: str, rest: tuple[int, ...]) -> float:
    """Return a bound as `_keys` are; what a date does not say is of ``rest``, the least or most."""
    match = DATE.fullmatch(text) if text else None
    given = [int(part) for part in match.groups() if part is not None] if match else []
    fields = [*given, *rest[len(given) :]]
    is_date = all(low <= n <= high for low, n, high in zip(LEAST, fields, MOST, strict=True))
    if text and (match is None or not is_date):
        raise OptionError(
            f"{asked}: {text!r} is no date; expected one as 2015, 2015-12, 2015-12-31 or "
            "2015-12-31T18:00, in UTC"
        )
    key = 0
    for field in fields:
        key = key * 100 + field
    return float(key)


def _number(asked: SplitBy, text: str, otherwise: float) -> float:
    try:
        return float(text) if text else otherwise
    except ValueError:
        raise OptionError(
            f"{asked}: {text!r} is no number, and {asked.coordinate} has no dates"
        ) from None
