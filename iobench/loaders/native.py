"""The ring under ``iobench profile``: batches of the plan, and every stage of its threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from iobench.errors import OptionError, WorkerError
from iobench.loaders.contract import IN_THREADS, Batch, PlannedBatch
from iobench.loaders.ring import BufferPool, RingBatch, RingRun

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from types import TracebackType

    from iobench.loaders.ring import BatchSource
    from iobench.recording import Recorder

__all__ = ["NativeLoader"]

HELD_BY_LOOP = 2
"""Buffers a training loop holds: this batch's, and the last one's until this one is there."""


class NativeLoader:
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
        If there is no thread, or the buffers do not fit into memory.
    """

    framework = "native"
    workers = 0

    def __init__(
        self,
        source: BatchSource,
        batch_size: int,
        *,
        threads: int,
        ahead: int = 2,
        recorder: Recorder,
    ) -> None:
        if threads < 1 or ahead < 1:
            raise OptionError(f"threads {threads}, ahead {ahead}: expected 1 or more of each")
        self.threads = threads
        self.prefetch = ahead
        self._source = source
        self._recorder = recorder
        self._pool: BufferPool | None = BufferPool(
            source.spec, batch_size, depth=max(ahead, threads) + HELD_BY_LOOP
        )
        self._round: Generator[Batch] | None = None

    def batches(self, plan: Iterable[PlannedBatch]) -> Iterator[Batch]:
        """Yield the planned batches in order; ends the round before, if that still goes on.

        Raises
        ------
        IobenchError
            Whatever filling a batch raised.
        """
        if self._pool is None:
            raise WorkerError("the loader is closed: make a new one")
        if self._round is not None:
            self._round.close()
        self._round = self._deliver(iter(plan), self._pool)
        return self._round

    def _deliver(self, plan: Iterator[PlannedBatch], pool: BufferPool) -> Generator[Batch]:
        planned: dict[int, PlannedBatch] = {}

        def drawn() -> Iterator[RingBatch]:
            for one in plan:
                planned[one.batch] = one
                yield RingBatch(one.batch, one.epoch, np.array(one.samples, dtype=np.int64))

        run = RingRun(
            self._source,
            drawn(),
            pool,
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

    def close(self) -> None:
        """End the threads and let the buffers go; batches that are held stay valid."""
        if self._round is not None:
            self._round.close()
        if self._pool is not None:
            self._pool.discard()
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
