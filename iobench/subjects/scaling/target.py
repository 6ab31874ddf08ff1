"""What a job on many ranks is simulated on: a storage that all share, and nodes with caches."""

from __future__ import annotations

import math
from dataclasses import field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from iobench.frozen import frozen
from iobench.json_keys import HIDDEN, key

if TYPE_CHECKING:
    from iobench.subjects.scaling.demand import RankDemand

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

WARM: Final = 0.95


@frozen(kw_only=True)
class SharedStorage:
    """What all ranks read from together.

    Parameters
    ----------
    bytes_per_s, reads_per_s : float or None
        What it gives all ranks together; None for no bound.
    read_latency_ns : int
        What each read takes there beyond what it took in the measured run.
    reader_bytes_per_s : float or None
        What it gives one loading process or thread that reads alone; None for as measured.
    host_bytes_per_s : float or None
        What reaches one node, whatever storage could give.
    is_near : bool
        Whether it is each node's own: then a read takes its time on a CPU, the latency, and its
        bytes, whatever it took where it was measured.
    """

    bytes_per_s: float | None = None
    reads_per_s: float | None = None
    read_latency_ns: int = field(default=0, metadata=key("read_latency_ns"))
    reader_bytes_per_s: float | None = None
    host_bytes_per_s: float | None = field(default=None, metadata=key("node_bytes_per_s"))
    is_near: bool = field(default=False, metadata=HIDDEN)

    @property
    def is_bounded(self) -> bool:
        """Whether there is anything that it cannot give."""
        return self.bytes_per_s is not None or self.reads_per_s is not None


def time_ns(amount: Floats, per_s: float | None) -> Floats:
    """Return how long so many bytes or reads take at a rate; no time where it has no bound."""
    return np.zeros_like(amount) if per_s is None else amount / per_s * 1e9


@frozen(kw_only=True)
class MeasuredLimit:
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
    wall_ns: int = field(metadata=key("probed_wall_ns"))

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


@frozen
class CacheUse:
    """What the nodes' caches serve once they are warm.

    Parameters
    ----------
    hit_fraction : float
        The share of reads that find their samples in the cache of their own node.
    evicting_hit_fraction : float
        The same of a cache that drops what was used longest ago, as a page cache does, if samples
        come in another random order in every epoch.
    warm_after_epochs : int
        When caches hold nearly all (95 %) of what they ever will.
    """

    hit_fraction: float
    evicting_hit_fraction: float
    warm_after_epochs: int


@frozen(kw_only=True)
class Hosts:
    """How ranks lie on machines, and what these keep of the data set.

    Parameters
    ----------
    n_hosts : int or None
        As many as there are, ranks dealt evenly; None where ``ranks_per_host`` says it.
    ranks_per_host : int or None
        On as many nodes as it takes; None where ``n_hosts`` says it.
    cache_nbytes : int
        What one node keeps of what it has read once.
    dataset_nbytes : int or None
        Of one epoch, as it is read; needed with a cache.
    own_shards : bool
        Whether each rank reads the same samples in every epoch; else they are dealt again.
    """

    n_hosts: int | None = field(default=None, metadata=key("number"))
    ranks_per_host: int | None = field(default=None, metadata=key("ranks_per_node"))
    cache_nbytes: int = 0
    dataset_nbytes: int | None = None
    own_shards: bool = False

    def used_by(self, ranks: int) -> int:
        """Return on how many nodes so many ranks lie."""
        return int(self._used(np.array([ranks]))[0])

    def _used(self, ranks: Integers) -> Integers:
        if self.n_hosts is not None:
            return np.minimum(self.n_hosts, ranks)
        return -(-ranks // (self.ranks_per_host or 1))

    def most_on_one(self, ranks: Integers) -> Integers:
        """Return how many ranks the fullest node has, by number of ranks."""
        if self.n_hosts is not None:
            return -(-ranks // self._used(ranks))
        return np.minimum(ranks, self.ranks_per_host or 1)

    def hit_fractions(self, ranks: Integers) -> Floats:
        """Return which share of reads warm caches serve, by number of ranks.

        Where each rank has its own shards, the nodes' caches add up: each needs to hold what its
        own ranks read. Where samples are dealt again in every epoch, a node may be asked for any of
        them, and what others hold is of no use to it.
        """
        share = self.cache_nbytes / self.dataset_nbytes if self.dataset_nbytes else 0.0
        if not self.own_shards:
            return np.full(len(ranks), min(1.0, share))
        fractions: Floats = np.minimum(1.0, share * self._used(ranks))
        return fractions

    def cache_use(self, ranks: int) -> CacheUse | None:
        """Return what warm caches serve; None without any."""
        if not self.cache_nbytes or not self.dataset_nbytes:
            return None
        hit, used = float(self.hit_fractions(np.array([ranks]))[0]), self.used_by(ranks)
        epochs = 1
        if not self.own_shards and used > 1:
            # In each epoch a node sees what its ranks are dealt: one in ``used`` of all samples.
            epochs = max(1, math.ceil(math.log(1 - WARM * hit) / math.log(1 - 1 / used)))
        # Of what was used longest ago a cache finds a sample, at x of one epoch and y of the next,
        # if those between, 1 - x (1 - y) of all, fit: P(x (1 - y) >= 1 - hit), any x and y.
        left = 1 - hit
        return CacheUse(hit, 1.0 if left <= 0 else hit + left * math.log(left), epochs)
