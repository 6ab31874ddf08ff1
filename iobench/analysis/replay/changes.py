"""A recorded run as it would be recorded with a change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.replay.loader_run import LoaderRule, LoaderRun
from iobench.recording.kinds import Kind, stage_name

Integers = NDArray[np.int64]
CPU_WAIT: Final = stage_name(Kind.CPU_WAIT)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is done differently; what is None or empty stays as it was."""

    stage_factors: Mapping[str, float] = msgspec.field(default_factory=dict)
    """By which the time of each stage is multiplied: 0.5 is twice as fast, 0 leaves it out."""
    workers: int | None = None
    prefetch: int | None = None
    keep_workers: bool = False
    """Workers live on from one round to the next, and begin a later one without a start."""


def changed(run: LoaderRun, change: Change) -> LoaderRun:
    """Return a run with other times or rule; ``wall_ns`` and ``wait_ns`` stay as measured."""
    if change.stage_factors:
        run = _with_factors(run, change.stage_factors)
    if change.workers is not None or change.prefetch is not None:
        workers = run.workers if change.workers is None else change.workers
        run = _with_workers(run, workers, change.prefetch or run.prefetch or 2)
    return _with_persistent_workers(run) if change.keep_workers else run


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
