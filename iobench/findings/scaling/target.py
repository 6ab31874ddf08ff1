"""What a job on many ranks is simulated on: a storage that all share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.errors import OptionError
from iobench.json_keys import key
from iobench.storage.limit_figures import DEVICE, SERVER, STORAGE, read_limits

if TYPE_CHECKING:
    from iobench.findings.scaling.demand import RankDemand
    from iobench.findings.scaling.measured_job import MeasuredJob

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


def measured_limit(job: MeasuredJob) -> MeasuredLimit:
    """Return the limit of a run's storage, as its ``run.json`` has it.

    Raises
    ------
    OptionError
        If it has none of reads that storage served.
    """
    every = read_limits(job.storage_limits)
    for limits in every:
        found = [
            each
            for each in limits.reads
            if each.served_by in (DEVICE, SERVER, STORAGE) and each.bytes_per_s
        ]
        if found:
            best = max(found, key=lambda each: each.bytes_per_s or 0.0)
            return MeasuredLimit(
                bytes_per_s=best.bytes_per_s or 0.0,
                reads_per_s=best.reads_per_s or 0.0,
                readers=max(each.threads for each in found),
                request_nbytes=limits.request_nbytes,
                mount=limits.mount,
                wall_ns=limits.wall_ns,
            )
    why = "of reads that storage served" if every else "of its storage"
    raise OptionError(
        f"--storage-bandwidth measured: {job.name} has no limits {why}; measure again with "
        "--limits 10, or say a rate"
    )
