"""A recorded run as it would be recorded with something done otherwise."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.replay.loader_run import LoaderRule, LoaderRun
from iobench.errors import OptionError

Integers = NDArray[np.int64]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is done otherwise; what is None or empty stays as it was.

    Parameters
    ----------
    stage_factors : mapping of str to float
        What the time of each stage is multiplied by: 0.5 is twice as fast, 0 leaves it out.
    keep_workers : bool
        Workers live on from one round to the next, and do at the start of a later one what they
        do all the time.
    step_ns : int, optional
        Compute between two batches, instead of what was measured.
    work_of : LoaderRun, optional
        Take what the workers do, and the pick-up, from another run: another format, cold reads.
    read_nbytes_per_s : float, optional
        Reads take as long as their bytes at this rate, where that is longer.
    """

    stage_factors: Mapping[str, float] = msgspec.field(default_factory=dict)
    workers: int | None = None
    prefetch: int | None = None
    keep_workers: bool = False
    step_ns: int | None = None
    work_of: LoaderRun | None = None
    read_nbytes_per_s: float | None = None


def changed(run: LoaderRun, change: Change) -> LoaderRun:
    """Return a run with other times, another rule or other batches; its own times stay.

    What is not known of the other loader is left out: a loop that loads for itself tells neither
    how long workers take to start nor what handing a batch over takes, so for workers in its place
    both are 0. ``wall_ns`` and ``wait_ns`` stay those that were measured.

    Raises
    ------
    OptionError
        If a number cannot be used, or a stage is none of the run's.
    """
    if change.work_of is not None:
        run = _with_work_of(run, change.work_of)
    if change.stage_factors:
        run = _with_factors(run, change.stage_factors)
    if change.read_nbytes_per_s is not None:
        run = _with_read_rate(run, change.read_nbytes_per_s)
    if change.step_ns is not None:
        if change.step_ns < 0:
            raise OptionError(f"step of {change.step_ns} ns: expected 0 or more")
        run = replace(run, compute_ns=np.full(len(run), change.step_ns, dtype=np.int64))
    if change.workers is not None or change.prefetch is not None:
        run = _with_workers(run, change.workers, change.prefetch)
    if change.keep_workers:
        run = _with_kept_workers(run)
    return run


def scaled(values: Integers, factor: float) -> Integers:
    """Return times a factor, in whole ns."""
    if factor == 1:
        return values
    result: Integers = np.rint(values * factor).astype(np.int64)
    return result


def _with_factors(run: LoaderRun, factors: Mapping[str, float]) -> LoaderRun:
    work, cpu = run.work_ns.copy(), run.cpu_ns.copy()
    other = run.beside_ns.copy()
    for stage, factor in factors.items():
        if stage not in run.stages and stage not in run.loop_stages:
            known_stages = ", ".join((*run.stages, *run.loop_stages))
            raise OptionError(f"{run.name}: no stage {stage!r}, expected one of {known_stages}")
        if not factor >= 0:
            raise OptionError(f"stage {stage} times {factor}: expected 0 or more")
        if stage in run.loop_stages:
            run = _with_loop_factor(run, run.loop_stages.index(stage), factor)
        if stage not in run.stages:
            continue
        column = run.stages.index(stage)
        work[:, column] = scaled(work[:, column], factor)
        known = cpu[:, column] >= 0
        cpu[known, column] = scaled(cpu[known, column], factor)
        other[:, column] = scaled(other[:, column], factor)
    return replace(run, work_ns=work, cpu_ns=cpu, beside_ns=other)


def _with_loop_factor(run: LoaderRun, column: int, factor: float) -> LoaderRun:
    loop = run.loop_ns.copy()
    loop[:, column] = scaled(loop[:, column], factor)
    pickup = run.pickup_ns + loop[:, column] - run.loop_ns[:, column]
    return replace(run, loop_ns=loop, pickup_ns=np.maximum(pickup, 0))


def _with_work_of(run: LoaderRun, other: LoaderRun) -> LoaderRun:
    """Take the work of another run's batches in turn, the steady ones where there are any."""
    if not len(other):
        raise OptionError(f"{other.name}: no batch to take the work of")
    rows = np.flatnonzero(other.steady) if other.steady.any() else np.arange(len(other))
    rows = rows[np.arange(len(run)) % len(rows)]
    ratio = 1.0
    if run.batch_size and other.batch_size:
        ratio = run.batch_size / other.batch_size

    def taken(values: Integers) -> Integers:
        result = values[rows]
        return np.where(result >= 0, scaled(result, ratio), result)

    return replace(
        run,
        stages=other.stages,
        work_ns=taken(other.work_ns),
        cpu_ns=taken(other.cpu_ns),
        read_nbytes=taken(other.read_nbytes),
        gap_ns=taken(other.gap_ns),
        transit_ns=taken(other.transit_ns),
        pickup_ns=taken(other.pickup_ns),
        beside_ns=taken(other.beside_ns),
        loop_stages=other.loop_stages,
        loop_ns=taken(other.loop_ns),
    )


def _with_read_rate(run: LoaderRun, nbytes_per_s: float) -> LoaderRun:
    if not nbytes_per_s > 0:
        raise OptionError(f"reads of {nbytes_per_s} bytes/s: expected more than 0")
    if (run.read_nbytes < 0).any():
        raise OptionError(f"{run.name}: the bytes read were not counted, so no rate can be applied")
    columns = [number for number, name in enumerate(run.stages) if name.partition(":")[0] == "read"]
    least = np.rint(run.read_nbytes / nbytes_per_s * 1e9).astype(np.int64)
    work, cpu, stages, other = run.work_ns, run.cpu_ns, run.stages, run.beside_ns
    if not columns:
        # Read and decoded in one: reading waits as long as it takes beyond what that took.
        columns, stages = [len(stages)], (*stages, "read")
        nothing = np.zeros((len(run), 1), dtype=np.int64)
        work, cpu = np.hstack((work, nothing)), np.hstack((cpu, nothing))
        other = np.hstack((other, nothing))
        spent = work.sum(axis=1)
    else:
        spent = work[:, columns].sum(axis=1)
    work = work.copy()
    work[:, columns[0]] += np.maximum(least - spent, 0)
    return replace(run, stages=stages, work_ns=work, cpu_ns=cpu, beside_ns=other)


def _with_workers(run: LoaderRun, workers: int | None, prefetch: int | None) -> LoaderRun:
    workers = run.workers if workers is None else workers
    if workers < 0 or (prefetch is not None and prefetch < 1):
        raise OptionError(f"workers {workers}, prefetch {prefetch}: expected 0 or more, 1 or more")
    prefetch = prefetch or run.prefetch or 2
    if workers == run.workers:
        return replace(run, prefetch=prefetch if workers else run.prefetch)
    if run.rule is LoaderRule.THREADS:
        return replace(run, workers=max(workers, 1), prefetch=max(prefetch, workers))
    if not workers:
        # The loop copies to a device itself; what other threads do besides is left out.
        left = np.zeros_like(run.work_ns) if run.is_linked else run.beside_ns
        nothing = np.zeros(len(run), dtype=np.int64)
        return replace(
            run,
            rule=LoaderRule.SERIAL,
            workers=0,
            prefetch=0,
            work_ns=run.work_ns - left,
            submit_ns=nothing,
            transit_ns=nothing,
            pickup_ns=nothing,
            startup_ns=np.zeros_like(run.startup_ns),
            beside_ns=np.zeros_like(run.work_ns),
            number=np.arange(len(run)),
            loop_stages=(),
            loop_ns=np.zeros((len(run), 0), dtype=np.int64),
        )
    rule = LoaderRule.POOL if run.rule is LoaderRule.SERIAL else run.rule
    submit = _submit_of(run, workers)
    if run.restarts and run.workers:
        run = _with_starts(run, workers)
    return replace(
        run,
        rule=rule,
        workers=workers,
        prefetch=prefetch,
        submit_ns=submit,
        worker=np.full(len(run), -1),
    )


def _with_starts(run: LoaderRun, workers: int) -> LoaderRun:
    """Return a run in whose rounds so many workers start; each is made, and begins, as those did.

    What a worker's first batch of a round takes beyond a usual one is its start as well: a dataset
    opens its files, and imports what it needs, when it is first asked.
    """
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
        opening_ns=scaled(run.opening_ns, ratio),
        startup_ns=scaled(run.startup_ns, ratio),
        shutdown_ns=scaled(run.shutdown_ns, ratio),
    )


def _with_kept_workers(run: LoaderRun) -> LoaderRun:
    """Return a run whose workers start in its first round, and are there in all others.

    Of part of a run the first round may be one of those others.
    """
    if not run.restarts or not run.workers:
        return run
    usual, later = _usual_work(run), (np.arange(len(run.startup_ns)) > 0) | run.repeated
    work, submit = run.work_ns.copy(), run.submit_ns.copy()
    for rows in _rows_by_round(run):
        if not len(rows) or not later[run.round[rows[0]]]:
            continue
        first, others = rows[: run.workers], rows[run.workers :]
        work[first] = np.minimum(work[first], usual)
        submit[first] = np.minimum(submit[first], np.median(submit[others]) if len(others) else 0)
    return replace(
        _with_work(run, work),
        submit_ns=submit,
        opening_ns=np.where(later, 0, run.opening_ns),
        startup_ns=np.where(later, 0, run.startup_ns),
        shutdown_ns=np.append(np.zeros_like(run.shutdown_ns[1:]), run.shutdown_ns[-1:]),
        restarts=False,
    )


def _rows_by_round(run: LoaderRun) -> list[Integers]:
    """Return the batches of each round in the order in which they were asked for."""
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
        beside_ns=np.rint(run.beside_ns * ratio).astype(np.int64),
    )


def _submit_of(run: LoaderRun, workers: int) -> Integers:
    """Return the delays of a run with other workers: each begins its round as those there did."""
    if not run.workers:
        return run.submit_ns
    submit = run.submit_ns.copy()
    for rows in _rows_by_round(run):
        if not len(rows):
            continue
        first = run.submit_ns[rows[: run.workers]]
        later = run.submit_ns[rows[run.workers :]]
        submit[rows] = int(np.median(later)) if len(later) else 0
        begun = rows[:workers]
        submit[begun] = np.resize(np.sort(first), len(begun))
    return submit
