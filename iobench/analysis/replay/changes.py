"""A recorded run as it would be recorded with something done otherwise."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.replay.loader_run import LoaderRule, RecordedRun
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
    work_of : RecordedRun, optional
        Take what the workers do, and the pick-up, from another run: another format, cold reads.
    read_nbytes_per_s : float, optional
        Reads take as long as their bytes at this rate, where that is longer.
    """

    stage_factors: Mapping[str, float] = msgspec.field(default_factory=dict)
    workers: int | None = None
    prefetch: int | None = None
    keep_workers: bool = False
    step_ns: int | None = None
    work_of: RecordedRun | None = None
    read_nbytes_per_s: float | None = None


def changed(run: RecordedRun, change: Change) -> RecordedRun:
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
    found: Integers = np.rint(values * factor).astype(np.int64)
    return found


def _with_factors(run: RecordedRun, factors: Mapping[str, float]) -> RecordedRun:
    work, cpu = run.work_ns.copy(), run.cpu_ns.copy()
    beside = None if run.beside_ns is None else run.beside_ns.copy()
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
        if beside is not None:
            beside[:, column] = scaled(beside[:, column], factor)
    return replace(run, work_ns=work, cpu_ns=cpu, beside_ns=beside)


def _with_loop_factor(run: RecordedRun, column: int, factor: float) -> RecordedRun:
    if run.loop_ns is None:
        return run
    loop = run.loop_ns.copy()
    loop[:, column] = scaled(loop[:, column], factor)
    pickup = run.pickup_ns + loop[:, column] - run.loop_ns[:, column]
    return replace(run, loop_ns=loop, pickup_ns=np.maximum(pickup, 0))


def _with_work_of(run: RecordedRun, other: RecordedRun) -> RecordedRun:
    """Take the work of another run's batches in turn, the steady ones where there are any."""
    if not len(other):
        raise OptionError(f"{other.name}: no batch to take the work of")
    if run.rule is LoaderRule.STREAM and other.stream is None:
        raise OptionError(f"{other.name}: expected the run of a stream, for the work of one")
    rows = np.flatnonzero(other.steady) if other.steady.any() else np.arange(len(other))
    rows = rows[np.arange(len(run)) % len(rows)]
    ratio = 1.0
    if run.batch_size and other.batch_size:
        ratio = run.batch_size / other.batch_size

    def taken(values: Integers) -> Integers:
        found = values[rows]
        return np.where(found >= 0, scaled(found, ratio), found)

    return replace(
        run,
        stages=other.stages,
        work_ns=taken(other.work_ns),
        cpu_ns=taken(other.cpu_ns),
        read_nbytes=taken(other.read_nbytes),
        gap_ns=taken(other.gap_ns),
        transit_ns=taken(other.transit_ns),
        pickup_ns=taken(other.pickup_ns),
        beside_ns=None if other.beside_ns is None else taken(other.beside_ns),
        loop_stages=other.loop_stages,
        loop_ns=None if other.loop_ns is None else taken(other.loop_ns),
        stream=other.stream if run.rule is LoaderRule.STREAM else None,
    )


def _with_read_rate(run: RecordedRun, nbytes_per_s: float) -> RecordedRun:
    if not nbytes_per_s > 0:
        raise OptionError(f"reads of {nbytes_per_s} bytes/s: expected more than 0")
    if (run.read_nbytes < 0).any():
        raise OptionError(f"{run.name}: the bytes read were not counted, so no rate can be applied")
    columns = [number for number, name in enumerate(run.stages) if name.partition(":")[0] == "read"]
    least = np.rint(run.read_nbytes / nbytes_per_s * 1e9).astype(np.int64)
    work, cpu, stages, beside = run.work_ns, run.cpu_ns, run.stages, run.beside_ns
    stream = run.stream
    if not columns:
        # Read and decoded in one: reading waits as long as it takes beyond what that took.
        columns, stages = [len(stages)], (*stages, "read")
        nothing = np.zeros((len(run), 1), dtype=np.int64)
        work, cpu = np.hstack((work, nothing)), np.hstack((cpu, nothing))
        beside = None if beside is None else np.hstack((beside, nothing))
        stream = stream and replace(stream, group=(*stream.group, 0))
        spent = work.sum(axis=1)
    else:
        spent = work[:, columns].sum(axis=1)
    work = work.copy()
    work[:, columns[0]] += np.maximum(least - spent, 0)
    return replace(run, stages=stages, work_ns=work, cpu_ns=cpu, beside_ns=beside, stream=stream)


def _with_workers(run: RecordedRun, workers: int | None, prefetch: int | None) -> RecordedRun:
    workers = run.workers if workers is None else workers
    if workers < 0 or (prefetch is not None and prefetch < 1):
        raise OptionError(f"workers {workers}, prefetch {prefetch}: expected 0 or more, 1 or more")
    if run.stream is not None:
        if workers != run.workers:
            raise OptionError(f"{run.name}: a stream has no workers, expected none to be changed")
        last = (prefetch or 1) * (1 if run.stream.batches_apart else run.stream.items)
        stream = replace(run.stream, ahead=(*run.stream.ahead[:-1], last))
        return replace(run, prefetch=prefetch or run.prefetch, stream=stream)
    prefetch = prefetch or run.prefetch or 2
    if workers == run.workers:
        return replace(run, prefetch=prefetch if workers else run.prefetch)
    if run.rule is LoaderRule.THREADS:
        return replace(run, workers=max(workers, 1), prefetch=max(prefetch, workers), maker=None)
    if not workers:
        left = None if run.is_linked else run.beside_ns  # the loop copies to a device itself
        nothing = np.zeros(len(run), dtype=np.int64)
        return replace(
            run,
            rule=LoaderRule.SERIAL,
            in_order=True,
            workers=0,
            prefetch=0,
            work_ns=run.work_ns if left is None else run.work_ns - left,
            submit_ns=nothing,
            transit_ns=nothing,
            pickup_ns=nothing,
            startup_ns=np.zeros_like(run.startup_ns),
            beside_ns=None,
            maker=None,
            batch=None,
            loop_stages=(),
            loop_ns=None,
        )
    rule = LoaderRule.POOL if run.rule is LoaderRule.SERIAL else run.rule
    submit = _submit_of(run, workers)
    if run.restarts and run.workers:
        run = _with_starts(run, workers)
    return replace(run, rule=rule, workers=workers, prefetch=prefetch, submit_ns=submit, maker=None)


def _with_starts(run: RecordedRun, workers: int) -> RecordedRun:
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
        opening_ns=None if run.opening_ns is None else scaled(run.opening_ns, ratio),
        startup_ns=scaled(run.startup_ns, ratio),
        shutdown_ns=scaled(run.shutdown_ns, ratio),
    )


def _with_kept_workers(run: RecordedRun) -> RecordedRun:
    """Return a run whose workers start in its first round, and are there in all others.

    Of part of a run the first round may be one of those others.
    """
    if not run.restarts or not run.workers:
        return run
    usual, later = _usual_work(run), np.arange(len(run.startup_ns)) > 0
    if run.repeated is not None:
        later |= run.repeated
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
        opening_ns=None if run.opening_ns is None else np.where(later, 0, run.opening_ns),
        startup_ns=np.where(later, 0, run.startup_ns),
        shutdown_ns=np.append(np.zeros_like(run.shutdown_ns[1:]), run.shutdown_ns[-1:]),
        restarts=False,
    )


def _rows_by_round(run: RecordedRun) -> list[Integers]:
    """Return the batches of each round in the order in which they were asked for."""
    asked = np.arange(len(run)) if run.batch is None else run.batch
    order = np.lexsort((asked, run.round))
    edges = np.searchsorted(run.round[order], np.arange(1, len(run.startup_ns)))
    return np.split(order, edges)


def _usual_work(run: RecordedRun) -> Integers:
    """Return what a batch takes, stage by stage, that is not the first one of its worker."""
    later = np.concatenate([rows[run.workers :] for rows in _rows_by_round(run)])
    if not len(later):
        return np.zeros(len(run.stages), dtype=np.int64)
    usual: Integers = np.median(run.work_ns[later], axis=0).astype(np.int64)
    return usual


def _with_work(run: RecordedRun, work: Integers) -> RecordedRun:
    """Return a run of other work; its parts on a CPU and on other threads go along."""
    ratio = np.divide(work, run.work_ns, out=np.ones(work.shape), where=run.work_ns > 0)
    beside = run.beside_ns
    return replace(
        run,
        work_ns=work,
        cpu_ns=np.where(run.cpu_ns >= 0, np.rint(run.cpu_ns * ratio).astype(np.int64), run.cpu_ns),
        beside_ns=None if beside is None else np.rint(beside * ratio).astype(np.int64),
    )


def _submit_of(run: RecordedRun, workers: int) -> Integers:
    """Return the delays of a run with other workers: each begins its round as those there did."""
    if not run.workers:
        return run.submit_ns
    submit = run.submit_ns.copy()
    for number in range(len(run.startup_ns)):
        rows = np.flatnonzero(run.round == number)
        if not len(rows):
            continue
        if run.batch is not None:
            rows = rows[np.argsort(run.batch[rows], kind="stable")]
        first = run.submit_ns[rows[: run.workers]]
        later = run.submit_ns[rows[run.workers :]]
        submit[rows] = int(np.median(later)) if len(later) else 0
        begun = rows[:workers]
        submit[begun] = np.resize(np.sort(first), len(begun))
    return submit
