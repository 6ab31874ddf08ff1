"""The whole run and its steady state: what was attributed delivery by delivery, summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.attribution import Attribution, attribute
from iobench.analysis.deliveries import PHASES, STEADY, Deliveries, find_deliveries
from iobench.analysis.figures import ComputeStage, Exposure, PartExposure, Phase, StageExposure
from iobench.analysis.waits import find_long_waits, wait_statistics
from iobench.errors import ProfileError
from iobench.recording import Flag, stage_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.profiles import Profile

__all__ = ["exposure"]

Marks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Run:
    """Everything a window is a part of."""

    profile: Profile
    deliveries: Deliveries
    attribution: Attribution
    io: _CountersByDelivery
    written_ns: NDArray[np.float64] | None
    n_lanes: int


@dataclass(frozen=True, slots=True)
class _CountersByDelivery:
    """Bytes read by any means and from the device, -1 in ``device`` where unknown."""

    delivery: NDArray[np.int64]
    read: NDArray[np.int64]
    device: NDArray[np.int64]


def exposure(profile: Profile, *, rank: int | None = None) -> Exposure:
    """Return who a training process waited for, for how long, and what stayed hidden.

    Parameters
    ----------
    profile : Profile
        A run with any number of loading processes, or none.
    rank : int, optional
        Which training process; may be left out where only one recorded.

    Returns
    -------
    Exposure
        All times in integer ns; the stages' exposed time adds up to the wait exactly.

    Raises
    ------
    ProfileError
        If several training processes recorded and none is named, or the waits of one overlap.
    """
    rank = _only_rank(profile) if rank is None else rank
    workers = _workers(profile)
    prefetch = int(profile.config.get("prefetch") or bool(workers))
    # Threads keep so many batches ready and make one more meanwhile.
    filled_after = max(1, workers * prefetch) if workers else prefetch + 1
    deliveries = find_deliveries(profile, rank=rank, filled_after=filled_after)
    attribution = attribute(profile, deliveries, rank=rank, workers=workers)
    run = _Run(
        profile=profile,
        deliveries=deliveries,
        attribution=attribution,
        io=_io_counters(profile, deliveries, rank),
        written_ns=_written_ns(profile, deliveries),
        n_lanes=len(np.unique(profile.spans[["process", "thread"]])),
    )
    steady = deliveries.phase == STEADY
    return Exposure(
        whole=_window(run, np.ones(len(deliveries), dtype=bool)),
        steady=_window(run, steady) if steady.any() else None,
        phases=_phases(deliveries),
        long_waits=find_long_waits(
            profile,
            deliveries,
            workers=workers,
            ready_ns=attribution.ready_ns,
            worker_start=attribution.worker_start,
        ),
        n_rounds=len(np.unique(deliveries.round)),
        n_unfinished_rounds=deliveries.n_unfinished_rounds,
        workers=workers,
        prefetch=prefetch,
        lost_spans=profile.lost_spans,
        missing_workers=profile.missing_workers,
    )


def _only_rank(profile: Profile) -> int:
    ranks = sorted({process.rank for process in profile.processes if process.role == "consumer"})
    if len(ranks) > 1:
        raise ProfileError(
            f"{profile.path}: training processes {ranks} recorded, expected one; "
            "name one of them as rank"
        )
    return ranks[0] if ranks else 0


def _workers(profile: Profile) -> int:
    """Return how many loading processes were configured; where nobody wrote it down, were seen."""
    configured = profile.config.get("workers")
    if configured is None:
        return sum(process.role == "worker" for process in profile.processes)
    return int(configured)


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
        n_samples=_n_samples(run.profile.config, nbytes),
        nbytes=int(nbytes.sum()) if (nbytes >= 0).all() else None,
        stages=_stages(run.attribution, chosen),
        compute_stages=_compute_stages(run.attribution, chosen),
        waits_ns=waits_ns,
        wait=wait_statistics(waits_ns),
        read_nbytes=_read_nbytes(run, chosen),
        cold_fraction=_cold_fraction(run, chosen),
        overhead_fraction=_overhead_fraction(run, chosen, wall_ns),
    )


def _n_samples(config: Mapping[str, Any], nbytes: NDArray[np.int64]) -> int | None:
    """Return the samples in batches of these sizes: by their bytes, else by the batch size."""
    sample_nbytes, batch_size = config.get("sample_nbytes"), config.get("batch_size")
    if sample_nbytes and (nbytes >= 0).all() and not (nbytes % sample_nbytes).any():
        return int(nbytes.sum()) // int(sample_nbytes)
    return int(batch_size) * len(nbytes) if batch_size else None


def _stages(attribution: Attribution, chosen: Marks) -> tuple[StageExposure, ...]:
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


def _io_counters(profile: Profile, deliveries: Deliveries, rank: int) -> _CountersByDelivery:
    of_rank = np.array([process.rank == rank for process in profile.processes], dtype=bool)
    spans = profile.spans[(profile.spans["flags"] & Flag.IO) != 0]
    spans = spans[of_rank[spans["process"]]]
    order = np.argsort(deliveries.batch, kind="stable")
    place = np.searchsorted(deliveries.batch[order], spans["batch"])
    found = place < len(order)
    delivery = np.full(len(spans), -1, dtype=np.int64)
    delivery[found] = order[place[found]]
    found &= (spans["batch"] >= 0) & (np.append(deliveries.batch, -1)[delivery] == spans["batch"])
    return _CountersByDelivery(
        delivery=np.where(found, delivery, -1),
        read=spans["nbytes"].astype(np.int64),
        device=spans["cpu_ns"].astype(np.int64),
    )


def _read_nbytes(run: _Run, chosen: Marks) -> int | None:
    """Return the bytes read for these deliveries; None where one of them was not counted."""
    counted = np.zeros(len(chosen) + 1, dtype=bool)
    counted[run.io.delivery] = True
    read = run.io.read[np.append(chosen, False)[run.io.delivery]]
    with_batch = chosen & (run.deliveries.batch >= 0)
    if not with_batch.any() or not counted[:-1][with_batch].all() or (read < 0).any():
        return None
    return int(read.sum())


def _cold_fraction(run: _Run, chosen: Marks) -> float | None:
    """Return bytes from the device over bytes read; None where a counter does not tell."""
    inside = np.append(chosen, False)[run.io.delivery]
    read, device = run.io.read[inside], run.io.device[inside]
    known = run.profile.config.get("cold_known", True) and (read >= 0).all() and (device >= 0).all()
    if not known or not read.sum():
        return None
    # The device is read in whole pages, so that it may give a little more than was asked for.
    return float(min(device.sum() / read.sum(), 1.0))


def _written_ns(profile: Profile, deliveries: Deliveries) -> NDArray[np.float64] | None:
    """Return the time spent writing spans by delivery and, last, outside; None where unknown."""
    costs = profile.config.get("unit_costs")
    if not isinstance(costs, dict):
        return None
    spans, flags = profile.spans, profile.spans["flags"]
    is_io, summed = (flags & Flag.IO) != 0, (flags & Flag.SUMMED) != 0
    full = ~is_io & (spans["cpu_ns"] >= 0)
    number = np.where(summed, spans["pieces"], 1)
    cost = np.zeros(len(spans))
    for kinds, name in ((is_io, "io_ns"), (full, "full_ns"), (~is_io & ~full, "light_ns")):
        if not kinds.any():
            continue
        if costs.get(name) is None:
            return None
        cost[kinds] = number[kinds] * float(costs[name])
    total = np.zeros(len(deliveries) + 1)
    np.add.at(total, deliveries.at(spans["start_ns"]), cost)
    return total


def _overhead_fraction(run: _Run, chosen: Marks, wall_ns: int) -> float | None:
    if run.written_ns is None or not wall_ns:
        return None
    return float(run.written_ns[:-1][chosen].sum() / (wall_ns * run.n_lanes))
