"""Rings under ``iobench profile``, with every stage of who makes batches."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import IobenchError, OptionError, WorkerError
from iobench.loaders.contract import (
    HELD_BY_LOOP,
    IN_THREADS,
    NOTHING,
    Batch,
    MeasuredLoader,
    PlannedBatch,
    failure_text,
    refuse_below_one,
)
from iobench.loaders.ring.buffers import BufferPool
from iobench.loaders.ring.contract import PlannedSource, RingBatch
from iobench.loaders.ring.process_source import ProcessSource
from iobench.loaders.ring.ring_run import RingRun
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.loaders.device_copies import DeviceCopies
    from iobench.loaders.ring.contract import BatchSource
    from iobench.loaders.ring.loader import RingLoader
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
        if not (isinstance(source, PlannedSource) and source.is_planned):
            return None
        return functools.partial(source.expect, follows=True)

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers that were started."""
        return [] if self._processes is None else self._processes.pids()

    def _deliver(self, plan: Iterator[PlannedBatch]) -> Generator[Batch]:
        planned: dict[int, PlannedBatch] = {}

        def drawn() -> Iterator[RingBatch]:
            for one in plan:
                planned[one.batch] = one
                yield RingBatch(one.batch, one.epoch, np.array(one.samples, dtype=np.int64))

        processes = self._processes
        if processes is not None:
            try:
                processes.start()  # before there are threads, which a fork would not have
            except BaseException:
                self.close()
                raise
        run = RingRun(
            self._source,
            drawn(),
            self._pool,
            threads=self._n_feeding,
            ahead=max(1, self._ahead),
            device=self._device,
            recorder=self._recorder if processes is None else None,
        )
        try:
            run.start()
            while (taken := self._taken(run)) is not None:
                batch, arrays = taken
                worker = IN_THREADS if self.threads else run.worker
                # As in a plain loop only the consumer holds it, so that letting go is not waiting.
                if (device := self._device) is not None:
                    arrays = device.receive(arrays)
                ready = [Batch(planned.pop(batch.batch), arrays, worker, device is not None)]
                del taken, arrays
                yield ready.pop()
        finally:
            run.stop()

    def _taken(self, run: RingRun) -> tuple[RingBatch, Any] | None:
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


class ReadyRing(MeasuredLoader):
    """Hands on the batches of a `RingLoader` as they are, under its own numbers, epoch after epoch.

    A round ends with an epoch, as its threads do.
    """

    copied_from = None

    def __init__(
        self, loader: RingLoader, named: Callable[[Any], dict[str, Any]], *, recorder: Recorder
    ) -> None:
        super().__init__(threads=loader.threads, prefetch=max(1, loader.depth - HELD_BY_LOOP))
        self._loader = loader
        self._named = named
        self._recorder = recorder
        self._is_seen = loader.tell_spans(recorder)
        self._epoch = 0
        self._pass: Iterator[Any] | None = None

    def _deliver(self, plan: Iterator[PlannedBatch]) -> Generator[Batch]:
        n_batches = len(self._loader)
        for planned in plan:
            ready = [self._take(planned)]
            yield ready.pop()
            if (self._loader.delivered[0] + 1) % n_batches == 0:
                self._next()  # which ends the epoch
                return

    def _take(self, planned: PlannedBatch) -> Batch:
        start_ns = self._recorder.clock.now_ns()
        try:
            batch = self._next()
            if batch is NOTHING:
                raise WorkerError(f"epoch {self._epoch} of the loader has no batch")
            is_named = isinstance(batch, Mapping) and all(
                hasattr(each, "nbytes") and hasattr(each, "ndim") for each in batch.values()
            )
            # Tensors stay where they are: on a device, too.
            arrays = dict(batch) if is_named else self._named(batch)
        except BaseException as error:
            self.close()
            if isinstance(error, IobenchError) or not isinstance(error, Exception):
                raise
            raise WorkerError(f"batch {planned.batch}: {failure_text(error)}") from error
        number, epoch = self._loader.delivered
        if not self._is_seen:
            end_ns = self._recorder.clock.now_ns()
            self._recorder.emit(Kind.OPAQUE, start_ns, end_ns, batch=number, epoch=epoch)
        worker = IN_THREADS if self._is_seen else -1
        return Batch(PlannedBatch(number, epoch, ()), arrays, worker)

    def _next(self) -> Any:
        """Return the next batch of an epoch, `NOTHING` at its end: another one comes next."""
        if self._pass is None:
            self._loader.set_epoch(self._epoch)
            self._pass = iter(self._loader)
        batch = next(self._pass, NOTHING)
        if batch is NOTHING:
            self._pass = None
            self._epoch += 1
        return batch

    def _let_go(self) -> None:
        self._pass = None
        self._loader.close()
