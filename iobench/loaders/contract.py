"""What loaders of a measured loop are given, planned batches, and what they hand on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray  # noqa: TC002 - annotations of a public value type

HELD_BY_LOOP: Final = 2
"""Buffers a training loop holds: this batch's, and the last one's until this one is there."""
IN_THREADS: Final = -2
"""The ``worker`` of a batch that threads of the consumer's process made."""


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """Which samples make up a batch.

    ``batch`` counts up over the whole run; ``epoch`` is the pass over the samples it belongs to.
    One that ``evaluates`` is of the evaluation after that pass.
    """

    batch: int
    epoch: int
    samples: tuple[int, ...]
    evaluates: bool = False


@dataclass(frozen=True, slots=True)
class PlacedArray:
    """An array on a device, as its framework has it: what a measured loop asks of one.

    ``cpu`` returns it in the host's memory.
    """

    value: Any
    nbytes: int
    cpu: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Stacked samples: each array has the batch as its first axis.

    ``worker`` is the loading process that made it, -1 for the consumer itself, `IN_THREADS` for
    other threads of its process. How long the arrays stay valid is the loader's own rule.

    Where ``on_device``, they are arrays of the device, as its framework has them: ready for what
    the loop's thread gives it to do next.
    """

    planned: PlannedBatch
    arrays: dict[str, NDArray[Any]]
    worker: int
    on_device: bool = False
