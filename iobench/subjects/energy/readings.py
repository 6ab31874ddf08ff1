"""Joules of a run, its epochs and its waits, from what counters showed now and then.

A counter's value at a moment lies between the readings around it; there it is taken to rise evenly,
rounded to a whole microjoule. So the energy of adjacent stretches of time adds up exactly, and what
is not of a wait is of the rest. How wrong that can be is told: between two readings, everything may
have been spent inside a wait or nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.host_time import length_before, training_process, waits_and_walls
from iobench.profiles.machine_samples import of_process
from iobench.recording.kinds import stage_name
from iobench.subjects.energy.figures import (
    ENERGY_KINDS,
    CountedEnergy,
    EnergyFigures,
    EpochEnergy,
    EpochKind,
    KindEnergy,
    UntoldEnergy,
    add_bounds,
    in_the_mean,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.run import RankRun
    from iobench.profiles.contents import Process, Profile
    from iobench.profiles.run_facts import RunFacts
    from iobench.recording.energy_file import EnergySeries, HostEnergy

Integers = NDArray[np.int64]
ROWS: Final = 1 << 16
"""Deliveries whose stages are worked out at once."""


def energy_of(run: RankRun) -> EnergyFigures | None:
    """Return what a training process took; None where it was not looked for.

    Several on one machine have equal parts of its counters. Kinds that could not be read are in
    ``untold``, with the reason.
    """
    profile = run.whole
    if not profile.energy:
        return None
    who = training_process(run)
    here = of_process(profile.energy, who)
    if here is None:
        host = "" if who is None else who.host
        untold = tuple(
            UntoldEnergy(host, kind, "it was not read there") for kind in ENERGY_KINDS[:3]
        )
        return EnergyFigures((), (), (), untold, _n_samples(run), 1, 0, None, 0)
    n_sharing = _n_ranks_at(profile, who)
    edges = _RunEdges(run)
    counted: list[CountedEnergy] = []
    by_kind: dict[str, list[tuple[Integers, Integers]]] = {}
    for series in here.series:
        if len(series.time_ns) < 2 or not (found := edges.counted(series, here.host, n_sharing)):
            continue
        counted.append(found)
        by_kind.setdefault(series.source.kind, []).append(edges.by_delivery(series, n_sharing))
    energies = {kind: _joined(by_kind[kind]) for kind in ENERGY_KINDS if kind in by_kind}
    facts, wait = run.profile.about, run.exposure.whole.batch_wait
    told = EnergyFigures(
        kinds=tuple(
            _kind(kind, [each for each in counted if each.source.kind == kind], run, waits)
            for kind, (_, waits) in energies.items()
        ),
        sources=tuple(counted),
        epochs=_epochs(run, energies),
        untold=_untold(here, counted),
        n_samples=_n_samples(run),
        n_sharing=n_sharing,
        period_ns=here.period_ns,
        reading_ns=here.cpu_ns // here.n_timed if here.cpu_ns and here.n_timed else None,
        n_damaged=here.n_damaged,
        typical_wait_ns=None if wait is None else round(wait.median_ns),
        is_emulated=bool(facts.compute.step_ns),
        trained_on=_trained_on(run.about),
    )
    return in_the_mean(told)


def _trained_on(about: RunFacts) -> str:
    """Return the dataset of a user's own script that reads real files; ``""`` of others."""
    return (about.dataset or "") if about.is_script and not about.stand_in else ""


def _n_ranks_at(profile: Profile, who: Process | None) -> int:
    host = "" if who is None else who.host
    told = {each.rank for each in profile.facts if each.role == "consumer" and each.host == host}
    seen = {p.rank for p in profile.processes if p.role == "consumer" and p.host == host}
    return max(1, len(told | seen))


def _n_samples(run: RankRun) -> int | None:
    return run.exposure.whole.n_samples if run.exposure.whole.n_batches else None


def _untold(here: HostEnergy, counted: Sequence[CountedEnergy]) -> tuple[UntoldEnergy, ...]:
    found = [UntoldEnergy(here.host, each.kind, each.reason) for each in here.unreadable]
    told = {each.source.name for each in counted}
    for series in here.series:
        if series.source.name not in told:
            reason = f"{series.source.title}: fewer than two readings during the run"
            found.append(UntoldEnergy(here.host, series.source.kind, reason))
    return tuple(dict.fromkeys(found))


def energy_at(series: EnergySeries, time_ns: Integers, *, n_sharing: int = 1) -> Integers:
    """Return the microjoules counted by each moment; outside the readings those of the nearest."""
    times, energy = series.time_ns, series.energy_uj // n_sharing
    within = np.clip(time_ns, times[0], times[-1])
    place = np.clip(np.searchsorted(times, within, side="right") - 1, 0, len(times) - 2)
    ratio = (within - times[place]) / (times[place + 1] - times[place])
    risen = np.rint((energy[place + 1] - energy[place]) * ratio).astype(np.int64)
    found: Integers = energy[place] + risen
    return found


class _RunEdges:
    """The stretches of time of a run, and its waits, that energy is told of."""

    def __init__(self, run: RankRun) -> None:
        self.waits, self.walls = waits_and_walls(run)
        self.has_waits = len(run.deliveries) > 0
        self.wall_ns = int((self.walls[1] - self.walls[0]).sum())

    def counted(self, series: EnergySeries, host: str, n_sharing: int) -> CountedEnergy | None:
        """Return what a counter showed; None where no time lies between two readings."""
        times = series.time_ns
        first, last = (np.clip(edge, times[0], times[-1]) for edge in self.walls)
        covered_ns = int((last - first).sum())
        if not covered_ns:
            return None
        total, wait = (each.sum() for each in self.by_delivery(series, n_sharing))
        return CountedEnergy(
            source=series.source,
            host=host,
            total_uj=int(total),
            wait_uj=int(wait) if self.has_waits else None,
            total_bounds_uj=_bounds(series, *self.walls, n_sharing),
            wait_bounds_uj=_bounds(series, *self.waits, n_sharing),
            covered_ns=covered_ns,
            wall_ns=self.wall_ns,
            n_readings=len(times),
            n_resets=series.n_resets,
            n_failed=series.n_failed,
            resolution_ns=max(series.source.period_ns, int(np.median(np.diff(times)))),
        )

    def by_delivery(self, series: EnergySeries, n_sharing: int) -> tuple[Integers, Integers]:
        """Return the energy of each delivery's share of the wall time, and of its wait."""
        begin, end = (energy_at(series, edge, n_sharing=n_sharing) for edge in self.walls)
        asked, held = (energy_at(series, edge, n_sharing=n_sharing) for edge in self.waits)
        return end - begin, held - asked


def _bounds(
    series: EnergySeries, start_ns: Integers, end_ns: Integers, n_sharing: int
) -> tuple[int, int]:
    """Return the least and the most energy that may have been spent inside stretches of time.

    What a counter rose between two readings was spent between the second one and the first one's
    last renewal before it: all inside, if all of that is; some of it, if some is.
    """
    if not len(start_ns):
        return 0, 0
    risen = np.diff(series.energy_uj // n_sharing)
    begin, end = series.time_ns[:-1] - series.source.period_ns, series.time_ns[1:]
    inside = length_before(start_ns, end_ns, end) - length_before(start_ns, end_ns, begin)
    return int(risen[inside == end - begin].sum()), int(risen[inside > 0].sum())


def _joined(parts: Sequence[tuple[Integers, Integers]]) -> tuple[Integers, Integers]:
    totals, waits = zip(*parts, strict=True)
    return np.sum(totals, axis=0), np.sum(waits, axis=0)


def _kind(kind: str, counted: Sequence[CountedEnergy], run: RankRun, waits: Integers) -> KindEnergy:
    told = [each.wait_uj for each in counted if each.wait_uj is not None]
    return KindEnergy(
        kind=kind,
        total_uj=sum(each.total_uj for each in counted),
        wait_uj=sum(told) if told else None,
        total_bounds_uj=add_bounds(each.total_bounds_uj for each in counted),
        wait_bounds_uj=add_bounds(each.wait_bounds_uj for each in counted),
        stages=_by_stage(run, waits),
        covered_fraction=min(each.covered_ns / each.wall_ns for each in counted),
        estimated=any(each.source.estimated for each in counted),
        resolution_ns=max(each.resolution_ns for each in counted),
    )


def _by_stage(run: RankRun, waits: Integers) -> dict[str, int]:
    """Split each wait's energy as its time was attributed; exact."""
    stages, exposed_ns = run.attribution.stages, run.attribution.ledger.exposed_ns
    found = np.zeros(len(stages.kinds), dtype=np.int64)
    for first in range(0, len(waits), ROWS):
        energy = waits[first : first + ROWS, None]
        reached = np.cumsum(exposed_ns[first : first + len(energy)], axis=1)
        ratio = reached / np.maximum(reached[:, -1:], 1)
        parts = np.diff(np.rint(energy * ratio).astype(np.int64), axis=1, prepend=0)
        found += parts.sum(axis=0)
    named = {
        stage_name(stages.kinds[index], stages.labels[index]): int(found[index])
        for index in np.flatnonzero(found).tolist()
    }
    return dict(sorted(named.items(), key=lambda each: (-each[1], each[0])))


def _epochs(
    run: RankRun, energies: dict[str, tuple[Integers, Integers]]
) -> tuple[EpochEnergy, ...]:
    deliveries = run.deliveries
    if not len(deliveries) or not energies:
        return ()
    number = deliveries.of_epoch
    return tuple(
        EpochEnergy(
            epoch=epoch,
            complete=epoch in deliveries.complete_epochs,
            n_batches=int((deliveries.batch[number == epoch] >= 0).sum()),
            kinds=tuple(
                EpochKind(
                    kind, int(totals[number == epoch].sum()), int(waits[number == epoch].sum())
                )
                for kind, (totals, waits) in energies.items()
            ),
        )
        for epoch in np.unique(number).tolist()
    )
