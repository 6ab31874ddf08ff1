"""Intervals ``[start, end)`` of time, or of bytes: which overlap, and what several cover together.

All are pairs of arrays of int64 of one length, in ns unless said otherwise.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def groups(start: Integers, end: Integers, *, touching: bool = False) -> Integers:
    """Return for each interval, by start, the number of its group: those that overlap share one."""
    if not len(start):
        return np.zeros(0, dtype=np.int64)
    reached = np.maximum.accumulate(end)[:-1]
    apart = start[1:] > reached if touching else start[1:] >= reached
    return np.cumsum(np.append(False, apart)).astype(np.int64)


def union(start: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Return the intervals that at least one of these covers, apart and in order."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    first = np.flatnonzero(np.diff(groups(start, end, touching=True), prepend=-1))
    return start[first], np.maximum.reduceat(end, first) if len(first) else end


def covered(start: Integers, end: Integers) -> int:
    """Return the length that at least one of these intervals covers."""
    start, end = union(start, end)
    return int((end - start).sum())


def overlap_ns(
    start: Integers, end: Integers, low: Integers | int, high: Integers | int
) -> Integers:
    """Return how much of each interval lies inside ``[low, high)``; never negative."""
    inside: Integers = np.minimum(end, high) - np.maximum(start, low)
    return np.maximum(inside, 0)


def places_of(numbers: Integers, among: Integers) -> Integers:
    """Return the first place of each number from 0 among others, -1 where it is not there."""
    order = np.argsort(among, kind="stable")
    place = np.append(order, -1)[np.searchsorted(among[order], numbers)]
    same = (numbers >= 0) & (np.append(among, -1)[place] == numbers)
    return np.where(same, place, -1)


class Nesting(msgspec.Struct, frozen=True):
    """Which intervals of a lane lie inside which."""

    level: Integers  # how many are open where each begins; one that takes no time never is
    parent: Integers  # the innermost of them, -1 where there is none; by chance if not regular
    # Whether it is in a group of overlapping ones each of which ends inside all that were open
    # where it began
    regular: NDArray[np.bool_]


def nesting(start: Integers, end: Integers, lane: NDArray[Any]) -> Nesting:
    """Find which intervals lie inside which, without going through them one by one.

    They are by lane and start, outer ones before those that begin with them.
    """
    count = len(lane)
    level, row = np.zeros(count, dtype=np.int64), np.arange(count)
    timed = end > start
    edges = np.flatnonzero(np.diff(lane, prepend=lane[:1] - 1, append=lane[-1:] + 1))
    for low, high in itertools.pairwise(edges.tolist()):
        begun = timed[low:high]
        ended = np.searchsorted(np.sort(end[low:high][begun]), start[low:high], side="right")
        level[low:high] = np.cumsum(begun) - begun - ended
    # The innermost open span is the last one begun a level further out.
    inside = np.flatnonzero(level > 0)
    keys = np.sort(level[timed] * count + row[timed])
    place = np.searchsorted(keys, (level[inside] - 1) * count + inside) - 1
    parent = np.full(count, -1, dtype=np.int64)
    parent[inside] = keys[np.maximum(place, 0)] % count
    group = np.cumsum(level == 0) - 1
    around = parent[inside]
    crossing = (end[inside] > end[around]) | (group[around] != group[inside])
    regular = np.ones(count, dtype=bool)
    regular[group[inside[crossing]]] = False
    return Nesting(level, parent, regular[group])


def length_before(start_ns: Integers, end_ns: Integers, time_ns: Integers) -> Integers:
    """Return how much of some stretches, one after another, lies before each moment."""
    before = np.append(0, np.cumsum(end_ns - start_ns))
    place = np.searchsorted(start_ns, time_ns, side="right") - 1
    last = np.maximum(place, 0)
    result: Integers = before[last] + np.minimum(time_ns, end_ns[last]) - start_ns[last]
    return np.where(place >= 0, result, 0)
