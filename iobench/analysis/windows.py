"""The whole run and its steady state: what was attributed delivery by delivery, summed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.counters import (
    CountersByDelivery,
    DecodesByDelivery,
    decode_counters,
    estimated_batches,
    io_counters,
    spans_written_ns,
    undecoded_nbytes,
    unit_costs_of,
)
from iobench.analysis.deliveries import PHASES, STEADY
from iobench.analysis.figures import (
    ComputeStage,
    DecodedChunkFigures,
    Exposure,
    LoaderExposure,
    PartExposure,
    Phase,
    StageExposure,
)
from iobench.analysis.loader_roles import roles_of_loaders
from iobench.analysis.loop import ONLY
from iobench.analysis.sample_counts import count_samples
from iobench.analysis.waits import find_long_waits, wait_statistics
from iobench.errors import ProfileError
from iobench.profiles.contents import TRAINING_PROCESS
from iobench.recording.kinds import stage_name
from iobench.recording.span_file import RECORD_NBYTES, Flag
from iobench.recording.span_keys import lane_keys

if TYPE_CHECKING:
    from iobench.analysis.attribution import Attribution
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.loop import TrainingLoop
    from iobench.profiles.contents import Profile

__all__ = ["exposure_of", "refuse_what_has_no_sum"]

Marks = NDArray[np.bool_]
LARGEST_SUM: Final = 2.0**61
UNCOUNTED: Final = 2
"""A device that gave more than so many times what was read gave it to reads nobody counted."""
MINUTE_NS: Final = 60 * 10**9
HARDLY_ANY_NBYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Run:
    """Everything a window is a part of."""

    profile: Profile
    loop: TrainingLoop
    deliveries: Deliveries
    attribution: Attribution
    io: CountersByDelivery
    undecoded: NDArray[np.int64]
    decoded: DecodesByDelivery
    estimated: Marks
    written_ns: NDArray[np.float64] | None
    n_lanes: int


def exposure_of(
    profile: Profile, loop: TrainingLoop, deliveries: Deliveries, attribution: Attribution
) -> Exposure:
    """Return who a training process waited for, for how long, and what stayed hidden.

    Parameters
    ----------
    profile : Profile
        Of this training process and its loading processes.
    loop : TrainingLoop
        Of this profile.
    deliveries : Deliveries
        Of this loop.
    attribution : Attribution
        Of these deliveries.
    """
    of_loop = profile.spans
    if not loop.mine.all():
        of_loop = of_loop[loop.mine[of_loop["process"]]]
    return _figures(
        _Run(
            profile=profile,
            loop=loop,
            deliveries=deliveries,
            attribution=attribution,
            io=io_counters(of_loop, deliveries),
            undecoded=undecoded_nbytes(profile, loop.mine, deliveries),
            decoded=decode_counters(of_loop, deliveries),
            estimated=estimated_batches(of_loop, deliveries),
            written_ns=spans_written_ns(of_loop, unit_costs_of(profile, loop), deliveries),
            n_lanes=_n_lanes(of_loop),
        )
    )


def refuse_what_has_no_sum(profile: Profile) -> None:
    """Refuse spans so long, or of so many bytes, that their sums are no 64-bit integers.

    Raises
    ------
    ProfileError
        If they are.
    """
    spans = profile.spans
    sums = [spans[name].sum(dtype=np.float64) for name in ("end_ns", "nbytes", "cpu_ns")]
    sums[0] -= spans["start_ns"].sum(dtype=np.float64)
    if max(sums) >= LARGEST_SUM:
        raise ProfileError(
            f"{profile.path}: its spans add up to more time or bytes than there can be; "
            "their files are damaged, measure again"
        )


def _n_lanes(spans: NDArray[Any]) -> int:
    """Return how many threads have spans; a device's are written by one of them."""
    spans = spans[(spans["flags"] & Flag.DEVICE) == 0]
    return len(np.unique(lane_keys(spans)))


def _figures(run: _Run) -> Exposure:
    profile, loop, deliveries, attribution = run.profile, run.loop, run.deliveries, run.attribution
    steady = deliveries.phase == STEADY
    roles = roles_of_loaders(profile, loop, deliveries)
    main = loop.loaders.get(deliveries.main, loop.loaders[ONLY])
    repeated = deliveries.repeated
    return Exposure(
        whole=_window(run, np.ones(len(deliveries), dtype=bool)),
        steady=_window(run, steady) if steady.any() else None,
        recurring=_window(run, repeated) if repeated.any() else None,
        recurring_start_ns=int(deliveries.wait_ns[repeated & ~steady].sum()),
        phases=_phases(deliveries),
        long_waits=find_long_waits(
            profile,
            deliveries,
            workers=main.workers,
            main=deliveries.loader == main.number,
            ready_ns=attribution.ready_ns,
            worker_start=attribution.worker_start,
        ),
        n_rounds=len(np.unique(deliveries.round)),
        n_unfinished_rounds=deliveries.n_unfinished_rounds,
        workers=main.workers,
        prefetch=main.prefetch,
        lost_spans=profile.lost_spans,
        overhead_once_ns=_once_ns(run),
        day_nbytes=_day_nbytes(profile),
        spans_nbytes=len(profile.spans) * RECORD_NBYTES,
        keep_nbytes=profile.config.get("keep_nbytes"),
        folded=profile.folded,
        missing_workers=profile.missing_workers,
        loaders=_loaders(loop, deliveries, roles),
        other_loops=loop.others,
        n_failed_waits=int(deliveries.failed.sum()),
        rank=loop.rank,
        stopped=_stopped(profile),
        is_script=profile.is_script,
        job_ns=_job_ns(profile, loop),
        has_consumer=bool(
            len(deliveries)
            or loop.has_loaders
            or not profile.is_script
            or any(name.startswith(TRAINING_PROCESS) for name in profile.missing_workers)
        ),
        has_compute=not _computes_nothing(profile.config.get("compute")),
    )


def _computes_nothing(told: object) -> bool:
    """Tell whether a run's configuration says that its step takes no time."""
    if not isinstance(told, Mapping):
        return False
    return all(told.get(name) == 0 for name in ("forward_ns", "backward_ns"))


def _stopped(profile: Profile) -> str:
    """Return why recording stopped, and in which folder; ``""`` where it did not."""
    spool = profile.config.get("spool")
    known = isinstance(spool, Mapping) and isinstance(spool.get("path"), str)
    folder = spool["path"] if isinstance(spool, Mapping) and known else str(profile.path)
    reasons = dict.fromkeys(each.reason for each in profile.stopped)
    return f"{', '.join(reasons)} in {folder}" if reasons else ""


def _job_ns(profile: Profile, loop: TrainingLoop) -> int | None:
    """Return how long a script's training process ran, as far as it was recorded.

    None where its start is not known, or a part of its steps alone was to be recorded.
    """
    told = profile.facts_of(loop.process) if profile.is_script and loop.process >= 0 else None
    if told is None or told.started_ns is None or profile.config.get("steps") is not None:
        return None
    spans = profile.spans
    end_ns = int(spans["end_ns"][spans["process"] == loop.process].max(initial=told.started_ns))
    end_ns = max(end_ns, profile.processes[loop.process].anchors[-1].monotonic_ns)
    return end_ns - told.started_ns


def _loaders(
    loop: TrainingLoop, deliveries: Deliveries, roles: Mapping[int, str]
) -> tuple[LoaderExposure, ...]:
    """Return every loader, and what was waited for it; loaders never asked have nothing."""
    numbers = {number for number in loop.loaders if number != ONLY}
    numbers.update(deliveries.loader.tolist())
    found = []
    for number in sorted(numbers, key=lambda number: (number == ONLY, number)):
        settings = loop.loaders.get(number, loop.loaders[ONLY])
        rows = deliveries.loader == number
        found.append(
            LoaderExposure(
                number=None if number == ONLY else number,
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
    return tuple(found)


def _window(run: _Run, chosen: Marks) -> PartExposure:
    """Sum the chosen deliveries, a mark per delivery."""
    deliveries = run.deliveries
    with_batch = chosen & (deliveries.batch >= 0)
    wall_ns = int(deliveries.wall_ns[chosen].sum())
    wait_ns = int(deliveries.wait_ns[chosen].sum())
    waits_ns = tuple(deliveries.wait_ns[with_batch].tolist())
    nbytes = deliveries.nbytes[with_batch]
    return PartExposure(
        wall_ns=wall_ns,
        wait_ns=wait_ns,
        compute_ns=wall_ns - wait_ns,
        n_batches=len(waits_ns),
        n_samples=count_samples(run.profile, run.loop, deliveries, with_batch),
        nbytes=int(nbytes.sum()) if (nbytes >= 0).all() else None,
        stages=_stages(run.attribution, chosen, wait_ns),
        compute_stages=_compute_stages(run.attribution, chosen),
        waits_ns=waits_ns,
        wait=wait_statistics(waits_ns),
        read_nbytes=_read_nbytes(run, chosen),
        cold_fraction=_cold_fraction(run, chosen),
        overhead_fraction=_overhead_fraction(run, chosen, wall_ns),
        decoded=_decoded(run, chosen),
        estimated_fraction=int(run.estimated[with_batch].sum()) / max(len(waits_ns), 1),
    )


def _stages(attribution: Attribution, chosen: Marks, wait_ns: int) -> tuple[StageExposure, ...]:
    ledger, stages = attribution.ledger, attribution.stages
    rows = np.flatnonzero(chosen)
    busy, exposed = ledger.busy_ns[rows].sum(axis=0), ledger.exposed_ns[rows].sum(axis=0)
    n_spans = ledger.n_spans[rows].sum(axis=0)
    nbytes, cpu = ledger.nbytes[rows].sum(axis=0), ledger.cpu_ns[rows].sum(axis=0)
    untold = ledger.nbytes_unknown[rows].sum(axis=0), ledger.cpu_unknown[rows].sum(axis=0)
    found = [
        StageExposure(
            stage=stage_name(stages.kinds[index], stages.labels[index]),
            kind=stages.kinds[index],
            label=stages.labels[index],
            busy_ns=int(busy[index]),
            hidden_ns=int(busy[index] - exposed[index]),
            exposed_ns=int(exposed[index]),
            nbytes=int(nbytes[index]) if n_spans[index] and not untold[0][index] else None,
            n_spans=int(n_spans[index]),
            cpu_ns=int(cpu[index]) if n_spans[index] and not untold[1][index] else None,
            part_of_ns=wait_ns,
        )
        for index in np.flatnonzero((busy > 0) | (exposed > 0) | (n_spans > 0)).tolist()
    ]
    return tuple(sorted(found, key=lambda row: (-row.exposed_ns, -row.busy_ns, row.stage)))


def _compute_stages(attribution: Attribution, chosen: Marks) -> tuple[ComputeStage, ...]:
    stages = attribution.stages
    inside = np.append(chosen, False)[attribution.compute_delivery]
    stage, length = attribution.compute_stage[inside], attribution.compute_ns[inside]
    found = [
        ComputeStage(
            stage=stage_name(stages.kinds[index], stages.labels[index]),
            busy_ns=int(length[stage == index].sum()),
            n_spans=int((stage == index).sum()),
        )
        for index in np.unique(stage).tolist()
    ]
    return tuple(sorted(found, key=lambda row: (-row.busy_ns, row.stage)))


def _phases(deliveries: Deliveries) -> tuple[Phase, ...]:
    members = [deliveries.phase == number for number in range(len(PHASES))]
    return tuple(
        Phase(
            phase=name,
            wall_ns=int(deliveries.wall_ns[member].sum()),
            wait_ns=int(deliveries.wait_ns[member].sum()),
            n_deliveries=int(member.sum()),
        )
        for name, member in zip(PHASES, members, strict=True)
    )


def _read_nbytes(run: _Run, chosen: Marks) -> int | None:
    """Return the bytes read for these deliveries; None where one of them was not counted."""
    counted = np.zeros(len(chosen) + 1, dtype=bool)
    counted[run.io.delivery] = True
    read = run.io.read[np.append(chosen, False)[run.io.delivery]]
    with_batch = chosen & (run.deliveries.batch >= 0)
    if not with_batch.any() or not counted[:-1][with_batch].all() or (read < 0).any():
        return None
    return max(int(read.sum()), int(run.undecoded[:-1][chosen].sum()))


def _decoded(run: _Run, chosen: Marks) -> DecodedChunkFigures | None:
    """Return what was decoded of chunks for these deliveries; None where it is not known."""
    if run.profile.lost_spans or run.profile.missing_workers:
        return None
    counts = run.decoded
    inside = np.append(chosen, False)[counts.delivery]
    of_bytes, of_chunks = inside & counts.of_bytes, inside & ~counts.of_bytes
    if not of_bytes.any():
        return None
    return DecodedChunkFigures(
        nbytes=int(counts.first[of_bytes].sum()),
        used_nbytes=int(counts.second[of_bytes].sum()),
        n_needed=int(counts.first[of_chunks].sum()),
        n_decoded=int(counts.second[of_chunks].sum()),
    )


def _cold_fraction(run: _Run, chosen: Marks) -> float | None:
    """Return bytes from the device over bytes read; None where a counter does not tell."""
    inside = np.append(chosen, False)[run.io.delivery]
    read, device = run.io.read[inside], run.io.device[inside]
    known = run.profile.config.get("cold_known", True) and (read >= 0).all() and (device >= 0).all()
    if not known:
        return None
    if "cold_known" not in run.profile.config and not device.sum():
        return None  # all cached, or a file system that does not count: nobody knows which files
    n_read, n_device = int(read.sum()), int(device.sum())
    n_read = max(n_read, int(run.undecoded[:-1][chosen].sum()))
    if not n_read:
        return None
    if n_device > UNCOUNTED * n_read and n_device > HARDLY_ANY_NBYTES:
        return None  # through mappings of the script's own: nobody knows how many bytes those were
    # The device is read in whole pages, so that it may give a little more than was asked for.
    return min(n_device / n_read, 1.0)


def _day_nbytes(profile: Profile) -> int | None:
    """Return what a day of spans takes at this pace; None where less than a minute tells it."""
    spans = profile.spans
    lasted_ns = int(spans["end_ns"].max() - spans["start_ns"].min()) if len(spans) else 0
    if lasted_ns < MINUTE_NS:
        return None
    return len(spans) * RECORD_NBYTES * (24 * 60 * MINUTE_NS) // lasted_ns


def _once_ns(run: _Run) -> int | None:
    """Return the most that recording took once in a process; None where none measured it."""
    own = [who.once_ns for who in run.profile.processes if who.once_ns is not None]
    return max(own, default=None)


def _overhead_fraction(run: _Run, chosen: Marks, wall_ns: int) -> float | None:
    """Return what recording took, over the time: of the loop or of its workers, the larger share.

    As the processes measured it themselves, else by what a span costs alone.
    """
    processes = [
        who for who, mine in zip(run.profile.processes, run.loop.mine, strict=True) if mine
    ]
    loop = [who.own_ns for who in processes if who.role == "consumer"]
    if wall_ns and loop and all(own is not None for own in loop):
        n_batches = len(run.deliveries)
        if run.profile.folded is not None:  # they took their part of it, in every rank
            n_ranks = len({who.rank for who in run.profile.processes})
            n_batches += run.profile.folded.n_batches // n_ranks
        share = chosen.sum() / n_batches
        workers = {who.worker for who in processes if who.worker >= 0}
        working = sum(who.own_ns or 0 for who in processes if who.worker >= 0)
        if run.profile.folded is not None:
            working += run.profile.folded.workers_own_ns // n_ranks
        own_ns = max(sum(own or 0 for own in loop), working / max(len(workers), 1))
        return float(own_ns * share / wall_ns)
    if run.written_ns is None or not wall_ns:
        return None
    return float(run.written_ns[:-1][chosen].sum() / (wall_ns * run.n_lanes))
