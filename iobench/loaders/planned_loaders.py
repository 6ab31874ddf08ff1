"""Loaders under ``iobench profile``: rings, and what can only be iterated over.

Every stage of who makes batches is recorded; of an iterable a batch is one stage.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import IobenchError, SampleError, WorkerError, failure_text
from iobench.loaders.contract import (
    HELD_BY_LOOP,
    IN_THREADS,
    NOTHING,
    Batch,
    MeasuredLoader,
    PlannedBatch,
)
from iobench.loaders.ring.buffers import BufferPool
from iobench.loaders.ring.process_source import ProcessSource
from iobench.loaders.ring.ring_run import RingRun
from iobench.recording.kinds import Kind
from iobench.samples import handed_on_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import SamplePasses
    from iobench.loaders.contract import BatchSource
    from iobench.loaders.device_copies import DeviceCopies
    from iobench.recording.recorder import Recorder


FUSED: Final = "read+decode+preprocess+collate"


class PlannedRing(MeasuredLoader):
    """Fills batches ahead of the training loop, in threads or processes, or in the loop."""

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
        ahead = prefetch if threads or workers else 0
        super().__init__(workers=workers, threads=threads, prefetch=ahead)
        self._recorder = recorder
        self._source = source
        self._device = device
        self.copied_from = "pageable" if device is None else "pinned"
        prepare = None if device is None else device.prepare
        self._processes: ProcessSource | None = None
        self._ahead = max(prefetch, threads) if threads else workers * prefetch
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

    def _deliver(self, plan: Iterator[PlannedBatch]) -> Generator[Batch]:
        device = self._device
        run = RingRun(
            self._source,
            plan,
            self._pool,
            threads=self.threads or self.workers,
            ahead=max(1, self._ahead),
            device=device,
            recorder=lambda: self._recorder if self._processes is None else None,
        )
        try:
            if self._processes is not None:
                self._processes.start()  # before there are threads, which a fork would not have
            run.start()
            while (taken := run.take()) is not None:
                planned, arrays = taken
                worker = IN_THREADS if self.threads else run.worker
                # As in a plain loop only the consumer holds it, so that letting go is not waiting.
                if device is not None:
                    arrays = device.receive(arrays)
                ready = [Batch(planned, arrays, worker, device is not None)]
                del taken, arrays
                yield ready.pop()
        except GeneratorExit:
            raise
        except BaseException:
            if self.workers:  # one of them may be gone, and nobody starts it again
                run.stop()
                self.close()
            raise
        finally:
            run.stop()

    def _let_go(self) -> None:
        self._pool.discard()  # batches that are held stay valid
        if self._processes is not None:
            self._processes.close()


class IterableLoader(MeasuredLoader):
    """Takes samples or batches pass after pass, in their own order; each batch is one stage.

    Samples that a pass leaves over are completed from the next.
    """

    is_one_stage = True
    """Whether the making of a batch is recorded here, as one stage."""

    def __init__(self, passes: SamplePasses, batch_size: int, *, recorder: Recorder) -> None:
        super().__init__()
        self._passes = passes
        self._batch_size = batch_size
        self._recorder = recorder
        self._label = recorder.string(FUSED)
        self._pass: Iterator[Any] | None = None
        self._epoch = self._n_samples = 0

    def _take(self, planned: PlannedBatch) -> Batch:
        self._check_open()
        clock = self._recorder.clock
        start_ns, cpu_ns = clock.now_ns(), clock.cpu_ns()
        try:
            arrays = self._next_batch(planned)
        except BaseException:
            self.close()
            raise
        if self.is_one_stage:
            end_ns, cpu_ns = clock.now_ns(), clock.cpu_ns() - cpu_ns
            self._recorder.emit(
                Kind.FUSED, start_ns, end_ns, handed_on_nbytes(arrays), cpu_ns,
                planned.batch, self._epoch, label=self._label,
            )  # fmt: skip
        return Batch(planned, arrays, -1)

    def _next_batch(self, planned: PlannedBatch) -> dict[str, NDArray[Any]]:
        spec = self._passes.spec
        where = f"batch {planned.batch}"
        if self._passes.batched:
            batch: dict[str, NDArray[Any]] = self._next_item(planned)
            sizes = {len(array) if array.ndim else 0 for array in batch.values()}
            if len(sizes) != 1 or not 0 < min(sizes) <= self._batch_size:
                raise SampleError(
                    f"{where}: expected arrays of 1 to {self._batch_size} samples, all alike"
                )
            spec.check({name: array[0] for name, array in batch.items()}, where=where)
            self._n_samples += sizes.pop()
            return batch
        samples = []
        for _ in range(self._batch_size):
            samples.append(self._next_item(planned))
            spec.check(samples[-1], where=where)
            self._n_samples += 1
        return {name: np.stack([sample[name] for sample in samples]) for name in spec.names}

    def _next_item(self, planned: PlannedBatch) -> Any:
        """Return the next item, of the next pass where one is over."""
        while True:
            try:
                if self._pass is None:
                    self._pass = iter(self._passes.items(self._epoch))
                item = next(self._pass, NOTHING)
            except IobenchError:
                raise
            except Exception as error:
                where = f"batch {planned.batch}, pass {self._epoch}"
                raise WorkerError(f"{where}: {failure_text(error)}") from error
            if item is not NOTHING:
                return item
            self._end_pass()

    def _end_pass(self) -> None:
        expected = self._passes.n_samples_all
        if self._n_samples != expected or not expected:
            raise WorkerError(
                f"pass {self._epoch} has {self._n_samples} samples, expected {expected or 'more'}: "
                "its length says so; correct __len__, or what is iterated over"
            )
        self._pass, self._n_samples = None, 0
        self._epoch += 1

    def _let_go(self) -> None:
        if isinstance(self._pass, Generator):  # it may hold files open
            self._pass.close()
        self._pass = None
