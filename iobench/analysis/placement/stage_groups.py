"""Intervals in groups, and which of them hold an item: by offset, and the innermost.

An item (a call that read, or an instant) may lie in the stages of its group only: those that name
its file. All groups are laid out one after the other on one axis, so that one search serves all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from iobench.frozen import frozen

Integers = NDArray[np.int64]
NO_ROW: Final = -1
_AXIS: Final = 1 << 61


@frozen
class Groups:
    """Stages by group, and the groups of items.

    Parameters
    ----------
    start_ns, end_ns, group : ndarray of int64, shape (n_stages,)
        Groups count from 0.
    item_group : ndarray of int64, shape (n_items,)
        -1 for an item that none of these stages may hold.
    """

    start_ns: Integers
    end_ns: Integers
    group: Integers
    item_group: Integers


class Reach:
    """The stages of some groups on one axis, and the items that may lie in them.

    Parameters
    ----------
    stages : Integers
        Indices of the stages, any order.
    start, end : Integers
        Of the stages, on the axis.
    items, item_start, item_end : Integers
        Indices of the items, and they on the axis.

    Attributes
    ----------
    stages, start, end : Integers
        Of the stages that lie inside no other of their group, by start and so by end.
    inner : ndarray of bool
        Marks the stages given that lie inside another.
    """

    def __init__(
        self,
        stages: Integers,
        start: Integers,
        end: Integers,
        items: Integers,
        item_start: Integers,
        item_end: Integers,
    ) -> None:
        order = np.lexsort((-end, start))
        reached = np.maximum.accumulate(end[order]) if len(end) else end
        outer = np.ones(len(order), bool)
        outer[1:] = end[order][1:] > reached[:-1]
        kept = order[outer]
        self.stages, self.start, self.end = stages[kept], start[kept], end[kept]
        self.items, self.item_start, self.item_end = items, item_start, item_end
        self.inner = np.ones(len(order), bool)
        self.inner[kept] = False

    def candidates(
        self, low_ns: int, high_ns: int, chosen: NDArray[np.bool_] | None = None
    ) -> tuple[Integers, Integers, Integers]:
        """Return places in ``items``, and for each the range of stages within reach."""
        at = np.arange(len(self.items)) if chosen is None else np.flatnonzero(chosen[self.items])
        first = np.searchsorted(self.end, self.item_end[at] + low_ns, "left")
        last = np.searchsorted(self.start, self.item_start[at] + high_ns, "right")
        return at, first, np.maximum(last, first)

    def offsets(
        self, low_ns: int, high_ns: int, chosen: NDArray[np.bool_] | None = None
    ) -> tuple[Integers, Integers, Integers, Integers]:
        """Return every pair's item, stage, and first and last offset that joins them."""
        at, first, last = self.candidates(low_ns, high_ns, chosen)
        number = last - first
        at = np.repeat(at, number)
        begun = np.cumsum(number) - number
        stage = np.arange(len(at)) - np.repeat(begun - first, number)
        low = np.maximum(self.start[stage] - self.item_start[at], low_ns)
        high = np.minimum(self.end[stage] - self.item_end[at], high_ns)
        found = low <= high
        return self.items[at[found]], self.stages[stage[found]], low[found], high[found]

    def holding(self, low_ns: int, high_ns: int) -> Integers:
        """Return for each item the last stage that holds it at all these offsets, else -1."""
        place = np.searchsorted(self.start, self.item_start + low_ns, "right") - 1
        held = place >= 0
        held[held] = self.end[place[held]] >= self.item_end[held] + high_ns
        return np.where(held, self.stages[place] if len(self.stages) else place, NO_ROW)


def reaches(
    groups: Groups, start_ns: Integers, end_ns: Integers, margin_ns: int
) -> Iterator[tuple[Reach, Integers]]:
    """Yield the stages and items of a family, in parts that fit on one axis.

    With each part the places of its stages in the family: what `Reach.inner` marks.
    """
    used = np.unique(groups.group)
    items = np.flatnonzero(np.isin(groups.item_group, used)) if len(used) else used
    if not len(items):
        return
    stages = np.flatnonzero(np.isin(groups.group, groups.item_group[items]))
    base = int(min(groups.start_ns[stages].min(), start_ns[items].min()))
    top = int(max(groups.end_ns[stages].max(), end_ns[items].max()))
    width = top - base + 4 * margin_ns + 1
    slot = np.searchsorted(used, groups.group[stages])
    item_slot = np.searchsorted(used, groups.item_group[items])
    each = max(_AXIS // width, 1)
    for first in range(0, len(used), each):
        mine = (slot >= first) & (slot < first + each)
        its = (item_slot >= first) & (item_slot < first + each)
        shift, item_shift = (slot[mine] - first) * width, (item_slot[its] - first) * width
        yield (
            Reach(
                stages[mine],
                groups.start_ns[stages[mine]] - base + shift,
                groups.end_ns[stages[mine]] - base + shift,
                items[its],
                start_ns[items[its]] - base + item_shift,
                end_ns[items[its]] - base + item_shift,
            ),
            stages[mine],
        )


def contained(parts: Sequence[Reach], n_items: int, offset_ns: int) -> NDArray[np.bool_]:
    """Mark the items that lie in a stage at this offset."""
    marks = np.zeros(n_items, bool)
    for part in parts:
        marks[part.items[part.holding(offset_ns, offset_ns) >= 0]] = True
    return marks


def innermost(
    groups: Groups, start_ns: Integers, end_ns: Integers, low_ns: int, high_ns: int
) -> Integers:
    """Return for each item a stage of its group that holds it at all these offsets, else -1.

    In it lies no other stage that holds the item. Stages are peeled from outside, so the time is
    that of one search for each depth of nesting.
    """
    found = np.full(len(start_ns), NO_ROW, np.int64)
    margin = max(abs(low_ns), abs(high_ns))
    columns = np.stack((groups.end_ns, groups.start_ns, groups.group))
    kept = np.lexsort(columns)
    columns = columns[:, kept]
    new = np.ones(len(kept), bool)
    new[1:] = (columns[:, 1:] != columns[:, :-1]).any(0)
    kept = kept[new]  # one of those that are alike, else each would be a layer
    while len(kept):
        layer = Groups(
            groups.start_ns[kept], groups.end_ns[kept], groups.group[kept], groups.item_group
        )
        inside = []
        for part, stages in reaches(layer, start_ns, end_ns, margin):
            held = part.holding(low_ns, high_ns)
            found[part.items[held >= 0]] = kept[held[held >= 0]]
            inside.append(kept[stages[part.inner]])
        kept = np.concatenate(inside) if inside else kept[:0]
    return found
