"""What a run took in joules, for machines; the keys are told in `iobench.report.json_report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.report import units
from iobench.report.energy_lines import epoch_uj, sample_uj

if TYPE_CHECKING:
    from iobench.analysis.energy_figures import (
        CountedEnergy,
        EnergyFigures,
        EpochEnergy,
        KindEnergy,
    )

__all__ = ["energy_to_json"]


def energy_to_json(figures: EnergyFigures | None) -> dict[str, Any] | None:
    """Return the energy of a run; null where nobody looked."""
    if figures is None:
        return None
    return {
        "readable": bool(figures.kinds),
        "kinds": {each.kind: _kind(figures, each) for each in figures.kinds},
        "epochs": [_epoch(each) for each in figures.epochs],
        "sources": [_source(each) for each in figures.sources],
        "not_readable": [
            {"host": each.host, "kind": each.kind, "reason": each.reason} for each in figures.untold
        ],
        "sharing_ranks": figures.n_sharing,
        "period_s": units.seconds(figures.period_ns),
        "reading_cpu_s": None if figures.reading_ns is None else units.seconds(figures.reading_ns),
        "damaged_readings": figures.n_damaged,
    }


def _kind(figures: EnergyFigures, each: KindEnergy) -> dict[str, Any]:
    total, wait = each.total_uj, each.wait_uj
    return {
        "total_uj": total,
        "wait_uj": wait,
        "compute_uj": each.compute_uj,
        "total_j": _joules(total),
        "total_wh": _watt_hours(total),
        "wait_j": _joules(wait),
        "wait_wh": _watt_hours(wait),
        "compute_j": _joules(each.compute_uj),
        "wait_fraction": wait / total if wait is not None and total else None,
        "j_per_epoch": _joules(epoch_uj(figures, (each.kind,))),
        "j_per_sample": _joules(sample_uj(figures, total)),
        "total_between_j": [_joules(value) for value in each.total_bounds_uj],
        "wait_between_j": None
        if wait is None
        else [_joules(value) for value in each.wait_bounds_uj],
        "exposed_uj": dict(each.stages),
        "covered_fraction": each.covered_fraction,
        "estimated": each.estimated,
        "resolution_s": units.seconds(each.resolution_ns),
    }


def _epoch(each: EpochEnergy) -> dict[str, Any]:
    return {
        "epoch": each.epoch,
        "complete": each.complete,
        "batches": each.n_batches,
        "kinds": {
            kind: {"total_j": _joules(total), "wait_j": _joules(wait)}
            for kind, total, wait in each.kinds
        },
    }


def _source(each: CountedEnergy) -> dict[str, Any]:
    return {
        "name": each.source.name,
        "kind": each.source.kind,
        "title": each.source.title,
        "by": each.source.by,
        "host": each.host,
        "estimated": each.source.estimated,
        "total_j": _joules(each.total_uj),
        "wait_j": _joules(each.wait_uj),
        "covered_s": units.seconds(each.covered_ns),
        "readings": each.n_readings,
        "resets": each.n_resets,
        "failed_readings": each.n_failed,
        "resolution_s": units.seconds(each.resolution_ns),
    }


def _joules(uj: float | None) -> float | None:
    return None if uj is None else uj / 1_000_000


def _watt_hours(uj: float | None) -> float | None:
    return None if uj is None else uj / 3_600_000_000
