"""Which ranges of the files each set of a probe's reads takes, so that none warms another's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["REQUEST_DTYPE", "RequestSlots"]

REQUEST_DTYPE: Final = np.dtype([("file", "<i8"), ("offset", "<i8"), ("nbytes", "<i8")])
LONGEST_STRETCH: Final = 64
"""RequestSlots in a row that belong to one set."""
SHUFFLED: Final = 1 << 20
"""So many slots are shuffled; of more, some are drawn."""


@dataclass(frozen=True, slots=True)
class RequestSlots:
    """Files cut into ranges of one request each, and these dealt out in stretches to sets.

    Where there are too few for all sets, each has all of them.

    Parameters
    ----------
    sizes : sequence of int
        Of the files.
    request_nbytes : int
        A file shorter than that is one range.
    n_sets : int
    """

    sizes: Sequence[int]
    request_nbytes: int
    n_sets: int

    @property
    def n(self) -> int:
        """Ranges in all."""
        return int(self._counts().sum())

    @property
    def shared(self) -> bool:
        """Whether sets have ranges in common."""
        return self.n < 2 * self.n_sets

    def requests(self, number: int, n: int, order: str, rng: np.random.Generator) -> NDArray[Any]:
        """Return at most ``n`` requests of a set as `REQUEST_DTYPE`; none twice.

        Random, or in the order in which they lie in stretches spread over the files.
        """
        total = self.n
        n_sets, number = (1, 0) if self.shared else (self.n_sets, number)
        length = max(1, min(LONGEST_STRETCH, total // (4 * n_sets)))
        # The end of a stretch is left out: what is read ahead of it must not warm another set.
        used = length - length // 4 if n_sets > 1 else length
        n_stretches = -(-total // length)
        n_own = len(range(number, n_stretches, n_sets))
        if order == "sequential":
            wanted = min(n_own, max(1, -(-n // used)))
            own = np.unique(np.linspace(0, n_own - 1, wanted).round().astype(np.int64))
        elif n_own * length <= SHUFFLED:
            own = np.arange(n_own, dtype=np.int64)
        else:
            own = np.unique(rng.integers(0, n_own, n))
        first = (number + own * n_sets) * length
        if order != "sequential" and n_own * length > SHUFFLED:
            slots = first + rng.integers(0, used, len(first))
        else:
            slots = (first[:, None] + np.arange(used)).ravel()
        slots = slots[slots < total]
        if order != "sequential":
            slots = rng.permutation(slots)
        return self._ranges(slots[: max(0, n)])

    def _counts(self) -> NDArray[np.int64]:
        return np.maximum(1, np.asarray(self.sizes, np.int64) // self.request_nbytes)

    def _ranges(self, slots: NDArray[np.int64]) -> NDArray[Any]:
        ends = np.cumsum(self._counts())
        file = np.searchsorted(ends, slots, side="right")
        within = slots - np.append(0, ends[:-1])[file]
        made = np.zeros(len(slots), REQUEST_DTYPE)
        made["file"] = file
        made["offset"] = within * self.request_nbytes
        made["nbytes"] = np.minimum(self.request_nbytes, np.asarray(self.sizes, np.int64)[file])
        return made
