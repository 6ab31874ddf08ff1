"""Joules of a run, its epochs and its waits: what counters showed, on straight lines between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.host_time import training_process, waits_and_walls
from iobench.findings.contract import Finding
from iobench.json_keys import HIDDEN, figure, keyed_by
from iobench.recording.machine_head import UnreadableEnergy
from iobench.report import units
from iobench.report.document import Column, Joules, Section, Share, Table, WattHours, sentences
from iobench.runs.machine_samples import of_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iobench.analysis.run import RankRun
    from iobench.report.document import Cell
    from iobench.runs.machine_samples import EnergySeries

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
NAMES: Final = {"gpu": "GPUs", "cpu": "CPUs", "memory": "memory", "machine": "whole machine"}
ENERGY_KINDS: Final = (*NAMES,)
PARTS: Final = ("gpu", "cpu", "memory")
"""What adds up; a counter of the whole machine has them all in it."""
COVERED: Final = 0.999
"""From this share of the run on, nothing is said of the rest."""
COLUMNS: Final = tuple(map(Column, ("", "whole run", "", "an epoch", "waiting", "of it")))


class KindEnergy(msgspec.Struct, frozen=True):
    """All counters of one kind together; ranks of one machine have equal parts of them.

    Parameters
    ----------
    total_j : float
        From the first pass's begin to the last one's end, time between passes left out.
    wait_j : float or None
        In the waits of the training loop; null where nothing waited.
    epochs_j : mapping of int to float
        Of each epoch of which all batches were recorded.
    covered_fraction : float
        How much of the run's time lies between the first and the last reading, of the least covered
        counter. The rest is in no figure.
    resolves_waits : bool
        Whether a usual wait is longer than the time between two readings, or renewals.
    n_resets : int
        How often a counter was set back, and lost what it had counted since the reading before.
    """

    kind: str
    total_j: float
    wait_j: float | None
    epochs_j: Mapping[int, float]
    covered_fraction: float
    resolves_waits: bool
    n_resets: int
    JSON_KEYS: ClassVar = {"resolves_waits": HIDDEN, "n_resets": HIDDEN}

    @figure
    def j_per_epoch(self) -> float | None:
        """Mean of the epochs."""
        return sum(self.epochs_j.values()) / len(self.epochs_j) if self.epochs_j else None


class EnergyFigures(msgspec.Struct, frozen=True):
    """What a run took; what cannot be read has a reason, and is never 0."""

    kinds: tuple[KindEnergy, ...]
    not_readable: tuple[UnreadableEnergy, ...]
    hosts: tuple[str, ...] = ()
    n_sharing: int = 1
    JSON_KEYS: ClassVar = {"kinds": keyed_by("kind"), "hosts": HIDDEN, "n_sharing": HIDDEN}

    def of(self, kind: str) -> KindEnergy | None:
        """Return what is of one kind; None where it could not be read."""
        return next((each for each in self.kinds if each.kind == kind), None)


def energy_of(run: RankRun) -> EnergyFigures | None:
    """Return what a training process took; None where it was not looked for."""
    if not run.energy:
        return None
    process = training_process(run)
    here = of_process(run.energy, process)
    if here is None or process is None:
        nowhere = tuple(UnreadableEnergy(each, "it was not read there") for each in PARTS)
        return EnergyFigures((), nowhere)
    _, walls = waits_and_walls(run)
    by_kind: dict[str, list[EnergySeries]] = defaultdict(list)
    not_readable = [*here.unreadable]
    for series in here.series:
        kind, title = series.source.kind, series.source.title
        if series.source.estimated:
            not_readable.append(UnreadableEnergy(kind, f"{title}: readings of power alone"))
        elif not _covered_ns(series, walls):
            reason = f"{title}: fewer than two readings during the run"
            not_readable.append(UnreadableEnergy(kind, reason))
        else:
            by_kind[kind].append(series)
    host = process.host
    ranks = {each.rank for each in run.facts if (each.role, each.host) == ("consumer", host)}
    ranks |= {each.rank for each in run.processes if (each.role, each.host) == ("consumer", host)}
    n_sharing = max(1, len(ranks))
    return EnergyFigures(
        tuple(_kind(run, by_kind[each], n_sharing) for each in NAMES if each in by_kind),
        tuple(not_readable),
        (here.host,),
        n_sharing,
    )


def _kind(run: RankRun, counters: Sequence[EnergySeries], n_sharing: int) -> KindEnergy:
    deliveries, wait = run.deliveries, run.exposure.whole.batch_wait
    (request_ns, delivered_ns), (begin_ns, end_ns) = walls = waits_and_walls(run)
    total_j, wait_j = np.zeros(len(begin_ns)), np.zeros(len(request_ns))
    for each in counters:
        total_j += (joules_at(each, end_ns) - joules_at(each, begin_ns)) / n_sharing
        wait_j += (joules_at(each, delivered_ns) - joules_at(each, request_ns)) / n_sharing
    wall_ns = int((end_ns - begin_ns).sum())
    least_ns = max(
        max(each.source.period_ns, int(np.median(np.diff(each.time_ns)))) for each in counters
    )
    return KindEnergy(
        kind=counters[0].source.kind,
        total_j=float(total_j.sum()),
        wait_j=float(wait_j.sum()) if len(deliveries) else None,
        epochs_j={
            int(each): float(total_j[deliveries.of_epoch == each].sum())
            for each in sorted(deliveries.complete_epochs if len(deliveries) else ())
        },
        covered_fraction=min(_covered_ns(each, walls[1]) for each in counters) / wall_ns,
        resolves_waits=wait is None or not 0 < wait.median_ns < least_ns,
        n_resets=sum(each.n_resets for each in counters),
    )


def _covered_ns(series: EnergySeries, walls: tuple[Integers, Integers]) -> int:
    """Return how much of the run's time lies between the first and the last reading."""
    if len(series.time_ns) < 2:
        return 0
    begin, end = (np.clip(each, series.time_ns[0], series.time_ns[-1]) for each in walls)
    return int((end - begin).sum())


def joules_at(series: EnergySeries, time_ns: Integers) -> Floats:
    """Return the joules counted by each moment; outside the readings those of the nearest."""
    first = series.time_ns[0]
    joules: Floats = np.interp(time_ns - first, series.time_ns - first, series.energy_j)
    return joules


def energy_sum(ranks: Sequence[EnergyFigures]) -> EnergyFigures:
    """Return what the training processes of a job took together: their parts add up."""
    by_kind = {kind: [of for each in ranks if (of := each.of(kind))] for kind in NAMES}
    return EnergyFigures(
        tuple(_kind_sum(of) for of in by_kind.values() if of),
        tuple(dict.fromkeys(each for rank in ranks for each in rank.not_readable)),
        tuple(dict.fromkeys(each for rank in ranks for each in rank.hosts)),
        max(each.n_sharing for each in ranks),
    )


def _kind_sum(of: Sequence[KindEnergy]) -> KindEnergy:
    epochs = set.intersection(*({*each.epochs_j} for each in of))
    return KindEnergy(
        kind=of[0].kind,
        total_j=sum(each.total_j for each in of),
        wait_j=_sum(each.wait_j for each in of),
        epochs_j={epoch: sum(each.epochs_j[epoch] for each in of) for epoch in sorted(epochs)},
        covered_fraction=min(each.covered_fraction for each in of),
        resolves_waits=all(each.resolves_waits for each in of),
        n_resets=max(each.n_resets for each in of),
    )


def energy_j(run: Iterable[RankRun]) -> float | None:
    """Return what GPUs, processors and memory took, else machines; None where nothing was read."""
    ranks = [energy for each in run if (energy := each.cached(energy_of)) is not None]
    kinds = energy_sum(ranks).kinds if ranks else ()
    return _sum(each.total_j for each in _parts(kinds) or kinds)


def _parts(kinds: Iterable[KindEnergy]) -> list[KindEnergy]:
    return [each for each in kinds if each.kind in PARTS]


def _sum(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def energy_section(energy: EnergyFigures) -> Section:
    """Return the energy of a run by kind of counter, and what has to be known of it."""
    return Section("energy", "Energy", (*_table(energy.kinds), *sentences([*_texts(energy)])))


def _table(kinds: Sequence[KindEnergy]) -> Iterator[Table]:
    parts = _parts(kinds)
    rows = tuple(_cells(NAMES[each.kind], [each]) for each in kinds)
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
        Joules(wait_j),
        Share(wait_j / total_j if wait_j is not None and total_j else None),
    )


def _texts(energy: EnergyFigures) -> Iterator[str]:
    if energy.not_readable:
        reasons = [
            f"{NAMES.get(each.kind, each.kind)}: {each.reason}" for each in energy.not_readable
        ]
        yield f"Energy that is not readable here: {'; '.join(dict.fromkeys(reasons))}."
    for each in energy.kinds:
        name = NAMES[each.kind]
        if each.covered_fraction < COVERED:
            yield (
                f"{name}: readings cover {units.fraction(each.covered_fraction)} of the run; no "
                "figure includes the rest."
            )
        if not each.resolves_waits:
            yield (
                f"{name}: waits are shorter than the time between readings, so each gets its share "
                "of the energy between two."
            )
        if each.n_resets:
            yield f"{name}: a counter was reset during the run; some of its count is missing."
    if energy.kinds:
        n_hosts = len(energy.hosts)
        where = energy.hosts[0] if n_hosts == 1 else f"{units.count(n_hosts)} machines"
        yield (
            f"Counters are for whole GPUs and processors of {where}: they include other jobs, and "
            "idle power is not subtracted."
        )
    if energy.n_sharing > 1:
        yield "Training processes of one machine are given equal parts of its energy."


FINDING: Final = Finding("energy", 500, energy_of, energy_section, together=energy_sum)
"""Energy, as the entry point names it."""
