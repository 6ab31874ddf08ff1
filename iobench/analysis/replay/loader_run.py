"""What one loader did in a run, batch by batch: all that its replay needs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.recording.kinds import Kind, copies_batches, stage_name

Integers = NDArray[np.int64]

LOCKED_FRACTION: Final = 0.05
"""Of the work, from what time in locks on more workers do more of it at once no longer."""
CPU_WAIT: Final = stage_name(Kind.CPU_WAIT)


class LoaderRule(Enum):
    """How a loader decides which worker makes which batch, and when."""

    SERIAL = "serial"
    """The training loop makes each batch when it asks for it."""
    POOL = "pool"
    """N processes, N x P batches in flight, batch i by worker i mod N (torch's DataLoader)."""
    THREADS = "threads"
    """N threads or processes take the next batch while a buffer is free."""
    OPAQUE = "opaque"
    """It cannot be replayed."""


class LoaderRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one loader did in a run; arrays have one row per batch in the order of delivery.

    ``work_ns``, ``cpu_ns`` and ``async_ns`` have a column for each of ``stages``, ``loop_ns`` one
    for each of ``loop_stages``; ``iter_ns`` and all after it one row per round.
    """

    name: str = ""  # for messages: the run, and the loader where it has several
    rule: LoaderRule
    reason: str = ""  # why it cannot be replayed
    workers: int = 0  # 0 of a serial loader, as is prefetch
    prefetch: int = 0
    batch_size: int | None = None
    restarts: bool = False  # workers are started again for each round
    iterable: bool = False  # workers share out the samples themselves
    retains: bool = False  # collections of its dataset grew in its workers, as a cache does
    shuffles: bool = False  # the order of samples is another one in each round
    in_order: bool = True  # else the loop takes what is ready first
    is_part: bool = False  # later batches were left out
    wall_ns: int  # as measured, of all that is replayed
    wait_ns: int

    round: Integers
    number: Integers  # place in the order in which batches were requested
    worker: Integers  # -1 where it is not known: then in turn
    steady: NDArray[np.bool_]
    weight: NDArray[np.float64] | None = None  # batches it stands for, of an epoch too long
    stages: tuple[str, ...]  # of workers, as reports spell them
    work_ns: Integers  # own time of each stage, on whatever thread
    cpu_ns: Integers  # of it on a CPU, -1 where unknown
    async_ns: Integers  # of it on another thread, after the worker was done with the batch
    read_nbytes: Integers  # -1 where unknown
    gap_ns: Integers  # a worker's time between the stages of the batch
    submit_ns: Integers  # from the submission to an idle worker to its first stage
    transit_ns: Integers  # from the last stage to being ready to be picked up
    pickup_ns: Integers  # the loop's own part of the wait
    compute_ns: Integers  # from holding the batch to the next request, or to the round's end
    loop_stages: tuple[str, ...]  # of the loop as it picks batches up, a part of pickup_ns
    loop_ns: Integers

    iter_ns: Integers  # the wait for iter(loader)
    before_first_ns: Integers  # from its end to the first request for a batch
    startup_ns: Integers  # from the round's begin until workers begin
    shutdown_ns: Integers  # the wait that brought no more
    repeated: NDArray[np.bool_]  # whether it is an epoch as a long training has them

    def __len__(self) -> int:
        return len(self.round)

    @property
    def can_replay(self) -> bool:
        """Whether the rule of the loader is known, and what it did."""
        return self.rule is not LoaderRule.OPAQUE

    @property
    def is_locked(self) -> bool:
        """Whether stages wait for each other's locks, so that one is faster with another."""
        locked = [stage.partition(":")[0] == Kind.LOCK.spelled for stage in self.stages]
        return bool(self.work_ns[:, locked].sum() >= LOCKED_FRACTION * self.work_ns.sum() > 0)

    @property
    def sets_stages(self) -> bool:
        """Whether stages take what they do because of how many workers there are, and how old.

        So it is where they hold locks, share out the samples themselves, or keep what they read.
        """
        # One process alone never waits for a lock that it shares with others.
        shared = [stage.startswith(f"{Kind.LOCK.spelled}:") for stage in self.stages]
        is_shared = bool(self.workers < 2 and self.work_ns[:, shared].any())
        return self.iterable or self.retains or self.is_locked or is_shared

    @property
    def is_linked(self) -> bool:
        """Whether other threads copy to a device, over a link that all share."""
        copies = [copies_batches(stage) for stage in self.stages]
        return bool(self.async_ns[:, copies].any())

    @property
    def recurs(self) -> bool:
        """Whether it has epochs as a long training has them."""
        return bool(self.repeated.any())

    @property
    def judged(self) -> NDArray[np.bool_]:
        """The batches that show what a long training sees: `Exposure.judged`, batch by batch."""
        if self.recurs:
            recurring: NDArray[np.bool_] = self.repeated[self.round]
            return recurring
        return self.steady if self.steady.any() else np.ones(len(self), dtype=bool)

    @property
    def judged_epochs(self) -> Integers | None:
        """Of which epoch each of these is, where they are of epochs as a long training has them."""
        return self.round[self.judged] if self.recurs else None

    def judged_ns(self, spent_ns: Integers) -> Integers:
        """Return what each of these took, of what each batch took between two requests.

        In epochs that recur the first and last have what surrounds the batches of theirs.
        """
        if self.weight is not None:
            spent_ns = np.rint(spent_ns * self.weight).astype(np.int64)
        if self.recurs:
            edge = self.round[1:] != self.round[:-1]
            first, last = np.append(True, edge), np.append(edge, True)
            spent_ns = spent_ns.copy()
            spent_ns[first] += (self.iter_ns + self.before_first_ns)[self.round[first]]
            spent_ns[last] += self.shutdown_ns[self.round[last]]
        return spent_ns[self.judged]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is done differently; what is None or empty stays as it was."""

    stage_factors: Mapping[str, float] = msgspec.field(default_factory=dict)
    """By which the time of each stage is multiplied: 0.5 is twice as fast, 0 leaves it out."""
    workers: int | None = None
    prefetch: int | None = None
    keep_workers: bool = False
    """Workers live on from one round to the next, and begin a later one without a start."""
    in_order: bool = True
    """False: no batch waits for a slow one before it, nor in threads for a slow sample."""


def changed(run: LoaderRun, change: Change) -> LoaderRun:
    """Return a run with other times or rule; ``wall_ns`` and ``wait_ns`` stay as measured."""
    if change.stage_factors:
        run = _with_factors(run, change.stage_factors)
    if change.workers is not None or change.prefetch is not None:
        workers = run.workers if change.workers is None else change.workers
        run = _with_workers(run, workers, change.prefetch or run.prefetch or 2)
    if not change.in_order:
        run = _together(run) if run.rule is LoaderRule.THREADS else replace(run, in_order=False)
    return _with_persistent_workers(run) if change.keep_workers else run


def _together(run: LoaderRun) -> LoaderRun:
    """Return a run whose threads fill one batch after another together, each equally long."""
    work, gap = (
        np.broadcast_to(np.rint(each.mean(axis=0) / run.workers).astype(np.int64), each.shape)
        for each in (run.work_ns, run.gap_ns)
    )
    return replace(_with_work(run, work), gap_ns=gap, workers=1)


def _scaled(values: Integers, factor: float) -> Integers:
    """Return times a factor, in whole ns; what is unknown stays so."""
    scaled = np.rint(values * factor).astype(np.int64)
    return values if factor == 1 else np.where(values >= 0, scaled, values)


def _with_factors(run: LoaderRun, factors: Mapping[str, float]) -> LoaderRun:
    work, cpu, other, loop = (
        each.copy() for each in (run.work_ns, run.cpu_ns, run.async_ns, run.loop_ns)
    )
    for stage, factor in factors.items():
        for stages, arrays in ((run.stages, (work, cpu, other)), (run.loop_stages, (loop,))):
            for column in (at for at, name in enumerate(stages) if name == stage):
                for array in arrays:
                    array[:, column] = _scaled(array[:, column], factor)
    # Who asks for less of a CPU waits less for one.
    needed_ns = [
        np.where(cpus >= 0, cpus, works)[:, [name != CPU_WAIT for name in run.stages]].sum(axis=1)
        for works, cpus in ((run.work_ns, run.cpu_ns), (work, cpu))
    ]
    ratio = np.divide(needed_ns[1], needed_ns[0], out=np.ones(len(run)), where=needed_ns[0] > 0)
    for names, array in ((run.stages, work), (run.stages, other), (run.loop_stages, loop)):
        waits = [name == CPU_WAIT for name in names]
        array[:, waits] = np.rint(array[:, waits] * ratio[:, None])
    pickup = np.maximum(run.pickup_ns + (loop - run.loop_ns).sum(axis=1), 0)
    return replace(run, work_ns=work, cpu_ns=cpu, async_ns=other, loop_ns=loop, pickup_ns=pickup)


def _with_workers(run: LoaderRun, workers: int, prefetch: int) -> LoaderRun:
    if workers == run.workers:
        return replace(run, prefetch=prefetch)
    if run.rule is LoaderRule.THREADS:
        return replace(run, workers=workers, prefetch=max(prefetch, workers))
    rule = LoaderRule.POOL if run.rule is LoaderRule.SERIAL else run.rule
    submit = _submit_of(run, workers) if run.workers else run.submit_ns
    if run.restarts and run.workers:
        run = _with_starts(run, workers)
    unknown = np.full(len(run), -1)
    return replace(
        run, rule=rule, workers=workers, prefetch=prefetch, submit_ns=submit, worker=unknown
    )


def _with_starts(run: LoaderRun, workers: int) -> LoaderRun:
    """Return a run in whose rounds so many workers start, as those did."""
    usual = _usual_work(run)
    work = run.work_ns.copy()
    for rows in _rows_by_round(run):
        first, begun = rows[: run.workers], rows[:workers]
        beyond = np.maximum(run.work_ns[first] - usual, 0)
        work[first] -= beyond
        work[begun] += np.resize(beyond, (len(begun), len(usual)))
    ratio = workers / run.workers
    return replace(
        _with_work(run, work),
        iter_ns=_scaled(run.iter_ns, ratio),
        startup_ns=_scaled(run.startup_ns, ratio),
        shutdown_ns=_scaled(run.shutdown_ns, ratio),
    )


def _with_persistent_workers(run: LoaderRun) -> LoaderRun:
    """Return a run whose workers start in its first round, and are there in all others."""
    if not run.restarts or not run.workers:
        return run
    usual, later = _usual_work(run), (np.arange(len(run.startup_ns)) > 0) | run.repeated
    work, submit = run.work_ns.copy(), run.submit_ns.copy()
    for rows in _rows_by_round(run):
        if not len(rows) or not later[run.round[rows[0]]]:
            continue
        first, others = rows[: run.workers], rows[run.workers :]
        if len(others):
            work[first] = np.minimum(work[first], usual)
        submit[first] = np.minimum(submit[first], np.median(submit[others]) if len(others) else 0)
    return replace(
        _with_work(run, work),
        submit_ns=submit,
        iter_ns=np.where(later, 0, run.iter_ns),
        startup_ns=np.where(later, 0, run.startup_ns),
        shutdown_ns=np.append(np.zeros_like(run.shutdown_ns[1:]), run.shutdown_ns[-1:]),
        restarts=False,
    )


def _rows_by_round(run: LoaderRun) -> list[Integers]:
    """Return the batches of each round in the order in which they were requested."""
    order = np.lexsort((run.number, run.round))
    edges = np.searchsorted(run.round[order], np.arange(1, len(run.startup_ns)))
    return np.split(order, edges)


def _usual_work(run: LoaderRun) -> Integers:
    """Return what a batch takes, stage by stage, that is not the first one of its worker."""
    later = np.concatenate([rows[run.workers :] for rows in _rows_by_round(run)])
    if not len(later):
        return np.zeros(len(run.stages), dtype=np.int64)
    usual: Integers = np.median(run.work_ns[later], axis=0).astype(np.int64)
    return usual


def _with_work(run: LoaderRun, work: Integers) -> LoaderRun:
    """Return a run of other work; its parts on a CPU and on other threads go along."""
    ratio = np.divide(work, run.work_ns, out=np.ones(work.shape), where=run.work_ns > 0)
    return replace(
        run,
        work_ns=work,
        cpu_ns=np.where(run.cpu_ns >= 0, np.rint(run.cpu_ns * ratio).astype(np.int64), run.cpu_ns),
        async_ns=np.rint(run.async_ns * ratio).astype(np.int64),
    )


def _submit_of(run: LoaderRun, workers: int) -> Integers:
    """Return the delays of a run with other workers: each begins its round as those there did."""
    submit = run.submit_ns.copy()
    for rows in _rows_by_round(run):
        first, later = run.submit_ns[rows[: run.workers]], run.submit_ns[rows[run.workers :]]
        submit[rows] = int(np.median(later)) if len(later) else 0
        if len(first):
            submit[rows[:workers]] = np.resize(np.sort(first), len(rows[:workers]))
    return submit
