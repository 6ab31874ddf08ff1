"""What two frameworks ask of a loader beside its batches, where it is no ``DataLoader``."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.loaders.ring.loader import RingLoader


class EpochPlace:
    """Tells accelerate whether the batch at hand is the last one of an epoch.

    ``Accelerator.accumulate`` takes a step then, however few batches there were since the last one.
    accelerate asks the innermost loader that is iterated; those of its own say so themselves.
    """

    remainder = -1

    def __init__(self) -> None:
        self.end_of_dataloader = False


def announced(run: object) -> EpochPlace | None:
    """Say that a loader is iterated, until ``run`` dies; None where accelerate is not in use."""
    state = _gradient_state()
    if state is None:
        return None
    place = EpochPlace()
    state._add_dataloader(place)
    weakref.finalize(run, withdrawn, place)
    return place


def withdrawn(place: EpochPlace) -> None:
    """Say that it no longer is; may be said twice."""
    state = _gradient_state()
    if state is not None:
        state._remove_dataloader(place)


def _gradient_state() -> Any:
    # Where nobody has imported it, nobody accumulates: so nothing is imported here.
    known = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if known is None or not getattr(known, "_shared_state", None):
        return None  # no Accelerator was made
    state = known()
    return state if hasattr(state, "_add_dataloader") else None


class RingBatches(IterableDataset):  # type: ignore[misc]
    """The batches of a loader, for a real ``DataLoader`` that only hands them on."""

    def __init__(self, loader: RingLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def as_it_is(batch: Any) -> Any:
    """Return a batch: it needs no collating."""
    return batch
