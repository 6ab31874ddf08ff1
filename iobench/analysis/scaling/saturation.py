"""From how many ranks on storage cannot give what they would read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.scaling.caches import hit_fractions
from iobench.analysis.scaling.contract import BANDWIDTH, READS, Saturation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.scaling.contract import Hosts, ScalingPoint, SharedStorage
    from iobench.analysis.scaling.demand import RankDemand

__all__ = ["FARTHEST", "find_saturation"]

FARTHEST: Final = 1 << 20
"""The largest number of ranks that is asked about."""


def find_saturation(
    demand: RankDemand,
    storage: SharedStorage,
    points: Sequence[ScalingPoint],
    hosts: Hosts | None,
) -> Saturation | None:
    """Return from how many ranks on they would read more than storage gives.

    R ranks that ask for b bytes in each step of c seconds reach a bandwidth B at R = B c / b. The
    step is that of so many ranks with a storage without bounds: the slowest of more ranks is
    slower. Between simulated points it grows with the logarithm of the ranks.

    Parameters
    ----------
    demand : RankDemand
    storage : SharedStorage
    points : sequence of ScalingPoint
        By ranks; none where nothing is known.
    hosts : Hosts or None
        With the caches that serve a part; None for the first epoch.

    Returns
    -------
    Saturation or None
        None where storage has no bound, or without points.
    """
    of_bytes = _served_ns(float(demand.nbytes.mean()), storage.bytes_per_s)
    of_reads = _served_ns(float(demand.reads.mean()), storage.reads_per_s)
    if not points or (storage.bytes_per_s is None and storage.reads_per_s is None):
        return None
    by = BANDWIDTH if of_bytes >= of_reads else READS
    ranks = np.arange(1, FARTHEST + 1)
    step_ns = np.interp(
        np.log(ranks),
        np.log([point.ranks for point in points]),
        [point.free_step_ns for point in points],
    )
    asked_ns = (
        max(of_bytes, of_reads)
        * ranks
        * (1 - (0.0 if hosts is None else hit_fractions(hosts, ranks)))
    )
    beyond = asked_ns >= step_ns * (1 - 1e-12)
    return Saturation(int(ranks[beyond.argmax()]) if beyond.any() else None, by)


def _served_ns(amount: float, per_s: float | None) -> float:
    return 0.0 if per_s is None else amount / per_s * 1e9
