"""What a job on many ranks is told by: its storage, its hosts, and what comes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "BANDWIDTH",
    "LINK",
    "READS",
    "CacheUse",
    "Hosts",
    "Saturation",
    "ScalingCurve",
    "ScalingPoint",
    "SharedStorage",
    "Spread",
]

BANDWIDTH: Final = "bandwidth"
LINK: Final = "node bandwidth"
READS: Final = "reads"


@dataclass(frozen=True, slots=True, kw_only=True)
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
        What reaches one host, whatever storage could give.
    """

    bytes_per_s: float | None = None
    reads_per_s: float | None = None
    read_latency_ns: int = 0
    reader_bytes_per_s: float | None = None
    host_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """How ranks lie on machines, and what these keep of the data set.

    Parameters
    ----------
    n_hosts : int or None
        As many as there are, ranks dealt evenly; None where ``ranks_per_host`` says it.
    ranks_per_host : int
    cache_nbytes : int
        What one host keeps of what it has read once.
    dataset_nbytes : int or None
        Of one epoch, as it is read; needed with a cache.
    own_shards : bool
        Whether each rank reads the same samples in every epoch; else they are dealt anew.
    """

    n_hosts: int | None = None
    ranks_per_host: int = 1
    cache_nbytes: int = 0
    dataset_nbytes: int | None = None
    own_shards: bool = False

    def used_by(self, ranks: int) -> int:
        """Return on how many hosts so many ranks lie."""
        if self.n_hosts is not None:
            return min(self.n_hosts, ranks)
        return -(-ranks // self.ranks_per_host)

    def most_on_one(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many ranks the fullest host has, by number of ranks."""
        if self.n_hosts is not None:
            return -(-ranks // np.minimum(self.n_hosts, ranks))
        return np.minimum(ranks, self.ranks_per_host)


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What the hosts' caches serve once they are warm.

    Parameters
    ----------
    hit_fraction : float
        The share of reads that find their samples in the cache of their own host.
    evicting_hit_fraction : float
        The same of a cache that drops what was used longest ago, as a page cache does, if samples
        come in another random order in every epoch.
    warm_after_epochs : int
        When caches hold nearly all (95 %) of what they ever will.
    """

    hit_fraction: float
    evicting_hit_fraction: float
    warm_after_epochs: int


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over repeated simulations: the middle one, the smallest and the largest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """A job of so many ranks, in steady state.

    Parameters
    ----------
    ranks, hosts : int
    cache : CacheUse or None
        None in the first epoch, and without caches.
    samples_per_s : Spread
        Of all ranks together.
    efficiency : float
        Samples per second of a rank, over those of a job of one rank in the same epoch; above 1
        where caches together serve more than one alone.
    exposed_fraction : Spread
        The share of the job's time in which its last rank waited for its batch.
    storage_fraction : float or None
        The share of storage's time that was used; None where it has no bound.
    bytes_per_s, reads_per_s : float
        What storage gave.
    step_ns : int
        Mean time from step to step.
    free_step_ns : int
        The same if storage had no bound.
    is_bound : bool
        Whether it lies so far beyond what was measured that it is a bound: samples per second
        are at most these, and the exposed share at least this.
    """

    ranks: int
    hosts: int
    cache: CacheUse | None
    samples_per_s: Spread
    efficiency: float
    exposed_fraction: Spread
    storage_fraction: float | None
    bytes_per_s: float
    reads_per_s: float
    step_ns: int
    free_step_ns: int
    is_bound: bool


@dataclass(frozen=True, slots=True)
class Saturation:
    """From how many ranks on storage, or a host's link, cannot give what they would read.

    Parameters
    ----------
    ranks : int or None
        The smallest number; None if no number up to `FARTHEST` does.
    by : str
        ``"bandwidth"`` or ``"reads"`` of storage, whichever ends first; ``"node bandwidth"``.
    """

    ranks: int | None
    by: str


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """What a run would do on more ranks.

    Parameters
    ----------
    first_epoch : tuple of ScalingPoint
        Nothing cached.
    later_epochs : tuple of ScalingPoint
        With warm caches; empty without any.
    saturation, later_saturation : Saturation or None
        None where storage has no bound, and without caches.
    host_saturation, later_host_saturation : Saturation or None
        The same of what reaches one host.
    model_error_fraction : float or None
        Step time that the model gives for the measured run, over the measured one, less 1.
    n_seeds : int
        Simulations for each point.
    """

    first_epoch: tuple[ScalingPoint, ...]
    later_epochs: tuple[ScalingPoint, ...]
    saturation: Saturation | None
    later_saturation: Saturation | None
    host_saturation: Saturation | None
    later_host_saturation: Saturation | None
    model_error_fraction: float | None
    n_seeds: int
