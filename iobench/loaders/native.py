"""The ring under ``iobench profile``: batches of the plan, and every stage of its threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.loaders.contract import IN_THREADS, Batch, PlannedBatch
from iobench.loaders.in_threads import InThreads
from iobench.loaders.ring.buffers import BufferPool
from iobench.loaders.ring.contract import RingBatch
from iobench.loaders.ring.run import RingRun

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from iobench.loaders.ring.contract import BatchSource
    from iobench.recording.recorder import Recorder

__all__ = ["NativeLoader"]

HELD_BY_LOOP = 2
"""Buffers a training loop holds: this batch's, and the last one's until this one is there."""


class NativeLoader(InThreads):
    """Fills batches in threads of the training process, ahead of it, into leased buffers.

    Parameters
    ----------
    source : BatchSource
        What fills them.
    batch_size : int
        Samples of a batch, at most.
    threads : int
        Reader threads; they start anew each round.
    ahead : int
        Batches kept ready, at least 1.
    recorder : Recorder
        The consumer's; threads have lanes of their own in it.

    Raises
    ------
    OptionError
        If a number is below 1, or the buffers do not fit into memory.
    """

    framework = "native"

    def __init__(
        self,
        source: BatchSource,
        batch_size: int,
        *,
        threads: int,
        ahead: int = 2,
        recorder: Recorder,
    ) -> None:
        super().__init__(batch_size, threads=threads, prefetch=ahead, recorder=recorder)
        self._source = source
        self._pool = BufferPool(source.spec, batch_size, depth=max(ahead, threads) + HELD_BY_LOOP)

    def _deliver(self, plan: Iterator[PlannedBatch]) -> Generator[Batch]:
        planned: dict[int, PlannedBatch] = {}

        def drawn() -> Iterator[RingBatch]:
            for one in plan:
                planned[one.batch] = one
                yield RingBatch(one.batch, one.epoch, np.array(one.samples, dtype=np.int64))

        run = RingRun(
            self._source,
            drawn(),
            self._pool,
            threads=self.threads,
            ahead=max(self.prefetch, self.threads),
            recorder=self._recorder,
        )
        try:
            while (found := run.take()) is not None:
                batch, arrays = found
                # As in a plain loop only the consumer holds it, so that letting go is not waiting.
                ready = [Batch(planned.pop(batch.batch), arrays, IN_THREADS)]
                del found, arrays
                yield ready.pop()
        finally:
            run.stop()

    def _let_go(self) -> None:
        self._pool.discard()  # batches that are held stay valid
