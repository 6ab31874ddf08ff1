"""What the caches of hosts keep of a data set, from its second epoch on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.scaling.contract import CacheUse, Hosts

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["cache_use", "hit_fractions"]

WARM: Final = 0.95


def hit_fractions(hosts: Hosts, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return which share of reads warm caches serve, by number of ranks.

    Where each rank has its own shards, the hosts' caches add up: each needs to hold what its own
    ranks read. Where samples are dealt anew in every epoch, a host may be asked for any of them,
    and what others hold is of no use to it.
    """
    share = hosts.cache_nbytes / hosts.dataset_nbytes if hosts.dataset_nbytes else 0.0
    if not hosts.own_shards:
        return np.full(len(ranks), min(1.0, share))
    if hosts.n_hosts is not None:
        used = np.minimum(hosts.n_hosts, ranks)
    else:
        used = -(-ranks // hosts.ranks_per_host)
    return np.minimum(1.0, share * used)


def cache_use(hosts: Hosts, ranks: int) -> CacheUse | None:
    """Return what warm caches serve; None without any."""
    if not hosts.cache_nbytes or not hosts.dataset_nbytes:
        return None
    hit = float(hit_fractions(hosts, np.array([ranks]))[0])
    used = hosts.used_by(ranks)
    return CacheUse(hit, _evicting(hit), 1 if hosts.own_shards else _epochs(hit, used))


def _epochs(hit: float, used: int) -> int:
    """Return after how many epochs a host has seen that share of all samples, but for 5 %.

    In each it sees what its own ranks are dealt: one in ``used`` of all samples.
    """
    if used == 1:
        return 1
    return max(1, math.ceil(math.log(1 - WARM * hit) / math.log(1 - 1 / used)))


def _evicting(fraction: float) -> float:
    """Return the hits of a cache that drops what was used longest ago, with so much room.

    A sample at x of one epoch and y of the next is found if the samples between, 1 - x (1 - y) of
    all, fit: P(x (1 - y) >= q) with q = 1 - fraction, for x and y anywhere.
    """
    left = 1 - fraction
    return 1.0 if left <= 0 else fraction + left * math.log(left)
