"""Which samples make up which batch: seeded permutations, epoch after epoch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.errors import OptionError
from iobench.loaders.contract import PlannedBatch
from iobench.loaders.pipeline import MOST_PLANNED
from iobench.loaders.ring.order import Permutation

if TYPE_CHECKING:
    from iobench.loaders.pipeline import Pipeline

__all__ = ["BatchPlan", "EpochOrders", "ToldOrder", "plan_batches"]

DRAWN_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True)
class EpochOrders:
    """In which order each epoch visits the samples; any process can tell.

    Parameters
    ----------
    n_samples, seed : int
    shuffle : bool
        Else they come one after the other.
    """

    n_samples: int
    seed: int = 0
    shuffle: bool = True

    def of(self, epoch: int) -> Callable[[int, int], list[int]]:
        """Return what gives the samples of an epoch from one place to another, or to its end."""
        order = Permutation(self.n_samples, seed=self.seed, epoch=epoch) if self.shuffle else None

        def between(first: int, stop: int) -> list[int]:
            places = np.arange(first, min(stop, self.n_samples))
            found: list[int] = (places if order is None else order.at(places)).tolist()
            return found

        return between


class ToldOrder:
    """Tells a pipeline, where its samples are made, in which order they are asked for.

    A process that makes some of the batches is told the order of all: which of them it will be
    given nobody knows ahead.

    Parameters
    ----------
    pipeline : Pipeline
    orders : EpochOrders
    batch_size : int
    """

    def __init__(self, pipeline: Pipeline, orders: EpochOrders, batch_size: int) -> None:
        self._pipeline, self._orders, self._batch_size = pipeline, orders, batch_size
        self._part = -1, -1

    def before(self, batch: int) -> None:
        """Tell the part of an epoch that a batch begins in, once; batches come in their order."""
        epoch, place = divmod(batch * self._batch_size, self._orders.n_samples)
        first = place // MOST_PLANNED * MOST_PLANNED
        if self._part != (epoch, first):
            self._part = epoch, first
            samples = self._orders.of(epoch)(first, first + MOST_PLANNED)
            self._pipeline.expect(samples, follows=False)


def plan_batches(
    n_samples: int,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    drawn: Callable[[list[int]], None] | None = None,
) -> Iterator[PlannedBatch]:
    """Yield batches without end: each epoch visits every sample once, in a new order.

    No order is drawn far ahead but for whoever asks (``drawn``): batches are drawn while the loop
    waits for them, and a training draws its own in C.

    A batch may span two epochs when ``batch_size`` does not divide ``n_samples``, so that all
    batches have one size; it then counts to the epoch its first sample is of. ``drawn`` is told the
    order of each epoch before its first batch, `MOST_PLANNED` samples at a time.

    Raises
    ------
    OptionError
        If there is no sample, or ``batch_size`` is below 1.
    """
    if batch_size < 1:
        raise OptionError(f"--batch-size {batch_size}: expected 1 or more")
    if n_samples < 1:
        raise OptionError("there are no samples to load: nothing to profile")
    return _batches(batch_size, _samples(EpochOrders(n_samples, seed, shuffle), drawn))


def _batches(batch_size: int, stream: Iterator[tuple[int, int]]) -> Iterator[PlannedBatch]:
    batch = 0
    while True:
        drawn = [next(stream) for _ in range(batch_size)]
        yield PlannedBatch(batch, drawn[0][0], tuple(sample for _, sample in drawn))
        batch += 1


def _samples(
    orders: EpochOrders, drawn: Callable[[list[int]], None] | None
) -> Iterator[tuple[int, int]]:
    for epoch in itertools.count():
        between = orders.of(epoch)
        for first in range(0, orders.n_samples, DRAWN_AT_ONCE):
            if drawn is not None and first % MOST_PLANNED == 0:
                drawn(between(first, first + MOST_PLANNED))
            for sample in between(first, first + DRAWN_AT_ONCE):
                yield epoch, sample


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
