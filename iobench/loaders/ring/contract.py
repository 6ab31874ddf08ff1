"""What fills the buffers of a ring: a store's extents, or the steps of a dataset.

A *source* knows its samples; a *reader* is one thread's access to them. Readers write into the rows
of a batch at their final position: there is no sample in between, and no collating.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

if TYPE_CHECKING:
    import numpy as np

    from iobench.loaders.ring.log import BatchLog
    from iobench.samples import SampleSpec

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
        """Let go of what the thread held open."""
        ...


class BatchSource(ABC):
    """Samples that a ring can load. Used by several threads at once."""

    spec: SampleSpec  # what a sample is
    is_planned: bool = False  # whether it keeps what it decoded by the order of a pass

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def filler(self) -> Reader:
        """Return a reader for one more thread."""

    def expect(self, samples: NDArray[np.int64], *, follows: bool) -> None:
        """Say which samples a pass will ask for, in order; see `DecodedChunks`.

        Of a long pass some come later, when batches of them are to be made: those ``follows``.
        """
        return
