"""What all loaders of a measured loop have in common: rounds of batches, and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from iobench.errors import OptionError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from types import TracebackType

    from iobench.loaders.contract import Batch, PlannedBatch


def refuse_below_one(**numbers: int) -> None:
    """Raise OptionError where a number, by its name, is not 1 or more."""
    if min(numbers.values()) < 1:
        listed = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in numbers.items())
        raise OptionError(f"{listed}: expected 1 or more of each")


class MeasuredLoader(ABC):
    """Turns a plan of batches into batches, ahead of the consumer, round after round.

    The consumer's own wait is timed by whoever iterates (`iobench.loaders.measure`); a loader
    records what makes its batches. A context manager; ``close`` is idempotent.
    """

    copied_from: str | None = "pageable"
    copied_by = ""

    def __init__(self, *, workers: int = 0, threads: int = 0, prefetch: int = 0) -> None:
        self.workers, self.threads, self.prefetch = workers, threads, prefetch
        self._round: Generator[Batch] | None = None
        self._closed = False

    def batches(self, plan: Iterable[PlannedBatch]) -> Iterator[Batch]:
        """Yield a batch for each planned one; ends the round before, if that still goes on.

        The plan is drawn from lazily, no further ahead than batches are made.
        """
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
