"""A pipeline as the dataset and collate function that a script would give to torch's DataLoader."""

from __future__ import annotations

import functools
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info

from iobench.errors import IobenchError, WorkerError
from iobench.loaders.ring.process_worker import end_with_consumer, portable_error
from iobench.recording.kinds import Kind
from iobench.recording.stages import stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from iobench.loaders.pipeline import Pipeline, Step
    from iobench.samples import Sample, SampleSpec

METHODS: Final = {
    Kind.READ: "read",
    Kind.DECODE: "decode",
    Kind.PREPROCESS: "preprocess",
    Kind.TRANSFORM: "transform",
}
"""Which method does the steps of a kind: `iobench.torch.DataLoader` times it."""
N_LISTED: Final = 16
"""Samples of a batch that an error names."""


class MadeBatch(NamedTuple):
    """A batch on its way: who made it (-1 the consumer), and its tensors or why there are none."""

    worker: int
    tensors: dict[str, torch.Tensor]
    failure: IobenchError | None = None


class MadeSample(NamedTuple):
    """A sample on its way to the collate function of the same process, or why there is none."""

    number: int
    arrays: Sample
    failure: IobenchError | None = None


class PipelineSamples:
    """A map-style dataset whose samples a pipeline makes; see `samples_of`.

    In a worker a sample that cannot be made is handed on as its error: torch would send a
    traceback as text, of many lines.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._where = pipeline.where
        self._steps = [(METHODS.get(step.kind), step.run) for step in _named_steps(pipeline)]

    def __len__(self) -> int:
        return len(self._where)

    def __getitem__(self, number: int) -> MadeSample:
        try:
            where = self._where[number]
            given: tuple[Any, ...] = (where,)
            for method, step in self._steps:
                made = step(*given) if method is None else getattr(self, method)(step, *given)
                given = (made, where)
        except Exception as error:
            worker = _worker()
            if worker < 0:
                raise
            return MadeSample(number, {}, portable_error(error, number, worker))
        return MadeSample(number, given[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return samples_of, (self._pipeline,)


def samples_of(pipeline: Pipeline) -> PipelineSamples:
    """Return the samples of a pipeline, as a dataset with a method for each kind of its steps.

    So the steps are told apart as those of any dataset with such methods; several in one are a
    stage, as of any script.
    """
    return _with_methods(frozenset(METHODS.get(step.kind) for step in pipeline.steps))(pipeline)


def _named_steps(pipeline: Pipeline) -> list[Step]:
    """Return the steps, those that do several things in one named for what they do.

    One that makes all of a sample needs no name: it is the sample.
    """
    fused = Kind.FUSED if len(pipeline.steps) > 1 else None
    return [
        replace(step, run=_Named(step)) if step.kind is fused and step.label else step
        for step in pipeline.steps
    ]


class _Named:
    """A step as a stage of its own."""

    def __init__(self, step: Step) -> None:
        self._run = step.run
        self._name = step.label

    def __call__(self, *given: Any) -> Any:
        with stage(self._name):
            return self._run(*given)


@functools.cache
def _with_methods(names: frozenset[str | None]) -> type[PipelineSamples]:
    methods = {name: _new_method() for name in names if name is not None}
    return type(PipelineSamples.__name__, (PipelineSamples,), methods)


def _new_method() -> Callable[..., Any]:
    def method(_: PipelineSamples, step: Callable[..., Any], *given: Any) -> Any:
        return step(*given)

    return method


class Stacking:
    """The collate function: torch's own, over the arrays of the samples."""

    def __init__(self, spec: SampleSpec) -> None:
        self._spec = spec

    def __call__(self, samples: Sequence[MadeSample]) -> MadeBatch:
        """Stack the samples (into shared memory in a worker)."""
        worker = _worker()
        for sample in samples:
            if sample.failure is not None:
                return MadeBatch(worker, {}, sample.failure)
        try:
            tensors = [tensors_of(each.arrays, self._spec, each.number) for each in samples]
            return MadeBatch(worker, default_collate(tensors))
        except (IobenchError, TypeError, RuntimeError) as error:
            if worker < 0:
                raise
            if not isinstance(error, IobenchError):
                error = _not_stacked(error, worker, [each.number for each in samples])
            return MadeBatch(worker, {}, error)


def _worker() -> int:
    """Return the number of this loading process, -1 in the consumer."""
    info = get_worker_info()
    return -1 if info is None else int(info.id)


def _not_stacked(error: Exception, worker: int, samples: Sequence[int]) -> WorkerError:
    reason = str(error).partition("\n")[0]
    return WorkerError(
        f"worker-{worker}: samples {list(samples[:N_LISTED])} could not be stacked: {reason}; if "
        "/dev/shm is full, take a smaller --batch-size, fewer --workers, or --framework workers, "
        "which does not use it"
    )


def tensors_of(sample: Sample, spec: SampleSpec, number: int) -> dict[str, torch.Tensor]:
    """Return the arrays of a sample as tensors that share their memory."""
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


def start_worker(worker: int) -> None:
    """Prepare a worker: it ends with its consumer, and leaves Ctrl-C to it."""
    end_with_consumer()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
