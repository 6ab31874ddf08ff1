"""What loaders share whose threads work in the training process: rounds, and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from iobench.errors import OptionError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from types import TracebackType

    from iobench.loaders.contract import Batch, PlannedBatch
    from iobench.recording.recorder import Recorder

__all__ = ["InThreads"]


class InThreads(ABC):
    """A loader without worker processes; a context manager, ``close`` is idempotent.

    Parameters
    ----------
    batch_size, threads, prefetch : int
    recorder : Recorder
        The consumer's.

    Raises
    ------
    OptionError
        If a number is below 1.
    """

    framework: str
    workers = 0

    def __init__(self, batch_size: int, *, threads: int, prefetch: int, recorder: Recorder) -> None:
        if min(threads, prefetch, batch_size) < 1:
            raise OptionError(
                f"threads {threads}, prefetch {prefetch}, batch size {batch_size}: expected 1 or "
                "more of each"
            )
        self.threads, self.prefetch = threads, prefetch
        self._recorder = recorder
        self._round: Generator[Batch] | None = None
        self._closed = False

    def batches(self, plan: Iterable[PlannedBatch]) -> Iterator[Batch]:
        """Yield a batch for each planned one; ends the round before, if that still goes on.

        Raises
        ------
        IobenchError
            If the loader is closed, or whatever makes its batches fails.
        """
        if self._closed:
            raise WorkerError("the loader is closed: make a new one")
        if self._round is not None:
            self._round.close()
        self._round = self._deliver(iter(plan))
        return self._round

    @abstractmethod
    def _deliver(self, plan: Iterator[PlannedBatch]) -> Generator[Batch]:
        """Yield the batches of a round."""

    @abstractmethod
    def _let_go(self) -> None:
        """Free what outlives a round; called once, after the last one."""

    def close(self) -> None:
        """End the round that goes on, the threads, and what they shared."""
        if self._closed:
            return
        self._closed = True
        if self._round is not None:
            self._round.close()
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
