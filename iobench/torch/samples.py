"""The dataset, collate and worker start that torch's DataLoader is given."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from multiprocessing import util
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info

from iobench.errors import WorkerError
from iobench.loaders.stages import StageTimer
from iobench.loaders.worker_process import end_with_parent, portable_error
from iobench.recording import Kind, RunDirectory, activate, now_ns
from iobench.storage import ProcessIo
from iobench.torch.tagged import TaggedBatch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.errors import IobenchError
    from iobench.loaders.pipeline import Pipeline
    from iobench.loaders.stages import Detail
    from iobench.recording import Recorder
    from iobench.samples import Sample, SampleSpec
    from iobench.torch.tagged import Tag, TaggedIndices

__all__ = ["MadeSamples", "PipelineSamples", "WorkerStart", "collate", "tensors_of"]

# After the queue's feeder thread has been joined (-5 in multiprocessing), since it records too.
CLOSE_PRIORITY = -100


@dataclass(frozen=True, slots=True)
class MadeSamples:
    """The samples of one batch on their way to `collate`, in the process that made them."""

    owner: PipelineSamples
    tag: Tag
    samples: list[dict[str, torch.Tensor]]
    failure: IobenchError | None


class PipelineSamples:
    """A map-style dataset whose samples a pipeline makes, each step recorded.

    Parameters
    ----------
    pipeline : Pipeline
        How a sample is made; picklable unless processes are forked.
    detail : Detail
        How finely stages are recorded.
    unit_costs : mapping of str to int
        What recording one span costs, ns.
    arrivals : int
        Number of the consumer's `Arrivals`, for the batches made.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        detail: Detail,
        unit_costs: Mapping[str, int | None],
        arrivals: int,
    ) -> None:
        self.arrivals = arrivals
        self.worker = -1
        self._pipeline = pipeline
        self._detail = detail
        self._unit_costs = dict(unit_costs)
        self._process_io: ProcessIo | None = None

    def record_to(self, recorder: Recorder, *, worker: int) -> None:
        """Record into this from now on, in the process that makes the samples."""
        self.worker = worker
        self.recorder = recorder
        self._timer = StageTimer(
            self._pipeline, recorder, detail=self._detail, unit_costs=self._unit_costs
        )
        if worker >= 0:
            self._process_io = ProcessIo()

    def __len__(self) -> int:
        return len(self._pipeline)

    def __getitem__(self, index: int) -> Any:
        raise TypeError("samples are made by the batch: __getitems__")

    def __getitems__(self, indices: TaggedIndices) -> MadeSamples:
        tag, samples = indices.tag, []

        def place(position: int, sample: Sample) -> int:
            samples.append(tensors_of(sample, self._pipeline.spec, indices[position]))
            return 0  # collate counts the bytes, once

        failure: IobenchError | None = None
        try:
            self._timer.make_batch(tag.batch, tag.epoch, tuple(indices), place)
        except Exception as error:
            if self.worker < 0:
                raise
            # Torch would send a traceback as text, of many lines and another type.
            failure = portable_error(error, self._timer.failed_sample, self.worker)
        return MadeSamples(self, tag, samples, failure)

    def finish(self, tag: Tag) -> None:
        """Record what the batch made the process read."""
        if self._process_io is not None:
            self._process_io.emit(self.recorder, tag.batch, tag.epoch)


def collate(made: MadeSamples) -> TaggedBatch:
    """Stack the samples with torch's own collate (into shared memory in a worker)."""
    owner, tag = made.owner, made.tag
    batch = TaggedBatch({}, tag, worker=owner.worker, arrivals=owner.arrivals, failure=made.failure)
    clock = owner.recorder.clock
    if made.failure is None:
        cpu_ns, start_ns = clock.cpu_ns(), clock.now_ns()
        try:
            batch.tensors = default_collate(made.samples)
        except RuntimeError as error:
            if owner.worker < 0:
                raise
            batch.failure = _not_stacked(error, owner.worker, tag.batch)
        end_ns, spent_ns = clock.now_ns(), clock.cpu_ns() - cpu_ns
        owner.recorder.emit(
            Kind.COLLATE, start_ns, end_ns, batch.nbytes, spent_ns, tag.batch, tag.epoch
        )
    owner.finish(tag)
    return batch


def _not_stacked(error: RuntimeError, worker: int, batch: int) -> WorkerError:
    reason = str(error).partition("\n")[0]
    return WorkerError(
        f"worker-{worker}: batch {batch} could not be stacked: {reason}; if /dev/shm is full, take "
        "a smaller --batch-size, fewer --workers, or --framework workers, which does not use it"
    )


def tensors_of(sample: Sample, spec: SampleSpec, number: int) -> dict[str, torch.Tensor]:
    """Return the arrays of a sample as tensors that share their memory.

    Raises
    ------
    SampleError
        If they are not what the spec says.
    """
    spec.check(sample, where=f"sample {number}")
    return {name: torch.from_numpy(_acceptable(sample[name])) for name in spec.names}


def _acceptable(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array as torch takes it: no negative strides, and writable."""
    array = np.asarray(array)
    if any(stride < 0 for stride in array.strides):
        return array.copy()
    return array if array.flags.writeable else np.asarray(_Writable(array))


class _Writable:
    """Shows read-only memory as writable, so that torch does not warn: nobody writes to samples."""

    def __init__(self, array: NDArray[Any]) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self._array = array


class WorkerStart:
    """What each of torch's workers runs first: opens its own span file.

    ``started_ns`` is when the consumer began to start the workers, ``parent_pid`` what
    `ending_parent` said then.
    """

    def __init__(self, run_directory: Path) -> None:
        self.run_directory = run_directory
        self.started_ns = 0
        self.parent_pid = -1

    def __call__(self, worker: int) -> None:
        """Open the worker's span file and let its dataset record there."""
        end_with_parent(self.parent_pid)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the consumer decides what Ctrl-C means
        recorder = RunDirectory.open(self.run_directory).recorder(role="worker", worker=worker)
        activate(recorder)
        util.Finalize(None, recorder.close, exitpriority=CLOSE_PRIORITY)
        info = get_worker_info()
        info.dataset.record_to(recorder, worker=worker)
        recorder.emit(Kind.STARTUP, self.started_ns, now_ns())
