"""The chain of work that each waited-for batch came from: section 4 of the definition.

A *block* is the stretch one batch has on one thread. Walking back from a batch's last block, each
block's predecessor is whatever finished last before it: the block before it on its thread, an
earlier block of its own batch on another thread, or the submission of the batch. For a pool of
workers that each make whole batches this is the chain of consecutive batches of one worker.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from iobench.analysis.partition import Pieces

__all__ = ["Blocks", "Path", "Stretch", "Walker", "make_blocks"]

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The pieces of the loading threads, joined where they follow each other in one batch.

    Rows are by lane, then time; ``piece`` has one row more, so that block i holds the pieces
    ``piece[i]:piece[i + 1]``.
    """

    lane: Integers
    batch: Integers
    start_ns: Integers
    end_ns: Integers
    piece: Integers

    def __len__(self) -> int:
        return len(self.batch)


def make_blocks(pieces: Pieces) -> Blocks:
    """Return the blocks of pieces, which are by lane and time already."""
    n_pieces = len(pieces.batch)
    edge = np.ones(n_pieces, dtype=bool)
    edge[1:] = (np.diff(pieces.batch) != 0) | (np.diff(pieces.lane) != 0)
    begin = np.flatnonzero(edge)
    ends = np.maximum.reduceat(pieces.end_ns, begin) if n_pieces else pieces.end_ns
    return Blocks(
        lane=pieces.lane[begin],
        batch=pieces.batch[begin],
        start_ns=pieces.start_ns[begin],
        end_ns=ends,
        piece=np.append(begin, n_pieces).astype(np.int64),
    )


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a path: ``[low_ns, high_ns)`` inside a block, or between blocks (block -1).

    A stretch between two blocks is named by the block that ran late, ``late``.
    """

    block: int
    low_ns: int
    high_ns: int
    late: int = -1


@dataclass(frozen=True, slots=True)
class Path:
    """What a batch's readiness hung on, without slack, from ``start_ns`` to ``ready_ns``.

    Parameters
    ----------
    start_ns, ready_ns : int
    stretches : tuple of Stretch
        Newest first; they tile ``[start_ns, ready_ns)``.
    after_cut : tuple of Stretch
        Where the path ends on that of an earlier delivery: what that one had after this point,
        whose labels are no part of this delay.
    begins : int
        The block the path begins with, -1 if it was cut.
    """

    start_ns: int
    ready_ns: int
    stretches: tuple[Stretch, ...]
    after_cut: tuple[Stretch, ...]
    begins: int


class Walker:
    """Walks the paths of one run, in order of delivery; each span ends up on one path at most.

    Parameters
    ----------
    blocks : Blocks
        Of all loading threads.
    submitted_ns : dict of int to int
        When each batch was submitted; a batch without an entry never ends a path.
    """

    def __init__(self, blocks: Blocks, submitted_ns: dict[int, int]) -> None:
        self._start = blocks.start_ns.tolist()
        self._end = blocks.end_ns.tolist()
        self._lane = blocks.lane.tolist()
        self._batch = blocks.batch.tolist()
        self._submitted_ns = submitted_ns
        # By batch, in the order in which they finished.
        self._of_batch: dict[int, list[int]] = {}
        self._ends: dict[int, list[int]] = {}
        self._place = [0] * len(blocks)
        for block in np.argsort(blocks.end_ns, kind="stable").tolist():
            if (batch := self._batch[block]) >= 0:
                self._place[block] = len(self._of_batch.setdefault(batch, []))
                self._of_batch[batch].append(block)
                self._ends.setdefault(batch, []).append(self._end[block])
        # Per block on a path already: whose, where in it, and up to when.
        self._claims: dict[int, tuple[list[Stretch], int, int]] = {}

    def ready(self, batch: int, delivered_ns: int) -> tuple[int, int] | None:
        """Return (block, time) at which the batch was ready; None where nothing of it is known.

        Work that goes on after the batch was taken is no part of it.
        """
        blocks = [
            block for block in self._of_batch.get(batch, ()) if self._start[block] < delivered_ns
        ]
        if not blocks:
            return None
        return blocks[-1], min(self._end[blocks[-1]], delivered_ns)

    def walk(self, block: int, ready_ns: int) -> Path:
        """Return the path that ends at ``ready_ns`` in a block, and keep it for later ones."""
        path: list[Stretch] = []
        high = ready_ns
        while True:
            claim = self._claims.get(block)
            low = self._start[block] if claim is None else claim[2]
            if claim is None or low < high:
                path.append(Stretch(block, low, high))
            if claim is not None:
                after = tuple(claim[0][: claim[1]])
                self._keep(path)
                return Path(low, ready_ns, tuple(path), after, -1)
            before = self._predecessor(block)
            if before is None:
                self._keep(path)
                return Path(low, ready_ns, tuple(path), (), block)
            high = self._end[before]
            if high < low:
                path.append(Stretch(-1, high, low, late=block))
            block = before

    def _keep(self, path: list[Stretch]) -> None:
        for position, stretch in enumerate(path):
            if stretch.block >= 0:
                self._claims[stretch.block] = (path, position, stretch.high_ns)

    def _predecessor(self, block: int) -> int | None:
        """Return what finished last before a block; None where that is its submission."""
        upstream = self._upstream(block)
        if not block or self._lane[block - 1] != self._lane[block]:
            return upstream
        on_lane_end = self._end[block - 1]
        if upstream is not None:
            return upstream if self._end[upstream] >= on_lane_end else block - 1
        submitted = self._submitted_ns.get(self._batch[block])
        return None if submitted is not None and submitted > on_lane_end else block - 1

    def _upstream(self, block: int) -> int | None:
        """Return the batch's block that finished last before this one began."""
        batch = self._batch[block]
        if batch < 0:
            return None
        finished = bisect.bisect_right(self._ends[batch], self._start[block])
        # Empty blocks at one instant: the order of the list keeps them from waiting in a circle.
        place = min(finished, self._place[block]) - 1
        return self._of_batch[batch][place] if place >= 0 else None
