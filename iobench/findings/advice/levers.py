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
    NO_COST,
    AdvisedChange,
    Cost,
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
WORKERS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MOST_WORKERS_PER_CPU: Final = 4
MEMORY_FRACTION: Final = 0.5  # of the memory, what batches that are ready may take
CACHE_FRACTION: Final = 0.8  # of the memory, what files in the page cache may take
FREE_RATIO: Final = 1.05  # of the bytes to be staged, what has to be free
READ_PER_BYTE: Final = 1.5  # from so many read for each one used, chunks do not fit samples
COLD_FRACTION: Final = 0.5
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
            cost = _cost_of_store(ways, other) if Lever.FORMAT in levers else NO_COST
            yield change(tuple(levers), settings, gain, cost)


def predicted_changes(predictor: GainPredictor) -> Judged:
    """Yield what changes would gain by replay, or no more than; or why they would not."""
    facts = predictor.baseline.facts
    stored = (_finished_samples, _fast_loader) if facts.is_script or not facts.own_order else ()
    levers = (_workers, _prefetch, _kept_workers, *stored, _page_cache, _staging, _chunks, _codec)
    for lever in levers:
        yield from lever(predictor)


def _workers(predictor: GainPredictor) -> Judged:
    baseline, run, cpus = predictor.baseline, predictor.baseline.loader, predictor.baseline.cpus
    levers: tuple[Lever, ...] = (Lever.WORKERS,)
    more = {"workers": run.workers + 1}
    if baseline.facts.own_order:
        yield ruled_out(levers, more, Reason.OWN_ORDER)
        return
    if cpus is None:
        return
    most = cpus if baseline.is_cached else _most_workers(run, cpus)
    numbers = [n for n in (*(n for n in WORKERS if n < most), most) if n != run.workers]
    best = _best(
        numbers,
        lambda n: predictor.gain(changed(predictor.run, Change(workers=n)), baseline.machine),
    )
    if best is not None:
        number, gain = best
        settings: Settings = {"workers": number}
        if not run.workers and run.recurs and baseline.framework == "torch":
            # What their starts take is not known: kept, they have none after the first epoch.
            levers, settings = (*levers, Lever.KEEP_WORKERS), {**settings, **KEPT}
        cost = _memory_of(baseline, max(0, number - run.workers) * (run.prefetch or 2))
        yield change(levers, settings, gain, cost)
    if run.workers >= most or best is None:
        yield ruled_out((Lever.WORKERS,), more, Reason.NO_MORE_CPUS, run.workers + 1, cpus)


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
    threads = run.rule is LoaderRule.THREADS
    if run.rule is LoaderRule.SERIAL or (threads and baseline.facts.own_order):
        return
    queues = 1 if threads else max(1, run.workers)
    batch_nbytes = (run.batch_size or 1) * (baseline.sample_nbytes or 0)
    fits = MEMORY_FRACTION * (baseline.memory_nbytes or np.inf)
    numbers = [n for n in PREFETCHES if n > run.prefetch and n * queues * batch_nbytes <= fits]
    best = _best(numbers, lambda n: predictor.gain(changed(predictor.run, Change(prefetch=n))))
    if best is not None:
        cost = _memory_of(baseline, (best[0] - run.prefetch) * queues)
        yield change((Lever.PREFETCH,), {"prefetch": best[0]}, best[1], cost)


def _best(numbers: Sequence[int], gain_of: Callable[[int], Gain]) -> tuple[int, Gain] | None:
    """Return the smallest number that gains nearly as much as the best one."""
    gains = [(number, gain_of(number)) for number in numbers]
    most = max((gain.expected for _, gain in gains), default=0.0)
    return next((pair for pair in gains if pair[1].expected >= most - NEAR_BEST), None)


def _memory_of(baseline: Loading, batches: int) -> Cost:
    batch_nbytes = (baseline.loader.batch_size or 0) * (baseline.sample_nbytes or 0)
    return Cost(memory_nbytes=batches * batch_nbytes if batch_nbytes or not batches else None)


KEPT: Final[Settings] = {"persistent_workers": "True"}


def _kept_workers(predictor: GainPredictor) -> Judged:
    """Yield keeping the workers of one epoch for the next."""
    run = predictor.run
    if not (run.restarts and run.recurs and predictor.baseline.framework == "torch"):
        return
    retained = changed(run, Change(keep_workers=True))
    slow = replace(retained, work_ns=run.work_ns, cpu_ns=run.cpu_ns, async_ns=run.async_ns)
    gain = predictor.bound(retained)
    least = predictor.gain(slow)
    if least.is_proven and least.low_fraction is not None:
        most, gain = gain.high_fraction or 0.0, predictor.gain(retained)
        low = min(least.low_fraction, gain.low_fraction or 0.0)
        gain = replace(gain, low_fraction=low, high_fraction=max(gain.high_fraction or 0.0, most))
    yield change((Lever.KEEP_WORKERS,), KEPT, gain)


def _finished_samples(predictor: GainPredictor) -> Judged:
    """Yield a store where none was measured: nothing is left to make, or to start for it."""
    if any(each.store for each in predictor.ways):
        return
    baseline = predictor.baseline
    stored = "tfrecord" if baseline.framework == "tensorflow" else "numpy"
    finished = shortened(predictor.run, dict.fromkeys(MAKING, 0.0))
    gain = predictor.bound(without_rest(changed(finished, Change(keep_workers=True))))
    yield change((Lever.FORMAT,), {"format": stored}, gain, _cost_of_store([baseline], baseline))


def _fast_loader(predictor: GainPredictor) -> Judged:
    """Yield the fast loader for what is loaded now."""
    baseline = predictor.baseline
    other = baseline.pipeline in ("", "own") and baseline.framework not in ("", NATIVE)
    if other and not any(each.framework == NATIVE for each in predictor.ways):
        gain = predictor.bound(in_place(predictor.run, baseline.cpus))
        yield change((Lever.LOADER,), {"framework": NATIVE}, gain)


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
    baseline = predictor.baseline
    near, folder = baseline.facts.near, baseline.folder
    is_probe = baseline.store is not None and baseline.named_store is None
    if near is None or folder is None or is_probe or baseline.is_cached:
        return
    if near.mount_of(folder) is None:
        return
    needed = baseline.files_nbytes or baseline.epoch_nbytes
    settings = {"stage": "node-local storage", "of": folder}
    if needed is None:
        yield ruled_out((Lever.CACHE,), settings, Reason.SIZE_UNKNOWN)
        return
    place = next((each for each in near.places if each.free_nbytes > FREE_RATIO * needed), None)
    if place is None:
        free = max((each.free_nbytes for each in near.places), default=0)
        yield ruled_out((Lever.CACHE,), settings, Reason.TOO_LARGE, needed, free)
        return
    rate = _read_rate(baseline.loader)
    cost = Cost(
        needed / rate if rate else None,
        memory_nbytes=needed * place.in_memory,
        disk_nbytes=needed * (not place.in_memory),
    )
    gain = predictor.bound(on_cpu(predictor.run, (*READING, *MIXED)))
    yield change((Lever.CACHE,), {"stage": place.path, "of": folder}, gain, cost)


def _read_rate(run: LoaderRun) -> float | None:
    """Return how many bytes a second this run's readers got at once."""
    reads_ns, nbytes = (
        int(run.work_ns[:, is_one_of(run, READING)].sum()),
        int(run.read_nbytes.sum()),
    )
    if not reads_ns or nbytes <= 0 or (run.read_nbytes < 0).any():
        return None
    return nbytes / reads_ns * 1e9 * max(1, run.workers)


def _chunks(predictor: GainPredictor) -> Judged:
    if any(each.store for each in predictor.ways):  # which holds samples as they are requested
        return
    part, levers, settings = predictor.baseline.judged, (Lever.CHUNKS,), {"format": "zarr"}
    if part.read_nbytes is None or not part.nbytes:
        yield ruled_out(levers, settings, Reason.SIZE_UNKNOWN)
        return
    # What reading hands on is used, whatever preprocessing leaves of it, as of an ensemble's mean.
    handed_on = sum(row.nbytes or 0 for row in part.stages if Trait.TELLS_READ in row.kind.traits)
    ratio = part.read_nbytes / max(part.nbytes, handed_on)
    decoded = None if part.decoded is None else part.decoded.per_used
    if max(ratio, decoded or 0.0) < READ_PER_BYTE:
        yield ruled_out(levers, settings, Reason.CHUNKS_FIT, ratio, decoded)
        return
    # Each stage by what it does too much of; what decodes is not known where nobody counted.
    factors = dict.fromkeys((*READING, "decode"), 1 / max(ratio, 1.0))
    factors["decode"] = 1 / max(ratio if decoded is None else decoded, 1.0)
    gain = predictor.bound(shortened(predictor.run, factors))
    yield change(levers, settings, gain, _cost_of_store(predictor.ways, predictor.baseline))


def _codec(predictor: GainPredictor) -> Judged:
    baseline, run = predictor.baseline, predictor.run
    is_zarr = baseline.format.partition(":")[0] == "zarr"
    if baseline.store is None or baseline.facts.sources == ():  # nothing to convert again
        return
    if is_zarr and is_one_of(run, ["decode"]).any():
        stored, factors = "zarr:codec=none", {"decode": 0.0}
    elif (baseline.judged.cold_fraction or 0.0) > COLD_FRACTION:
        stored = "zarr:codec=blosc-lz4" if is_zarr else f"{baseline.format}:dtype=float16"
        factors = dict.fromkeys(READING, 0.5)
    else:
        return
    gain = predictor.bound(shortened(run, factors))
    yield change((Lever.CODEC,), {"format": stored}, gain, _cost_of_store(predictor.ways, baseline))


def _cost_of_store(ways: Sequence[Loading], way: Loading) -> Cost:
    """Return what the whole dataset takes in another format: from a probe, else what is known."""
    baseline, store = ways[0], way.store
    if way is not baseline and way.named_store is not None:
        return NO_COST  # it is there
    if way is baseline or store is None or not store.n_samples or not store.nbytes:
        n, nbytes = baseline.n_samples_all, baseline.sample_nbytes
        return Cost(None, disk_nbytes=n * nbytes if n and nbytes else None)
    share = (store.n_samples_all or store.n_samples) / store.n_samples
    times = [each.store.convert_s for each in ways if each.store and each.format == way.format]
    spent_s = next((each * share for each in times if each is not None), None)
    return Cost(spent_s, disk_nbytes=round(store.nbytes * share))
