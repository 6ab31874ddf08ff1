"""What fills batches, and loaders of a measured loop: planned batches, and what they hand on.

A *source* knows its samples; a *reader* is one thread's access to them. Readers write into the rows
of a batch at their final position: there is no sample in between, and no collating.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from iobench.errors import WorkerError
from iobench.samples import is_number_below

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from iobench.loaders.ring.log import BatchLog
    from iobench.samples import SampleSpec

HELD_BY_LOOP: Final = 2
"""Buffers a training loop holds: this batch's, and the last one's until this one is there."""
NOTHING: Final = object()
IN_THREADS: Final = -2
"""The ``worker`` of a batch that threads of the consumer's process made."""


Rows = Mapping[str, NDArray[Any]]
"""Arrays of a batch by variable, the batch as their first axis; contiguous and writable."""
Present = Callable[[dict[str, NDArray[Any]]], Any]
"""Makes what is handed out of the arrays of a batch: tensors, a transform's result."""


class Reader(Protocol):
    """Fills batches for one thread at a time."""

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Write every byte of ``rows``: row ``i`` is sample ``samples[i]``."""
        ...

    def close(self) -> None:
        """Let go of what the thread held open: of nothing, where it is not said."""
        return


class BatchSource(ABC):
    """Samples by number that a ring can load. Used by several threads at once."""

    spec: SampleSpec  # what a sample is
    is_planned: bool = False  # whether it keeps what it decoded by the order of a pass

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def filler(self) -> Reader:
        """Return a reader for one more thread."""

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        from iobench.loaders.ring.log import BatchLog  # hooks of scripts need none of the ring

        if not is_number_below(index, len(self), "samples"):
            raise IndexError(f"no sample {index}, there are {len(self)}")
        rows = {v.name: np.empty((1, *v.shape), v.dtype) for v in self.spec}
        reader = self.filler()
        reader.fill(np.array([index % len(self)]), rows, BatchLog())
        reader.close()
        return {name: array[0, ...] for name, array in rows.items()}

    def expect(self, samples: NDArray[np.int64], *, follows: bool) -> None:
        """Say which samples a pass will ask for, in order; see `DecodedChunks`.

        Of a long pass some come later, when batches of them are to be made: those ``follows``.
        """
        return


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """Which samples make up a batch, counted over the whole run, and of which pass it is."""

    batch: int
    epoch: int
    samples: Sequence[int] | NDArray[np.int64]
    position: int = -1  # its place in the pass, where a loader counts


@dataclass(frozen=True, slots=True)
class Batch:
    """Stacked samples: each array has the batch as its first axis.

    ``worker`` is the process that made it, -1 for the consumer, `IN_THREADS` for its threads.
    """

    planned: PlannedBatch
    arrays: dict[str, NDArray[Any]]
    worker: int
    on_device: bool = False


class MeasuredLoader(ABC):
    """Turns a plan of batches into batches, ahead of the consumer, round after round."""

    copied_from = "pageable"

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
