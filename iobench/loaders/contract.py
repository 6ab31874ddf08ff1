"""Loaders of a measured loop: what they are given, planned batches, and what they hand on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np  # noqa: TC002 - annotations of a public value type
from numpy.typing import NDArray  # noqa: TC002 - annotations of a public value type

from iobench.errors import OptionError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

HELD_BY_LOOP: Final = 2
"""Buffers a training loop holds: this batch's, and the last one's until this one is there."""
NOTHING: Final = object()
REASON_LIMIT: Final = 500
IN_THREADS: Final = -2
"""The ``worker`` of a batch that threads of the consumer's process made."""


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """Which samples make up a batch, counted over the whole run, and of which pass it is."""

    batch: int
    epoch: int
    samples: Sequence[int] | NDArray[np.int64]
    position: int = -1  # its place in the pass, where a loader counts


@dataclass(frozen=True, slots=True)
class PlacedArray:
    """An array on a device, as its framework has it: what a measured loop asks of one."""

    value: Any
    nbytes: int
    cpu: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Stacked samples: each array has the batch as its first axis.

    ``worker`` is the process that made it, -1 for the consumer, `IN_THREADS` for its threads.
    """

    planned: PlannedBatch
    arrays: dict[str, NDArray[Any]]
    worker: int
    on_device: bool = False


def failure_text(error: BaseException) -> str:
    """Return an error of somebody else's code in one line."""
    reason = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {reason[:REASON_LIMIT]}"


def refuse_below_one(**numbers: int) -> None:
    """Raise OptionError where a number, by its name, is not 1 or more."""
    if min(numbers.values()) < 1:
        listed = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in numbers.items())
        raise OptionError(f"{listed}: expected 1 or more of each")


class MeasuredLoader(ABC):
    """Turns a plan of batches into batches, ahead of the consumer, round after round."""

    copied_from: str | None = "pageable"
    copied_by = ""

    def __init__(self, *, workers: int = 0, threads: int = 0, prefetch: int = 0) -> None:
        self.workers, self.threads, self.prefetch = workers, threads, prefetch
        self._round: Generator[Batch] | None = None
        self._closed = False

    def batches(self, plan: Iterable[PlannedBatch]) -> Iterator[Batch]:
        """Yield a batch for each planned one; ends the round before, if that still goes on."""
        self._check_open()
        if self._round is not None:
            self._round.close()  # its buffers are needed; it may have been left early
        self._round = self._deliver(iter(plan))
        return self._handed_on(self._round)

    def _handed_on(self, batches: Generator[Batch]) -> Iterator[Batch]:
        yield from batches
        self._check_open()  # else a round that was closed would look like one that has ended

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerError("the loader is closed: make a new one")

    def _deliver(self, plan: Iterator[PlannedBatch]) -> Generator[Batch]:
        """Yield the batches of a round: one after another, where nobody plans ahead."""
        for planned in plan:
            # As in a plain loop only the consumer holds a batch, so that freeing it is not waiting.
            ready = [self._take(planned)]
            yield ready.pop()

    def _take(self, planned: PlannedBatch) -> Batch:
        """Return the next batch, of this number."""
        raise NotImplementedError

    @abstractmethod
    def _let_go(self) -> None:
        """Free what outlives a round; called once, after the last one."""

    def after_round(self) -> None:
        """Do what takes time between two rounds, outside of what is measured."""
        return

    def close(self) -> None:
        """End the round that goes on, threads and processes, and what they shared."""
        if self._closed:
            return
        self._closed = True
        if self._round is not None and not getattr(self._round, "gi_running", False):
            self._round.close()  # else it is what closes, or will find out
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.close()
