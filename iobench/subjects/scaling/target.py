"""What a job on many ranks is simulated on: a storage that all share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.json_keys import key

if TYPE_CHECKING:
    from iobench.subjects.scaling.demand import RankDemand

Floats = NDArray[np.float64]


class SharedStorage(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks read from together.

    Parameters
    ----------
    bytes_per_s, reads_per_s : float or None
        What it gives all ranks together; None for no bound.
    """

    bytes_per_s: float | None = None
    reads_per_s: float | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether there is anything that it cannot give."""
        return self.bytes_per_s is not None or self.reads_per_s is not None


def time_ns(amount: Floats, per_s: float | None) -> Floats:
    """Return how long so many bytes or reads take at a rate; no time where it has no bound."""
    return np.zeros_like(amount) if per_s is None else amount / per_s * 1e9


class MeasuredLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a probe of a run's storage got from it, with so many readers of one node.

    Parameters
    ----------
    bytes_per_s, reads_per_s : float
        Of all of them together.
    readers : int
        The most that were tried: of more nothing is known.
    request_nbytes : int
        Of one read.
    wall_ns : int
        When, since the epoch.
    """

    bytes_per_s: float
    reads_per_s: float
    readers: int
    request_nbytes: int
    mount: str
    wall_ns: int
    JSON_KEYS: ClassVar = {
        "wall_ns": key("probed_wall_ns"),
    }

    def bounds(self, demand: RankDemand) -> tuple[float | None, float | None]:
        """Return bytes, or else reads, a second that bound a run's own reads.

        Larger reads than those that were tried get their bytes, smaller ones as many reads.
        """
        if float(demand.nbytes.sum()) >= self.request_nbytes * float(demand.reads.sum()):
            return self.bytes_per_s, None
        return None, self.reads_per_s

    def first_unknown(self, demand: RankDemand) -> int:
        """Return from how many ranks on there are more readers than were tried."""
        return self.readers // demand.workers + 1
