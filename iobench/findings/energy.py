"""Joules of a run, its epochs and its waits: what counters showed, on straight lines between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.processes import training_process, waits_and_walls
from iobench.findings.contract import Finding
from iobench.recording.machine_head import UnreadableEnergy
from iobench.report import units
from iobench.report.document import Column, Quantity, Section, Table, sentences
from iobench.runs.machine_samples import of_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iobench.analysis.run import RankRun
    from iobench.report.document import Cell
    from iobench.runs.machine_samples import EnergySeries

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
NAMES: Final = {"gpu": "GPUs", "cpu": "CPUs", "memory": "memory", "machine": "whole machine"}
PARTS: Final = ("gpu", "cpu", "memory")
"""What adds up; a counter of the whole machine has them all in it."""
COVERED: Final = 0.999
"""From this share of the run on, nothing is said of the rest."""
COLUMNS: Final = tuple(map(Column, ("", "whole run", "an epoch", "waiting", "of it")))
NOTE: Final = (
    "Counters are for whole GPUs and processors: they include other jobs and idle power. Between "
    "two readings power is taken as constant. Training processes of one machine share it equally."
)


class KindEnergy(msgspec.Struct, frozen=True):
    """All counters of one kind together.

    ``total_j`` is from the first pass's begin to the last one's end, time between passes left out;
    ``wait_j`` that in the waits of the training loop, None where nothing waited; ``epochs_j`` of
    each epoch of which all batches were recorded. ``covered_fraction`` is the share of the run's
    time between the first and the last reading; the rest is in no figure.
    """

    total_j: float
    wait_j: float | None
    epochs_j: Mapping[int, float]
    covered_fraction: float


class EnergyFigures(msgspec.Struct, frozen=True):
    """What a run took, by kind of counter; what cannot be read has a reason, and is never 0."""

    kinds: Mapping[str, KindEnergy]
    not_readable: tuple[UnreadableEnergy, ...]


def energy_of(run: RankRun) -> EnergyFigures | None:
    """Return what a training process took; None where counters were not requested."""
    if not run.energy:
        return None
    process = training_process(run)
    here = of_process(run.energy, process)
    if here is None or process is None:
        nowhere = tuple(UnreadableEnergy(each, "it was not read there") for each in PARTS)
        return EnergyFigures({}, nowhere)
    _, walls = waits_and_walls(run)
    by_kind: dict[str, list[EnergySeries]] = defaultdict(list)
    not_readable = [*here.head.unreadable]
    for series in here.energy:
        if reason := _unreadable(series, walls):
            text = f"{series.source.title}: {reason}"
            not_readable.append(UnreadableEnergy(series.source.kind, text))
        else:
            by_kind[series.source.kind].append(series)
    here_too = ("consumer", process.host)
    ranks = {each.rank for each in run.facts if (each.role, each.host) == here_too}
    ranks |= {each.rank for each in run.processes if (each.role, each.host) == here_too}
    kinds = {each: _kind(run, by_kind[each], max(1, len(ranks))) for each in NAMES if by_kind[each]}
    return EnergyFigures(kinds, tuple(not_readable))


def _unreadable(series: EnergySeries, walls: tuple[Integers, Integers]) -> str | None:
    if series.source.estimated:
        return "readings of power alone"
    if series.n_resets:
        return "reset during the run"
    return None if _covered_ns(series, walls) else "fewer than two readings during the run"


def _kind(run: RankRun, counters: Sequence[EnergySeries], n_sharing: int) -> KindEnergy:
    deliveries = run.deliveries
    (request_ns, delivered_ns), (begin_ns, end_ns) = walls = waits_and_walls(run)
    total_j, wait_j = np.zeros(len(begin_ns)), np.zeros(len(request_ns))
    for each in counters:
        total_j += (joules_at(each, end_ns) - joules_at(each, begin_ns)) / n_sharing
        wait_j += (joules_at(each, delivered_ns) - joules_at(each, request_ns)) / n_sharing
    covered_ns = min(_covered_ns(each, walls[1]) for each in counters)
    return KindEnergy(
        total_j=float(total_j.sum()),
        wait_j=float(wait_j.sum()) if len(deliveries) else None,
        epochs_j={
            int(each): float(total_j[deliveries.of_epoch == each].sum())
            for each in sorted(deliveries.complete_epochs if len(deliveries) else ())
        },
        covered_fraction=covered_ns / int((end_ns - begin_ns).sum()),
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
    by_kind = {name: [each.kinds[name] for each in ranks if name in each.kinds] for name in NAMES}
    return EnergyFigures(
        {name: _kind_sum(of) for name, of in by_kind.items() if of},
        tuple(dict.fromkeys(each for rank in ranks for each in rank.not_readable)),
    )


def _kind_sum(of: Sequence[KindEnergy]) -> KindEnergy:
    epochs = set.intersection(*({*each.epochs_j} for each in of))
    return KindEnergy(
        total_j=sum(each.total_j for each in of),
        wait_j=_sum(each.wait_j for each in of),
        epochs_j={epoch: sum(each.epochs_j[epoch] for each in of) for epoch in sorted(epochs)},
        covered_fraction=min(each.covered_fraction for each in of),
    )


def energy_j(run: Iterable[RankRun]) -> float | None:
    """Return what GPUs, processors and memory took, else machines; None where nothing was read."""
    ranks = [energy for each in run if (energy := each.cached(energy_of)) is not None]
    kinds = energy_sum(ranks).kinds
    return _sum(each.total_j for each in _parts(kinds) or kinds.values())


def _parts(kinds: Mapping[str, KindEnergy]) -> list[KindEnergy]:
    return [kinds[each] for each in PARTS if each in kinds]


def _sum(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def energy_section(energy: EnergyFigures) -> Section:
    """Return the energy of a run by kind of counter, or why it is unknown."""
    if not energy.kinds:
        return Section("energy", "Energy", sentences(_texts(energy)))
    parts = _parts(energy.kinds)
    rows = tuple(_cells(NAMES[name], [each]) for name, each in energy.kinds.items())
    total = _cells("together", parts) if len(parts) > 1 else ()
    table = Table("", COLUMNS, rows, total, note=NOTE)
    return Section("energy", "Energy", (table, *sentences(_texts(energy))))


def _cells(name: str, kinds: Sequence[KindEnergy]) -> tuple[Cell, ...]:
    total_j = sum(each.total_j for each in kinds)
    wait_j = _sum(each.wait_j for each in kinds)
    epoch_j = (sum(of.values()) / len(of) if (of := each.epochs_j) else None for each in kinds)
    return (
        name,
        Quantity(total_j, "J"),
        Quantity(_sum(epoch_j), "J"),
        Quantity(wait_j, "J"),
        Quantity(wait_j / total_j if wait_j is not None and total_j else None, "share"),
    )


def _texts(energy: EnergyFigures) -> Iterator[str]:
    if energy.not_readable:
        reasons = [f"{NAMES.get(of.kind, of.kind)}: {of.reason}" for of in energy.not_readable]
        yield f"Energy that is not readable here: {'; '.join(dict.fromkeys(reasons))}."
    for name, each in energy.kinds.items():
        if each.covered_fraction < COVERED:
            yield (
                f"{NAMES[name]}: readings cover {units.fraction(each.covered_fraction)} of the "
                "run; no figure includes the rest."
            )


FINDING: Final = Finding(
    "energy", 500, EnergyFigures, energy_of, energy_section, together=energy_sum
)
