"""A store under ``iobench profile --framework dali``: DALI's own readers; they read on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.dali.pipelines import make_pipeline
from iobench.errors import DeviceError, WorkerError
from iobench.loaders.contract import IN_THREADS, Batch, PlacedArray
from iobench.loaders.measured_loader import MeasuredLoader, refuse_below_one
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.loaders.contract import PlannedBatch
    from iobench.recording.recorder import Recorder
    from iobench.samples import SampleSpec, Variable

OPAQUE: Final = "dali"


class DaliLoader(MeasuredLoader):
    """Hands on what a pipeline of DALI's readers makes; its threads are not seen from outside.

    Samples come in the store's order, whatever the plan says of them; of it only the numbers of
    the batches are used. Batches are copies: they stay valid as long as they are held. Those on a
    GPU are DALI's own, until the next one is asked for.

    Parameters
    ----------
    shards, counts, spec, batch_size, threads, prefetch
        As of `make_pipeline`.
    recorder : Recorder
        The consumer's.
    place : int, optional
        The number of the GPU that batches are copied to, ahead.

    Raises
    ------
    OptionError
        If a number is below 1, or DALI has no reader for such files.
    DeviceError
        If DALI cannot use the GPU.
    """

    def __init__(
        self,
        shards: Sequence[Sequence[Path]],
        counts: Sequence[int],
        spec: SampleSpec,
        batch_size: int,
        *,
        threads: int,
        prefetch: int = 2,
        recorder: Recorder,
        place: int | None = None,
    ) -> None:
        refuse_below_one(threads=threads, prefetch=prefetch, batch_size=batch_size)
        super().__init__(threads=threads, prefetch=prefetch)
        self._recorder = recorder
        self._spec = spec
        self._opaque = recorder.string(OPAQUE)
        self._is_placed = place is not None
        if self._is_placed:
            self.copied_from, self.copied_by = None, "DALI"
        try:
            self._pipeline: Any = make_pipeline(
                shards, counts, spec, batch_size, threads=threads, prefetch=prefetch, place=place
            )
        except RuntimeError as error:
            if place is None:
                raise
            raise DeviceError(f"DALI, GPU {place}: {_reason(error)}") from error

    def _take(self, planned: PlannedBatch) -> Batch:
        recorder = self._recorder
        numbers = {"batch": planned.batch, "epoch": planned.epoch}
        requested_ns = recorder.clock.now_ns()
        try:
            outputs = self._pipeline.run()
        except RuntimeError as error:
            raise WorkerError(f"DALI: {_reason(error)}") from error
        there_ns = recorder.clock.now_ns()
        if self._is_placed:
            recorder.emit(Kind.OPAQUE, requested_ns, there_ns, label=self._opaque, **numbers)
            named = zip(self._spec, outputs, strict=True)
            placed: dict[str, Any] = {
                variable.name: _placed(output, variable) for variable, output in named
            }
            return Batch(planned, placed, IN_THREADS, on_device=True)
        arrays = [np.array(output.as_array()) for output in outputs]
        recorder.emit(Kind.OPAQUE, requested_ns, there_ns, label=self._opaque, **numbers)
        recorder.emit(Kind.COLLATE, there_ns, recorder.clock.now_ns(), **numbers)
        return Batch(planned, dict(zip(self._spec.names, arrays, strict=True)), IN_THREADS)

    def _let_go(self) -> None:
        self._pipeline = None  # and its threads with it


def _placed(output: Any, variable: Variable) -> PlacedArray:
    """Return an output on a GPU as a measured loop takes it."""
    nbytes = variable.nbytes * len(output)
    return PlacedArray(output, nbytes, lambda: output.as_cpu().as_array())


def _reason(error: RuntimeError) -> str:
    """Return what went wrong, in a line: DALI tells first where, and at length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    after = lines.index("encountered:") + 1 if "encountered:" in lines else 0
    return next(iter(lines[after:] or lines), type(error).__name__)
