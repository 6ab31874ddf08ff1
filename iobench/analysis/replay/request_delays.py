"""When batches were asked for and by whom they were begun: the delays that no stage explains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["UNKNOWN", "Asked", "batches_ahead_of", "makers_of", "startup_of", "submit_of"]

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]

UNKNOWN: Final = int(np.iinfo(np.int64).min)
"""A time that nobody noted."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The batches in question: of which wait, of which round, and when that began."""

    row: Integers
    batch: Integers
    round: Integers
    asked_ns: Integers
    delivered_ns: Integers
    round_start_ns: Integers

    def __len__(self) -> int:
        return len(self.row)

    def of(self, batch: Integers) -> Integers:
        """Return the place of each batch number among these, -1 where it is none of them."""
        order = np.argsort(self.batch, kind="stable")
        place = np.searchsorted(self.batch[order], batch)
        found = place < len(order)
        result = np.full(len(batch), -1, dtype=np.int64)
        result[found] = order[place[found]]
        same = (batch >= 0) & (np.append(self.batch, -1)[result] == batch)
        return np.where(same, result, -1)


def batches_ahead_of(asked: Asked, submitted: Integers) -> int | None:
    """Return how many batches before the one begun was just taken when there was room for it.

    Where several were taken at that very instant, it does not tell which of them made room.
    """
    lags: list[Integers] = []
    for number in range(len(asked.round_start_ns)):
        rows = np.flatnonzero(asked.round == number)
        if not len(rows):
            continue
        release = submitted[rows]
        taken = np.searchsorted(asked.asked_ns[rows], release, side="right") - 1
        delivered = asked.delivered_ns[rows]
        first, after = (np.searchsorted(delivered, release, side) for side in ("left", "right"))
        taken = np.where(after - first == 1, first, taken)
        late = (release != UNKNOWN) & (release > delivered[0]) & (after - first <= 1)
        lags.append((np.arange(len(rows)) - taken)[late & (taken >= 1)])
    all_lags = np.concatenate(lags) if lags else np.zeros(0, dtype=np.int64)
    values, counts = np.unique(all_lags[all_lags > 0], return_counts=True)
    return int(values[np.argmax(counts)]) if len(values) else None


def startup_of(asked: Asked, submitted: Integers, begin: Integers, seen: Marks) -> Integers:
    """Return from each round's first question until the first batch was submitted, or begun."""
    earliest = np.full(len(asked.round_start_ns), np.iinfo(np.int64).max)
    known = submitted != UNKNOWN
    np.minimum.at(earliest, asked.round[known], submitted[known])
    begun = np.full(len(earliest), np.iinfo(np.int64).max)
    np.minimum.at(begun, asked.round[seen], begin[seen])
    earliest = np.minimum(earliest, begun)
    untold = earliest == np.iinfo(np.int64).max
    return np.where(untold, 0, earliest - asked.round_start_ns)


def submit_of(
    asked: Asked,
    submitted: Integers,
    startup: Integers,
    lane: Integers,
    begin: Integers,
    end: Integers,
) -> tuple[Integers, Integers]:
    """Return from submission to first stage, and what a busy maker took between two batches.

    A busy maker has no delay of the first sort that anybody could see: it has the usual one of
    those that were idle, or as much of it as there was time for.
    """
    order = np.lexsort((begin, lane, asked.round))
    same = (np.diff(lane[order]) == 0) & (np.diff(asked.round[order]) == 0)
    before = np.full(len(asked), UNKNOWN, dtype=np.int64)
    before[order[1:][same]] = end[order[:-1][same]]
    seen, first = lane >= 0, before == UNKNOWN
    opened = (asked.round_start_ns + startup)[asked.round]
    told = submitted != UNKNOWN
    # All that is submitted before the first delivery counts from the first of it.
    since = np.where(first, opened, np.where(told, submitted, before))
    idle = seen & (first | (told & (submitted > before)))
    submit = np.where(idle, np.maximum(begin - since, 0), 0)
    # The rule has it that the loop submits when it holds a batch; it did so while it picked it up.
    submit -= np.where(idle & ~first & told, _before_delivery(asked, submitted), 0)
    usual = submit[idle & ~first]
    typical = int(np.median(usual)) if len(usual) else 0
    busy = seen & ~idle
    submit[busy] = np.where(told, np.clip(before - since, 0, typical), typical)[busy]
    turn = np.where(busy, np.maximum(begin - np.where(busy, before, 0), 0), 0)
    return submit, turn


def _before_delivery(asked: Asked, submitted: Integers) -> Integers:
    """Return how long before the end of a wait each submission was, 0 for those in no wait."""
    wait = np.maximum(np.searchsorted(asked.asked_ns, submitted, side="left") - 1, 0)
    inside = (asked.asked_ns[wait] < submitted) & (submitted < asked.delivered_ns[wait])
    return np.where(inside, asked.delivered_ns[wait] - submitted, 0)


def makers_of(asked: Asked, lane: Integers, begin: Integers) -> tuple[Integers, int]:
    """Return who made each batch, numbered by who began first in its round, and how many."""
    maker = np.full(len(asked), -1, dtype=np.int64)
    n_makers = 0
    for number in range(len(asked.round_start_ns)):
        rows = np.flatnonzero((asked.round == number) & (lane >= 0))
        lanes, first, inverse = np.unique(
            lane[rows[np.argsort(begin[rows], kind="stable")]],
            return_index=True,
            return_inverse=True,
        )
        rank = np.argsort(np.argsort(first))
        maker[rows[np.argsort(begin[rows], kind="stable")]] = rank[inverse.reshape(-1)]
        n_makers = max(n_makers, len(lanes))
    return maker, n_makers
