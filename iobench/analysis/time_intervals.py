"""Intervals ``[start, end)`` of time, or of bytes: which overlap, and what several cover together.

All are pairs of arrays of int64 of one length, in ns unless said otherwise.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

__all__ = ["covered", "groups", "overlap_ns", "overlaps_none", "union"]

Integers = NDArray[np.int64]


def groups(start: Integers, end: Integers, *, touching: bool = False) -> Integers:
    """Return for each interval, by start, the number of its group: those that overlap share one.

    ``touching`` joins those as well of which one begins where the other ends.
    """
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


def overlaps_none(start: Integers, end: Integers, lane: Integers) -> NDArray[np.bool_]:
    """Tell which intervals, by lane and start, overlap no other of their lane."""
    alone = np.ones(len(start), dtype=bool)
    edges = np.flatnonzero(np.diff(lane, prepend=lane[:1] - 1, append=lane[-1:] + 1))
    for low, high in itertools.pairwise(edges.tolist()):
        clear = start[low + 1 : high] >= np.maximum.accumulate(end[low:high])[:-1]
        alone[low + 1 : high] &= clear
        alone[low : high - 1] &= clear
    return alone
