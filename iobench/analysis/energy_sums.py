"""Energy of several training processes together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from iobench.analysis.energy_figures import (
    ENERGY_KINDS,
    CountedEnergy,
    EnergyFigures,
    EpochEnergy,
    KindEnergy,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["add_bounds", "energy_sum"]


def add_bounds(bounds: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the sums of lower and of upper bounds."""
    low = high = 0
    for each in bounds:
        low, high = low + each[0], high + each[1]
    return low, high


def energy_sum(parts: Iterable[EnergyFigures | None]) -> EnergyFigures | None:
    """Return what several training processes of a job took together; None where nobody looked.

    Each machine's counters are in it once: its processes have equal parts of them.
    """
    found = [each for each in parts if each is not None]
    if not found:
        return None
    samples = [each.n_samples for each in found if each.n_samples is not None]
    sources: dict[tuple[str, str], CountedEnergy] = {}
    for counted in (counted for part in found for counted in part.sources):
        key = counted.host, counted.source.name
        sources[key] = counted if key not in sources else _added(sources[key], counted)
    costs = [each.reading_ns for each in found if each.reading_ns is not None]
    return EnergyFigures(
        kinds=tuple(
            _kinds_together([known for part in found if (known := part.of(kind)) is not None])
            for kind in ENERGY_KINDS
            if any(part.of(kind) is not None for part in found)
        ),
        sources=tuple(sources.values()),
        epochs=_epochs_together(found),
        untold=tuple(dict.fromkeys(each for part in found for each in part.untold)),
        # Where machines have other counters, a sum is of fewer samples than were delivered.
        n_samples=sum(samples) if len(samples) == len(found) and _alike(found) else None,
        n_sharing=max(each.n_sharing for each in found),
        period_ns=max(each.period_ns for each in found),
        reading_ns=max(costs, default=None),
        n_damaged=max(each.n_damaged for each in found),
    )


def _alike(parts: Sequence[EnergyFigures]) -> bool:
    return len({tuple(each.kind for each in part.kinds) for part in parts}) == 1


def _added(one: CountedEnergy, other: CountedEnergy) -> CountedEnergy:
    return replace(
        one,
        total_uj=one.total_uj + other.total_uj,
        wait_uj=_plus(one.wait_uj, other.wait_uj),
        total_bounds_uj=add_bounds([one.total_bounds_uj, other.total_bounds_uj]),
        wait_bounds_uj=add_bounds([one.wait_bounds_uj, other.wait_bounds_uj]),
        covered_ns=one.covered_ns + other.covered_ns,
        wall_ns=one.wall_ns + other.wall_ns,
    )


def _plus(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one + other


def _kinds_together(parts: Sequence[KindEnergy]) -> KindEnergy:
    stages: dict[str, int] = {}
    for stage, energy in (each for part in parts for each in part.stages):
        stages[stage] = stages.get(stage, 0) + energy
    wait: int | None = None
    for part in parts:
        wait = _plus(wait, part.wait_uj)
    return KindEnergy(
        kind=parts[0].kind,
        total_uj=sum(part.total_uj for part in parts),
        wait_uj=wait,
        total_bounds_uj=add_bounds(part.total_bounds_uj for part in parts),
        wait_bounds_uj=add_bounds(part.wait_bounds_uj for part in parts),
        stages=tuple(sorted(stages.items(), key=lambda each: (-each[1], each[0]))),
        covered_fraction=min(part.covered_fraction for part in parts),
        estimated=any(part.estimated for part in parts),
        resolution_ns=max(part.resolution_ns for part in parts),
    )


def _epochs_together(parts: Sequence[EnergyFigures]) -> tuple[EpochEnergy, ...]:
    by_number: dict[int, list[EpochEnergy]] = {}
    for each in (each for part in parts for each in part.epochs):
        by_number.setdefault(each.epoch, []).append(each)
    found = []
    for number, epochs in sorted(by_number.items()):
        kinds: dict[str, tuple[int, int]] = {}
        for kind, total, wait in (each for epoch in epochs for each in epoch.kinds):
            before = kinds.get(kind, (0, 0))
            kinds[kind] = before[0] + total, before[1] + wait
        found.append(
            EpochEnergy(
                number,
                all(epoch.complete for epoch in epochs),
                sum(epoch.n_batches for epoch in epochs),
                tuple((kind, *energy) for kind, energy in kinds.items()),
            )
        )
    return tuple(found)
