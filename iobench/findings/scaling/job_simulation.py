"""One simulation of a job in steady state: its batches are drawn from those that were measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.replay.simulator import (
    STORAGE,
    Batches,
    Dispatch,
    Resources,
    shared,
    straight,
)
from iobench.findings.scaling.demand import TIMES, BatchTimes
from iobench.findings.scaling.target import time_ns

if TYPE_CHECKING:
    from iobench.findings.scaling.demand import RankDemand
    from iobench.findings.scaling.target import SharedStorage

Floats = NDArray[np.float64]

MOST_BATCHES: Final = 10_000
"""Batches that a simulation is made of, where that leaves `FEWEST_STEPS`."""
FEWEST_STEPS, MOST_STEPS = 16, 400
NEIGHBOURS: Final = 8
"""Batches that stay together: neighbours are alike, for they come from the same file."""


class DrawnSteps(BatchTimes, frozen=True, kw_only=True):
    """The batches of all ranks; arrays of shape (n_steps, ranks).

    Parameters
    ----------
    served_ns : ndarray of float64
        Of storage as a whole, if it did nothing else.
    """

    served_ns: Floats

    def with_ready(self, n_steps: int) -> DrawnSteps:
        """Return the same with the first batches there at once: a pipeline that is full."""
        made: dict[str, Any] = {}
        for name in ("served_ns", "read_ns", "rest_ns", "submit_ns", "transit_ns"):
            made[name] = getattr(self, name).copy()
            made[name][:n_steps] = 0
        return replace(self, **made)


def draw_steps(
    demand: RankDemand,
    storage: SharedStorage,
    *,
    ranks: int,
    n_steps: int,
    seed: int,
) -> DrawnSteps:
    """Return what every rank does in so many steps.

    Each rank goes through neighbouring batches of a measured rank, chosen at random; a batch keeps
    its own read time, bytes and compute together.
    """
    random = np.random.default_rng((seed, ranks))
    rows = _rows(demand, random, ranks, n_steps)
    drawn: dict[str, Floats] = {name: getattr(demand, name)[rows] for name in TIMES}
    return DrawnSteps(
        served_ns=np.maximum(
            time_ns(drawn["nbytes"], storage.bytes_per_s),
            time_ns(drawn["reads"], storage.reads_per_s),
        ),
        **drawn,
    )


def _rows(
    demand: RankDemand, random: np.random.Generator, ranks: int, n_steps: int
) -> NDArray[np.int64]:
    """Return which measured batch each is, shape (n_steps, ranks)."""
    shape = (-(-n_steps // NEIGHBOURS), ranks)
    starts, ends = np.array(demand.starts[:-1]), np.array(demand.starts[1:])
    of_rank = random.integers(len(starts), size=shape)
    length = (ends - starts)[of_rank]
    first = (random.random(shape) * length).astype(np.int64)
    within = (first[:, None, :] + np.arange(NEIGHBOURS)[None, :, None]) % length[:, None, :]
    rows: NDArray[np.int64] = (starts[of_rank][:, None, :] + within).reshape(-1, ranks)[:n_steps]
    return rows


class SimulatedJob(msgspec.Struct, frozen=True):
    """What a step of a job came to, the beginning left out; ns and bytes of all ranks.

    Parameters
    ----------
    step_ns, free_step_ns : float
        With the storage as it is, and if it had no bound.
    served_ns, nbytes, reads : float
        What a step asked of storage.
    """

    step_ns: float
    free_step_ns: float
    exposed_fraction: float
    served_ns: float
    nbytes: float
    reads: float


class StepTimes(msgspec.Struct, frozen=True):
    """When the steps of a job were; float ns.

    Parameters
    ----------
    asked_ns : ndarray of float64, shape (n_steps + 1,)
        When all ranks ask for the batch of each step; then the end of the last one.
    held_ns : ndarray of float64, shape (n_steps,)
        When the last rank had it.
    begun_ns : ndarray of float64, shape (n_steps, ranks)
        When each batch was begun; of `free_steps` only.
    """

    asked_ns: Floats
    held_ns: Floats
    begun_ns: Floats


def simulate_job(
    demand: RankDemand,
    storage: SharedStorage,
    *,
    ranks: int,
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
    empty = draw_steps(demand, storage, ranks=ranks, n_steps=n_steps, seed=seed)
    full = empty if demand.rule is LoaderRule.SERIAL else empty.with_ready(demand.ahead)
    free = steps = free_steps(demand, full)
    counted = end - lead
    free_step_ns = float(free.asked_ns[end] - free.asked_ns[lead]) / counted
    if not is_free(full, free):
        is_much = _load(empty, lead, free_step_ns) >= 1
        steps = bounded_steps(demand, empty if is_much else full)
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


def free_steps(demand: RankDemand, drawn: DrawnSteps) -> StepTimes:
    """Return the steps of a job whose reads take what they take a rank alone, all ranks at once."""
    how, submit = _dispatch(demand, drawn)
    nothing = np.zeros(drawn.read_ns.shape)
    times = straight(
        how,
        Batches(
            service=list(drawn.read_ns + drawn.rest_ns),
            beside=list(nothing),
            submit=list(submit),
            transit=list(drawn.transit_ns),
            pickup=list(drawn.pickup_ns),
            compute=list(drawn.compute_ns),
            worker=_workers(how, len(nothing)),
        ),
        in_ranks=True,
    )
    begun = np.array(np.broadcast_arrays(*times.begun, nothing[0])[:-1])
    taken = np.array(times.taken)
    ended = (taken + drawn.compute_ns).max(axis=1)
    return StepTimes(np.append(0.0, ended), taken.max(axis=1), begun)


def bounded_steps(demand: RankDemand, drawn: DrawnSteps) -> StepTimes:
    """Return the steps of a job, with its reads sharing storage alike.

    A read ends when storage has given its bytes, and the reader has had the time that it takes
    alone.
    """
    how, submit = _dispatch(demand, drawn)
    n_steps, ranks = submit.shape

    def flat(values: Floats) -> list[float]:
        found: list[float] = values.ravel().tolist()
        return found

    served, read, rest = map(flat, (drawn.served_ns, drawn.read_ns, drawn.rest_ns))
    n = len(served)
    reads = zip([STORAGE] * n, served, [1.0] * n, read, rest, strict=True)
    batches = Batches(
        service=list(zip(reads, strict=True)),
        beside=[()] * n,
        submit=flat(submit),
        transit=flat(drawn.transit_ns),
        pickup=flat(drawn.pickup_ns),
        compute=flat(drawn.compute_ns),
        worker=np.repeat(_workers(how, n_steps), ranks).tolist(),
    )
    times = shared(how, batches, Resources(storage=1.0), n_ranks=ranks)
    taken = np.array(times.taken).reshape(submit.shape)
    return StepTimes(np.append(0.0, times.until), taken.max(axis=1), np.zeros((0, ranks)))


def _dispatch(demand: RankDemand, drawn: DrawnSteps) -> tuple[Dispatch, Floats]:
    """Return how batches are dispatched, and after how long those that wait for room are begun."""
    submit = drawn.submit_ns.copy()
    if demand.rule is LoaderRule.SERIAL:
        submit[:] = 0
        return Dispatch(1, 0), submit
    submit[: demand.ahead] = 0
    is_queue = demand.rule is LoaderRule.THREADS
    return Dispatch(demand.workers, demand.ahead, is_queue=is_queue), submit


def _workers(how: Dispatch, n_steps: int) -> list[int]:
    return [step % how.workers for step in range(n_steps)]


def _load(drawn: DrawnSteps, lead: int, step_ns: float) -> float:
    """Return what steps ask of storage over what there is."""
    asked_ns = float(drawn.served_ns[lead:].mean()) * drawn.read_ns.shape[1]
    return asked_ns / step_ns if step_ns else 1.0


def is_free(drawn: DrawnSteps, steps: StepTimes) -> bool:
    """Return whether at no time reads together asked for more than storage has."""
    asked_ns, read_ns = drawn.served_ns, drawn.read_ns
    if not asked_ns.any():
        return True
    if (asked_ns > read_ns).any():
        return False
    some = asked_ns > 0
    began, rate = steps.begun_ns[some], asked_ns[some] / read_ns[some]
    moment = np.concatenate([began + read_ns[some], began])
    change = np.concatenate([-rate, rate])
    # Those that end come first where others begin at the same moment.
    order = np.lexsort((change, moment))
    return float(np.cumsum(change[order]).max()) <= 1 + 1e-9
