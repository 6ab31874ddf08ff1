"""Batches that tf.data makes, under ``iobench profile``, with its threads observed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from iobench.loaders.contract import IN_THREADS
from iobench.loaders.iterable_loader import IterableLoader
from iobench.recording.kinds import Kind
from iobench.tensorflow.traced_rounds import TracedRounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.datasets.baseline import SamplePasses
    from iobench.loaders.contract import Batch, PlannedBatch
    from iobench.recording.recorder import Recorder

PIPELINE: Final = "pipeline"
"""Its building: a new one each pass, by the training loop's own thread."""


class TFPipelineLoader(IterableLoader):
    """Asks a pipeline of tf.data for its batches, and tells its operations apart.

    The first batch of all is not traced: it fills shuffle buffers, with more calls than a trace
    should hold. Parameters as of `IterableLoader`.
    """

    is_one_stage = False  # the trace tells operations apart, or is opaque

    def __init__(self, passes: SamplePasses, batch_size: int, *, recorder: Recorder) -> None:
        # On a lane of its own: as the threads' work it is what a batch came from.
        building = recorder.foreign_lane(PIPELINE)

        def items(epoch: int) -> Iterable[Any]:
            begun_ns = recorder.clock.now_ns()
            found = passes.items(epoch)
            recorder.emit_on(
                building, Kind.OPEN, begun_ns, recorder.clock.now_ns(), batch=self._batch,
                epoch=epoch, label=recorder.string(PIPELINE),
            )  # fmt: skip
            return found

        super().__init__(replace(passes, items=items), batch_size, recorder=recorder)
        self._traced = TracedRounds(recorder, batch_size)
        self._batch = -1
        self._is_first = True

    def _take(self, planned: PlannedBatch) -> Batch:
        self._batch = planned.batch
        with self._traced.batch(planned):
            found = super()._take(planned)
        if self._is_first:
            self._is_first = False
            self._traced.start()
        return dataclasses.replace(found, worker=IN_THREADS)

    def after_round(self) -> None:
        """Write what TensorFlow's threads did in the round, and trace the next one."""
        self._traced.next_round()

    def close(self) -> None:
        """End the pipeline, and write what is left of its work."""
        super().close()
        self._traced.close()
