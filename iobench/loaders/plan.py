"""Which samples make up which batch: seeded permutations, epoch after epoch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from iobench.errors import OptionError
from iobench.loaders.contract import PlannedBatch

__all__ = ["BatchPlan", "plan_batches"]


def plan_batches(
    n_samples: int, batch_size: int, *, seed: int = 0, shuffle: bool = True
) -> Iterator[PlannedBatch]:
    """Yield batches without end: each epoch visits every sample once, in a new order.

    A batch may span two epochs when ``batch_size`` does not divide ``n_samples``, so that all
    batches have one size; it then counts to the epoch its first sample is of.

    Raises
    ------
    OptionError
        If there is no sample, or ``batch_size`` is below 1.
    """
    if batch_size < 1:
        raise OptionError(f"--batch-size {batch_size}: expected 1 or more")
    if n_samples < 1:
        raise OptionError("there are no samples to load: nothing to profile")
    return _batches(n_samples, batch_size, seed, shuffle)


def _batches(n_samples: int, batch_size: int, seed: int, shuffle: bool) -> Iterator[PlannedBatch]:
    stream = _samples(n_samples, seed, shuffle)
    batch = 0
    while True:
        drawn = [next(stream) for _ in range(batch_size)]
        yield PlannedBatch(batch, drawn[0][0], tuple(sample for _, sample in drawn))
        batch += 1


def _samples(n_samples: int, seed: int, shuffle: bool) -> Iterator[tuple[int, int]]:
    epoch = 0
    order = list(range(n_samples))
    while True:
        if shuffle:
            order = list(range(n_samples))
            random.Random(f"{seed}-{epoch}").shuffle(order)
        for sample in order:
            yield epoch, sample
        epoch += 1


class BatchPlan:
    """Hands out an endless plan in pieces, until a limit of batches is reached or it is ended.

    Parameters
    ----------
    batches : iterator of PlannedBatch
        Where batches come from.
    limit : int or None
        How many at the most.
    before_epoch : callable
        Called before the first batch of every epoch is handed out (a cold run evicts files here).
    """

    def __init__(
        self,
        batches: Iterator[PlannedBatch],
        *,
        limit: int | None,
        before_epoch: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self._batches = batches
        self._left = limit
        self._before_epoch = before_epoch
        self._epoch = -1
        self._ended = False

    @property
    def finished(self) -> bool:
        """Whether no further batch will be handed out."""
        return self._ended or self._left == 0

    def end(self) -> None:
        """Hand out no further batch."""
        self._ended = True

    def take(self, n_batches: int | None) -> Iterator[PlannedBatch]:
        """Yield the next ``n_batches`` (all that are left for None), fewer at the end."""
        taken = 0
        while not self.finished and (n_batches is None or taken < n_batches):
            planned = next(self._batches)
            if planned.epoch != self._epoch:
                self._epoch = planned.epoch
                if self._before_epoch is not None:
                    self._before_epoch(planned.samples)
            if self._left is not None:
                self._left -= 1
            taken += 1
            yield planned
