"""Batches of what can only be iterated over, made in the training loop's own thread."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import IobenchError, OptionError, SampleError, WorkerError
from iobench.loaders.contract import NOTHING, Batch, MeasuredLoader, failure_text
from iobench.recording.kinds import Kind
from iobench.samples import handed_on_nbytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets.contract import SamplePasses
    from iobench.loaders.contract import PlannedBatch
    from iobench.recording.recorder import Recorder

FUSED: Final = "read+decode+preprocess+collate"


class IterableLoader(MeasuredLoader):
    """Takes samples or batches pass after pass, in their own order; each batch is one stage.

    Samples that a pass leaves over are completed from the next.
    """

    is_one_stage = True
    """Whether the making of a batch is recorded here, as one stage."""

    def __init__(self, passes: SamplePasses, batch_size: int, *, recorder: Recorder) -> None:
        super().__init__()
        if batch_size < 1:
            raise OptionError(f"--batch-size {batch_size}: expected 1 or more")
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
