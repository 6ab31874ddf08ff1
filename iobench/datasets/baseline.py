"""How a dataset's samples are loaded without iobench's reader, to be measured beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.samples import SampleSpec

PIPELINES: Final = ("own", "upstream")
"""What ``--pipeline`` chooses from: our readers; a plain loop of xarray or tf.data."""


class SamplePasses(msgspec.Struct, frozen=True):
    """Samples, or whole batches, that can only be iterated over, pass after pass."""

    spec: SampleSpec  # of one sample
    # ``items(epoch)`` returns an iterable of one pass: each item is a dict of arrays as the spec
    # says or, where ``batched``, the same with a leading axis
    items: Callable[[int], Iterable[Any]]
    # samples of one pass; 0 where that is not known, and the pass has no end
    n_samples_all: int = 0
    batched: bool = False  # whether items are batches; the last of a pass may be shorter
    in_processes: bool = False  # whether processes that cannot be observed make the items
    # ``"tensorflow"`` where tf.data makes the items, whose threads are then observed
    framework: str = ""


class Baseline(msgspec.Struct, frozen=True):
    """One way to load a dataset's samples beside our reader."""

    pipeline: SamplePasses | Dataset  # a dataset makes the samples of our reader's index
    source: str  # what it does, and what of it is assumed; one or two sentences for reports


@runtime_checkable
class UpstreamBaseline(Protocol):
    """Optional face of a dataset: ``--pipeline upstream``."""

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        """Return a plain loop over these files.

        ``files`` and ``index`` are what ``files`` and ``samples`` returned. ``batch_size`` is for
        pipelines that make batches themselves.
        """
        ...


def pipelines_of(dataset: Dataset) -> tuple[str, ...]:
    """Return which of `PIPELINES` a dataset has; ``own`` is always one of them."""
    return PIPELINES if isinstance(dataset, UpstreamBaseline) else PIPELINES[:1]
