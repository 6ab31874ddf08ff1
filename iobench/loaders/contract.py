"""What a loader is: something that turns a plan of batches into batches, ahead of the consumer.

The consumer's own wait is timed by whoever iterates (``iobench.loaders.measure``); a loader
records what its workers do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

from numpy.typing import NDArray  # noqa: TC002 - annotations of a public value type

__all__ = ["IN_THREADS", "Batch", "Loader", "PlannedBatch"]

IN_THREADS: Final = -2
"""The ``worker`` of a batch that threads of the consumer's process made."""


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """Which samples make up a batch.

    ``batch`` counts up over the whole run; ``epoch`` is the pass over the samples it belongs to.
    """

    batch: int
    epoch: int
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Stacked samples: each array has the batch as its first axis.

    ``worker`` is the loading process that made it, -1 for the consumer itself, `IN_THREADS` for
    other threads of its process. How long the arrays stay valid is the loader's own rule.
    """

    planned: PlannedBatch
    arrays: dict[str, NDArray[Any]]
    worker: int


class Loader(Protocol):
    """Makes batches ahead of the training loop. A context manager; ``close`` is idempotent.

    Attributes
    ----------
    workers : int
        Loading processes; 0 means the consumer loads for itself.
    prefetch : int
        Batches each worker may be ahead; without workers, batches kept ready by threads.
    """

    workers: int
    prefetch: int

    def batches(self, plan: Iterable[PlannedBatch]) -> Iterator[Batch]:
        """Yield the planned batches in order; may be called again, workers stay alive.

        The plan is drawn from lazily, at most ``workers * prefetch`` batches ahead. Raises
        WorkerError if a worker dies or raises; never hangs.
        """
        ...

    def close(self) -> None:
        """End the workers and free what they shared."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
