"""What may be tried on a run: each change with what it would gain, or the reason against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.analysis.replay.changes import Change, changed
from iobench.analysis.replay.loader_run import LoaderRule, LoaderRun
from iobench.findings.advice.figures import Evidence, Gain, LoadingWay
from iobench.findings.advice.gains import GainPredictor, gain_between, kind_of
from iobench.findings.advice.levers import (
    Candidate,
    Lever,
    Reason,
    RuledOut,
)
from iobench.recording.kinds import (
    MIXED_KINDS,
    READING_KINDS,
    WORKER_KINDS,
    Kind,
    Trait,
)

if TYPE_CHECKING:
    from iobench.findings.advice.figures import Circumstances

NATIVE: Final = "native"
WORTH_SAYING: Final = 0.01
"""Of the time, what a change saves at least that is proposed."""
NEAR_BEST: Final = 0.01
"""Of several numbers that do as well to this share, the smallest is proposed."""
PREFETCHES: Final = (2, 4, 8, 16)
MOST_WORKERS_PER_CPU: Final = 4
ALL_CACHED: Final = 0.99
HARDLY_COLD: Final = 0.05
"""A share of the bytes that came from storage too small to be what workers wait for."""
MEMORY_FRACTION: Final = 0.5
"""Of the memory, what a cache may take: as much as a file system in memory has by default."""
MAKING: Final = tuple(kind.spelled for kind in sorted(WORKER_KINDS) if kind != Kind.COLLATE)
"""What loading a finished sample needs none of but reading, and that may be fast."""
READING: Final = tuple(kind.spelled for kind in sorted(READING_KINDS))
READ_STAGES: Final = frozenset(kind.spelled for kind in READING_KINDS | MIXED_KINDS)
"""Of these what is not on a CPU may be waiting for storage."""
MEMORY_NBYTES_PER_S: Final = 1e9
"""What the page cache gives a reader at least, of machines that trainings run on."""
ROOM: Final = 1.05
"""Of the bytes to be staged, what has to be free: folders take room, and others write meanwhile."""
CACHE_FRACTION: Final = 0.8
"""Of the memory, what files may take to stay in the page cache beside the training."""
READ_PER_BYTE: Final = 1.5
"""From so many bytes read for each byte used, chunks or compression blocks do not fit samples."""
COLD_FRACTION: Final = 0.5
LOOKS_AHEAD: Final = 64
"""Batches that a bound lets threads be ahead: more than any ring has."""


class Found(msgspec.Struct, frozen=True):
    """A change that is possible, with its gain and the batches in memory that it adds.

    ``starts`` is whether it starts workers, and no run told what that takes.
    """

    candidate: Candidate
    gain: Gain
    batches_more: int = 0
    way: LoadingWay | None = None
    starts: bool = False


def worthless(found: Found) -> RuledOut | None:
    """Return why a change is not proposed: it gains nothing to speak of; None where it is."""
    gain = found.gain
    if gain.saved is None:
        if gain.expected >= WORTH_SAYING:
            return None
        return RuledOut(found.candidate, Reason.NOT_WAITED_FOR, gain.expected)
    if gain.saved >= WORTH_SAYING and gain.is_proven is not False:
        return None
    lost = gain.evidence is Evidence.MEASURED and gain.saved >= WORTH_SAYING
    reason = Reason.WITHIN_NOISE if lost else Reason.GAINS_NOTHING
    error = None if gain.low is None else gain.saved - gain.low
    return RuledOut(found.candidate, reason, gain.saved, error)


def measured_candidates(ways: Sequence[LoadingWay]) -> Iterator[Found | RuledOut]:
    """Yield the other ways of loading that were run in turns with the baseline, the first."""
    baseline, *others = ways
    for method in others:
        settings: dict[str, str | int] = {}
        for name in ("format", "framework", "pipeline"):
            if getattr(method, name) and getattr(method, name) != getattr(baseline, name):
                settings[name] = getattr(method, name)
        if method.given is not None:
            settings.pop("format", None)
            if method.given != baseline.given:
                settings["store"] = method.given
        elif baseline.given is not None:
            settings["format"] = method.format
        levers = [Lever.FORMAT] if settings.keys() & {"format", "store"} else []
        if "framework" in settings or "pipeline" in settings:
            levers.append(Lever.LOADER)
        if method.store is not None and method.given is None and "format" not in settings:
            settings["format"] = method.format
        gain = gain_between(baseline, method)
        if gain is not None and levers:
            yield Found(Candidate(tuple(levers), settings), gain, way=method)


def replayed_candidates(predictor: GainPredictor) -> Iterator[Found | RuledOut]:
    """Yield what the loader's own settings would gain, by replay."""
    run, torch = predictor.baseline.run, predictor.baseline.framework == "torch"
    yield from _workers(predictor, torch=torch)
    yield from _prefetch(predictor)
    if run.restarts and run.recurs and torch:
        yield _kept_workers(predictor)


def _kept_workers(predictor: GainPredictor) -> Found:
    """Return keeping the workers of one epoch for the next.

    Whether a worker's first batch of an epoch was slow since the worker was new, or since the epoch
    was, as where a shuffle has to fill, the run does not report. Where that may be all of the gain,
    it has to be measured. Steps may be shorter where no starts compute beside them.
    """
    run, settings = predictor.run, _kept(predictor.run)
    retained = changed(run, Change(keep_workers=True))
    slow = replace(retained, work_ns=run.work_ns, cpu_ns=run.cpu_ns, async_ns=run.async_ns)
    gain = predictor.gain(Change(), instead=retained)
    least = predictor.gain(Change(), instead=slow)
    if least.is_proven and least.low is not None and gain.low is not None:
        most = predictor.bound(Change(), instead=retained).high or 0.0
        gain = replace(gain, low=min(gain.low, least.low), high=max(gain.high or most, most))
    else:
        saved = gain.saved or 0.0
        gain = Gain(Evidence.BOUND, None, 0.0, max(saved, gain.high or saved) if saved > 0 else 0.0)
    return Found(Candidate((Lever.KEEP_WORKERS,), settings), gain)


def _kept(run: LoaderRun) -> dict[str, str | int]:
    """Return the settings that keep workers; a loader that is made again keeps none."""
    once: dict[str, str | int] = {"made": "once"} if run.recreated else {}
    return {"persistent_workers": "True", **once}


def _workers(predictor: GainPredictor, *, torch: bool) -> Iterator[Found | RuledOut]:
    run, circumstances = predictor.baseline.run, predictor.circumstances
    name = "num_workers" if circumstances.facts.is_script else "workers"
    more = Candidate((Lever.WORKERS,), {name: run.workers + 1})
    if circumstances.own_order:
        yield RuledOut(more, Reason.OWN_ORDER)
        return
    cpus = circumstances.cpus
    if cpus is None:
        return
    most = most_workers(run, cpus) if _waits_for_storage(circumstances) else cpus
    tried = [number for number in numbers_of_workers(most) if number != run.workers]
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
            starts=circumstances.facts.is_script and not run.workers,
        )
    if run.workers >= most:
        yield RuledOut(more, Reason.NO_MORE_CPUS, run.workers + 1, cpus)


def numbers_of_workers(most: int) -> list[int]:
    """Return the numbers that are tried: all up to 4, then two for each doubling, and the most."""
    numbers = [1, 2, 3]
    while numbers[-2] * 2 < most:
        numbers.append(numbers[-2] * 2)
    return sorted({each for each in numbers if each < most} | {most})


def _waits_for_storage(circumstances: Circumstances) -> bool:
    """Tell whether time off the CPU may be storage's: if hardly any was cold, CPUs were short."""
    cold = circumstances.cold_fraction
    if cold is None:
        return (circumstances.resident_fraction or 0.0) < ALL_CACHED
    return cold > HARDLY_COLD


def most_workers(run: LoaderRun, cpus: int) -> int:
    """Return how many workers can be of use: one for each CPU, more where they wait for storage."""
    known = (run.cpu_ns >= 0) & (run.work_ns > 0)
    busy_ns = int(run.work_ns[known].sum())
    if not busy_ns or 2 * int(known.sum()) < int((run.work_ns > 0).sum()):
        return cpus
    on_cpu = min(1.0, int(run.cpu_ns[known].sum()) / busy_ns)
    most = cpus * MOST_WORKERS_PER_CPU
    return max(cpus, min(most, int(cpus / on_cpu))) if on_cpu else most


def _prefetch(predictor: GainPredictor) -> Iterator[Found | RuledOut]:
    run, circumstances = predictor.baseline.run, predictor.circumstances
    name = "prefetch_factor" if circumstances.facts.is_script else "prefetch"
    if run.rule is LoaderRule.SERIAL:
        yield RuledOut(Candidate((Lever.PREFETCH,), {name: 2}), Reason.NO_WORKERS)
        return
    if circumstances.own_order and run.rule is LoaderRule.THREADS:  # it is ahead by its own depth
        yield RuledOut(Candidate((Lever.PREFETCH,), {name: run.prefetch + 1}), Reason.OWN_ORDER)
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


def factors(run: LoaderRun, change: dict[str, float]) -> Change:
    """Return the change that multiplies the stages of some kinds."""
    return Change(
        stage_factors={
            stage: change[kind_of(stage)] for stage in run.stages if kind_of(stage) in change
        }
    )


def cpu_fraction(run: LoaderRun, kind: str) -> float:
    """Return the share of a kind's time that is on a CPU; 0 where unknown."""
    mine = np.array([kind_of(stage) == kind for stage in run.stages], dtype=bool)
    work, cpu = run.work_ns[:, mine], run.cpu_ns[:, mine]
    known = cpu >= 0
    busy_ns = int(work[known].sum())
    return min(1.0, int(cpu[known].sum()) / busy_ns) if busy_ns else 0.0


def bounded_candidates(predictor: GainPredictor) -> Iterator[Found | RuledOut]:
    """Yield what nobody measured in this run, with what it cannot gain more than."""
    if predictor.circumstances.own_order and not predictor.circumstances.facts.is_script:
        yield RuledOut(Candidate((Lever.FORMAT,)), Reason.OWN_ORDER)
    else:
        yield from _finished_samples(predictor)
        yield from _loader(predictor)
    if "://" not in (predictor.baseline.given or ""):  # a bucket is in no page cache
        yield _page_cache(predictor)
    yield from _staging(predictor)
    if _first_store(predictor) is None:  # a store holds samples as they are asked for
        yield from _chunks(predictor)
    yield from _codec(predictor)


def _finished_samples(predictor: GainPredictor) -> Iterator[Found | RuledOut]:
    baseline = predictor.baseline
    if baseline.store is not None:
        yield RuledOut(Candidate((Lever.FORMAT,), {"format": baseline.format}), Reason.IN_USE)
    elif _first_store(predictor) is None:  # else it is measured
        candidate = Candidate((Lever.FORMAT,), {"format": _stored(baseline)})
        bound = predictor.bound(Change(), instead=_finished(predictor.run))
        yield Found(candidate, bound)


def _finished(run: LoaderRun) -> LoaderRun:
    """Return loading samples that are finished: nothing is left to make, or to start for it.

    They may be other objects: of handing batches over only what joins and sends them is left.
    """
    change = replace(factors(run, dict.fromkeys(MAKING, 0.0)), keep_workers=True)
    return _untaken(changed(run, change))


def _untaken(run: LoaderRun) -> LoaderRun:
    """Return a run whose batches take nothing but their stages, and whose end takes nothing."""
    none = np.zeros_like(run.gap_ns)
    return replace(
        run,
        gap_ns=none,
        submit_ns=none,
        transit_ns=none,
        pickup_ns=none,
        loop_ns=np.zeros_like(run.loop_ns),
        shutdown_ns=np.zeros_like(run.shutdown_ns),
    )


def _stored(baseline: LoadingWay) -> str:
    """Return the format that a framework's users would take."""
    return "tfrecord" if baseline.framework == "tensorflow" else "numpy"


def _loader(predictor: GainPredictor) -> Iterator[Found | RuledOut]:
    """Yield the fast loader for what is loaded now, and for each format that was measured."""
    baseline, methods, cpus = predictor.baseline, predictor.ways, predictor.circumstances.cpus
    if NATIVE in baseline.framework.split(","):
        yield RuledOut(Candidate((Lever.LOADER,), {"framework": NATIVE}), Reason.IN_USE)
        return
    there = {mode.format for mode in methods if mode.framework == NATIVE}
    for method in methods:
        if (
            method.pipeline not in ("", "own")
            or method.framework in ("", NATIVE)
            or method.format in there
        ):
            continue
        settings: dict[str, str | int] = {"framework": NATIVE}
        levers = [Lever.LOADER]
        if method.given is not None and method is not baseline:
            settings["store"] = method.given
            levers.insert(0, Lever.FORMAT)
        elif method.format != baseline.format:
            settings["format"] = method.format
            levers.insert(0, Lever.FORMAT)
        elif method is not baseline:
            continue
        work_of = None if method is baseline else _handed_free(method.run, cpus)
        instead = _handed_free(predictor.run, cpus)
        gain = predictor.bound(Change(work_of=work_of), instead=instead)
        yield Found(Candidate(tuple(levers), settings), gain, way=method)


def _handed_free(run: LoaderRun, cpus: int | None) -> LoaderRun:
    """Return a run whose batches are made in place, by threads that are there all the time.

    Nothing is copied, sent or picked up. Of the making what computes is left, on all CPUs: threads
    may be as many as wait for storage. What is not known to compute may wait.
    """
    copies = np.array([kind_of(stage) in ("collate", "serialise") for stage in run.stages])
    run = changed(run, Change(keep_workers=True))
    computes = np.clip(run.cpu_ns, 0, run.work_ns)
    work_ns = np.where(copies, 0, computes) if len(copies) else computes
    workers = max(run.workers, cpus or 1)
    run = replace(run, rule=LoaderRule.THREADS, workers=workers, prefetch=LOOKS_AHEAD)
    nothing = np.zeros_like(work_ns)
    return replace(_untaken(run), work_ns=work_ns, cpu_ns=work_ns, async_ns=nothing)


def _is_cached(circumstances: Circumstances) -> bool:
    """Return whether the run read everything from memory."""
    cold = circumstances.cold_fraction
    return cold == 0.0 or (cold is None and (circumstances.resident_fraction or 0.0) >= ALL_CACHED)


def _page_cache(predictor: GainPredictor) -> Found | RuledOut:
    """Return reading all files once beforehand, where memory holds them."""
    baseline, circumstances = predictor.baseline, predictor.circumstances
    pages = Candidate((Lever.CACHE,), {"cache": "warm"})
    if _is_cached(circumstances):
        return RuledOut(pages, Reason.CACHED_ALREADY)
    needed, memory = baseline.all_nbytes(circumstances.files_nbytes), circumstances.memory_nbytes
    if needed is None or memory is None:
        return RuledOut(pages, Reason.SIZE_UNKNOWN)
    if needed > CACHE_FRACTION * memory:
        return RuledOut(pages, Reason.TOO_LARGE, needed, CACHE_FRACTION * memory)
    run = baseline.run
    cached = factors(run, {kind: cpu_fraction(run, kind) for kind in READING})
    return Found(pages, predictor.bound(cached))


def staged_nbytes(baseline: LoadingWay, circumstances: Circumstances) -> int | None:
    """Return what is to be staged: all files, or of a script what it read of them in an epoch."""
    return baseline.all_nbytes(circumstances.files_nbytes) or circumstances.epoch_nbytes


def _staging(predictor: GainPredictor) -> Iterator[Found | RuledOut]:
    """Yield copying the files once to storage of this machine's own, where others share theirs."""
    baseline, circumstances = predictor.baseline, predictor.circumstances
    near, folder = circumstances.facts.near, circumstances.folder
    is_probe = baseline.store is not None and baseline.given is None
    if near is None or folder is None or is_probe:
        return
    needed = staged_nbytes(baseline, circumstances)
    candidate = Candidate((Lever.CACHE,), {"stage": "node-local storage", "of": folder})
    if near.mount_of(folder) is None:
        yield RuledOut(candidate, Reason.NEAR_ALREADY)
    elif _is_cached(circumstances):
        yield RuledOut(candidate, Reason.CACHED_ALREADY)
    elif not near.places:
        yield RuledOut(candidate, Reason.NOWHERE_NEAR)
    elif needed is None:
        yield RuledOut(candidate, Reason.SIZE_UNKNOWN)
    else:
        place = next((each for each in near.places if each.free_nbytes > ROOM * needed), None)
        if place is None:
            space = max(each.free_nbytes for each in near.places)
            yield RuledOut(candidate, Reason.TOO_LARGE, needed, space)
            return
        memory = circumstances.memory_nbytes or near.memory_nbytes
        cached = place.in_memory or (memory is not None and needed <= CACHE_FRACTION * memory)
        candidate = replace(candidate, settings={"stage": place.path, "of": folder})
        yield Found(candidate, _staged(predictor, in_memory=cached))


def _staged(predictor: GainPredictor, *, in_memory: bool) -> Gain:
    """Return what reading a staged copy gains, where memory holds it; else at most that.

    Reading then takes its time on a CPU, and as long as copying its bytes from memory. What is read
    and decoded in one can be separated by its CPU time alone: else there is only a bound.
    """
    run = predictor.run
    known = (run.cpu_ns >= 0) | (run.work_ns == 0)
    kinds = [kind_of(stage) for stage in run.stages]
    is_read, is_fused = ([kind in of for kind in kinds] for of in (READING, READ_STAGES))
    fused_ns = (
        np.where(known, 0, run.work_ns)[:, is_fused].sum()
        - np.where(known, 0, run.work_ns)[:, is_read].sum()
    )
    text = in_memory and (run.read_nbytes >= 0).all() and any(is_fused)
    if not text or fused_ns > HARDLY_COLD * run.work_ns[:, is_fused].sum():
        return predictor.bound(factors(run, {k: cpu_fraction(run, k) for k in READ_STAGES}))
    left = {kind: cpu_fraction(run, kind) for kind in READING}
    left |= {k: cpu_fraction(run, k) for k in READ_STAGES - {*READING} if known[:, is_fused].all()}
    change = replace(factors(run, left), read_nbytes_per_s=MEMORY_NBYTES_PER_S)
    return predictor.without_storage().gain(change, parallel=True)


def _first_store(predictor: GainPredictor) -> LoadingWay | None:
    return next((method for method in predictor.ways if method.store is not None), None)


def _chunks(predictor: GainPredictor) -> Iterator[Found | RuledOut]:
    window = predictor.baseline.window
    candidate = Candidate((Lever.CHUNKS,), {"format": "zarr"})
    if window.read_nbytes is None or not window.nbytes:
        yield RuledOut(candidate, Reason.SIZE_UNKNOWN)
        return
    # What reading hands on is used, whatever preprocessing leaves of it, as of an ensemble's mean.
    handed_on = sum(row.nbytes or 0 for row in window.stages if Trait.TELLS_READ in row.kind.traits)
    used = max(window.nbytes, handed_on)
    ratio = window.read_nbytes / used
    decoded = None if window.decoded is None else window.decoded.per_used
    if max(ratio, decoded or 0.0) < READ_PER_BYTE:
        if decoded is None:
            yield RuledOut(candidate, Reason.READS_WHAT_IT_USES, window.read_nbytes, used)
        else:
            yield RuledOut(candidate, Reason.CHUNKS_FIT, ratio, decoded)
        return
    # Each stage by what it does too much of; what decodes is not known where nobody counted.
    shorter = dict.fromkeys((*READING, "decode"), 1 / max(ratio, 1.0))
    if decoded is not None:
        shorter["decode"] = 1 / max(decoded, 1.0)
    yield Found(candidate, predictor.bound(factors(predictor.baseline.run, shorter)))


def _codec(predictor: GainPredictor) -> Iterator[Found | RuledOut]:
    baseline = predictor.baseline
    if baseline.store is None:
        return
    if predictor.circumstances.facts.sources == ():
        yield RuledOut(Candidate((Lever.CODEC,)), Reason.NO_SOURCE)
        return
    if baseline.container == "zarr" and any(
        kind_of(each) == "decode" for each in baseline.run.stages
    ):
        candidate = Candidate((Lever.CODEC,), {"codec": "none"})
        yield Found(candidate, predictor.bound(factors(baseline.run, {"decode": 0.0})))
    elif (baseline.window.cold_fraction or 0.0) > COLD_FRACTION:
        settings: dict[str, str | int] = {"dtype": "float16"}
        if baseline.container == "zarr":
            settings = {"codec": "blosc-lz4"}
        change = factors(baseline.run, dict.fromkeys(READING, 0.5))
        yield Found(Candidate((Lever.CODEC,), settings), predictor.bound(change))
    else:
        yield RuledOut(Candidate((Lever.CODEC,)), Reason.CACHED_ALREADY)
