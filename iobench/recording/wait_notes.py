"""Waits too short to be recorded one by one: two times each, written many at a time.

A `DeliveryLog` has them numbered and says when to write; whoever makes the batches says how.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

MOST: Final = 512
"""Waits that are noted in one go."""
MOST_NS: Final = 1_000_000_000
"""No longer than this is anything kept that a kill would lose."""


class NotedWaits(NamedTuple):
    """Waits of one round, in order of time.

    Parameters
    ----------
    batches : list of int
        The number of each batch.
    times_ns : ndarray of int64, shape (n_batches, 2)
        When each was asked for, and when it was there.
    epoch, number : int
        Of the pass, and of the round.
    is_latest : bool
        Whether nothing was asked for after them.
    """

    batches: list[int]
    times_ns: NDArray[np.int64]
    epoch: int
    number: int
    is_latest: bool


class WaitNotes:
    """The waits of one round that were noted and are not written yet.

    Parameters
    ----------
    write : callable
        Records `NotedWaits`.

    Attributes
    ----------
    times_ns : array of int
        Of each batch when it was asked for and when it was there: whoever notes them appends.
    due_ns : int
        From then on a batch is to be recorded in full again.
    limit : int
        When there are so many times likewise.
    """

    __slots__ = ("_batches", "_write", "due_ns", "limit", "times_ns")

    def __init__(self, write: Callable[[NotedWaits], None]) -> None:
        self.times_ns = array("q")
        self.limit = 2 * MOST
        self.due_ns = 0
        self._batches: list[int] = []
        self._write = write

    @property
    def within(self) -> bool:
        """Whether a batch is waited for."""
        return len(self.times_ns) % 2 == 1

    def take_back(self) -> int:
        """Forget the wait that goes on; return when it began."""
        return self.times_ns.pop()

    @property
    def n_unnumbered(self) -> int:
        """How many batches have no number yet."""
        return len(self.times_ns) // 2 - len(self._batches)

    def number(self, batches: Sequence[int]) -> int:
        """Give those batches their numbers; return when the last one was there."""
        self._batches += batches
        return self.times_ns[2 * len(self._batches) - 1]

    def write(self, epoch: int, number: int, now_ns: int, *, few: bool = True) -> None:
        """Record what has a number; unless ``few``, only where that is much by now."""
        n_batches = len(self._batches)
        if not n_batches or not (
            few or n_batches > MOST // 2 or now_ns > self.times_ns[0] + MOST_NS
        ):
            return
        times = np.array(self.times_ns[: 2 * n_batches]).reshape(n_batches, 2)
        del self.times_ns[: 2 * n_batches]
        batches, self._batches = self._batches, []
        self._write(NotedWaits(batches, times, epoch, number, not self.times_ns))
