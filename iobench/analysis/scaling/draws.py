"""Batches for every rank of a job, drawn from those that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.scaling.contract import SharedStorage
    from iobench.analysis.scaling.demand import RankDemand

__all__ = ["DrawnSteps", "draw_steps"]

STRETCH: Final = 8
"""Batches that stay together: neighbours are alike, for they come from the same file."""


@dataclass(frozen=True, slots=True)
class DrawnSteps:
    """The batches of all ranks; times in ns, arrays of shape (n_steps, ranks).

    Parameters
    ----------
    served_ns : ndarray of float64
        Of storage as a whole, if it did nothing else.
    linked_ns : ndarray of float64
        Of the host's link, likewise.
    read_ns : ndarray of float64
        What reading takes a rank by itself.
    rest_ns, submit_ns, transit_ns, pickup_ns, compute_ns : ndarray of float64
    nbytes, reads : ndarray of float64
        Asked of storage.
    """

    served_ns: NDArray[np.float64]
    linked_ns: NDArray[np.float64]
    read_ns: NDArray[np.float64]
    rest_ns: NDArray[np.float64]
    submit_ns: NDArray[np.float64]
    transit_ns: NDArray[np.float64]
    pickup_ns: NDArray[np.float64]
    compute_ns: NDArray[np.float64]
    nbytes: NDArray[np.float64]
    reads: NDArray[np.float64]

    def with_ready(self, n_steps: int) -> DrawnSteps:
        """Return the same with the first batches there at once: a pipeline that is full."""
        made = {
            name: getattr(self, name).copy()
            for name in ("served_ns", "linked_ns", "read_ns", "rest_ns", "submit_ns", "transit_ns")
        }
        for values in made.values():
            values[:n_steps] = 0
        return DrawnSteps(
            **made,
            pickup_ns=self.pickup_ns,
            compute_ns=self.compute_ns,
            nbytes=self.nbytes,
            reads=self.reads,
        )


def draw_steps(
    demand: RankDemand,
    storage: SharedStorage,
    *,
    ranks: int,
    n_steps: int,
    hit_fraction: float,
    seed: int,
) -> DrawnSteps:
    """Return what every rank does in so many steps.

    Each rank goes through stretches of neighbouring batches of a measured rank, chosen at
    random; a batch keeps its own read time, bytes and compute together. Of each batch some samples
    are in the cache, drawn one by one.
    """
    random = np.random.default_rng((seed, ranks))
    rows = _rows(demand, random, ranks, n_steps)
    size = demand.batch_size
    if hit_fraction <= 0 or hit_fraction >= 1:
        missing = np.full(rows.shape, 1.0 - hit_fraction)
    else:
        missing = random.binomial(size, 1 - hit_fraction, rows.shape) / size
    nbytes, reads = demand.nbytes[rows] * missing, demand.reads[rows] * missing
    read_ns = demand.read_ns[rows]
    if storage.reader_bytes_per_s is not None:
        read_ns = np.maximum(read_ns, nbytes / storage.reader_bytes_per_s * 1e9)
    read_ns = read_ns + reads * storage.read_latency_ns
    return DrawnSteps(
        served_ns=np.maximum(_at(nbytes, storage.bytes_per_s), _at(reads, storage.reads_per_s)),
        linked_ns=_at(nbytes, storage.host_bytes_per_s),
        read_ns=read_ns,
        rest_ns=demand.rest_ns[rows],
        submit_ns=demand.submit_ns[rows],
        transit_ns=demand.transit_ns[rows],
        pickup_ns=demand.pickup_ns[rows],
        compute_ns=demand.compute_ns[rows],
        nbytes=nbytes,
        reads=reads,
    )


def _rows(
    demand: RankDemand, random: np.random.Generator, ranks: int, n_steps: int
) -> NDArray[np.int64]:
    """Return which measured batch each is, shape (n_steps, ranks)."""
    shape = (-(-n_steps // STRETCH), ranks)
    starts, ends = np.array(demand.starts[:-1]), np.array(demand.starts[1:])
    of_rank = random.integers(len(starts), size=shape)
    length = (ends - starts)[of_rank]
    first = (random.random(shape) * length).astype(np.int64)
    within = (first[:, None, :] + np.arange(STRETCH)[None, :, None]) % length[:, None, :]
    rows: NDArray[np.int64] = (starts[of_rank][:, None, :] + within).reshape(-1, ranks)[:n_steps]
    return rows


def _at(amount: NDArray[np.float64], per_s: float | None) -> NDArray[np.float64]:
    return np.zeros_like(amount) if per_s is None else amount / per_s * 1e9
