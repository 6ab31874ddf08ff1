"""The levers on a run: what each gains at what price, or the reason against it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from msgspec.structs import asdict, replace

from iobench.analysis.diagnosis import HIDDEN_FRACTION
from iobench.analysis.intervals import PARTS, block_ratio, paired_ratio, turns_of
from iobench.analysis.replay.loader_run import Change, LoaderRule, LoaderRun, changed
from iobench.analysis.replay.replay import is_trusted, replay, replay_error
from iobench.analysis.replay.runs import beginning_of
from iobench.findings.advice.proposals import (
    NO_COST,
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
from iobench.findings.faster_stages import (
    IN_LOOP_FRACTION,
    UNSEEN_ERROR,
    predicted,
)
from iobench.recording.kinds import MIXED_KINDS, READING_KINDS, WORKER_KINDS, Kind, stage_name
from iobench.report.loading_sections import loads_stores
from iobench.report.sentences import between_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.replay.replay import Machine
    from iobench.findings.advice.loading import Loading

Judged: TypeAlias = Iterator[AdvisedChange | RuledOut]

NEAR_BEST: Final = 0.01  # of several numbers as good as the best to this share, the smallest
PREFETCHES: Final = (2, 4, 8, 16)
WORKERS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MOST_WORKERS_PER_CPU: Final = 4
MEMORY_FRACTION: Final = 0.5  # of the memory, what batches that are ready may take
CACHE_FRACTION: Final = 0.8  # of the memory, what files in the page cache may take
FREE_RATIO: Final = 1.05  # of the bytes to be staged, what has to be free
READ_PER_BYTE: Final = 1.5  # from so many read for each one used, chunks do not fit samples
MAKING: Final = tuple(kind.spelled for kind in sorted(WORKER_KINDS) if kind != Kind.COLLATE)
"""What loading a finished sample needs none of but reading, and that may be fast."""
READING: Final = tuple(kind.spelled for kind in sorted(READING_KINDS))
DECODING: Final = (Kind.DECODE.spelled, stage_name(Kind.FUSED, "read+decode"))
"""What takes as long as there are bytes to be decoded."""
MIXED: Final = tuple(kind.spelled for kind in sorted(MIXED_KINDS))
"""Of these, and of reading, what is not on a CPU may be waiting for storage."""
IDLE_FRACTION: Final = 0.2  # of the work, on no CPU, for which nobody knows what more workers do
IN_ORDER_SINCE: Final = (2, 6)  # of torch, the first whose DataLoader has in_order
HEAD_OF_LINE_FRACTION: Final = 0.3  # of the wait, for a batch while later ones are ready
LONGEST_RUN: Final = 1000  # batches that are replayed: more show little more
UNSEEN_WORKERS_ERROR: Final = 0.15
"""What a changed run may miss its replay by where others share CPUs, memory and storage than did;
see `iobench/docs/decisions/analysis/advice.md`."""
LOOKS_AHEAD: Final = 64  # batches that a bound lets threads be ahead: more than any ring has


NOT_KNOWN: Final = Gain(Evidence.UNKNOWN, None, None, None)
"""Of what does something to stages that one run does not show."""


def measured_changes(loadings: Sequence[Loading]) -> Judged:
    """Yield what else was run in turns with the baseline, the first."""
    baseline, *others = loadings
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
            cost = _cost_of_store(loadings, other) if Lever.FORMAT in levers else NO_COST
            yield change(tuple(levers), settings, gain, cost)


def predicted_changes(predictor: GainPredictor) -> Judged:
    """Yield what changes would gain by replay, or no more than; or why they would not."""
    facts = predictor.baseline.facts
    stored = (_finished_samples, _fast_loader) if facts.is_script or not facts.own_order else ()
    levers = (
        _persistent_workers,
        _validation,
        _chunks,
        _sampler,
        _between,
        _workers,
        _prefetch,
        _order,
        *stored,
        _cache,
        _codec,
    )
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
    numbers = sorted({*(n for n in WORKERS if n < most), most} - {run.workers})
    changes = {n: Change(workers=n) for n in numbers}
    busy = {n: each for n, each in changes.items() if n <= cpus}
    best = _best(predictor, changes, baseline.machine)
    proposed = [] if best is None else [(best[0], predictor.tried(best[1]))]
    if best is not None and best[0] > cpus and not predictor.has_limit:
        # What those wait for is not known: it may be CPUs, or what one has at a time.
        within = None if predictor.is_unknown else _best(predictor, busy, baseline.machine)
        proposed = [] if within is None else [within]
        if best[1].expected >= HIDDEN_FRACTION:
            proposed.append((best[0], NOT_KNOWN))
    for number, gain in proposed:
        settings: Settings = {"workers": number}
        if not run.workers and run.recurs and baseline.framework == "torch":
            # What their starts take is not known: kept, they have none after the first epoch.
            levers, settings = (Lever.WORKERS, Lever.KEEP_WORKERS), {**settings, **KEPT}
        cost = _memory_of(baseline, max(0, number - run.workers) * (run.prefetch or 2))
        yield change(levers, settings, gain, cost)
    if run.workers >= most:
        yield ruled_out((Lever.WORKERS,), more, Reason.NO_MORE_CPUS, run.workers + 1, cpus)


def _most_workers(run: LoaderRun, cpus: int) -> int:
    """Return how many workers can be of use that wait for storage as much as these do.

    What else is not on a CPU waits for one.
    """
    reads = is_one_of(run, (*READING, *MIXED))
    run = replace(run, cpu_ns=np.where(reads | (run.cpu_ns < 0), run.cpu_ns, run.work_ns))
    known = (run.cpu_ns >= 0) & (run.work_ns > 0)
    busy_ns = int(run.work_ns[known].sum())
    if not busy_ns or 2 * int(known.sum()) < int((run.work_ns > 0).sum()):
        return cpus
    on_cpu = min(1.0, int(run.cpu_ns[known].sum()) / busy_ns)
    most = cpus * MOST_WORKERS_PER_CPU
    return max(cpus, min(most, int(cpus / on_cpu))) if on_cpu else most


def _waits_unseen(run: LoaderRun) -> bool:
    """Return whether stages that read nothing are on no CPU for the most part: may be locked."""
    known = run.cpu_ns >= 0
    work, cpu = (np.where(known, each, 0).sum(axis=0) for each in (run.work_ns, run.cpu_ns))
    reads = is_one_of(run, READING) | np.isin(run.stages, DECODING[1:])
    idle_ns = work[(2 * cpu < work) & ~reads].sum()
    return bool(idle_ns > IDLE_FRACTION * run.work_ns.sum())


def _prefetch(predictor: GainPredictor) -> Judged:
    baseline, run = predictor.baseline, predictor.baseline.loader
    threads = run.rule is LoaderRule.THREADS
    if run.rule is LoaderRule.SERIAL or (threads and baseline.facts.own_order):
        return
    queues = 1 if threads else max(1, run.workers)
    batch_nbytes = (run.batch_size or 1) * (baseline.sample_nbytes or 0)
    fits = MEMORY_FRACTION * (baseline.memory_nbytes or np.inf)
    numbers = [n for n in PREFETCHES if n > run.prefetch and n * queues * batch_nbytes <= fits]
    best = _best(predictor, {n: Change(prefetch=n) for n in numbers})
    if best is not None:
        cost = _memory_of(baseline, (best[0] - run.prefetch) * queues)
        gain = predictor.tried(best[1])
        yield change((Lever.PREFETCH,), {"prefetch": best[0]}, gain, cost)


def _order(predictor: GainPredictor) -> Judged:
    """Yield batches of what is ready, where the loop waits for one while later ones are."""
    baseline, run = predictor.baseline, predictor.run
    numbers = re.findall(r"\d+", baseline.facts.versions.get("torch", ""))
    is_pool = baseline.framework == "torch" and (*map(int, numbers[:2]),) >= IN_ORDER_SINCE
    known = {LoaderRule.POOL: is_pool, LoaderRule.THREADS: baseline.framework == "native"}
    if run.workers < 2 or run.iterable or not known.get(run.rule, False):
        return
    gain, wait = predictor.bound(changed(run, Change(in_order=False))), baseline.wait_fraction
    if gain.expected >= max(HIDDEN_FRACTION, HEAD_OF_LINE_FRACTION * (wait or 0.0)):
        yield change((Lever.ORDER,), {"in_order": "False"}, gain)


def _best(
    predictor: GainPredictor, changes: Mapping[int, Change], machine: Machine | None = None
) -> tuple[int, Gain] | None:
    """Return the smallest number that gains nearly as much as the best one."""
    gains = {
        n: predictor.gain(changed(predictor.run, each), machine) for n, each in changes.items()
    }
    most = max((gain.expected for gain in gains.values()), default=0.0)
    return next((pair for pair in gains.items() if pair[1].expected >= most - NEAR_BEST), None)


def _memory_of(baseline: Loading, batches: int) -> Cost:
    batch_nbytes = (baseline.loader.batch_size or 0) * (baseline.sample_nbytes or 0)
    return Cost(memory_nbytes=batches * batch_nbytes if batch_nbytes or not batches else None)


KEPT: Final[Settings] = {"persistent_workers": "True"}


def _persistent_workers(predictor: GainPredictor) -> Judged:
    """Yield keeping the workers of one epoch for the next."""
    run = predictor.run
    if not (run.restarts and run.recurs and predictor.baseline.framework == "torch"):
        return
    retained = changed(run, Change(keep_workers=True))
    if run.retains:
        yield change((Lever.KEEP_WORKERS,), KEPT, NOT_KNOWN)
        return
    slow = replace(retained, work_ns=run.work_ns, cpu_ns=run.cpu_ns, async_ns=run.async_ns)
    gain = predictor.bound(retained)
    least = predictor.gain(slow)
    if least.is_proven and least.low_fraction is not None:
        most, gain = gain.high_fraction or 0.0, predictor.gain(retained)
        low = min(least.low_fraction, gain.low_fraction or 0.0)
        gain = replace(gain, low_fraction=low, high_fraction=max(gain.expected, most))
    yield change((Lever.KEEP_WORKERS,), KEPT, gain)


def _validation(predictor: GainPredictor) -> Judged:
    """Yield keeping the workers of loaders that evaluate, where each evaluation starts them."""
    whole = predictor.baseline.exposure.whole
    whole_ns = whole.wall_ns - whole.own_ns
    for run in predictor.baseline.evaluations:
        if not (run.can_replay and run.restarts and run.wall_ns and whole_ns):
            continue
        before = replay(run)
        error = abs(before.wall_ns / run.wall_ns - 1)
        if not is_trusted(error):
            continue
        after_ns = replay(changed(run, Change(keep_workers=True))).wall_ns
        saved = max(0, before.wall_ns - after_ns) / whole_ns
        error = max(error, UNSEEN_ERROR) * run.wall_ns / whole_ns
        most = max(saved, run.wait_ns / whole_ns)  # none of it is left, in the best case
        gain = Gain(Evidence.REPLAYED, saved, saved - error, most, saved > error)
        yield change((Lever.KEEP_WORKERS,), {**KEPT, "passes": "validation"}, gain)


def _between(predictor: GainPredictor) -> Judged:
    """Yield the loop without what lies between loader and model."""
    run, part = predictor.run, predictor.baseline.judged
    known = {name: spent for name, spent in part.between_ns.items() if spent}
    rest_ns = part.compute_ns + sum(known.values())
    for name, spent_ns in known.items():
        compute_ns = np.rint(run.compute_ns * (1 - spent_ns / rest_ns)).astype(np.int64)
        gain = predictor.gain(replace(run, compute_ns=compute_ns))
        yield change((Lever.BETWEEN,), {"between": between_words(name)}, gain)


def _sampler(predictor: GainPredictor) -> Judged:
    """Yield a faster sampler where the loop waits for its own one, or as a pass begins."""
    run, part = predictor.run, predictor.baseline.exposure.judged
    exposed_ns = part.exposed_ns.get(Kind.SAMPLER.spelled, 0)
    in_loop = run.loop_ns[:, _of_sampler(run)].sum() > IN_LOOP_FRACTION * run.wait_ns
    if in_loop or exposed_ns > IN_LOOP_FRACTION * part.wait_ns:
        gain = predictor.bound(shortened(run, {Kind.SAMPLER.spelled: 0.0}))
        share = exposed_ns / max(part.wall_ns - part.own_ns, 1)  # drawn ahead, it is in no batch
        gain = replace(gain, high_fraction=max(gain.high_fraction or 0.0, share))
        yield change((Lever.SAMPLER,), {}, gain)


def _finished_samples(predictor: GainPredictor) -> Judged:
    """Yield a store where none was measured: nothing is left to make, or to start for it."""
    baseline = predictor.baseline
    if any(each.store for each in predictor.loadings) or (
        baseline.facts.is_script and loads_stores(baseline.facts, baseline.exposure)
    ):
        return
    stored = "tfrecord" if baseline.framework == "tensorflow" else "numpy"
    finished = shortened(predictor.run, dict.fromkeys(MAKING, 0.0))
    gain = predictor.bound(changed(finished, Change(keep_workers=True)))
    yield change((Lever.FORMAT,), {"format": stored}, gain, _cost_of_store([baseline], baseline))


def _fast_loader(predictor: GainPredictor) -> Judged:
    """Yield the fast loader for what is loaded now."""
    baseline = predictor.baseline
    other = baseline.pipeline in ("", "own") and baseline.framework not in ("", "native")
    if other and not any(each.framework == "native" for each in predictor.loadings):
        gain = predictor.bound(in_place(predictor.run, baseline.cpus))
        yield change((Lever.LOADER,), {"framework": "native"}, gain)


def _cache(predictor: GainPredictor) -> Judged:
    """Yield copying the files once to storage of this machine's own, or to memory by reading."""
    baseline, levers, warm = predictor.baseline, (Lever.CACHE,), {"cache": "warm"}
    needed, memory = baseline.files_nbytes, CACHE_FRACTION * (baseline.memory_nbytes or 0)
    if baseline.is_cached:
        yield ruled_out(levers, warm, Reason.CACHED_ALREADY)
        return
    if needed is None or "://" in (baseline.named_store or ""):
        return
    is_known = baseline.memory_nbytes is not None
    near, folder = baseline.facts.near, baseline.shared_folder
    places = near.places if near is not None and folder is not None else ()
    place = next((each for each in places if each.free_nbytes > FREE_RATIO * needed), None)
    if place is not None:
        rate = _read_rate(baseline.loader)
        disk_nbytes = needed * (not place.in_memory)
        cost = Cost(needed / rate if rate else None, disk_nbytes, needed * place.in_memory)
        gain = predictor.bound(on_cpu(predictor.run, (*READING, *MIXED)))
        yield change(levers, {"stage": place.path, "of": str(folder)}, gain, cost)
    elif needed > memory and is_known:
        yield ruled_out(levers, warm, Reason.TOO_LARGE, needed, memory)
    else:
        gain = predictor.bound(on_cpu(predictor.run, READING))
        yield change(levers, warm, gain, Cost(memory_nbytes=needed))


def _read_rate(run: LoaderRun) -> float | None:
    """Return how many bytes a second this run's readers got at once."""
    reads_ns = int(run.work_ns[:, is_one_of(run, READING)].sum())
    nbytes = int(run.read_nbytes.sum()) if (run.read_nbytes >= 0).all() else 0
    return nbytes / reads_ns * 1e9 * max(1, run.workers) if nbytes and reads_ns else None


def _chunks(predictor: GainPredictor) -> Judged:
    part, levers, settings = predictor.baseline.judged, (Lever.CHUNKS,), {"format": "zarr"}
    is_stored = any(each.store for each in predictor.loadings)  # samples as they are requested
    ratio = part.read_per_byte
    decoded = None if part.decoded is None else part.decoded.per_used
    known = [each for each in (ratio, decoded) if each is not None]
    if is_stored or not known:
        return
    if max(known) < READ_PER_BYTE:
        yield ruled_out(levers, settings, Reason.CHUNKS_FIT, ratio, decoded)
        return
    # Each stage by what it does too much of; what reads or decodes by either where one is unknown.
    reading, decoding = known[0], known[-1]
    factors = dict.fromkeys(READING, 1 / max(reading, 1.0))
    factors |= dict.fromkeys(DECODING, 1 / max(decoding, 1.0))
    once = shortened(predictor.run, factors)
    gain = predictor.bound(once) if decoded is None else predictor.gain(once)
    yield change(levers, settings, gain, _cost_of_store(predictor.loadings, predictor.baseline))


def _codec(predictor: GainPredictor) -> Judged:
    """Yield a store without compression, where this one is decoded and can be made again."""
    baseline, run = predictor.baseline, predictor.run
    if baseline.format.partition(":")[0] != "zarr" or baseline.facts.sources == ():
        return
    if baseline.store is not None and is_one_of(run, ["decode"]).any():
        cost = _cost_of_store(predictor.loadings, baseline)
        gain = predictor.bound(shortened(run, {"decode": 0.0}))
        yield change((Lever.CODEC,), {"format": "zarr:codec=none"}, gain, cost)


def _cost_of_store(loadings: Sequence[Loading], loading: Loading) -> Cost:
    """Return what the whole dataset takes in another format: from a probe, else what is known."""
    baseline, store = loadings[0], loading.store
    if loading is not baseline and loading.named_store is not None:
        return NO_COST  # it is there
    if loading is baseline or store is None or not store.n_samples or not store.nbytes:
        n, nbytes = baseline.n_samples_all, baseline.sample_nbytes
        return Cost(None, disk_nbytes=n * nbytes if n and nbytes else None)
    share = (store.n_samples_all or store.n_samples) / store.n_samples
    times = [
        each.store.convert_s for each in loadings if each.store and each.format == loading.format
    ]
    spent_s = next((each * share for each in times if each is not None), None)
    return Cost(spent_s, disk_nbytes=round(store.nbytes * share))


class GainPredictor:
    """Replays of other runs, each compared with the replay of the baseline, the first of them."""

    def __init__(self, loadings: Sequence[Loading]) -> None:
        self.loadings, self.baseline = loadings, loadings[0]
        loader = self.baseline.loader
        self.run = beginning_of(loader, LONGEST_RUN)
        self.error_fraction = replay_error(loader) if loader.can_replay else None
        # What other workers do to stages, to busy CPUs, or to storage of no known limit
        cold = self.baseline.judged.cold_fraction
        limit = self.baseline.machine and self.baseline.machine.read_nbytes_per_s
        self.has_limit = limit is not None and not self.baseline.is_cached
        is_cold = not self.baseline.is_cached and cold is not None and limit is None
        slowed = self.run.sets_stages or self.baseline.slows_steps
        self.is_unknown = is_cold or slowed or _waits_unseen(self.run)
        self._before: dict[Machine | None, NDArray[np.float64]] = {}

    def gain(self, run: LoaderRun, machine: Machine | None = None) -> Gain:
        """Return what is gained where it ran so; a ``machine`` caps how many are at work."""
        if machine not in self._before:
            self._before[machine] = _times(self.run, machine)
        least = UNSEEN_ERROR if machine is None else UNSEEN_WORKERS_ERROR
        error = min(max(abs(self.error_fraction or 0.0), least), 1.0)
        epochs, after = self.run.judged_epochs, _times(run, machine)
        by, helps = predicted(self._before[machine], after, epochs=epochs, error=error)
        return Gain(Evidence.REPLAYED, **asdict(by), is_proven=helps)

    def tried(self, gain: Gain) -> Gain:
        """Return what a setting gains; no figure where what it does to stages is not known."""
        if not self.is_unknown:
            return gain
        worth = gain.expected >= UNSEEN_WORKERS_ERROR
        return NOT_KNOWN if worth else replace(gain, is_proven=False)

    def bound(self, run: LoaderRun) -> Gain:
        """Return what a change cannot gain more than: never more than is waited for."""
        gains = (self.gain(run, machine) for machine in {None, self.baseline.machine})
        most = max(0.0, *(each.saved_fraction or 0.0 for each in gains))
        return Gain(Evidence.BOUND, None, 0.0, min(most, self.baseline.wait_fraction or 0.0))


def _times(run: LoaderRun, machine: Machine | None) -> NDArray[np.float64]:
    return replay(run, None, machine).judged_ns.astype(np.float64)


def measured_gain(baseline: Loading, other: Loading) -> Gain | None:
    """Return what another one gained, over the first part that both have, or by turns they took."""
    part = next((each for each in PARTS if each in baseline.sums and each in other.sums), None)
    if part is None:
        return None
    sums = baseline.sums[part], other.sums[part]
    turns = turns_of(*sums)
    first, second = (each.quotient("wall", "samples") for each in turns or sums)
    if first is None or second is None:
        return None
    ratio = block_ratio(first, second) if turns is None else paired_ratio(first, second)
    if ratio.value is None:
        return None
    low = None if ratio.high is None else 1 - ratio.high
    high = None if ratio.low is None else 1 - ratio.low
    return Gain(Evidence.MEASURED, 1 - ratio.value, low, high, None if low is None else low > 0)


def is_one_of(run: LoaderRun, kinds: Sequence[str]) -> NDArray[np.bool_]:
    """Return which stages of a run are of some kinds, as ``"read:label"`` is of ``"read"``."""
    return np.array([stage.partition(":")[0] in kinds for stage in run.stages], dtype=bool)


def _of_sampler(run: LoaderRun) -> NDArray[np.bool_]:
    """Return which stages of the loop choose samples."""
    kinds = [stage.partition(":")[0] for stage in run.loop_stages]
    return np.array([kind == Kind.SAMPLER.spelled for kind in kinds], dtype=bool)


def shortened(run: LoaderRun, of_kinds: Mapping[str, float]) -> LoaderRun:
    """Return a run whose stages of some kinds take a share of their time."""
    kinds = {stage: stage.partition(":")[0] for stage in (*run.stages, *run.loop_stages)}
    factors = {
        stage: of_kinds[each]
        for stage, kind in kinds.items()
        for each in (kind, stage)
        if each in of_kinds
    }
    return changed(run, Change(stage_factors=factors))


def on_cpu(run: LoaderRun, kinds: Sequence[str]) -> LoaderRun:
    """Return a run that takes of some kinds what is on a CPU; nothing where unknown."""
    factors = {}
    for kind in kinds:
        of_kind = is_one_of(run, [kind])
        work, cpu = run.work_ns[:, of_kind], run.cpu_ns[:, of_kind]
        busy_ns = int(work[cpu >= 0].sum())
        factors[kind] = min(1.0, int(cpu[cpu >= 0].sum()) / busy_ns) if busy_ns else 0.0
    return shortened(run, factors)


def without_rest(run: LoaderRun) -> LoaderRun:
    """Return a run whose batches take nothing but stages and sampler, and whose end nothing."""
    names = ("gap_ns", "submit_ns", "transit_ns", "pickup_ns", "loop_ns", "shutdown_ns")
    nothing = {name: np.zeros_like(getattr(run, name)) for name in names}
    loop_ns = np.where(_of_sampler(run), run.loop_ns, 0)
    return replace(run, **{**nothing, "loop_ns": loop_ns, "pickup_ns": loop_ns.sum(axis=1)})


def in_place(run: LoaderRun, cpus: int | None) -> LoaderRun:
    """Return a run of threads on all CPUs that copy, send and wait for nothing, as far as known."""
    run = changed(run, Change(keep_workers=True))
    copies = is_one_of(run, ("collate", "serialise"))
    work_ns = np.where(copies, 0, np.clip(run.cpu_ns, 0, run.work_ns))
    workers = max(run.workers, cpus or 1)
    run = replace(run, rule=LoaderRule.THREADS, workers=workers, prefetch=LOOKS_AHEAD)
    nothing = np.zeros_like(work_ns)
    return replace(without_rest(run), work_ns=work_ns, cpu_ns=work_ns, async_ns=nothing)
