"""Datasets and stores seen alike: samples made by a chain of named steps, each timed apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.datasets.contract import Dataset, PlannedDataset, SampleIndex
    from iobench.samples import SampleSpec
    from iobench.stores.contract import Store

__all__ = [
    "MOST_PLANNED",
    "Pipeline",
    "Step",
    "dataset_pipeline",
    "handed_on_nbytes",
    "store_pipeline",
]

STEP_KINDS = {"read": Kind.READ, "decode": Kind.DECODE, "preprocess": Kind.PREPROCESS}
MOST_PLANNED = 1 << 17
"""Of longer passes the order is told in parts: the loop waits for its telling, 1 us a sample."""
OF_NO_BYTES = frozenset({int, float, complex, bool, str, type(None)})


@dataclass(frozen=True, slots=True)
class Step:
    """One step of making a sample: takes what the step before returned."""

    kind: Kind
    label: str
    run: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Everything a worker needs to make samples. Picklable.

    The first step gets ``where[i]``; the last returns the sample's arrays. ``dataset`` is whom to
    tell the order of a pass, where somebody wants to know.
    """

    spec: SampleSpec
    where: Sequence[Any]
    steps: tuple[Step, ...]
    dataset: PlannedDataset | None = None

    def __len__(self) -> int:
        return len(self.where)

    def expect(self, samples: Sequence[int], *, follows: bool) -> None:
        """Tell the dataset, where that helps it, which samples will be asked for, in order."""
        if self.dataset is not None:
            where = self.where
            self.dataset.expect([where[sample] for sample in samples], follows=follows)


def dataset_pipeline(
    dataset: Dataset, index: SampleIndex, samples: Sequence[int] | None = None
) -> Pipeline:
    """Return the steps ``read``, ``decode``, ``preprocess`` of a dataset, fused where it says so.

    ``samples`` picks some of them, in that order; by default all.
    """
    # all of them: a script's own loaders need none
    from iobench.datasets.contract import PlannedDataset, sample_steps

    steps = tuple(
        Step(STEP_KINDS[name], "", run) if name in STEP_KINDS else Step(Kind.FUSED, name, run)
        for name, run in sample_steps(dataset)
    )
    where = index.where if samples is None else [index.where[sample] for sample in samples]
    is_planned = isinstance(dataset, PlannedDataset) and dataset.has_chunks
    planned = cast("PlannedDataset", dataset) if is_planned else None
    return Pipeline(index.spec, where, steps, planned)


def store_pipeline(store: Store) -> Pipeline:
    """Return the steps ``read`` and ``decode`` of a store: its samples are preprocessed already."""
    return Pipeline(
        store.spec,
        [store.extents(index) for index in range(len(store))],
        (Step(Kind.READ, "", store.read), Step(Kind.DECODE, "", store.decode)),
    )


def handed_on_nbytes(value: Any) -> int:
    """Return the bytes a step handed on: of its buffers or arrays; -1 where they cannot be told."""
    items: Iterable[Any]
    # What it mostly is comes first: asking what else it may be takes longer than all the rest.
    kind = type(value)
    if kind is np.ndarray:
        return int(value.nbytes)
    if kind in OF_NO_BYTES:
        return -1
    if isinstance(value, Mapping):
        items = value.values()
    elif isinstance(value, (list, tuple)):
        items = value
    else:
        items = (value,)  # nothing else is iterated: it may be lazy, or usable once
    total = 0
    for item in items:
        if isinstance(item, (np.ndarray, np.generic, memoryview)):
            total += item.nbytes
        elif isinstance(item, (bytes, bytearray)):
            total += len(item)
        elif isinstance(item, (Mapping, list, tuple)):  # of the items of a window
            nested = handed_on_nbytes(item)
            if nested < 0:
                return -1
            total += nested
        else:
            return -1
    return total
