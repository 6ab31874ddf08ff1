"""Who was waited for in a run and its parts: sums of the ledger, and what else is said of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.counters import cpu_cost_of
from iobench.analysis.deliveries import STARTUP
from iobench.analysis.exposure_figures import (
    BEFORE_FORWARD,
    ENDING,
    ComputeStage,
    DecodedChunkFigures,
    Exposure,
    Hang,
    JobTime,
    LoaderExposure,
    LongWaits,
    PartExposure,
    StageExposure,
    StepStatistics,
)
from iobench.analysis.loop import ONLY
from iobench.errors import ProfileError
from iobench.recording.kinds import FAILED, HANG_NS, WORKER_KINDS, Kind, is_one_of
from iobench.runs.contents import TRAINING_PROCESS

if TYPE_CHECKING:
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.ledger import Ledger
    from iobench.analysis.run import RankRun
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]
LARGEST_SUM: Final = 2.0**61
UNCOUNTED: Final = 2
"""A device that gave more than so many times what was read gave it to reads nobody counted."""
HARDLY_ANY_NBYTES: Final = 1 << 20
SENT_NBYTES: Final = 4096
"""Up to so many bytes read for a batch may be what its loading process was sent through pipes."""
LAUNCHER: Final = "launcher"
EXCESS_FRACTION: Final = 0.1
"""From this share of the run on, long waits are worth a sentence."""
HELD_FRACTION: Final = 0.9
"""The long waits are the fewest that hold this share of the time above the median,"""
ALIKE_FRACTION: Final = 0.5
"""and all that are at least this long beside the shortest of them."""


def refuse_what_has_no_sum(profile: RunData) -> None:
    """Refuse spans so long, or of so many bytes, that their sums are no 64-bit integers."""
    spans = profile.spans
    sums = [spans[name].sum(dtype=np.float64) for name in ("end_ns", "nbytes", "cpu_ns")]
    sums[0] -= spans["start_ns"].sum(dtype=np.float64)
    if max(sums) >= LARGEST_SUM:
        raise ProfileError(
            f"{profile.path}: its spans add up to more time or bytes than there can be; "
            "their files are damaged, measure again"
        )


def exposure_of(run: RankRun, job: JobTime | None) -> Exposure:
    """Return who a training process waited for, for how long, and what stayed hidden."""
    profile, loop, deliveries = run, run.loop, run.deliveries
    steady, repeated = deliveries.in_part("steady"), deliveries.in_part("recurring")
    evaluates, starts = deliveries.evaluates, deliveries.phase == STARTUP
    judged = next((each for each in (repeated, steady) if each.any()), deliveries.in_part("whole"))
    main = loop.loaders.get(deliveries.main, loop.loaders[ONLY])
    unrecorded = ""
    if not len(profile.spans) and all(each.role == LAUNCHER for each in profile.facts):
        unrecorded = next((each.unrecorded for each in profile.facts if each.unrecorded), "")
    return Exposure(
        whole=part_of(run, deliveries.in_part("whole")),
        steady=part_of(run, steady) if steady.any() else None,
        recurring=part_of(run, repeated) if repeated.any() else None,
        validation=part_of(run, evaluates) if evaluates.any() and not evaluates.all() else None,
        recurring_start_ns=int(deliveries.wait_ns[repeated & ~steady].sum()),
        startup_ns=int(deliveries.wall_ns[deliveries.trains & starts].sum()),
        long_waits=find_long_waits(deliveries),
        n_rounds=len(np.unique(deliveries.round)),
        workers=main.workers,
        prefetch=main.prefetch,
        lost_spans=profile.lost_spans,
        overhead_once_ns=max(
            (process.once_ns for process in profile.processes if process.once_ns is not None),
            default=None,
        ),
        summed=profile.summed,
        missing_workers=profile.missing_workers,
        loaders=_loaders(run) if loop.unjoined_ns is None else (),
        n_failed_waits=int(deliveries.failed.sum()),
        rank=loop.rank,
        stopped=_stopped(profile),
        unrecorded=unrecorded,
        hang=_hang(run),
        is_script=profile.is_script,
        job=job,
        unjoined_ns=loop.unjoined_ns,
        blocked_ns=loop.blocked_ns,
        is_handed=loop.unjoined_ns is not None and loop.has_loaders,
        has_consumer=loop.unjoined_ns is None
        and bool(
            len(deliveries)
            or loop.has_loaders
            or not profile.is_script
            or any(name.startswith(TRAINING_PROCESS) for name in profile.missing_workers)
        ),
        has_compute=profile.run_facts.compute.step_ns != 0,
        steps=deliveries.steps,
        n_initial=int((loop.initial["batch"] >= 0).sum()),
        initial_ns=int((loop.initial["end_ns"] - loop.initial["start_ns"]).sum()),
        waits_ns=tuple(deliveries.wait_ns[deliveries.batch >= 0].tolist()),
        cpus=cpu_cost_of(run, loop, deliveries, judged),
    )


def _stopped(profile: RunData) -> str:
    """Return why recording stopped, and in which folder; ``""`` where it did not."""
    spool = profile.config.get("spool")
    known = isinstance(spool, Mapping) and isinstance(spool.get("path"), str)
    folder = spool["path"] if isinstance(spool, Mapping) and known else str(profile.path)
    reasons = dict.fromkeys(each.reason for each in profile.stopped)
    return f"{', '.join(reasons)} in {folder}" if reasons else ""


def _hang(run: RankRun) -> Hang | None:
    """Return what a training process hung in when it was ended; None where it did not."""
    spans, deliveries = run.spans, run.deliveries
    failed = (spans["kind"] == Kind.WAIT) & (spans["label"] == run.string_number(FAILED))
    if not len(deliveries) or not failed.any():
        return None
    # Batches that were handed on may come while the thread that asks for them waits already.
    delivered_ns = int(deliveries.delivered_ns[~deliveries.failed].max(initial=0))
    last = spans[failed][np.argmax(spans["end_ns"][failed])]
    requested_ns, end_ns = max(int(last["start_ns"]), delivered_ns), int(last["end_ns"])
    if end_ns - requested_ns < HANG_NS:
        return None
    loaders = [each for facts in run.own_facts for each in facts.loaders]
    loaders = [each for each in loaders if each.number == deliveries.loader[-1]]
    pids = {pid for each in loaders for pid in each.worker_pids}
    n_finished, idle = 0, []
    for place, process in enumerate(run.processes):
        if process.role == "worker" and process.pid in pids:
            mine = spans[spans["process"] == place]
            ends = mine["end_ns"][is_one_of(mine["kind"], WORKER_KINDS)]
            n_finished += len(ends)
            if not np.any(ends > requested_ns):
                idle.append(process)
    forked = all(
        each.framework == "torch" and each.start_method in ("", "fork") for each in loaders
    )
    return Hang(
        wait_ns=end_ns - requested_ns,
        idle=tuple((each.name, each.pid) for each in idle),
        is_deadlock=bool(idle) and not n_finished and forked,
    )


def _loaders(run: RankRun) -> tuple[LoaderExposure, ...]:
    """Return every loader, and what was waited for it; loaders never asked have nothing."""
    loop, deliveries, roles = run.loop, run.deliveries, run.roles
    numbers = {number for number in loop.loaders if number != ONLY}
    numbers.update(deliveries.loader.tolist())
    result = []
    for number in sorted(numbers, key=lambda number: (number == ONLY, number)):
        settings = loop.loaders.get(number, loop.loaders[ONLY])
        rows = deliveries.loader == number
        result.append(
            LoaderExposure(
                number=None if number < 0 else number,
                framework=settings.framework,
                kind=settings.kind,
                name=settings.name,
                workers=settings.workers,
                prefetch=settings.prefetch,
                threads=settings.threads,
                batch_size=settings.batch_size,
                n_rounds=len(np.unique(deliveries.round[rows & (deliveries.batch >= 0)])),
                n_batches=int((deliveries.batch[rows] >= 0).sum()),
                wait_ns=int(deliveries.wait_ns[rows].sum()),
                role=roles.get(number, ""),
                restarts=settings.restarts,
            )
        )
    return tuple(result)


def part_of(run: RankRun, chosen: Marks) -> PartExposure:
    """Sum some deliveries, a mark for each: the whole run, an epoch, or any part of it."""
    deliveries, counters = run.deliveries, run.counters
    with_batch = chosen & (deliveries.batch >= 0)
    wall_ns = int(deliveries.wall_ns[chosen].sum())
    wait_ns = int(deliveries.wait_ns[chosen].sum())
    # A span of the script's own around a call of next() keeps what recording took in it.
    left_ns = deliveries.wall_ns - deliveries.wait_ns - run.ledger.compute_ns[:-1].sum(axis=1)
    own = np.clip(deliveries.own_ns, 0, np.maximum(left_ns, 0))
    own_ns, between_ns = int(own[chosen].sum()), _between(run, chosen, left_ns - own)
    waits_ns = deliveries.wait_ns[with_batch]
    wait = step_statistics(waits_ns)
    known = deliveries.steps is not None and deliveries.steps.batches_per_step is not None
    if known:
        wait = step_statistics(deliveries.by_step(with_batch, deliveries.wait_ns))
    step = step_statistics(deliveries.by_step(with_batch & deliveries.followed, deliveries.wall_ns))
    nbytes = deliveries.nbytes[with_batch]
    counted = counters.sums(chosen)
    looked_at = counters.table["n_looks"][:-1][with_batch] > 0
    stages = stages_of_rows(run.ledger, chosen)
    n_read = max(counted["read_nbytes"], counted["undecoded_nbytes"])
    piped = any(row.kind == Kind.SERIALISE for row in stages)
    is_read = not piped or n_read >= SENT_NBYTES * len(waits_ns)
    is_known = len(looked_at) > 0 and looked_at.all() and not counted["read_unknown"]
    return PartExposure(
        wall_ns=wall_ns,
        wait_ns=wait_ns,
        own_ns=own_ns,
        between_ns=between_ns,
        compute_ns=wall_ns - wait_ns - own_ns - sum(each or 0 for each in between_ns.values()),
        n_batches=len(waits_ns),
        n_samples=run.samples_in(with_batch),
        nbytes=int(nbytes.sum()) if (nbytes >= 0).all() else None,
        stages=stages,
        compute_stages=_compute_stages(run, chosen),
        wait=wait,
        step=step,
        read_nbytes=n_read if is_known and is_read else None,
        cold_fraction=_cold_fraction(run, counted, n_read if is_read else 0),
        overhead_fraction=_overhead_fraction(run, chosen, wall_ns),
        decoded=_decoded(run, counted),
        estimated_fraction=int(counters.estimated[with_batch].sum()) / max(len(waits_ns), 1),
        step_compute_ns=_compute_of_step(run, chosen),
    )


def _between(run: RankRun, chosen: Marks, left_ns: Integers) -> dict[str, int | None]:
    """Return what lies between loader and model, by generator; None where that is not known."""
    names = run.deliveries.generator
    ending_ns = np.minimum(run.ledger.ending_ns, np.maximum(left_ns, 0))
    between_ns = np.minimum(run.ledger.between_ns, np.maximum(left_ns, 0) - ending_ns)
    result: dict[str, int | None] = {}
    for name in dict.fromkeys(names[chosen & (run.deliveries.batch >= 0)].tolist()):
        known = between_ns[chosen & (names == name) & (between_ns >= 0)]
        if len(known):
            result[name or BEFORE_FORWARD] = int(known.sum())
        elif name:
            result[name] = None
    if (ended_ns := int(ending_ns[chosen].sum())) > 0:
        result[ENDING] = ended_ns
    return result


def stages_of_rows(ledger: Ledger, chosen: Marks) -> tuple[StageExposure, ...]:
    """Return the stages of some rows of a ledger, a mark for each."""
    busy, exposed, n_spans, nbytes, nbytes_unknown, cpu, cpu_unknown = (
        ledger.sum(chosen, name).tolist()
        for name in (
            "busy_ns", "exposed_ns", "n_spans", "nbytes", "nbytes_unknown", "cpu_ns", "cpu_unknown",
        )
    )  # fmt: skip
    result = [
        StageExposure(
            stage=name,
            busy_ns=busy[at],
            hidden_ns=busy[at] - exposed[at],
            exposed_ns=exposed[at],
            nbytes=nbytes[at] if n_spans[at] and not nbytes_unknown[at] else None,
            n_spans=n_spans[at],
            cpu_ns=cpu[at] if n_spans[at] and not cpu_unknown[at] else None,
        )
        for at, name in enumerate(ledger.stages.names)
        if busy[at] > 0 or exposed[at] > 0 or n_spans[at] > 0
    ]
    return tuple(sorted(result, key=lambda row: (-row.exposed_ns, -row.busy_ns, row.stage)))


def _compute_of_step(run: RankRun, chosen: Marks) -> dict[str, float]:
    """Return by stage what the loop computes in a step, on average of whole ones; or nothing."""
    with_batch = chosen & (run.deliveries.batch >= 0)
    sums = run.deliveries.by_step(with_batch, run.ledger.compute_ns[:-1])
    if not len(sums):
        return {}
    means = (total / len(sums) for total in sums.sum(axis=0).tolist())
    return dict(zip(run.ledger.stages.names, means, strict=True))


def _compute_stages(run: RankRun, chosen: Marks) -> tuple[ComputeStage, ...]:
    ledger = run.ledger
    sums = (ledger.sum(chosen, name).tolist() for name in ("compute_ns", "n_computed"))
    rows = zip(ledger.stages.names, *sums, strict=True)
    result = [ComputeStage(*row) for row in rows if any(row[1:])]
    return tuple(sorted(result, key=lambda row: (-row.busy_ns, row.stage)))


def _decoded(profile: RunData, counted: Mapping[str, int]) -> DecodedChunkFigures | None:
    """Return what was decoded of chunks for some deliveries; None where it is not known."""
    if profile.lost_spans or profile.missing_workers or not counted["n_decodes"]:
        return None
    return DecodedChunkFigures(counted["decoded_nbytes"], counted["used_nbytes"])


def _cold_fraction(profile: RunData, counted: Mapping[str, int], n_read: int) -> float | None:
    """Return bytes from the device over bytes read; None where a counter does not report."""
    n_device = counted["device_nbytes"]
    known = profile.run_facts.cold_known
    if known is False or counted["read_unknown"] or counted["device_unknown"]:
        return None
    if known is None and not n_device:
        return None  # all cached, or a file system that does not count: nobody knows which files
    if not n_read:
        return None
    if n_device > UNCOUNTED * n_read and n_device > HARDLY_ANY_NBYTES:
        return None  # through mappings of the script's own: nobody knows how many bytes those were
    # The device is read in whole pages, so that it may give a little more than was asked for.
    return min(n_device / n_read, 1.0)


def _overhead_fraction(run: RankRun, chosen: Marks, wall_ns: int) -> float | None:
    """Return the share of the time that recording took, of the loop or its workers, the larger."""
    processes = [owner for owner, mine in zip(run.processes, run.loop.mine, strict=True) if mine]
    loop = [process.own_ns for process in processes if process.role == "consumer"]
    if wall_ns and loop and all(own is not None for own in loop):
        n_batches = len(run.deliveries)
        if run.summed is not None:  # they took their part of it, in every rank
            n_ranks = len({each.rank for each in run.processes})
            n_batches += run.summed.n_batches // n_ranks
        share = chosen.sum() / n_batches
        workers = {each_process.worker for each_process in processes if each_process.worker >= 0}
        working = sum(each.own_ns or 0 for each in processes if each.worker >= 0)
        if run.summed is not None:
            working += run.summed.workers_own_ns // n_ranks
        own_ns = max(sum(own or 0 for own in loop), working / max(len(workers), 1))
        return float(own_ns * share / wall_ns)
    counters = run.counters
    if counters.written_ns is None or not wall_ns:
        return None
    return float(counters.written_ns[chosen].sum() / (wall_ns * counters.n_lanes))


def step_statistics(times_ns: Integers) -> StepStatistics | None:
    """Return the statistics of one time per step; None of none."""
    if not len(times_ns):
        return None
    return StepStatistics(
        n_steps=len(times_ns),
        min_ns=int(times_ns.min()),
        mean_ns=round(int(times_ns.sum()) / len(times_ns)),
        median_ns=round(float(np.median(times_ns))),
        max_ns=int(times_ns.max()),
        stdev_ns=round(float(np.std(times_ns, ddof=1))) if len(times_ns) > 1 else None,
    )


def find_long_waits(deliveries: Deliveries) -> LongWaits | None:
    """Return waits to train that hold much of a run; None unless (mean - median) x n > 10 %."""
    steps = np.flatnonzero((deliveries.batch >= 0) & deliveries.trains)
    wall_ns = int(deliveries.wall_ns.sum())
    if not len(steps) or not wall_ns:
        return None
    waits = deliveries.wait_ns[steps]
    median = statistics.median(waits.tolist())
    excess = int(waits.sum()) - median * len(steps)
    if excess <= EXCESS_FRACTION * wall_ns:
        return None
    above = np.maximum(waits - median, 0)
    descending = np.sort(above)[::-1]
    held = np.cumsum(descending)
    shortest = descending[np.searchsorted(held, HELD_FRACTION * held[-1])]
    long = np.flatnonzero(above >= ALIKE_FRACTION * shortest)
    return LongWaits(
        n_waits=len(long),
        wait_ns=int(waits[long].sum()),
        typical_ns=round(statistics.median(waits[long].tolist())),
    )
