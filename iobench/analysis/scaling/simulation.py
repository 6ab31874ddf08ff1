"""One simulation of a job in steady state, by the way that its storage asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.analysis.replay.contract import LoaderRule
from iobench.analysis.scaling.bounded_storage import bounded_steps
from iobench.analysis.scaling.draws import draw_steps
from iobench.analysis.scaling.free_storage import free_steps

if TYPE_CHECKING:
    from iobench.analysis.scaling.contract import SharedStorage
    from iobench.analysis.scaling.demand import RankDemand
    from iobench.analysis.scaling.draws import DrawnSteps

__all__ = ["SimulatedJob", "simulate_job"]

MOST_BATCHES: Final = 10_000
"""Batches that a simulation is made of, where that leaves `FEWEST_STEPS`."""
FEWEST_STEPS, MOST_STEPS = 16, 400


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """What a step of a job came to, the beginning left out; ns and bytes of all ranks.

    Parameters
    ----------
    step_ns, free_step_ns : float
        With the storage as it is, and if it had no bound.
    exposed_fraction : float
    served_ns, nbytes, reads : float
        What a step asked of storage.
    """

    step_ns: float
    free_step_ns: float
    exposed_fraction: float
    served_ns: float
    nbytes: float
    reads: float


def simulate_job(
    demand: RankDemand,
    storage: SharedStorage,
    *,
    ranks: int,
    ranks_per_host: int,
    hit_fraction: float,
    allreduce_ns: float,
    seed: int,
) -> SimulatedJob:
    """Return what the steps of a job come to.

    Where storage can give what is asked, pipelines are full to begin with, where it cannot, they
    are empty: so the steady state is near in both cases. Steps until each rank has used what was
    there at the beginning are left out, and those at the end, when less and less is read ahead.
    """
    lead = demand.ahead + demand.workers
    # Whole turns of the pipeline: its workers may end their batches together.
    turns = -(-min(max(MOST_BATCHES // ranks, FEWEST_STEPS), MOST_STEPS) // demand.ahead)
    end = lead + turns * demand.ahead
    n_steps = end + demand.ahead
    empty = draw_steps(
        demand, storage, ranks=ranks, n_steps=n_steps, hit_fraction=hit_fraction, seed=seed
    )
    full = empty if demand.rule is LoaderRule.SERIAL else empty.with_ready(demand.ahead)
    free = steps = free_steps(
        demand, full, ranks_per_host=ranks_per_host, allreduce_ns=allreduce_ns
    )
    counted = end - lead
    free_step_ns = float(free.asked_ns[end] - free.asked_ns[lead]) / counted
    if not free.was_free:
        is_much = _load(empty, lead, ranks_per_host, free_step_ns) >= 1
        steps = bounded_steps(
            demand,
            empty if is_much else full,
            ranks_per_host=ranks_per_host,
            allreduce_ns=allreduce_ns,
        )
    wall_ns = float(steps.asked_ns[end] - steps.asked_ns[lead])
    waited_ns = float((steps.held_ns - steps.asked_ns[:-1])[lead:end].sum())
    return SimulatedJob(
        step_ns=wall_ns / counted,
        free_step_ns=free_step_ns,
        exposed_fraction=waited_ns / wall_ns if wall_ns else 0.0,
        served_ns=float(empty.served_ns[lead:end].sum()) / counted,
        nbytes=float(empty.nbytes[lead:end].sum()) / counted,
        reads=float(empty.reads[lead:end].sum()) / counted,
    )


def _load(drawn: DrawnSteps, lead: int, ranks_per_host: int, step_ns: float) -> float:
    """Return what steps ask of storage, or of a host's link, over what there is."""
    ranks = drawn.read_ns.shape[1]
    of_storage = float(drawn.served_ns[lead:].mean()) * ranks
    of_link = float(drawn.linked_ns[lead:].mean()) * min(ranks, ranks_per_host)
    return max(of_storage, of_link) / step_ns if step_ns else 1.0
