"""The ring under ``iobench profile --framework tensorflow``: its batches as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.loaders.planned_ring import PlannedRing
from iobench.tensorflow.tensors import as_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iobench.loaders.contract import Batch, PlannedBatch

__all__ = ["TFRingLoader"]


class TFRingLoader(PlannedRing):
    """Hands on what `TFStoreLoader` does: tensors that share the ring's memory."""

    def batches(self, plan: Iterable[PlannedBatch]) -> Iterator[Batch]:
        """Yield the planned batches; as `PlannedRing`, each made of tensors once."""
        for batch in super().batches(plan):
            tensors = [as_tensor(array) for array in batch.arrays.values()]
            yield batch
            del batch, tensors
