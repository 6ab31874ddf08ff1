"""The eight levers on a run: what each would gain at what price, or the reason against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from iobench.analysis.replay.changes import Change, changed
from iobench.analysis.replay.loader_run import LoaderRule, LoaderRun
from iobench.findings.advice.gains import (
    GainPredictor,
    in_place,
    is_one_of,
    measured_gain,
    on_cpu,
    shortened,
    without_rest,
)
from iobench.findings.advice.proposals import (
    AdvisedChange,
    Cost,
    Evidence,
    Gain,
    Lever,
    Reason,
    RuledOut,
    Settings,
    change,
    ruled_out,
)
from iobench.recording.kinds import MIXED_KINDS, READING_KINDS, WORKER_KINDS, Kind, Trait

if TYPE_CHECKING:
    from iobench.findings.advice.loading import Loading

Judged: TypeAlias = Iterator[AdvisedChange | RuledOut]

NATIVE: Final = "native"
NEAR_BEST: Final = 0.01  # of several numbers as good as the best to this share, the smallest
PREFETCHES: Final = (2, 4, 8, 16)
MOST_WORKERS_PER_CPU: Final = 4
MEMORY_FRACTION: Final = 0.5  # of the memory, what batches that are ready may take
CACHE_FRACTION: Final = 0.8  # of the memory, what files in the page cache may take
FREE_RATIO: Final = 1.05  # of the bytes to be staged, what has to be free
MEMORY_NBYTES_PER_S: Final = 1e9  # what the page cache gives a reader at least
READ_PER_BYTE: Final = 1.5  # from so many read for each one used, chunks do not fit samples
COLD_FRACTION: Final = 0.5
HARDLY_UNKNOWN: Final = 0.05  # of the time of reads, what may be decoding in them
MAKING: Final = tuple(kind.spelled for kind in sorted(WORKER_KINDS) if kind != Kind.COLLATE)
"""What loading a finished sample needs none of but reading, and that may be fast."""
READING: Final = tuple(kind.spelled for kind in sorted(READING_KINDS))
MIXED: Final = tuple(kind.spelled for kind in sorted(MIXED_KINDS))
"""Of these, and of reading, what is not on a CPU may be waiting for storage."""


def measured_changes(ways: Sequence[Loading]) -> Judged:
    """Yield what else was run in turns with the baseline, the first."""
    baseline, *others = ways
    for other in others:
        settings: dict[str, str | int] = {}
        for name in ("framework", "pipeline"):
            if getattr(other, name) and getattr(other, name) != getattr(baseline, name):
                settings[name] = getattr(other, name)
        levers = [Lever.LOADER] if settings else []
        if other.named_store is not None:
            if other.named_store != baseline.named_store:
                settings["store"] = other.named_store
        elif baseline.named_store is not None or other.format not in ("", baseline.format):
            settings["format"] = other.format
        if settings.keys() & {"format", "store"}:
            levers.insert(0, Lever.FORMAT)
        if other.store is not None and other.named_store is None:
            settings["format"] = other.format
        gain = measured_gain(baseline, other)
        if gain is not None and levers:
            cost = _cost_of_store(ways, other) if Lever.FORMAT in levers else Cost()
            yield change(tuple(levers), settings, gain, cost)


def predicted_changes(predictor: GainPredictor) -> Judged:
    """Yield what changes would gain by replay, or no more than; or why they would not."""
    yield from _workers(predictor)
    yield from _prefetch(predictor)
    yield from _kept_workers(predictor)
    if predictor.baseline.facts.own_order and not predictor.baseline.facts.is_script:
        yield ruled_out((Lever.FORMAT,), {}, Reason.OWN_ORDER)
    else:
        yield from _finished_samples(predictor)
        yield from _fast_loader(predictor)
    yield from _page_cache(predictor)
    yield from _staging(predictor)
    yield from _chunks(predictor)
    yield from _codec(predictor)


def _workers(predictor: GainPredictor) -> Judged:
    baseline, run = predictor.baseline, predictor.baseline.loader
    name = "num_workers" if baseline.facts.is_script else "workers"
    levers: tuple[Lever, ...] = (Lever.WORKERS,)
    more = {name: run.workers + 1}
    if baseline.facts.own_order:
        yield ruled_out(levers, more, Reason.OWN_ORDER)
        return
    cpus = baseline.cpus
    if cpus is None:
        return
    most = _most_workers(run, cpus) if baseline.waits_for_storage else cpus
    tried = [number for number in _numbers_of_workers(most) if number != run.workers]
    best = _best(tried, lambda number: predictor.gain(Change(workers=number), baseline.machine))
    if best is not None:
        number, gain = best
        settings: dict[str, str | int] = {name: number}
        if not run.workers and run.recurs and baseline.framework == "torch":
            # What their starts take is not known: kept, they have none after the first epoch.
            levers, settings = (*levers, Lever.KEEP_WORKERS), {**settings, **_kept(run)}
        cost = _memory_of(baseline, max(0, number - run.workers) * (run.prefetch or 2))
        yield change(levers, settings, gain, cost)
    if run.workers >= most or best is None:
        yield ruled_out((Lever.WORKERS,), more, Reason.NO_MORE_CPUS, run.workers + 1, cpus)


def _numbers_of_workers(most: int) -> list[int]:
    """Return the numbers that are tried: all up to 4, then two for each doubling, and the most."""
    numbers = [1, 2, 3]
    while numbers[-2] * 2 < most:
        numbers.append(numbers[-2] * 2)
    return sorted({each for each in numbers if each < most} | {most})


def _most_workers(run: LoaderRun, cpus: int) -> int:
    """Return how many workers can be of use that wait for storage as much as these do."""
    known = (run.cpu_ns >= 0) & (run.work_ns > 0)
    busy_ns = int(run.work_ns[known].sum())
    if not busy_ns or 2 * int(known.sum()) < int((run.work_ns > 0).sum()):
        return cpus
    on_cpu = min(1.0, int(run.cpu_ns[known].sum()) / busy_ns)
    most = cpus * MOST_WORKERS_PER_CPU
    return max(cpus, min(most, int(cpus / on_cpu))) if on_cpu else most


def _prefetch(predictor: GainPredictor) -> Judged:
    baseline, run = predictor.baseline, predictor.baseline.loader
    name = "prefetch_factor" if baseline.facts.is_script else "prefetch"
    if run.rule is LoaderRule.SERIAL:
        yield ruled_out((Lever.PREFETCH,), {name: 2}, Reason.NO_WORKERS)
        return
    if baseline.facts.own_order and run.rule is LoaderRule.THREADS:
        yield ruled_out((Lever.PREFETCH,), {name: run.prefetch + 1}, Reason.OWN_ORDER)
        return
    queues = max(1, run.workers) if run.rule is LoaderRule.POOL else 1
    batch_nbytes = (run.batch_size or 1) * (baseline.sample_nbytes or 0)
    fits = MEMORY_FRACTION * (baseline.memory_nbytes or np.inf)
    tried = [n for n in PREFETCHES if n > run.prefetch and n * queues * batch_nbytes <= fits]
    best = _best(tried, lambda number: predictor.gain(Change(prefetch=number)))
    if best is not None:
        cost = _memory_of(baseline, (best[0] - run.prefetch) * queues)
        yield change((Lever.PREFETCH,), {name: best[0]}, best[1], cost)


def _best(tried: Sequence[int], gain_of: Callable[[int], Gain]) -> tuple[int, Gain] | None:
    """Return the smallest number that gains nearly as much as the best one."""
    gains = [(number, gain_of(number)) for number in tried]
    most = max((gain.expected for _, gain in gains), default=0.0)
    return next((pair for pair in gains if pair[1].expected >= most - NEAR_BEST), None)


def _memory_of(baseline: Loading, batches: int) -> Cost:
    batch_nbytes = (baseline.loader.batch_size or 0) * (baseline.sample_nbytes or 0)
    return Cost(memory_nbytes=batches * batch_nbytes if batch_nbytes or not batches else None)


def _kept_workers(predictor: GainPredictor) -> Judged:
    """Yield keeping the workers of one epoch for the next."""
    run = predictor.run
    if not (run.restarts and run.recurs and predictor.baseline.framework == "torch"):
        return
    retained = changed(run, Change(keep_workers=True))
    slow = replace(retained, work_ns=run.work_ns, cpu_ns=run.cpu_ns, async_ns=run.async_ns)
    gain = predictor.gain(Change(), instead=retained)
    least = predictor.gain(Change(), instead=slow)
    saved, high = gain.saved_fraction or 0.0, gain.high_fraction
    if least.is_proven and least.low_fraction is not None and gain.low_fraction is not None:
        most = predictor.bound(Change(), instead=retained).high_fraction or 0.0
        low, high = min(gain.low_fraction, least.low_fraction), max(high or most, most)
        gain = replace(gain, low_fraction=low, high_fraction=high)
    else:
        gain = Gain(Evidence.BOUND, None, 0.0, max(saved, high or saved) if saved > 0 else 0.0)
    yield change((Lever.KEEP_WORKERS,), _kept(predictor.baseline.loader), gain)


def _kept(run: LoaderRun) -> Settings:
    """Return the settings that keep workers; a loader that is made again keeps none."""
    return {"persistent_workers": "True", **({"made": "once"} if run.recreated else {})}


def _finished_samples(predictor: GainPredictor) -> Judged:
    """Yield a store where none was measured: nothing is left to make, or to start for it."""
    baseline = predictor.baseline
    if baseline.store is not None:
        yield ruled_out((Lever.FORMAT,), {"format": baseline.format}, Reason.IN_USE)
    elif not any(each.store for each in predictor.ways):
        stored = "tfrecord" if baseline.framework == "tensorflow" else "numpy"
        none = replace(shortened(predictor.run, dict.fromkeys(MAKING, 0.0)), keep_workers=True)
        gain = predictor.bound(Change(), instead=without_rest(changed(predictor.run, none)))
        cost = _cost_of_store(predictor.ways, baseline)
        yield change((Lever.FORMAT,), {"format": stored}, gain, cost)


def _fast_loader(predictor: GainPredictor) -> Judged:
    """Yield the fast loader for what is loaded now, and for each format that was measured."""
    baseline, ways = predictor.baseline, predictor.ways
    if NATIVE in baseline.framework.split(","):
        yield ruled_out((Lever.LOADER,), {"framework": NATIVE}, Reason.IN_USE)
        return
    measured = {each.format for each in ways if each.framework == NATIVE}
    for each in ways:
        others = each.pipeline not in ("", "own") or each.framework in ("", NATIVE)
        if others or each.format in measured:
            continue
        settings: dict[str, str | int] = {"framework": NATIVE}
        if each.named_store is not None and each is not baseline:
            settings["store"] = each.named_store
        elif each.format != baseline.format:
            settings["format"] = each.format
        elif each is not baseline:
            continue
        work_of = None if each is baseline else in_place(each.loader, baseline.cpus)
        gain = predictor.bound(
            Change(work_of=work_of), instead=in_place(predictor.run, baseline.cpus)
        )
        if len(settings) == 1:
            yield change((Lever.LOADER,), settings, gain)
        else:
            cost = _cost_of_store(ways, each)
            yield change((Lever.FORMAT, Lever.LOADER), settings, gain, cost)


def _page_cache(predictor: GainPredictor) -> Judged:
    """Yield reading all files once beforehand, where memory holds them."""
    baseline = predictor.baseline
    if "://" in (baseline.named_store or ""):  # a bucket is in no page cache
        return
    levers, settings = (Lever.CACHE,), {"cache": "warm"}
    needed, memory = baseline.files_nbytes, baseline.memory_nbytes
    if baseline.is_cached:
        yield ruled_out(levers, settings, Reason.CACHED_ALREADY)
    elif needed is None or memory is None:
        yield ruled_out(levers, settings, Reason.SIZE_UNKNOWN)
    elif needed > CACHE_FRACTION * memory:
        yield ruled_out(levers, settings, Reason.TOO_LARGE, needed, CACHE_FRACTION * memory)
    else:
        gain = predictor.bound(on_cpu(predictor.run, READING))
        yield change(levers, settings, gain, Cost(memory_nbytes=needed))


def _staging(predictor: GainPredictor) -> Judged:
    """Yield copying the files once to storage of this machine's own, where others share theirs."""
    baseline, levers = predictor.baseline, (Lever.CACHE,)
    near, folder = baseline.facts.near, baseline.folder
    is_probe = baseline.store is not None and baseline.named_store is None
    if near is None or folder is None or is_probe:
        return
    needed = baseline.files_nbytes or baseline.epoch_nbytes
    settings = {"stage": "node-local storage", "of": folder}
    reason = None
    if near.mount_of(folder) is None:
        reason = Reason.NEAR_ALREADY
    elif baseline.is_cached:
        reason = Reason.CACHED_ALREADY
    elif not near.places:
        reason = Reason.NOWHERE_NEAR
    if reason is not None or needed is None:
        yield ruled_out(levers, settings, reason or Reason.SIZE_UNKNOWN)
        return
    place = next((each for each in near.places if each.free_nbytes > FREE_RATIO * needed), None)
    if place is None:
        free = max(each.free_nbytes for each in near.places)
        yield ruled_out(levers, settings, Reason.TOO_LARGE, needed, free)
        return
    memory = baseline.memory_nbytes or near.memory_nbytes or 0
    in_memory = place.in_memory or needed <= CACHE_FRACTION * memory
    rate = _read_rate(baseline.loader)
    cost = Cost(
        stage_s=needed / rate if rate else None,
        memory_nbytes=needed * place.in_memory,
        disk_nbytes=needed * (not place.in_memory),
    )
    settings = {"stage": place.path, "of": folder}
    yield change(levers, settings, _staged_gain(predictor, in_memory=in_memory), cost)


def _staged_gain(predictor: GainPredictor, *, in_memory: bool) -> Gain:
    """Return what reading a staged copy gains, where memory holds it; else at most that."""
    run = predictor.run
    both = (*READING, *MIXED)
    is_read = is_one_of(run, both)
    unknown_ns = np.where(run.cpu_ns < 0, run.work_ns, 0)
    most_ns = HARDLY_UNKNOWN * run.work_ns[:, is_read].sum()
    is_known = is_read.any() and unknown_ns[:, is_one_of(run, MIXED)].sum() <= most_ns
    if not in_memory or not is_known or (run.read_nbytes < 0).any():
        return predictor.bound(on_cpu(run, both))
    left = on_cpu(run, READING if unknown_ns[:, is_read].any() else both)
    staged = replace(left, read_nbytes_per_s=MEMORY_NBYTES_PER_S)
    machine = predictor.baseline.machine  # but for its storage, which is never short
    return predictor.gain(staged, machine and replace(machine, read_nbytes_per_s=None))


def _read_rate(run: LoaderRun) -> float | None:
    """Return how many bytes a second this run's readers got at once."""
    on_cpu_ns = np.where(is_one_of(run, MIXED), np.maximum(run.cpu_ns, 0), 0)
    waits_ns = int((run.work_ns - on_cpu_ns)[:, is_one_of(run, (*READING, *MIXED))].sum())
    nbytes = int(run.read_nbytes.sum())
    if waits_ns <= 0 or nbytes <= 0 or (run.read_nbytes < 0).any():
        return None
    return nbytes / waits_ns * 1e9 * max(1, run.workers)


def _chunks(predictor: GainPredictor) -> Judged:
    if any(each.store for each in predictor.ways):  # which holds samples as they are requested
        return
    part, levers, settings = predictor.baseline.judged, (Lever.CHUNKS,), {"format": "zarr"}
    if part.read_nbytes is None or not part.nbytes:
        yield ruled_out(levers, settings, Reason.SIZE_UNKNOWN)
        return
    # What reading hands on is used, whatever preprocessing leaves of it, as of an ensemble's mean.
    handed_on = sum(row.nbytes or 0 for row in part.stages if Trait.TELLS_READ in row.kind.traits)
    used = max(part.nbytes, handed_on)
    ratio = part.read_nbytes / used
    decoded = None if part.decoded is None else part.decoded.per_used
    if max(ratio, decoded or 0.0) >= READ_PER_BYTE:
        # Each stage by what it does too much of; what decodes is not known where nobody counted.
        factors = dict.fromkeys((*READING, "decode"), 1 / max(ratio, 1.0))
        factors["decode"] = 1 / max(ratio if decoded is None else decoded, 1.0)
        gain = predictor.bound(shortened(predictor.run, factors))
        yield change(levers, settings, gain, _cost_of_store(predictor.ways, predictor.baseline))
    elif decoded is None:
        yield ruled_out(levers, settings, Reason.READS_WHAT_IT_USES, part.read_nbytes, used)
    else:
        yield ruled_out(levers, settings, Reason.CHUNKS_FIT, ratio, decoded)


def _codec(predictor: GainPredictor) -> Judged:
    baseline, run, levers = predictor.baseline, predictor.run, (Lever.CODEC,)
    if baseline.store is None:
        return
    is_zarr = baseline.format.partition(":")[0] == "zarr"
    if baseline.facts.sources == ():
        yield ruled_out(levers, {}, Reason.NO_SOURCE)
        return
    if is_zarr and is_one_of(run, ["decode"]).any():
        settings, factors = {"codec": "none"}, {"decode": 0.0}
    elif (baseline.judged.cold_fraction or 0.0) > COLD_FRACTION:
        settings = {"codec": "blosc-lz4"} if is_zarr else {"dtype": "float16"}
        factors = dict.fromkeys(READING, 0.5)
    else:
        yield ruled_out(levers, {}, Reason.CACHED_ALREADY)
        return
    gain = predictor.bound(shortened(run, factors))
    yield change(levers, settings, gain, _cost_of_store(predictor.ways, baseline))


def _cost_of_store(ways: Sequence[Loading], way: Loading) -> Cost:
    """Return what the whole dataset takes in another format: from a probe, else what is known."""
    baseline, store = ways[0], way.store
    if way is not baseline and way.named_store is not None:
        return Cost()  # it is there
    n, nbytes, making_s = baseline.n_samples_all, baseline.sample_nbytes, _making_s(baseline)
    least = Cost(making_s, at_least=making_s is not None)
    if way is baseline or store is None or not store.n_samples or not store.nbytes:
        return replace(least, disk_nbytes=n * nbytes if n and nbytes else None)
    stores = (each.store for each in ways if each.format == way.format)
    convert_s = next((s.convert_s for s in stores if s and s.convert_s is not None), None)
    share = (store.n_samples_all or store.n_samples) / store.n_samples
    disk_nbytes = round(store.nbytes * share)
    if convert_s is None:
        return replace(least, disk_nbytes=disk_nbytes)
    return Cost(convert_s * share, disk_nbytes=disk_nbytes)


def _making_s(baseline: Loading) -> float | None:
    """Return how long all CPUs take to make all samples once, whatever writing them takes."""
    part, samples = baseline.judged, baseline.n_samples_all
    if not part.n_samples or not samples or not baseline.cpus:
        return None
    busy_ns = sum(row.busy_ns for row in part.stages if row.kind in WORKER_KINDS)
    return busy_ns / part.n_samples * samples / baseline.cpus / 1e9
