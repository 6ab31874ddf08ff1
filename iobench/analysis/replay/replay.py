"""A recorded run simulated again, with a change; CPUs and storage of a machine are caps.

A batch is dispatched when one ``ahead`` before it was taken, begun by a worker that is free, done
in its service time, handed over, and picked up by the training loop, which computes and asks
again. Every time follows from earlier ones: nothing is shared but the training loop.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.replay.loader_run import Change, LoaderRule, changed
from iobench.errors import ProfileError
from iobench.recording.kinds import LOOP_KINDS, Kind, copies_batches, is_one_of
from iobench.recording.span_file import Flag
from iobench.storage.probe_figures import read_limits

if TYPE_CHECKING:
    from iobench.analysis.replay.loader_run import LoaderRun
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]

FACTOR: Final = 0.5
"""A faster stage takes half as long."""
WITHHELD_ABOVE: Final = 0.1
"""Of the replay's error: nothing that rests on it is said."""
HARDLY_ANY: Final = 0.1
"""Of what all stages gain together, below which one alone does not help."""


class Replayed(msgspec.Struct, frozen=True):
    """A run simulated; times in integer ns."""

    wall_ns: int
    wait_ns: int
    waits_ns: Integers
    judged_ns: Integers


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers and the training loop share; None for no bound."""

    cores: float | None = None
    read_nbytes_per_s: float | None = None
    loop_cpu_fraction: float = 0.0
    """How much of a core the loop's compute takes: 0 for a sleep or a device's work."""

    def least_ns(self, run: LoaderRun) -> float:
        """Return what CPUs or storage need for all that the batches judged take of them."""
        judged = run.judged
        weight = np.ones(len(run)) if run.weight is None else run.weight
        weight = weight[judged]
        least = 0.0
        if self.cores is not None:
            in_loop = run.compute_ns * self.loop_cpu_fraction
            on_cpu = on_cpu_ns(run).sum(axis=1) + run.gap_ns + run.pickup_ns + in_loop
            least = float((on_cpu[judged] * weight).sum()) / self.cores
        if self.read_nbytes_per_s is not None and (run.read_nbytes >= 0).all():
            nbytes = float((run.read_nbytes[judged] * weight).sum())
            least = max(least, nbytes / self.read_nbytes_per_s * 1e9)
        return least


def replay(
    run: LoaderRun, change: Change | None = None, machine: Machine | None = None
) -> Replayed:
    """Return what a run would have taken with a change, by default with none.

    The batches judged take no less than the machine's CPUs and storage need for them; without one
    each worker is as fast as it was, however many there are.
    """
    run = run if change is None else changed(run, change)
    replayed = simulate_run(run)
    total = int(replayed.judged_ns.sum())
    least = 0.0 if machine is None else machine.least_ns(run)
    if not 0 < total < least:
        return replayed
    longer = np.rint(replayed.judged_ns * (least / total)).astype(np.int64)
    return replace(replayed, judged_ns=longer)


def replay_error(run: LoaderRun) -> float:
    """Return the replayed wall time of the unmodified run over the measured one, less 1."""
    replayed = replay(run)
    return replayed.wall_ns / run.wall_ns - 1 if run.wall_ns else float("nan")


def is_trusted(error_fraction: float | None) -> bool:
    """Return whether a replay meets the run's own time well enough to predict another."""
    return error_fraction is not None and abs(error_fraction) <= WITHHELD_ABOVE


def gains_alone(run: LoaderRun, stage: str) -> bool | None:
    """Return whether a stage of workers gains that alone takes half as long; None if unknown."""
    if not run.can_replay or not run.wall_ns or stage not in run.stages:
        return None
    before = replay(run)
    if not is_trusted(before.wall_ns / run.wall_ns - 1):
        return None
    total = before.judged_ns.sum()
    alone, joint = (
        int(total - replay(run, Change(stage_factors=dict.fromkeys(each, FACTOR))).judged_ns.sum())
        for each in ([stage], run.stages)
    )
    return alone > HARDLY_ANY * joint


def simulate_run(run: LoaderRun) -> Replayed:
    """Return what comes of a run's times, each round by itself."""
    if not run.can_replay:
        raise ProfileError(f"{run.name}: it cannot be replayed: {run.reason}")
    workers, ahead = max(run.workers, 1), max(run.prefetch, 1)
    if run.rule is LoaderRule.POOL:
        ahead *= workers
    elif run.rule is LoaderRule.SERIAL:
        workers, ahead = 1, 0
    other = run.async_ns.sum(axis=1)
    service = run.work_ns.sum(axis=1) - other + run.gap_ns
    waits, share = np.zeros((2, len(run)), dtype=np.int64)
    wall = int(run.shutdown_ns.sum())
    firsts = run.iter_ns + run.before_first_ns
    order = np.argsort(run.round, kind="stable")
    edges = np.searchsorted(run.round[order], np.arange(len(firsts) + 1)).tolist()
    for number, first in enumerate(firsts.tolist()):
        rows = order[edges[number] : edges[number + 1]]
        if not len(rows):
            wall += first
            continue
        sent = rows[np.argsort(run.number[rows], kind="stable")]
        by = run.worker[sent]
        by = np.where((by >= 0) & (by < workers), by, np.arange(len(by)) % workers)
        columns = [service[sent], other[sent], run.submit_ns[sent], run.transit_ns[sent], by]
        columns += [run.pickup_ns[rows], run.compute_ns[rows]]
        batches = zip(*(column.tolist() for column in columns), strict=True)
        start = int(run.startup_ns[number]) if ahead else 0
        hold = _held_ns if run.in_order else _held_as_ready_ns
        held = np.array(hold(run, batches, workers, ahead, start, first))
        until = held + run.compute_ns[rows]
        begin = np.append(first, until[:-1])
        waits[rows], share[rows] = held - begin, until - begin
        wall += int(until[-1])
    around = int(run.iter_ns.sum() + run.shutdown_ns.sum())
    return Replayed(wall, int(waits.sum()) + around, waits, run.judged_ns(share))


def _held_ns(
    run: LoaderRun,
    batches: Iterable[tuple[int, ...]],
    workers: int,
    ahead: int,
    start_ns: int,
    first_ns: int,
) -> list[int]:
    """Return when the loop held each batch of a round, from the round's start.

    Each batch has what its worker spends on it, and another thread after that; from its dispatch
    until an idle worker begins it; from its end to being ready; its worker; pick-up and compute.
    A thread that is free takes the next batch; in a pool each batch has its worker.
    """
    is_queue, is_linked = run.rule is LoaderRule.THREADS, run.is_linked
    free, sent = [start_ns] * workers, [start_ns] * workers
    held: list[int] = []
    now = first_ns
    for number, (service, other, submit, transit, worker, pickup, compute) in enumerate(batches):
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
            if other:  # over a link one batch after another is copied, of all workers
                sender = 0 if is_linked else worker
                end = sent[sender] = max(end, sent[sender]) + other
        now = max(now, end + transit) + pickup
        held.append(now)
        now += compute
    return held


def _held_as_ready_ns(
    run: LoaderRun,
    batches: Iterable[tuple[int, ...]],
    workers: int,
    ahead: int,
    start_ns: int,
    first_ns: int,
) -> list[int]:
    """Return what `_held_ns` does, of a pool whose loop takes the batch that is ready first.

    The worker whose batch is taken gets the next one.
    """
    free, sent = [start_ns] * workers, [start_ns] * workers
    ready: list[tuple[int, int, int]] = []  # when, number, worker
    rows = list(batches)
    left = iter(enumerate(rows))

    def send(worker: int, now: int) -> None:
        for number, (service, other, submit, transit, *_) in itertools.islice(left, 1):
            end = free[worker] = max(now + submit, free[worker]) + service
            if other:
                sender = 0 if run.is_linked else worker
                end = sent[sender] = max(end, sent[sender]) + other
            heapq.heappush(ready, (end + transit, number, worker))

    for place in range(ahead):
        send(place % workers, start_ns)
    held: list[int] = []
    now = first_ns
    for *_, pickup, compute in rows:
        ready_ns, _, worker = heapq.heappop(ready)
        now = max(now, ready_ns) + pickup
        held.append(now)
        send(worker, now)
        now += compute
    return held


def on_cpu_ns(run: LoaderRun) -> Integers:
    """Return what of each batch and stage was computing: where unknown, all but copies."""
    known = (run.cpu_ns >= 0) & (run.cpu_ns < run.work_ns)
    copies = np.array([copies_batches(stage) for stage in run.stages], dtype=bool)
    unknown = np.where(copies & (run.cpu_ns < 0), 0, run.work_ns)
    return np.where(known, run.cpu_ns, unknown)


def machine_of(run: RunData) -> Machine:
    """Return the machine a run had: the cores it was allowed, the storage that a probe measured."""
    facts = run.run_facts
    cpus, workers = facts.machine.get("cpus"), facts.workers or facts.threads or 1
    limits = next(iter(read_limits(facts.storage_limits)), None)
    return Machine(
        cores=float(cpus) if isinstance(cpus, int) and cpus > 0 else None,
        read_nbytes_per_s=None if limits is None else limits.rate(workers),
        loop_cpu_fraction=_loop_cpu_fraction(run),
    )


def _loop_cpu_fraction(run: RunData) -> float:
    """Return how much of a CPU the loop's steps took: by their spans, else by what runs them."""
    if not run.is_script:
        return 0.0
    spans = run.spans
    steps = spans[is_one_of(spans["kind"], LOOP_KINDS - {Kind.OTHER})]
    known = steps[(steps["cpu_ns"] >= 0) & (steps["flags"] == 0)]
    length = int((known["end_ns"].astype(np.int64) - known["start_ns"].astype(np.int64)).sum())
    if length > 0:
        return min(int(known["cpu_ns"].sum()) / length, 1.0)
    return 0.0 if ((spans["flags"] & Flag.DEVICE) != 0).any() else 1.0
