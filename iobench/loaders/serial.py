"""The loader without workers: the consumer makes each batch itself, when it asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from iobench.loaders.contract import Batch
from iobench.loaders.slots import Slots
from iobench.loaders.stages import Detail, StageTimer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType

    from iobench.loaders.contract import PlannedBatch
    from iobench.loaders.pipeline import Pipeline
    from iobench.recording.recorder import Recorder
    from iobench.samples import Sample

__all__ = ["SerialLoader"]


class SerialLoader:
    """Makes batches in the consumer's own thread.

    A batch is valid until the next one is asked for: there is one buffer.

    Parameters
    ----------
    pipeline : Pipeline
        How a sample is made.
    batch_size : int
        Samples a batch.
    recorder : Recorder
        The consumer's.
    detail : Detail
        How finely stages are recorded.
    unit_costs : mapping of str to int
        What recording one span costs, ns.
    """

    framework = "workers"
    workers = 0
    prefetch = 0

    def __init__(
        self,
        pipeline: Pipeline,
        batch_size: int,
        *,
        recorder: Recorder,
        detail: Detail = Detail.AUTO,
        unit_costs: Mapping[str, int | None],
    ) -> None:
        self._timer = StageTimer(pipeline, recorder, detail=detail, unit_costs=unit_costs)
        self._slots = Slots(pipeline.spec, batch_size, 1)

    def batches(self, plan: Iterable[PlannedBatch]) -> Iterator[Batch]:
        """Yield the planned batches; what a step raises passes through as it is."""
        for planned in plan:
            self._make(planned)
            yield Batch(planned, self._slots.arrays(0), -1)

    def _make(self, planned: PlannedBatch) -> None:
        def place(position: int, sample: Sample) -> int:
            return self._slots.place(0, position, sample)

        self._timer.make_batch(planned.batch, planned.epoch, planned.samples, place)

    def close(self) -> None:
        """Give the buffer back."""
        self._slots.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
