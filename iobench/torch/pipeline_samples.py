"""A pipeline as the dataset that a script would give to torch's DataLoader."""

from __future__ import annotations

import functools
import signal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import get_worker_info

from iobench.loaders.ring.process_worker import end_with_consumer, portable_error
from iobench.recording.kinds import Kind
from iobench.recording.stages import stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from iobench.loaders.pipeline import Pipeline, Step

METHODS: Final = {
    Kind.READ: "read",
    Kind.DECODE: "decode",
    Kind.PREPROCESS: "preprocess",
    Kind.TRANSFORM: "transform",
}
"""Which method does the steps of a kind: `iobench.torch.DataLoader` times it."""


class PipelineSamples:
    """A map-style dataset whose samples a pipeline makes; see `samples_of`."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        is_one = len(pipeline.steps) == 1  # which needs no name: it is the sample
        self._steps = [(METHODS.get(step.kind), _named(step, is_one)) for step in pipeline.steps]

    def __len__(self) -> int:
        return len(self._pipeline.where)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        spec = self._pipeline.spec
        try:
            where = self._pipeline.where[number]
            given: tuple[Any, ...] = (where,)
            for method, step in self._steps:
                arrays = step(*given) if method is None else getattr(self, method)(step, *given)
                given = (arrays, where)
            spec.check(given[0], where=f"sample {number}")
            return {name: torch.from_numpy(_acceptable(given[0][name])) for name in spec.names}
        except Exception as error:
            info = get_worker_info()
            if info is None:
                raise
            portable = portable_error(error, number, int(info.id))
            raise type(portable)(str(portable)) from None  # whose notes torch would send as well

    def __reduce__(self) -> tuple[Any, ...]:
        return samples_of, (self._pipeline,)


def samples_of(pipeline: Pipeline) -> PipelineSamples:
    """Return the samples of a pipeline, as a dataset with a method for each kind of its steps.

    So the steps are told apart as those of any dataset with such methods; several in one are a
    stage, as of any script.
    """
    names = {METHODS[step.kind] for step in pipeline.steps if step.kind in METHODS}
    kind = type("PipelineSamples", (PipelineSamples,), dict.fromkeys(names, _run_step))
    samples: PipelineSamples = kind(pipeline)
    return samples


def _run_step(_: PipelineSamples, step: Callable[..., Any], *given: Any) -> Any:
    return step(*given)


def _named(step: Step, is_one: bool) -> Callable[..., Any]:
    """Return a step; one that does several things is a stage with a name."""
    if step.kind is not Kind.FUSED or not step.label or is_one:
        return step.run
    return functools.partial(_run_named, step.label, step.run)


def _run_named(name: str, run: Callable[..., Any], *given: Any) -> Any:
    with stage(name):
        return run(*given)


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
