"""Joules of a run, its epochs and its waits: what counters showed, on straight lines between."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.host_time import training_process, waits_and_walls
from iobench.findings.contract import Finding
from iobench.json_keys import HIDDEN, INLINE, figure, key, keyed_by
from iobench.report import units
from iobench.report.document import Column, Joules, Section, Share, Table, WattHours, sentences
from iobench.runs.machine_samples import of_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.analysis.run import RankRun
    from iobench.recording.machine_head import EnergySource
    from iobench.report.document import Cell
    from iobench.runs.contents import Process, RunData
    from iobench.runs.machine_samples import EnergySeries
    from iobench.runs.run_facts import RunFacts

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
NAMES: Final = {"gpu": "GPUs", "cpu": "CPUs", "memory": "memory", "machine": "whole machine"}
ENERGY_KINDS: Final = (*NAMES,)
PARTS: Final = ("gpu", "cpu", "memory")
"""What adds up; a counter of the whole machine has them all in it."""
COVERED: Final = 0.999
"""From this share of the run on, nothing is said of the rest."""
COLUMNS: Final = tuple(
    map(Column, ("", "whole run", "", "an epoch", "a sample", "waiting", "of it"))
)
# MAELSTROM D2.2, table 1: six epochs of ENS-10 at batch size 2 on JUWELS Booster.
PUBLISHED_WH: Final = (135.66, 157.61)
PUBLISHED_EPOCHS: Final = 6


class CountedEnergy(msgspec.Struct, frozen=True):
    """What one counter showed of a run; of several ranks on its machine each has an equal part.

    Parameters
    ----------
    total_j : float
        From the first round's begin to the last one's end, time between rounds left out.
    wait_j : float or None
        In the waits of the training loop; null where nothing waited.
    covered_ns, wall_ns : int
        How much of the run's time lies between the first and the last reading. The rest is in no
        figure.
    resolution_ns : int
        The longer one of the counter's renewal and the usual time between readings.
    """

    source: EnergySource
    host: str
    total_j: float
    wait_j: float | None
    covered_ns: int
    wall_ns: int
    n_readings: int
    n_resets: int
    n_failed: int
    resolution_ns: int
    JSON_KEYS: ClassVar = {
        "source": INLINE,
        "wall_ns": HIDDEN,
        "n_readings": key("readings"),
        "n_resets": key("resets"),
        "n_failed": key("failed_readings"),
    }


class KindEnergy(msgspec.Struct, frozen=True):
    """All counters of one kind together: GPUs, processors, memory, or whole machines.

    Parameters
    ----------
    covered_fraction : float
        Of the run's time, by its least covered counter.
    estimated : bool
        Whether a part of it is summed from readings of power.
    j_per_epoch : float or None
        Mean of the epochs of which all batches were measured.
    """

    kind: str
    total_j: float
    wait_j: float | None
    covered_fraction: float
    estimated: bool
    resolution_ns: int
    j_per_epoch: float | None = None
    j_per_sample: float | None = None

    @figure
    def wait_fraction(self) -> float | None:
        """Share of the energy that was spent while waiting; None where nothing waited."""
        return self.wait_j / self.total_j if self.wait_j is not None and self.total_j else None

    @figure
    def compute_j(self) -> float | None:
        """What was spent between the waits; None where nothing waited."""
        return None if self.wait_j is None else self.total_j - self.wait_j


class EpochKind(msgspec.Struct, frozen=True):
    """Energy of one kind in one epoch, and in its waits."""

    kind: str
    total_j: float
    wait_j: float


class EpochEnergy(msgspec.Struct, frozen=True):
    """One epoch of a training process; complete where all its batches were measured."""

    epoch: int
    complete: bool
    n_batches: int
    kinds: tuple[EpochKind, ...]
    JSON_KEYS: ClassVar = {
        "n_batches": key("batches"),
        "kinds": keyed_by("kind"),
    }


class UnknownEnergy(msgspec.Struct, frozen=True):
    """Energy of a machine that could not be read, and why; never 0."""

    host: str
    kind: str
    reason: str


class EnergyFigures(msgspec.Struct, frozen=True):
    """What a run took, as far as a counter reported.

    Parameters
    ----------
    n_sharing : int
        Training processes of the job that share the counters of a machine, equally.
    period_ns : int
        Time between two readings.
    typical_wait_ns : int or None
        The median wait of a step; of a job the longest of its ranks.
    is_emulated : bool
        Whether the training step was emulated by waiting.
    trained_on : str
        The dataset that a user's own script trained on, its files real; ``""`` elsewhere.
    """

    kinds: tuple[KindEnergy, ...]
    sources: tuple[CountedEnergy, ...]
    epochs: tuple[EpochEnergy, ...]
    unknown: tuple[UnknownEnergy, ...]
    n_samples: int | None = None
    n_sharing: int = 1
    period_ns: int = 0
    typical_wait_ns: int | None = None
    is_emulated: bool = False
    trained_on: str = ""
    JSON_KEYS: ClassVar = {
        "kinds": keyed_by("kind"),
        "unknown": key("not_readable"),
        "n_samples": HIDDEN,
        "n_sharing": key("sharing_ranks"),
        "typical_wait_ns": HIDDEN,
        "is_emulated": HIDDEN,
        "trained_on": HIDDEN,
    }

    @figure
    def readable(self) -> bool:
        """Whether any counter could be read."""
        return bool(self.kinds)

    def of(self, kind: str) -> KindEnergy | None:
        """Return what is of one kind; None where it could not be read."""
        return next((each for each in self.kinds if each.kind == kind), None)


def energy_of(run: RankRun) -> EnergyFigures | None:
    """Return what a training process took; None where it was not looked for."""
    profile = run.job or run
    if not profile.energy:
        return None
    process = training_process(run)
    here = of_process(profile.energy, process)
    exposure = run.exposure.whole
    n_samples = exposure.n_samples if exposure.n_batches else None
    if here is None:
        host = "" if process is None else process.host
        unknown = tuple(UnknownEnergy(host, each, "it was not read there") for each in PARTS)
        return EnergyFigures((), (), (), unknown)
    n_sharing = _n_ranks_at(profile, process)
    waits, walls = waits_and_walls(run)
    wall_ns = int((walls[1] - walls[0]).sum())
    counted: list[CountedEnergy] = []
    by_kind: dict[str, list[tuple[Floats, Floats]]] = defaultdict(list)
    unknown_here = [UnknownEnergy(here.host, each.kind, each.reason) for each in here.unreadable]
    for series in here.series:
        times, source = series.time_ns, series.source
        covered_ns = 0
        if len(times) > 1:
            first, last = (np.clip(each, times[0], times[-1]) for each in walls)
            covered_ns = int((last - first).sum())
        if not covered_ns:
            reason = f"{source.title}: fewer than two readings during the run"
            unknown_here.append(UnknownEnergy(here.host, source.kind, reason))
            continue
        total_j, wait_j = (
            (joules_at(series, end) - joules_at(series, begin)) / n_sharing
            for begin, end in (walls, waits)
        )
        by_kind[source.kind].append((total_j, wait_j))
        counted.append(
            CountedEnergy(
                source=source,
                host=here.host,
                total_j=float(total_j.sum()),
                wait_j=float(wait_j.sum()) if len(run.deliveries) else None,
                covered_ns=covered_ns,
                wall_ns=wall_ns,
                n_readings=len(times),
                n_resets=series.n_resets,
                n_failed=series.n_failed,
                resolution_ns=max(source.period_ns, int(np.median(np.diff(times)))),
            )
        )
    energies = {
        kind: tuple(np.sum(each, axis=0) for each in zip(*parts, strict=True))
        for kind, parts in by_kind.items()
    }
    wait = exposure.batch_wait
    return _figures(
        counted,
        [*_epochs(run, energies)],
        unknown_here,
        n_samples,
        n_sharing=n_sharing,
        period_ns=here.period_ns,
        typical_wait_ns=None if wait is None else round(wait.median_ns),
        is_emulated=bool(run.run_facts.compute.step_ns),
        trained_on=_trained_on(run.about),
    )


def _figures(
    counted: Sequence[CountedEnergy],
    epochs: Sequence[EpochEnergy],
    unknown: Iterable[UnknownEnergy],
    n_samples: int | None,
    **more: Any,
) -> EnergyFigures:
    """Return figures with what all counters of a kind took together."""
    complete = [each for each in epochs if each.complete]
    kinds = []
    for kind in ENERGY_KINDS:
        of = [each for each in counted if each.source.kind == kind]
        if not of:
            continue
        total_j = sum(each.total_j for each in of)
        by_epoch = [each.total_j for epoch in complete for each in epoch.kinds if each.kind == kind]
        kinds.append(
            KindEnergy(
                kind=kind,
                total_j=total_j,
                wait_j=_sum(each.wait_j for each in of),
                covered_fraction=min(each.covered_ns / each.wall_ns for each in of),
                estimated=any(each.source.estimated for each in of),
                resolution_ns=max(each.resolution_ns for each in of),
                j_per_epoch=sum(by_epoch) / len(complete) if complete else None,
                j_per_sample=total_j / n_samples if n_samples else None,
            )
        )
    return EnergyFigures(
        tuple(kinds),
        tuple(counted),
        tuple(epochs),
        tuple(dict.fromkeys(unknown)),
        n_samples,
        **more,
    )


def joules_at(series: EnergySeries, time_ns: Integers) -> Floats:
    """Return the joules counted by each moment; outside the readings those of the nearest."""
    first = series.time_ns[0]
    joules: Floats = np.interp(time_ns - first, series.time_ns - first, series.energy_j)
    return joules


def energy_sum(parts: Iterable[EnergyFigures | None]) -> EnergyFigures | None:
    """Return what the training processes of a job took together; None where not looked for.

    Each machine's counters are in it once: its processes have equal parts of them.
    """
    ranks = [each for each in parts if each is not None]
    if not ranks:
        return None
    sources: dict[tuple[str, str], CountedEnergy] = {}
    for each in (each for part in ranks for each in part.sources):
        known = sources.get((each.host, each.source.name))
        sources[each.host, each.source.name] = each if known is None else _added(known, each)
    epochs: dict[int, list[EpochEnergy]] = defaultdict(list)
    for epoch in (epoch for part in ranks for epoch in part.epochs):
        epochs[epoch.epoch].append(epoch)
    samples = [each.n_samples for each in ranks if each.n_samples is not None]
    # Where machines have other counters, a sum is of fewer samples than were delivered.
    alike = len({tuple(each.kind for each in part.kinds) for part in ranks}) == 1
    waits = [each.typical_wait_ns for each in ranks if each.typical_wait_ns is not None]
    return _figures(
        [*sources.values()],
        [_epoch_sum(number, epochs[number]) for number in sorted(epochs)],
        (each for part in ranks for each in part.unknown),
        sum(samples) if len(samples) == len(ranks) and alike else None,
        n_sharing=max(each.n_sharing for each in ranks),
        period_ns=max(each.period_ns for each in ranks),
        typical_wait_ns=max(waits, default=None),
    )


def energy_j(run: Iterable[RankRun]) -> float | None:
    """Return what GPUs, processors and memory took, else machines; None where nothing was read."""
    total = energy_sum([each.cached(energy_of) for each in run])
    kinds = () if total is None else total.kinds
    parts = [each for each in kinds if each.kind in PARTS] or kinds
    return sum(each.total_j for each in parts) if parts else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def _added(one: CountedEnergy, other: CountedEnergy) -> CountedEnergy:
    return replace(
        one,
        total_j=one.total_j + other.total_j,
        wait_j=_sum([one.wait_j, other.wait_j]),
        covered_ns=one.covered_ns + other.covered_ns,
        wall_ns=one.wall_ns + other.wall_ns,
    )


def _epochs(run: RankRun, energies: Mapping[str, tuple[Floats, ...]]) -> Iterator[EpochEnergy]:
    deliveries = run.deliveries
    for epoch in np.unique(deliveries.of_epoch).tolist() if len(deliveries) and energies else ():
        inside = deliveries.of_epoch == epoch
        yield EpochEnergy(
            epoch=epoch,
            complete=epoch in deliveries.complete_epochs,
            n_batches=int((deliveries.batch[inside] >= 0).sum()),
            kinds=tuple(
                EpochKind(kind, float(total[inside].sum()), float(wait[inside].sum()))
                for kind, (total, wait) in energies.items()
            ),
        )


def _epoch_sum(number: int, epochs: Sequence[EpochEnergy]) -> EpochEnergy:
    kinds: dict[str, list[EpochKind]] = defaultdict(list)
    for each in (each for epoch in epochs for each in epoch.kinds):
        kinds[each.kind].append(each)
    return EpochEnergy(
        number,
        all(epoch.complete for epoch in epochs),
        sum(epoch.n_batches for epoch in epochs),
        tuple(
            EpochKind(kind, sum(each.total_j for each in of), sum(each.wait_j for each in of))
            for kind, of in kinds.items()
        ),
    )


def _n_ranks_at(profile: RunData, process: Process | None) -> int:
    host = "" if process is None else process.host
    ranks = {each.rank for each in profile.facts if (each.role, each.host) == ("consumer", host)}
    ranks |= {
        each.rank for each in profile.processes if (each.role, each.host) == ("consumer", host)
    }
    return max(1, len(ranks))


def _trained_on(about: RunFacts) -> str:
    """Return the dataset of a user's own script that reads real files; ``""`` of others."""
    return (about.dataset or "") if about.is_script and not about.stand_in else ""


def energy_section(figures: EnergyFigures) -> Section:
    """Return the energy of a run by kind of counter, and what has to be known of it."""
    return Section("energy", "Energy", (*_table(figures), *sentences([*_lines(figures)])))


def _table(figures: EnergyFigures) -> Iterator[Table]:
    parts = [each for each in figures.kinds if each.kind in PARTS]
    rows = tuple(
        _cells(f"{'about ' if each.estimated else ''}{NAMES[each.kind]}", [each])
        for each in figures.kinds
    )
    if rows:
        yield Table("Energy", COLUMNS, rows, _cells("together", parts) if len(parts) > 1 else ())


def _cells(name: str, kinds: Sequence[KindEnergy]) -> tuple[Cell, ...]:
    total_j = sum(each.total_j for each in kinds)
    wait_j = _sum(each.wait_j for each in kinds)
    return (
        name,
        Joules(total_j),
        WattHours(total_j),
        Joules(_sum(each.j_per_epoch for each in kinds)),
        Joules(_sum(each.j_per_sample for each in kinds)),
        Joules(wait_j),
        Share(wait_j / total_j if wait_j is not None and total_j else None),
    )


def _lines(figures: EnergyFigures) -> Iterator[str]:
    hosts: dict[str, list[str]] = defaultdict(list)
    for unknown in figures.unknown:
        hosts[f"{NAMES.get(unknown.kind, unknown.kind)}: {unknown.reason}"].append(unknown.host)
    if hosts:
        reasons = (
            f"{reason}{f' on {len(of)} machines' if len(of) > 1 else ''}"
            for reason, of in hosts.items()
        )
        yield f"Energy that is not readable here: {'; '.join(reasons)}."
    if not figures.kinds:
        return
    for each in figures.kinds:
        yield from _of_kind(each, figures.typical_wait_ns)
    for counted in figures.sources:
        title = counted.source.title
        if counted.n_resets:
            yield (
                f"{title}: reset {_times(counted.n_resets)} during the run; what it had counted "
                "since the previous reading is missing."
            )
        if counted.n_failed:
            yield f"{title}: could not be read {_times(counted.n_failed)}."
    yield _scope(figures)
    if figures.is_emulated:
        yield (
            "The training step was emulated by waiting, so this is the energy of loading, without "
            "training."
        )
    if "ens10" in figures.trained_on.lower().replace("-", "") and figures.of("gpu"):
        low, high = (units.watt_hours(each * units.J_PER_WH) for each in PUBLISHED_WH)
        least, most = (
            units.watt_hours(each * units.J_PER_WH / PUBLISHED_EPOCHS) for each in PUBLISHED_WH
        )
        yield (
            f"Published for ENS-10 (MAELSTROM D2.2, table 1: {PUBLISHED_EPOCHS} epochs, batch size "
            f"2, one A100 of JUWELS Booster): {low} to {high} of its GPU, {least} to {most} an "
            "epoch."
        )


def _of_kind(each: KindEnergy, typical_wait_ns: int | None) -> Iterator[str]:
    name = NAMES[each.kind]
    if each.estimated:
        yield f"{name}: an estimate, from readings of power; the driver counts no energy."
    if each.covered_fraction < COVERED:
        yield (
            f"{name}: readings cover {units.fraction(each.covered_fraction)} of the run; no figure "
            "includes the rest."
        )
    if each.wait_j is not None and typical_wait_ns and typical_wait_ns < each.resolution_ns:
        yield (
            f"{name}, waiting: waits (median {units.duration(typical_wait_ns)}) are shorter than "
            f"the time between readings ({units.duration(each.resolution_ns)}), so each wait gets "
            "its share of the energy between two readings."
        )


def _times(number: int) -> str:
    return "once" if number == 1 else f"{units.count(number)} times"


def _scope(figures: EnergyFigures) -> str:
    hosts = list(dict.fromkeys(each.host for each in figures.sources))
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} machines"
    shared = ""
    if figures.n_sharing > 1:
        shared = (
            f" Its {units.count(figures.n_sharing)} training processes are given equal parts of it."
            if len(hosts) == 1
            else " Training processes of one machine are given equal parts of it."
        )
    return (
        f"Counters are for whole GPUs and processors: they include everything that ran on {where}, "
        f"other jobs too, and idle power is not subtracted.{shared}"
    )


FINDING: Final = Finding("energy", 500, energy_of, energy_section, together=energy_sum)
"""Energy, as the entry point names it."""
