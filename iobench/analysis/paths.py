"""The chain of work that each waited-for batch came from: section 4 of the definition.

A *turn* is the stretch one batch has on one thread. Walking back from a batch's last turn, each
turn's predecessor is whatever finished last before it: the turn before it on its thread, an
earlier turn of its own batch on another thread, or the submission of the batch. Where threads hand
on single items, work on another item of the batch is no predecessor of work on one. For a pool of
workers that each make whole batches this is the chain of consecutive batches of one worker. A
thread of the training process that had no room for what it makes was held back until it was
released: by the training loop, which is slack, or by a later stage's turn, its predecessor then.
"""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from iobench.analysis.partition import Pieces

Integers = NDArray[np.int64]


class Turns(msgspec.Struct, frozen=True):
    """The pieces of the loading threads, joined where they follow each other in one batch."""

    lane: Integers
    batch: Integers
    item: Integers
    start_ns: Integers
    end_ns: Integers
    piece: Integers

    def __len__(self) -> int:
        return len(self.batch)


def make_turns(pieces: Pieces, part: Integers | None = None, item: Integers | None = None) -> Turns:
    """Return the turns of pieces, which are by lane and time already.

    ``part`` (one number per piece) parts turns further: where threads hand on single items, each
    span of theirs may have waited for its own, and ``item`` tells which that was, -1 where none.
    """
    n_pieces = len(pieces.batch)
    edge = np.ones(n_pieces, dtype=bool)
    edge[1:] = (np.diff(pieces.batch) != 0) | (np.diff(pieces.lane) != 0)
    if part is not None:
        edge[1:] |= np.diff(part) != 0
    begin = np.flatnonzero(edge)
    ends = np.maximum.reduceat(pieces.end_ns, begin) if n_pieces else pieces.end_ns
    return Turns(
        lane=pieces.lane[begin],
        batch=pieces.batch[begin],
        item=np.full(len(begin), -1, dtype=np.int64) if item is None else item[begin],
        start_ns=pieces.start_ns[begin],
        end_ns=ends,
        piece=np.append(begin, n_pieces).astype(np.int64),
    )


class Stretch(msgspec.Struct, frozen=True):
    """A part of a path: ``[low_ns, high_ns)`` inside a turn, or between turns (turn -1)."""

    turn: int
    low_ns: int
    high_ns: int
    late: int = -1


class Path(msgspec.Struct, frozen=True):
    """What a batch's readiness hung on, without slack, from ``start_ns`` to ``ready_ns``."""

    start_ns: int
    ready_ns: int
    stretches: tuple[Stretch, ...]  # newest first; they tile ``[start_ns, ready_ns)``
    # Where the path ends on that of an earlier delivery: what that one had after this point, whose
    # labels are no part of this delay
    after_cut: tuple[Stretch, ...]
    begins: int  # the turn the path begins with, -1 if it was cut


def releases_by_turn(releases: Integers, turns: Turns) -> dict[int, tuple[int, int]]:
    """Return the time and the lane that released each turn whose thread was held back before it."""
    first = np.searchsorted(turns.lane, np.arange(int(turns.lane.max(initial=-1)) + 2))
    released = {}
    for lane, time_ns, end_ns, by in releases.tolist():
        low, high = int(first[lane]), int(first[lane + 1])
        turn = low + int(np.searchsorted(turns.start_ns[low:high], end_ns))
        if turn < high:
            released[turn] = (time_ns, by)
    return released


class Walker:
    """Walks the paths of one run, in order of delivery; each span ends up on one path at most.

    ``submitted_ns`` is when each batch was submitted; a batch without an entry never ends a path.
    ``released`` is, by turn whose thread was held back, until when, and the lane whose work
    released it, -1 for the training loop.
    """

    def __init__(
        self,
        turns: Turns,
        submitted_ns: dict[int, int],
        released: dict[int, tuple[int, int]] | None = None,
    ) -> None:
        self._start = turns.start_ns.tolist()
        self._end = turns.end_ns.tolist()
        self._lane = turns.lane.tolist()
        self._batch = turns.batch.tolist()
        self._submitted_ns = submitted_ns
        self._released = released or {}
        lanes = np.arange(max(self._lane, default=-1) + 2)
        self._first_of_lane = np.searchsorted(turns.lane, lanes).tolist()
        self._item = turns.item.tolist()
        # By batch, and by item of it, in the order in which they finished.
        self._order = [0] * len(turns)
        self._of_batch: dict[int, list[int]] = {}
        self._of_item: dict[tuple[int, int], list[int]] = {}
        for order, turn in enumerate(np.argsort(turns.end_ns, kind="stable").tolist()):
            self._order[turn] = order
            if (batch := self._batch[turn]) >= 0:
                self._of_batch.setdefault(batch, []).append(turn)
                self._of_item.setdefault((batch, self._item[turn]), []).append(turn)
        # Per turn on a path already: whose, where in it, and up to when.
        self._claims: dict[int, tuple[list[Stretch], int, int]] = {}

    def ready(self, batch: int, delivered_ns: int) -> tuple[int, int] | None:
        """Return (turn, time) at which the batch was ready; None where nothing of it is known."""
        turns = [turn for turn in self._of_batch.get(batch, ()) if self._start[turn] < delivered_ns]
        if not turns:
            return None
        return turns[-1], min(self._end[turns[-1]], delivered_ns)

    def under_way(self, time_ns: int) -> list[int]:
        """Return the turn that each lane was at just before a time."""
        turns = (
            (first, bisect.bisect_left(self._start, time_ns, first, last) - 1)
            for first, last in itertools.pairwise(self._first_of_lane)
        )
        return [turn for first, turn in turns if turn >= first and self._end[turn] >= time_ns]

    def walk(self, turn: int, ready_ns: int) -> Path:
        """Return the path that ends at ``ready_ns`` in a turn, and keep it for later ones."""
        path: list[Stretch] = []
        high = ready_ns
        while True:
            claim = self._claims.get(turn)
            low = self._start[turn] if claim is None else claim[2]
            if claim is None or low < high:
                path.append(Stretch(turn, low, high))
            if claim is not None:
                after = tuple(claim[0][: claim[1]])
                self._keep(path)
                return Path(low, ready_ns, tuple(path), after, -1)
            before = self._predecessor(turn)
            if before is None:
                self._keep(path)
                return Path(low, ready_ns, tuple(path), (), turn)
            high = self._end[before]
            if high < low:
                path.append(Stretch(-1, high, low, late=turn))
            turn = before

    def _keep(self, path: list[Stretch]) -> None:
        for position, stretch in enumerate(path):
            if stretch.turn >= 0:
                self._claims[stretch.turn] = (path, position, stretch.high_ns)

    def _predecessor(self, turn: int) -> int | None:
        """Return what finished last before a turn; None where that is its submission."""
        upstream = self._upstream(turn)
        if turn in self._released:
            release_ns, lane = self._released[turn]
            before = (upstream, turn - 1) if self._follows(turn) else (upstream,)
            if all(other is None or self._end[other] < release_ns for other in before):
                return self._last_on(lane, release_ns)
        if not self._follows(turn):
            return upstream
        on_lane_end = self._end[turn - 1]
        if upstream is not None:
            return upstream if self._end[upstream] >= on_lane_end else turn - 1
        # What began before its batch was submitted, as drawing its samples, was not held up by it.
        submitted = self._submitted_ns.get(self._batch[turn], on_lane_end)
        return None if on_lane_end < submitted <= self._start[turn] else turn - 1

    def _follows(self, turn: int) -> bool:
        """Tell whether there is a turn before this one on its lane."""
        return turn > 0 and self._lane[turn - 1] == self._lane[turn]

    def _last_on(self, lane: int, time_ns: int) -> int | None:
        """Return a lane's last turn that began before and ended by a time."""
        if lane < 0:
            return None
        first, last = self._first_of_lane[lane], self._first_of_lane[lane + 1]
        turn = bisect.bisect_right(self._end, time_ns, first, last) - 1
        # Strictly before, or empty turns at one instant could wait in a circle.
        while turn >= first and self._start[turn] >= time_ns:
            turn -= 1
        return turn if turn >= first else None

    def _upstream(self, turn: int) -> int | None:
        """Return the batch's turn that finished last before this one began: of its own item."""
        batch, item = self._batch[turn], self._item[turn]
        if batch < 0:
            return None
        if item < 0:
            return self._last_before(self._of_batch[batch], turn)
        lists = [self._of_item[batch, item], self._of_item.get((batch, -1), [])]
        result = [before for each in lists if (before := self._last_before(each, turn)) is not None]
        return max(result, key=self._order.__getitem__, default=None)

    def _last_before(self, turns: list[int], turn: int) -> int | None:
        """Return the last of some turns, by their ends, that had finished when one began."""
        finished = bisect.bisect_right(turns, self._start[turn], key=self._end.__getitem__)
        # Empty turns at one instant: their order keeps them from waiting in a circle.
        before = bisect.bisect_left(turns, self._order[turn], key=self._order.__getitem__)
        place = min(finished, before) - 1
        return turns[place] if place >= 0 else None
