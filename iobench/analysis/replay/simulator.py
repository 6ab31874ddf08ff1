"""One loader's pipeline, run again: who makes which batch when, and how long the loop waits.

A batch is dispatched when one ``ahead`` before it was taken, begun by a worker that is free, done
in its service time, handed over, and picked up by the training loop, which computes and asks
again. Every time follows from earlier ones: nothing is shared but the training loop.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.replay.loader_run import LoaderRule
from iobench.errors import ProfileError

if TYPE_CHECKING:
    from iobench.analysis.replay.loader_run import LoaderRun

Integers = NDArray[np.int64]


class Dispatch(msgspec.Struct, frozen=True):
    """How a loader hands batches to its workers.

    ``ahead`` is how many are in flight at most, 0 where a batch is begun when the loop asks for
    it. In a queue whichever worker is free takes the next batch; else each batch has its worker.
    Over a link one batch after another is copied, of all workers; else each worker sends its own.
    """

    workers: int
    ahead: int
    is_queue: bool = False
    is_linked: bool = False

    @classmethod
    def of(cls, run: LoaderRun) -> Dispatch:
        """Return that of a run's loader."""
        workers, prefetch = max(run.workers, 1), max(run.prefetch, 1)
        if run.rule is LoaderRule.POOL:
            return cls(workers, workers * prefetch, is_linked=run.is_linked)
        if run.rule is LoaderRule.THREADS:
            return cls(workers, prefetch, is_queue=True)
        if run.rule is LoaderRule.SERIAL:
            return cls(1, 0)
        raise ProfileError(f"{run.name}: it cannot be replayed: {run.reason}")


@dataclass(slots=True)
class Batches:
    """What batches take, in ns.

    By order of dispatch: what its worker spends on each, and another thread after that; from its
    dispatch until an idle worker begins it; from its end to being ready; its worker, where each
    batch has its own. By order of delivery: pick-up and compute.
    """

    service: Sequence[int]
    beside: Sequence[int]
    submit: Sequence[int]
    transit: Sequence[int]
    worker: Sequence[int]
    pickup: Sequence[int]
    compute: Sequence[int]


def simulate(how: Dispatch, batches: Batches, *, start_ns: int = 0, first_ns: int = 0) -> list[int]:
    """Return when the loop held each batch, in ns from the start.

    Workers begin at ``start_ns``, the loop asks first at ``first_ns``.
    """
    ahead, is_queue = how.ahead, how.is_queue
    free, sent = [start_ns] * how.workers, [start_ns] * how.workers
    held: list[int] = []
    now = first_ns
    columns = zip(
        batches.service,
        batches.beside,
        batches.submit,
        batches.transit,
        batches.worker,
        batches.pickup,
        batches.compute,
        strict=True,
    )
    for number, (service, other, submit, transit, worker, pickup, compute) in enumerate(columns):
        begin = now
        if ahead:
            begin = (held[number - ahead] if number >= ahead else start_ns) + submit
            begin = max(begin, free[0 if is_queue else worker])
        end = begin + service
        if not ahead:
            end += other
        elif is_queue:
            heapq.heapreplace(free, end)
            end += other
        else:
            free[worker] = end
            if other:
                sender = 0 if how.is_linked else worker
                end = sent[sender] = max(end, sent[sender]) + other
        now = max(now, end + transit) + pickup
        held.append(now)
        now += compute
    return held


class Replayed(msgspec.Struct, frozen=True):
    """A run simulated; times in integer ns.

    ``waits_ns`` has the wait for each batch; ``judged_ns`` what each batch took that tells what a
    long training sees, from one question to the next.
    """

    wall_ns: int
    wait_ns: int
    waits_ns: Integers
    judged_ns: Integers


def simulate_run(run: LoaderRun) -> Replayed:
    """Return what comes of a run's times, each round by itself.

    Raises
    ------
    ProfileError
        If the run cannot be replayed.
    """
    how = Dispatch.of(run)
    service = run.work_ns.sum(axis=1) - run.beside_ns.sum(axis=1) + run.gap_ns
    columns = service, run.beside_ns.sum(axis=1), run.submit_ns, run.transit_ns
    waits, share = np.zeros((2, len(run)), dtype=np.int64)
    wall = int(run.shutdown_ns.sum())
    firsts = run.opening_ns + run.lead_ns
    order = np.argsort(run.round, kind="stable")
    edges = np.searchsorted(run.round[order], np.arange(len(firsts) + 1)).tolist()
    for number, first in enumerate(firsts.tolist()):
        rows = order[edges[number] : edges[number + 1]]
        if not len(rows):
            wall += first
            continue
        dispatched = rows[np.argsort(run.number[rows], kind="stable")]
        created, other, submit, transit = (values[dispatched].tolist() for values in columns)
        batches = Batches(
            service=created,
            beside=other,
            submit=submit,
            transit=transit,
            worker=_workers(run, dispatched, how.workers),
            pickup=run.pickup_ns[rows].tolist(),
            compute=run.compute_ns[rows].tolist(),
        )
        start = int(run.startup_ns[number]) if how.ahead else 0
        held = np.array(simulate(how, batches, start_ns=start, first_ns=first))
        until = held + run.compute_ns[rows]
        begin = np.append(first, until[:-1])
        waits[rows], share[rows] = held - begin, until - begin
        wall += int(until[-1])
    closing = int(run.opening_ns.sum() + run.shutdown_ns.sum())
    return Replayed(wall, int(waits.sum()) + closing, waits, run.judged_ns(share))


def _workers(run: LoaderRun, dispatched: Integers, n_workers: int) -> list[int]:
    """Return who makes each batch: who did, or where that is not known, in turn."""
    known = run.worker[dispatched]
    known = np.where(known < n_workers, known, -1)
    workers: list[int] = np.where(known >= 0, known, np.arange(len(known)) % n_workers).tolist()
    return workers
