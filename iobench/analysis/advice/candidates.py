"""What may be tried on a run: each change with what it would gain, or the reason against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from iobench.analysis.advice.figures import (
    Candidate,
    Circumstances,
    Gain,
    LoadingWay,
    RuledOut,
)
from iobench.analysis.advice.gains import GainPredictor, gain_between, kind_of
from iobench.analysis.advice.levers import Evidence, Lever, Reason
from iobench.analysis.replay.changes import Change, changed
from iobench.analysis.replay.loader_run import LoaderRule, RecordedRun

__all__ = ["Found", "measured_candidates", "replayed_candidates"]

NATIVE: Final = "native"
NEAR_BEST: Final = 0.01
"""Of several numbers that do as well to this share, the smallest is proposed."""
PREFETCHES: Final = (2, 4, 8, 16)
MOST_WORKERS_PER_CPU: Final = 4
ALL_CACHED: Final = 0.99
HARDLY_COLD: Final = 0.05
"""A share of the bytes that came from storage too small to be what workers wait for."""
MEMORY_FRACTION: Final = 0.5
"""Of the memory, what a cache may take: as much as a file system in memory has by default."""


@dataclass(frozen=True, slots=True)
class Found:
    """A change that is possible, with its gain and the batches in memory that it adds.

    ``starts`` is whether it starts workers, and no run told what that takes.
    """

    candidate: Candidate
    gain: Gain
    batches_more: int = 0
    way: LoadingWay | None = None
    starts: bool = False


def measured_candidates(
    baseline: LoadingWay, ways: Sequence[LoadingWay]
) -> Iterator[Found | RuledOut]:
    """Yield the other ways of loading that were run in turns with the baseline."""
    for way in ways:
        if way is baseline:
            continue
        settings: dict[str, str | int] = {}
        for name in ("format", "framework", "pipeline"):
            if getattr(way, name) and getattr(way, name) != getattr(baseline, name):
                settings[name] = getattr(way, name)
        levers = [Lever.FORMAT] if "format" in settings else []
        if "framework" in settings or "pipeline" in settings:
            levers.append(Lever.LOADER)
        if way.store is not None and "format" not in settings:
            settings["format"] = way.format
        gain = gain_between(baseline, way)
        if gain is not None and levers:
            yield Found(Candidate(tuple(levers), settings), gain, way=way)


def replayed_candidates(
    baseline: LoadingWay, circumstances: Circumstances, predictor: GainPredictor
) -> Iterator[Found | RuledOut]:
    """Yield what the loader's own settings would gain, by replay."""
    torch = baseline.framework == "torch"
    yield from _workers(baseline.run, circumstances, predictor, torch=torch)
    yield from _prefetch(baseline.run, circumstances, predictor)
    if baseline.run.rule is LoaderRule.POOL and torch:
        candidate = Candidate((Lever.OUT_OF_ORDER,), {"in_order": "False"})
        if baseline.run.in_order and baseline.run.workers > 1:
            instead = replace(predictor.run, in_order=False)
            yield Found(candidate, predictor.gain(Change(), instead=instead))
        elif not baseline.run.in_order:
            yield RuledOut(candidate, Reason.IN_USE)
    if baseline.run.restarts and baseline.run.recurs and torch:
        yield _kept_workers(predictor)


def _kept_workers(predictor: GainPredictor) -> Found:
    """Return keeping the workers of one epoch for the next.

    Whether a worker's first batch of an epoch was slow since the worker was new, or since the epoch
    was, as where a shuffle has to fill, the run does not tell. Where that may be all of the gain,
    it has to be measured. Steps may be shorter where no starts compute beside them.
    """
    run, settings = predictor.run, _kept(predictor.run)
    kept = changed(run, Change(keep_workers=True))
    slow = replace(kept, work_ns=run.work_ns, cpu_ns=run.cpu_ns, beside_ns=run.beside_ns)
    gain = predictor.gain(Change(), instead=kept)
    least = predictor.gain(Change(), instead=slow)
    if least.is_proven and least.low is not None and gain.low is not None:
        most = predictor.bound(Change(), instead=kept).expected
        gain = replace(gain, low=min(gain.low, least.low), high=max(gain.high or most, most))
    else:
        saved = gain.saved or 0.0
        gain = Gain(Evidence.BOUND, None, 0.0, max(saved, gain.high or saved) if saved > 0 else 0.0)
    return Found(Candidate((Lever.KEEP_WORKERS,), settings), gain)


def _kept(run: RecordedRun) -> dict[str, str | int]:
    """Return the settings that keep workers; a loader that is made anew keeps none."""
    once: dict[str, str | int] = {"made": "once"} if run.anew else {}
    return {"persistent_workers": "True", **once}


def _workers(
    run: RecordedRun, circumstances: Circumstances, predictor: GainPredictor, *, torch: bool
) -> Iterator[Found | RuledOut]:
    name = "num_workers" if circumstances.is_script else "workers"
    more = Candidate((Lever.WORKERS,), {name: run.workers + 1})
    if circumstances.own_order or run.rule is LoaderRule.STREAM:
        yield RuledOut(more, Reason.OWN_ORDER)
        return
    cpus = circumstances.cpus
    if cpus is None:
        return
    most = most_workers(run, cpus) if _waits_for_storage(circumstances) else cpus
    tried = [number for number in range(1, most + 1) if number != run.workers]
    if not tried:
        yield RuledOut(more, Reason.NO_MORE_CPUS, run.workers + 1, cpus)
        return
    best = _best(tried, lambda number: predictor.gain(Change(workers=number), parallel=True))
    if best is not None:
        number, gain = best
        ahead = run.prefetch or 2
        levers = [Lever.WORKERS]
        settings: dict[str, str | int] = {name: number}
        if not run.workers and run.recurs and torch:
            # What their starts take is not known: kept, they have none after the first epoch.
            levers.append(Lever.KEEP_WORKERS)
            settings |= _kept(run)
        yield Found(
            Candidate(tuple(levers), settings),
            gain,
            batches_more=max(0, number - run.workers) * ahead,
            starts=circumstances.is_script and not run.workers,
        )
    if run.workers >= most:
        yield RuledOut(more, Reason.NO_MORE_CPUS, run.workers + 1, cpus)


def _waits_for_storage(circumstances: Circumstances) -> bool:
    """Tell whether time off the CPU may be storage's: if hardly any was cold, CPUs were short."""
    cold = circumstances.cold_fraction
    if cold is None:
        return (circumstances.resident_fraction or 0.0) < ALL_CACHED
    return cold > HARDLY_COLD


def most_workers(run: RecordedRun, cpus: int) -> int:
    """Return how many workers can be of use: one for each CPU, more where they wait for storage."""
    known = (run.cpu_ns >= 0) & (run.work_ns > 0)
    busy_ns = int(run.work_ns[known].sum())
    if not busy_ns or 2 * int(known.sum()) < int((run.work_ns > 0).sum()):
        return cpus
    on_cpu = min(1.0, int(run.cpu_ns[known].sum()) / busy_ns)
    most = cpus * MOST_WORKERS_PER_CPU
    return max(cpus, min(most, int(cpus / on_cpu))) if on_cpu else most


def _prefetch(
    run: RecordedRun, circumstances: Circumstances, predictor: GainPredictor
) -> Iterator[Found | RuledOut]:
    name = "prefetch_factor" if circumstances.is_script else "prefetch"
    if run.rule is LoaderRule.SERIAL:
        yield RuledOut(Candidate((Lever.PREFETCH,), {name: 2}), Reason.NO_WORKERS)
        return
    fits = circumstances.memory_nbytes
    batch_nbytes = (run.batch_size or 1) * (circumstances.sample_nbytes or 0)
    lanes = run.workers if run.rule is LoaderRule.POOL else 1
    tried = [
        number
        for number in PREFETCHES
        if number > run.prefetch
        and (fits is None or number * max(1, lanes) * batch_nbytes <= MEMORY_FRACTION * fits)
    ]
    best = _best(tried, lambda number: predictor.gain(Change(prefetch=number)))
    if best is not None:
        number, gain = best
        more = (number - run.prefetch) * max(1, lanes)
        yield Found(Candidate((Lever.PREFETCH,), {name: number}), gain, batches_more=more)


def _best(tried: Sequence[int], gain_of: Callable[[int], Gain]) -> tuple[int, Gain] | None:
    """Return the smallest number that gains nearly as much as the best one."""
    gains = [(number, gain_of(number)) for number in tried]
    if not gains:
        return None
    most = max(gain.expected for _, gain in gains)
    return next(pair for pair in gains if pair[1].expected >= most - NEAR_BEST)


def factors(run: RecordedRun, change: dict[str, float]) -> Change:
    """Return the change that multiplies the stages of some kinds."""
    return Change(
        stage_factors={
            stage: change[kind_of(stage)] for stage in run.stages if kind_of(stage) in change
        }
    )


def cpu_fraction(run: RecordedRun, kind: str) -> float:
    """Return the share of a kind's time that is on a CPU; 0 where unknown."""
    mine = np.array([kind_of(stage) == kind for stage in run.stages], dtype=bool)
    work, cpu = run.work_ns[:, mine], run.cpu_ns[:, mine]
    known = cpu >= 0
    busy_ns = int(work[known].sum())
    return min(1.0, int(cpu[known].sum()) / busy_ns) if busy_ns else 0.0
