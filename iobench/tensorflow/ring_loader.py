"""The ring under ``iobench profile --framework tensorflow``: its batches as tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iobench.loaders.planned_ring import PlannedRing
from iobench.recording.kinds import Kind
from iobench.tensorflow.gpu_copies import copied_to
from iobench.tensorflow.tensors import as_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iobench.loaders.contract import Batch, PlannedBatch


class TFRingLoader(PlannedRing):
    """Hands on what `TFStoreLoader` does: tensors that share the ring's memory."""

    def __init__(self, *args: Any, place: str | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._place = place

    def batches(self, plan: Iterable[PlannedBatch]) -> Iterator[Batch]:
        """Yield the planned batches; as `PlannedRing`, each made of tensors once."""
        for batch in super().batches(plan):
            tensors = {name: as_tensor(array) for name, array in batch.arrays.items()}
            yield self._copied(batch, tensors, self._place) if self._place else batch
            del batch, tensors

    def _copied(self, batch: Batch, tensors: dict[str, Any], place: str) -> Batch:
        recorder, planned = self._recorder, batch.planned
        now_ns = recorder.clock.now_ns
        start_ns = now_ns()
        placed = copied_to(tensors, place)
        nbytes = sum(array.nbytes for array in placed.values())
        recorder.emit(
            Kind.H2D, start_ns, now_ns(), nbytes, batch=planned.batch, epoch=planned.epoch
        )
        return replace(batch, arrays=placed, on_device=True)
