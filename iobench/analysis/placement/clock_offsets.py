"""How far the clock of a tracer is off: the offset that puts most of its calls inside stages.

A tracer's zero may be told tens of milliseconds too late (Darshan stamps it after its own set-up),
more than a whole read takes. But every call that read a sample was made inside a stage, so the
offset that puts the most calls inside stages is the right one, if it is clearly better than chance.

Each pair of call and stage allows an interval of offsets; the number of calls whose intervals hold
an offset is a step function, and its highest step is what is looked for. Of 100,000 calls and as
many stages that may be too many pairs, so a sample of the calls goes first: an offset that misses
more of the sample than the sample's best misses of all calls cannot be the best, and one that is
more than a tenth of the sample behind is not looked at again. What is left of the offsets is a few
microseconds, and the search there is exact. For n calls and m stages, and at most `PAIRS` pairs P,
the time is O((n + m) log (n + m) + P log P), the memory O(n + m + P).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.placement.stage_groups import Groups, Reach, contained, reaches
from iobench.frozen import frozen

Integers = NDArray[np.int64]
Window = tuple[int, int]
"""Offsets from the first to the last, both included."""

PAIRS: Final = 1 << 20
"""Pairs of call and stage looked at in one go."""
NEAR_NS: Final = 1_000_000
"""Equally good offsets within this are one window; further apart they contradict each other."""
CHANCE: Final = math.log(1e3)
"""Logarithm of how unlikely by chance a match must be."""
_PIECES: Final = 64
_TOLERATED: Final = 50
"""Of so many items one may lie elsewhere: its file was read outside of stages, or times jitter."""


@frozen
class FoundOffset:
    """What was found.

    Parameters
    ----------
    offset_ns, low_ns, high_ns : int
        The middle of the widest window of best offsets, and the first and last of these that lie
        near it.
    n_contained, n_items : int
        Calls inside stages at the offset, of those that some offset could have put there.
    matched : bool
        Whether it is clearly better than chance, and than any other offset.
    reason : str
        Why not.
    """

    offset_ns: int
    low_ns: int
    high_ns: int
    n_contained: int
    n_items: int
    matched: bool
    reason: str = ""


@frozen
class _Steps:
    """A step function over offsets: intervals one after the other, ends included."""

    low: Integers
    high: Integers
    height: Integers


def find_offset(
    start_ns: Integers,
    end_ns: Integers,
    families: Sequence[Groups],
    low_ns: int,
    high_ns: int,
    *,
    pairs: int = PAIRS,
) -> FoundOffset:
    """Return the offset that puts most items inside stages.

    Parameters
    ----------
    start_ns, end_ns : ndarray of int64, shape (n_items,)
        Calls, or instants, by the tracer's clock.
    families : sequence of Groups
        Stages that may hold them; an item counts once, however many stages hold it.
    low_ns, high_ns : int
        The offsets that are possible, ends included.
    pairs : int
        How many pairs of item and stage to look at in one go.
    """
    margin = max(abs(low_ns), abs(high_ns))
    parts = [part for each in families for part, _ in reaches(each, start_ns, end_ns, margin)]
    possible = np.zeros(len(start_ns), bool)
    for part in parts:
        at, first, last = part.candidates(low_ns, high_ns)
        possible[part.items[at[last > first]]] = True
    if not possible.any():
        return FoundOffset(0, low_ns, high_ns, 0, 0, matched=False)
    search = _Search(parts, np.flatnonzero(possible), len(start_ns), low_ns, high_ns, pairs)
    return search.best()


class _Search:
    """Narrows the offsets down, sample by sample of the items."""

    def __init__(
        self,
        parts: Sequence[Reach],
        items: Integers,
        n_items: int,
        low_ns: int,
        high_ns: int,
        pairs: int,
    ) -> None:
        self._parts, self._items, self._n_items = parts, items, n_items
        self._low_ns, self._high_ns, self._pairs = low_ns, high_ns, pairs

    def best(self) -> FoundOffset:
        region = [(self._low_ns, self._high_ns)]
        n, chance = len(self._items), -1.0
        while True:
            stride = self._stride(region)
            sample = self._items[::stride]
            steps = self._steps(sample, region)
            if chance < 0:
                width = self._high_ns - self._low_ns + 1
                lengths = (steps.high - steps.low + 1).astype(float)
                chance = float((lengths * steps.height).sum()) / width / len(sample)
            top = int(steps.height.max())
            if not top:
                return FoundOffset(
                    0, self._low_ns, self._high_ns, 0, n, matched=False,
                    reason="no call fits into a stage",
                )  # fmt: skip
            if stride == 1:
                break
            fair = self._fair(steps, top, len(sample))
            if _total(fair) >= _total(region) // 2:
                break  # so little matches that a sample must do
            region = fair
        spare = len(sample) // _TOLERATED + 1
        fair = _windows(steps, max(top - spare, 1), _PIECES)
        return self._judged(self._steps(sample, fair, with_stages=True), chance)

    def _fair(self, steps: _Steps, top: int, n_sample: int) -> list[Window]:
        """Return the offsets that may yet be the best, by what they miss of a sample.

        Left out are those that miss more of the sample than the sample's best misses of all items,
        and those that are more than a tenth of the sample behind it.
        """
        n = len(self._items)
        missed = n - self._n_contained(_middle(_widest(_windows(steps, top))))
        surely = n_sample - missed - n // _TOLERATED - 1
        return _windows(steps, max(surely, top - n_sample // 10 - 1, 1), _PIECES)

    def _stride(self, region: Sequence[Window]) -> int:
        """Return the smallest step between items that keeps to the number of pairs."""
        total = 0
        for low, high in region:
            for part in self._parts:
                _, first, last = part.candidates(low, high)
                total += int((last - first).sum())
        return max(-(-total // self._pairs), 1)

    def _steps(
        self, sample: Integers, region: Sequence[Window], *, with_stages: bool = False
    ) -> _Steps:
        """Return how many items of a sample lie in stages, and more for stages that hold any."""
        chosen = np.zeros(self._n_items, bool)
        chosen[sample] = True
        found = []
        for low, high in region:
            columns: list[tuple[Integers, Integers, Integers]] = []
            base = self._n_items
            for part in self._parts:
                item, stage, first, last = part.offsets(low, high, chosen)
                columns.append((item, first, last))
                if with_stages:
                    columns.append((stage + base, first, last))
                base += int(part.stages.max(initial=0)) + 1
            who, first, last = (np.concatenate(each) for each in zip(*columns, strict=True))
            found.append(_step_function(who, first, last, low, high))
        return _Steps(
            np.concatenate([each.low for each in found]),
            np.concatenate([each.high for each in found]),
            np.concatenate([each.height for each in found]),
        )

    def _n_contained(self, offset_ns: int) -> int:
        return int(contained(self._parts, self._n_items, offset_ns)[self._items].sum())

    def _judged(self, steps: _Steps, chance: float) -> FoundOffset:
        """Choose among the offsets that contain nearly the most items by stages left empty as well.

        Where stages follow each other closely, many offsets put all calls in some stage; at the
        right one nearly all stages that read have a call.
        """
        top = int(steps.height.max())
        windows = _windows(steps, top)
        widest = _widest(windows)
        offset, n = _middle(widest), len(self._items)
        low, high = _cluster(windows, widest)
        found = FoundOffset(offset, low, high, self._n_contained(offset), n, matched=True)
        n_stages = sum(
            len(np.unique(stage[stage >= 0]))
            for part in self._parts
            for stage in [part.holding(offset, offset)]
        )
        if _unlikeliness(found.n_contained / n, chance, n_stages) < CHANCE:
            reason = "too few calls lie where chance would not put them"
            return replace(found, matched=False, reason=reason)
        spare = min(n - found.n_contained, n // _TOLERATED)
        rivals = _windows(steps, max(top - spare, 1))
        if _cluster(rivals, widest) != (rivals[0][0], rivals[-1][1]):
            return replace(found, matched=False, reason="several offsets fit equally well")
        return found


def _step_function(item: Integers, low: Integers, high: Integers, first: int, last: int) -> _Steps:
    """Return how many items have an interval at each offset from first to last."""
    # What an earlier interval of the same item covers already is taken off the later ones.
    order = np.lexsort((low, item))
    item, low, high = item[order], low[order], high[order]
    number = np.cumsum(np.append(False, item[1:] != item[:-1]) if len(item) else item)
    lifted = high - first + number * (last - first + 2)
    before = np.maximum.accumulate(lifted)[:-1] - number[1:] * (last - first + 2) + first
    low[1:] = np.maximum(low[1:], before + 1)
    left = low <= high
    edges = np.concatenate(([first, last + 1], low[left], high[left] + 1))
    change = np.zeros(len(edges), np.int64)
    change[2 : 2 + left.sum()] = 1
    change[2 + left.sum() :] = -1
    places, where = np.unique(edges, return_inverse=True)
    height = np.cumsum(np.bincount(where.reshape(-1), change, len(places)).astype(np.int64))
    return _Steps(places[:-1], places[1:] - 1, height[:-1])


def _windows(steps: _Steps, height: int, most: int = 0) -> list[Window]:
    """Return the stretches of at least this height; where they are too many, across narrow gaps."""
    high_enough = steps.height >= height
    low, high = steps.low[high_enough], steps.high[high_enough]
    gaps = low[1:] - high[:-1] - 1
    widest = np.sort(gaps)[::-1][most - 1] if most and len(gaps) >= most else 0
    apart = gaps > widest
    return list(
        zip(
            low[np.append(True, apart)].tolist(), high[np.append(apart, True)].tolist(), strict=True
        )
    )


def _total(windows: Sequence[Window]) -> int:
    return sum(high - low for low, high in windows)


def _middle(window: Window) -> int:
    return sum(window) // 2


def _widest(windows: Sequence[Window]) -> Window:
    """Return the widest window; of several the one nearest to no offset at all."""
    return max(windows, key=lambda each: (each[1] - each[0], -abs(sum(each))))


def _cluster(windows: Sequence[Window], chosen: Window) -> Window:
    """Return the hull of the windows that hang together with the chosen one across narrow gaps."""
    first = last = next(i for i, each in enumerate(windows) if each[0] <= chosen[0] <= each[1])
    while first > 0 and windows[first][0] - windows[first - 1][1] <= NEAR_NS:
        first -= 1
    while last + 1 < len(windows) and windows[last + 1][0] - windows[last][1] <= NEAR_NS:
        last += 1
    return windows[first][0], windows[last][1]


def _unlikeliness(share: float, chance: float, number: int) -> float:
    """Return the logarithm of how unlikely a share is (Chernoff's bound on the binomial tail).

    The number is that of stages hit, not of calls: calls of one stage come together by themselves.
    """
    if share <= chance or number == 0:
        return 0.0
    chance = max(chance, 1e-9)
    rest = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return number * (share * math.log(share / chance) + rest)
