"""Which sample of a dataset each sample of a store is, kept as runs of consecutive numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, overload

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class SampleNumbers(Sequence[int]):
    """A sequence of numbers that takes as much memory as it has runs, whatever their lengths.

    Equal to any sequence of the same numbers. A manifest may claim 2**60 samples: nothing is
    allocated for them before its files have been looked at.
    """

    __slots__ = ("_ends", "_firsts")

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        kept = [(first, count) for first, count in runs if count]
        self._firsts = [first for first, _ in kept]
        self._ends = list(accumulate(count for _, count in kept))

    @property
    def runs(self) -> list[tuple[int, int]]:
        """First number and count of each run."""
        starts = [0, *self._ends[:-1]]
        return [
            (first, end - start)
            for first, start, end in zip(self._firsts, starts, self._ends, strict=False)
        ]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[int]:
        for first, count in self.runs:
            yield from range(first, first + count)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            return tuple(self[one] for one in range(*index.indices(len(self))))
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"no sample {index}, there are {len(self)}")
        run = bisect_right(self._ends, position)
        start = self._ends[run - 1] if run else 0
        return self._firsts[run] + position - start

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SampleNumbers):
            return list(count_runs(other)) == list(count_runs(self))
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(
            one == two for one, two in zip(self, other, strict=True)
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.runs})"


def count_runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield ``(first, count)`` of each stretch of consecutive numbers."""
    if isinstance(numbers, SampleNumbers):
        yield from _joined(numbers.runs)  # which may be of more than 64 bits, as a file says
        return
    each = np.fromiter(numbers, dtype=np.int64)
    starts = np.flatnonzero(np.diff(each, prepend=each[:1] - 2) != 1)
    counts = np.diff(starts, append=len(each))
    yield from zip(each[starts].tolist(), counts.tolist(), strict=True)


def _joined(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield runs, those that go on where the one before ends in one piece with it."""
    first, count = 0, 0
    for begin, more in runs:
        if count and begin == first + count:
            count += more
            continue
        if count:
            yield first, count
        first, count = begin, more
    if count:
        yield first, count


def places_among(held: Sequence[int], wanted: ArrayLike) -> NDArray[np.int64]:
    """Return where numbers lie in a sequence of distinct ones; -1 of those it does not have."""
    asked = np.asarray(wanted, dtype=np.int64)
    numbers = np.fromiter(held, dtype=np.int64, count=len(held))
    if not len(numbers):
        return np.full(len(asked), -1, dtype=np.int64)
    order = np.argsort(numbers, kind="stable")
    found = order[np.searchsorted(numbers, asked, sorter=order).clip(max=len(numbers) - 1)]
    return np.where(numbers[found] == asked, found, -1)
