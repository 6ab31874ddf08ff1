"""Rings under ``iobench profile``, with every stage of who makes batches."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from iobench.errors import OptionError
from iobench.loaders.contract import (
    HELD_BY_LOOP,
    IN_THREADS,
    Batch,
    MeasuredLoader,
    PlannedBatch,
    refuse_below_one,
)
from iobench.loaders.ring.buffers import BufferPool
from iobench.loaders.ring.process_source import ProcessSource
from iobench.loaders.ring.ring_run import RingRun

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from iobench.loaders.device_copies import DeviceCopies
    from iobench.loaders.ring.contract import BatchSource
    from iobench.recording.recorder import Recorder


class PlannedRing(MeasuredLoader):
    """Fills batches ahead of the training loop, in threads of its process or in others, or in it.

    Processes start with the first round and stay until the end.
    """

    def __init__(
        self,
        source: BatchSource,
        batch_size: int,
        *,
        threads: int = 0,
        workers: int = 0,
        prefetch: int = 2,
        recorder: Recorder,
        run_directory: Path | None = None,
        start_method: str = "fork",
        device: DeviceCopies | None = None,
    ) -> None:
        refuse_below_one(prefetch=prefetch, batch_size=batch_size)
        if min(threads, workers) < 0 or (threads and workers):
            raise OptionError(
                f"threads {threads}, workers {workers}: expected one of both, or none"
            )
        ahead = prefetch if threads or workers else 0
        super().__init__(workers=workers, threads=threads, prefetch=ahead)
        self._recorder = recorder
        self._source = source
        self._device = device
        self.copied_from = "pageable" if device is None else "pinned"
        prepare = None if device is None else device.prepare
        self._processes: ProcessSource | None = None
        self._n_feeding = threads or workers * prefetch
        self._ahead = max(prefetch, threads) if threads else self._n_feeding
        if workers:
            self._source = self._processes = ProcessSource(
                source,
                batch_size,
                processes=workers,
                start_method=start_method,
                run_directory=run_directory,
            )
        self._pool = BufferPool(
            source.spec,
            batch_size,
            depth=max(1, self._ahead) + HELD_BY_LOOP,
            prepare=prepare,
            new_memory=None if self._processes is None else self._processes.new_memory,
        )

    @property
    def expect(self) -> Callable[[NDArray[np.int64]], None] | None:
        """What is told of which samples batches will be next; None where nobody wants to know."""
        source = self._source
        return functools.partial(source.expect, follows=True) if source.is_planned else None

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers that were started."""
        return [] if self._processes is None else self._processes.pids()

    def _deliver(self, plan: Iterator[PlannedBatch]) -> Generator[Batch]:
        processes = self._processes
        if processes is not None:
            try:
                processes.start()  # before there are threads, which a fork would not have
            except BaseException:
                self.close()
                raise
        run = RingRun(
            self._source,
            plan,
            self._pool,
            threads=self._n_feeding,
            ahead=max(1, self._ahead),
            device=self._device,
            recorder=self._recorder if processes is None else None,
        )
        try:
            run.start()
            while (taken := self._taken(run)) is not None:
                planned, arrays = taken
                worker = IN_THREADS if self.threads else run.worker
                # As in a plain loop only the consumer holds it, so that letting go is not waiting.
                if (device := self._device) is not None:
                    arrays = device.receive(arrays)
                ready = [Batch(planned, arrays, worker, device is not None)]
                del taken, arrays
                yield ready.pop()
        finally:
            run.stop()

    def _taken(self, run: RingRun) -> tuple[PlannedBatch, Any] | None:
        try:
            return run.take()
        except BaseException:
            if self.workers:  # one of them may be gone, and nobody starts it again
                run.stop()
                self.close()
            raise

    def _let_go(self) -> None:
        self._pool.discard()  # batches that are held stay valid
        if self._processes is not None:
            self._processes.close()
