"""The steps of a job while storage has no bound: every rank's own loader, and its peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from iobench.analysis.replay.contract import LoaderRule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.scaling.demand import RankDemand
    from iobench.analysis.scaling.draws import DrawnSteps

__all__ = ["StepTimes", "free_steps"]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When the steps of a job were; float ns.

    Parameters
    ----------
    asked_ns : ndarray of float64, shape (n_steps + 1,)
        When all ranks ask for the batch of each step; then the end of the last one.
    held_ns : ndarray of float64, shape (n_steps,)
        When the last rank had it.
    was_free : bool
        Whether reads never asked for more than storage has.
    """

    asked_ns: NDArray[np.float64]
    held_ns: NDArray[np.float64]
    was_free: bool


def free_steps(
    demand: RankDemand, drawn: DrawnSteps, *, ranks_per_host: int, allreduce_ns: float
) -> StepTimes:
    """Return the steps of a job whose reads take what they take a rank alone.

    All ranks at once, step by step. Batch i of a pool starts when it was submitted, as the batch
    ``ahead`` before it was taken, and when its worker has ended its previous one.
    """
    n_steps, ranks = drawn.read_ns.shape
    began = np.zeros((n_steps, ranks))
    taken = np.zeros((n_steps, ranks))
    ended = np.zeros((demand.workers, ranks))
    asked, held = np.zeros(n_steps + 1), np.zeros(n_steps)
    lanes = np.arange(ranks)
    for step in range(n_steps):
        worker: NDArray[np.int64] | int = step % demand.workers
        if demand.rule is LoaderRule.THREADS:
            worker = ended.argmin(axis=0)
        free = ended[worker, lanes]
        if demand.rule is LoaderRule.SERIAL:
            room: NDArray[np.float64] | float = asked[step]
        elif step >= demand.ahead:
            room = taken[step - demand.ahead] + drawn.submit_ns[step]
        else:
            room = 0.0
        began[step] = np.maximum(free, room)
        done = began[step] + drawn.read_ns[step] + drawn.rest_ns[step]
        ended[worker, lanes] = done
        ready = done + drawn.transit_ns[step]
        taken[step] = np.maximum(asked[step], ready) + drawn.pickup_ns[step]
        held[step] = taken[step].max()
        asked[step + 1] = (taken[step] + drawn.compute_ns[step]).max() + allreduce_ns
    return StepTimes(asked, held, _is_free(drawn, began, ranks_per_host))


def _is_free(drawn: DrawnSteps, began: NDArray[np.float64], ranks_per_host: int) -> bool:
    """Return whether at no time reads together asked for more than storage, or a link, has."""
    hosts = np.arange(began.shape[1]) // ranks_per_host
    everywhere = np.zeros_like(hosts)
    return all(
        not asked_ns.any() or _peak(began, drawn.read_ns, asked_ns, places) <= 1 + 1e-9
        for asked_ns, places in ((drawn.served_ns, everywhere), (drawn.linked_ns, hosts))
    )


def _peak(
    began: NDArray[np.float64],
    read_ns: NDArray[np.float64],
    asked_ns: NDArray[np.float64],
    places: NDArray[np.int64],
) -> float:
    """Return the largest share of a place's time that reads asked for at once."""
    if (asked_ns > read_ns).any():
        return np.inf
    some = asked_ns > 0
    rate = asked_ns[some] / read_ns[some]
    place = np.broadcast_to(places, began.shape)[some]
    moment = np.concatenate([began[some] + read_ns[some], began[some]])
    change = np.concatenate([-rate, rate])
    # Those that end come first where others begin at the same moment.
    order = np.lexsort((change, moment, np.concatenate([place, place])))
    # What begins at a place ends there, so that the sum is 0 where the next place begins.
    return float(np.cumsum(change[order]).max())
