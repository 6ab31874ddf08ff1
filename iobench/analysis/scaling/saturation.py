"""From how many ranks on storage, or a host's link, cannot give what they would read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.scaling.caches import hit_fractions
from iobench.analysis.scaling.contract import BANDWIDTH, LINK, READS, Saturation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.analysis.scaling.contract import Hosts, ScalingPoint, SharedStorage
    from iobench.analysis.scaling.demand import RankDemand

__all__ = ["FARTHEST", "find_host_saturation", "find_saturation"]

FARTHEST: Final = 1 << 20
"""The largest number of ranks that is asked about."""
RANKS: Final = np.arange(1, FARTHEST + 1)


def find_saturation(
    demand: RankDemand, storage: SharedStorage, points: Sequence[ScalingPoint], hosts: Hosts
) -> Saturation | None:
    """Return from how many ranks on they would read more than storage gives.

    R ranks that ask for b bytes in each step of c seconds reach a bandwidth B at R = B c / b. The
    step is that of so many ranks with a storage without bounds: the slowest of more ranks is
    slower, and none is faster than its host's link. Between simulated points it grows with the
    logarithm of the ranks.

    Parameters
    ----------
    demand : RankDemand
    storage : SharedStorage
    points : sequence of ScalingPoint
        By ranks; none where nothing is known. Caches serve their part where these have them.
    hosts : Hosts

    Returns
    -------
    Saturation or None
        None where storage has no bound, or without points.
    """
    of_bytes = _served_ns(float(demand.nbytes.mean()), storage.bytes_per_s)
    of_reads = _served_ns(float(demand.reads.mean()), storage.reads_per_s)
    if not points or (storage.bytes_per_s is None and storage.reads_per_s is None):
        return None
    missing = _missing(points, hosts)
    asked_ns = max(of_bytes, of_reads) * RANKS * missing
    step_ns = np.maximum(_free_ns(points), _linked_ns(demand, storage, hosts) * missing)
    return _first(asked_ns, step_ns, BANDWIDTH if of_bytes >= of_reads else READS)


def find_host_saturation(
    demand: RankDemand, storage: SharedStorage, points: Sequence[ScalingPoint], hosts: Hosts
) -> Saturation | None:
    """Return from how many ranks on those of one host would read more than reaches it.

    Parameters
    ----------
    demand, storage, points, hosts
        As of `find_saturation`.

    Returns
    -------
    Saturation or None
        None where a host's link has no bound, or without points.
    """
    if not points or storage.host_bytes_per_s is None:
        return None
    asked_ns = _linked_ns(demand, storage, hosts) * _missing(points, hosts)
    return _first(asked_ns, _free_ns(points), LINK)


def _free_ns(points: Sequence[ScalingPoint]) -> NDArray[np.float64]:
    """Return the step with a storage without bounds, by number of ranks."""
    return np.interp(
        np.log(RANKS),
        np.log([point.ranks for point in points]),
        [point.free_step_ns for point in points],
    )


def _missing(points: Sequence[ScalingPoint], hosts: Hosts) -> NDArray[np.float64]:
    """Return the share of reads that caches do not serve, by number of ranks."""
    if points[0].cache is None:
        return np.ones(len(RANKS))
    return 1.0 - hit_fractions(hosts, RANKS)


def _linked_ns(demand: RankDemand, storage: SharedStorage, hosts: Hosts) -> NDArray[np.float64]:
    """Return how long a host's link is busy with a step, by number of ranks."""
    nbytes = float(demand.nbytes.mean())
    on_one = hosts.most_on_one(RANKS).astype(np.float64)
    return on_one * _served_ns(nbytes, storage.host_bytes_per_s)


def _first(asked_ns: NDArray[np.float64], step_ns: NDArray[np.float64], by: str) -> Saturation:
    beyond = (asked_ns > 0) & (asked_ns >= step_ns * (1 - 1e-12))
    return Saturation(int(RANKS[beyond.argmax()]) if beyond.any() else None, by)


def _served_ns(amount: float, per_s: float | None) -> float:
    return 0.0 if per_s is None else amount / per_s * 1e9
