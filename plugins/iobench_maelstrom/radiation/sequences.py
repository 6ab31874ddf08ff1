"""Long sequences that are small: elements are made when asked for, from the files' lengths."""

from __future__ import annotations

import bisect
import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, overload

__all__ = ["MadeWhenAsked", "PairNames", "PairPlaces", "Starts", "samples_named"]

T = TypeVar("T")


class MadeWhenAsked(Sequence[T]):
    """A sequence of which a subclass gives the length and ``make``, for numbers in range."""

    @abstractmethod
    def make(self, number: int) -> T:
        """Return one element."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self.make(number) for number in range(len(self))[index]]
        return self.make(range(len(self))[index])


class Starts:
    """Where the samples of each file start, counted over all files."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.starts = [0, *itertools.accumulate(lengths)]

    def __len__(self) -> int:
        return self.starts[-1]

    def locate(self, number: int) -> tuple[int, int]:
        """Return the file of a sample and its number in it."""
        file = bisect.bisect_right(self.starts, number) - 1
        return file, number - self.starts[file]


class PairPlaces(MadeWhenAsked[tuple[int, int]]):
    """(number of the pair, column) of every column."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._starts = Starts(lengths)

    def __len__(self) -> int:
        return len(self._starts)

    def make(self, number: int) -> tuple[int, int]:
        """Return where one column is."""
        return self._starts.locate(number)


class PairNames(MadeWhenAsked[str]):
    """The name of every column: that of its pair, and its number in it."""

    def __init__(self, labels: Sequence[str], lengths: Sequence[int]) -> None:
        self._labels = tuple(labels)
        self._starts = Starts(lengths)

    def __len__(self) -> int:
        return len(self._starts)

    def make(self, number: int) -> str:
        """Return the name of one column."""
        pair, column = self._starts.locate(number)
        return f"{self._labels[pair]} column {column}"


def samples_named(names: Sequence[str], name: str, lengths: Sequence[int]) -> Sequence[int]:
    """Return the samples of the files that have ``name`` (one name per file)."""
    starts = Starts(lengths).starts
    runs = [
        range(starts[number], starts[number + 1])
        for number, each in enumerate(names)
        if each == name
    ]
    if all(before.stop == after.start for before, after in itertools.pairwise(runs)):
        return range(runs[0].start, runs[-1].stop)
    return [sample for run in runs for sample in run]
