"""Which sample of a dataset each sample of a store is: a range, or an array where it is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

SampleNumbers: TypeAlias = Sequence[int]
"""A range or an int64 array, which type checkers take for no sequence."""


def sample_numbers(numbers: Sequence[int] | NDArray[Any]) -> SampleNumbers:
    """Return numbers as a range where each follows the one before, else as an int64 array."""
    if isinstance(numbers, range) and numbers.step == 1:
        return numbers
    each = np.asarray(numbers, dtype=np.int64)
    if not each.size:
        return range(0)
    if (np.diff(each) == 1).all():
        return range(int(each[0]), int(each[-1]) + 1)
    return cast("SampleNumbers", each)


def are_all(numbers: Sequence[int] | NDArray[Any], n_samples: int) -> bool:
    """Return whether they are those of all samples, in order."""
    return isinstance(numbers, range) and numbers == range(n_samples)


def count_runs(numbers: Sequence[int] | NDArray[Any]) -> list[tuple[int, int]]:
    """Return first number and count of each stretch of consecutive numbers."""
    places = sample_numbers(numbers)
    if isinstance(places, range):
        return [(places.start, len(places))] if places else []
    each = np.asarray(places)
    starts = np.flatnonzero(np.diff(each, prepend=each[:1] - 2) != 1)
    counts = np.diff(starts, append=len(each))
    return list(zip(each[starts].tolist(), counts.tolist(), strict=True))


def numbers_of_runs(runs: Sequence[tuple[int, int]]) -> SampleNumbers:
    """Return the numbers of which `count_runs` returns the stretches."""
    if len(runs) == 1:
        return range(runs[0][0], sum(runs[0]))
    first, count = np.array(runs, dtype=np.int64).reshape(-1, 2).T
    before = np.cumsum(count) - count
    return sample_numbers(np.repeat(first - before, count) + np.arange(count.sum()))


def places_among(held: Sequence[int] | NDArray[Any], sought: ArrayLike) -> NDArray[np.int64]:
    """Return where numbers lie in a sequence of distinct ones; -1 of those it does not have."""
    numbers, sought = np.asarray(held, dtype=np.int64), np.asarray(sought, dtype=np.int64)
    if not len(numbers):
        return np.full(len(sought), -1, dtype=np.int64)
    order = np.argsort(numbers, kind="stable")
    places = order[np.searchsorted(numbers, sought, sorter=order).clip(max=len(numbers) - 1)]
    return np.where(numbers[places] == sought, places, -1)
