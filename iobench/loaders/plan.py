"""Which samples make up which batch: seeded permutations, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from iobench.errors import OptionError
from iobench.loaders.contract import PlannedBatch
from iobench.loaders.ring.order import Permutation

__all__ = ["BatchPlan", "plan_batches"]

DRAWN_AT_ONCE: Final = 4096


def plan_batches(
    n_samples: int,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    drawn: Callable[[list[int]], None] | None = None,
) -> Iterator[PlannedBatch]:
    """Yield batches without end: each epoch visits every sample once, in a new order.

    No order is drawn whole but for whoever asks (``drawn``): batches are drawn while the loop waits
    for them, and a training draws its own in C.

    A batch may span two epochs when ``batch_size`` does not divide ``n_samples``, so that all
    batches have one size; it then counts to the epoch its first sample is of. ``drawn`` is told the
    order of each epoch before its first batch.

    Raises
    ------
    OptionError
        If there is no sample, or ``batch_size`` is below 1.
    """
    if batch_size < 1:
        raise OptionError(f"--batch-size {batch_size}: expected 1 or more")
    if n_samples < 1:
        raise OptionError("there are no samples to load: nothing to profile")
    return _batches(batch_size, _samples(n_samples, seed, shuffle, drawn))


def _batches(batch_size: int, stream: Iterator[tuple[int, int]]) -> Iterator[PlannedBatch]:
    batch = 0
    while True:
        drawn = [next(stream) for _ in range(batch_size)]
        yield PlannedBatch(batch, drawn[0][0], tuple(sample for _, sample in drawn))
        batch += 1


def _samples(
    n_samples: int, seed: int, shuffle: bool, drawn: Callable[[list[int]], None] | None
) -> Iterator[tuple[int, int]]:
    epoch = 0
    while True:
        order = Permutation(n_samples, seed=seed, epoch=epoch) if shuffle else None
        if drawn is not None:
            places = np.arange(n_samples)
            drawn((places if order is None else order.at(places)).tolist())
        for first in range(0, n_samples, DRAWN_AT_ONCE):
            places = np.arange(first, min(first + DRAWN_AT_ONCE, n_samples))
            for sample in (places if order is None else order.at(places)).tolist():
                yield epoch, sample
        epoch += 1


class BatchPlan:
    """Hands out an endless plan round by round, until a limit of batches is reached or it is ended.

    Parameters
    ----------
    batches : iterator of PlannedBatch
        Where batches come from.
    limit : int or None
        How many at the most.
    before_epoch : callable, optional
        Called between rounds, before the first batch of an epoch is drawn; a round then ends with
        its epoch. A cold run evicts its files here, outside the time measured.
    """

    def __init__(
        self,
        batches: Iterator[PlannedBatch],
        *,
        limit: int | None,
        before_epoch: Callable[[], None] | None = None,
    ) -> None:
        self._batches = batches
        self._left = limit
        self._before_epoch = before_epoch
        self._epoch = -1
        self._pending: PlannedBatch | None = None
        self._ended = False

    @property
    def finished(self) -> bool:
        """Whether no further batch will be handed out."""
        return self._ended or self._left == 0

    def end(self) -> None:
        """Hand out no further batch."""
        self._ended = True

    def start_round(self) -> None:
        """Do what comes before an epoch, if the next round begins one."""
        if self._before_epoch is not None and not self.finished:
            self._pending = self._pending or next(self._batches)
            if self._pending.epoch != self._epoch:
                self._epoch = self._pending.epoch
                self._before_epoch()

    def take(self, n_batches: int | None) -> Iterator[PlannedBatch]:
        """Yield the next ``n_batches`` (all that are left for None), fewer at the end."""
        taken = 0
        while not self.finished and (n_batches is None or taken < n_batches):
            planned = self._pending or next(self._batches)
            self._pending = None
            if self._before_epoch is not None and planned.epoch != self._epoch:
                self._pending = planned
                return
            if self._left is not None:
                self._left -= 1
            taken += 1
            yield planned
