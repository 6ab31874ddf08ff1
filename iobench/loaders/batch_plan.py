"""Which samples make up which batch: seeded permutations, epoch after epoch, computed by place."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from iobench.errors import OptionError
from iobench.loaders.contract import PlannedBatch
from iobench.loaders.ring.order import BLOCK, BatchOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray


def plan_batches(
    n_samples: int,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    drawn: Callable[[NDArray[np.int64]], object] | None = None,
    taken: NDArray[np.int64] | None = None,
) -> Iterator[PlannedBatch]:
    """Yield batches without end: each epoch visits every sample once, in a new order.

    A batch may span two epochs when ``batch_size`` does not divide ``n_samples``, so that all
    batches have one size; it then counts to the epoch its first sample is of. ``drawn`` is told the
    order of each epoch before its first batch, `MOST_PLANNED` samples at a time. ``taken`` says
    what the samples are called, where they are some of many.
    """
    if batch_size < 1:
        raise OptionError(f"--batch-size {batch_size}: expected 1 or more")
    if n_samples < 1:
        raise OptionError("there are no samples to load: nothing to profile")
    order = BatchOrder(n_samples, BLOCK, shuffle=shuffle, seed=seed)

    def named(samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return samples if taken is None else taken[samples]

    def expect(samples: NDArray[np.int64], *, follows: bool) -> None:
        if drawn is not None:
            drawn(named(samples))

    return _cut(order, named, None if drawn is None else expect, batch_size)


def _cut(
    order: BatchOrder,
    named: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    expect: Callable[..., None] | None,
    batch_size: int,
) -> Iterator[PlannedBatch]:
    number = begun = 0
    left = np.empty(0, dtype=np.int64)
    for epoch in itertools.count():
        for samples in order.batches(epoch, expect=expect):
            begun = begun if len(left) else epoch
            left = np.concatenate([left, named(samples)])
            while len(left) >= batch_size:
                yield PlannedBatch(number, begun, tuple(left[:batch_size].tolist()))
                number, begun, left = number + 1, epoch, left[batch_size:]


class BatchPlan:
    """Hands out an endless plan round by round, until a limit of batches or its end."""

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
        if self._before_epoch is None or self.finished:
            return
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
