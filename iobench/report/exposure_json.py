"""The figures of an exposure as plain values; their keys are told in `to_json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.report import rates
from iobench.report.facts import PUBLISHED_FIGURES
from iobench.report.units import seconds

if TYPE_CHECKING:
    from iobench.analysis.figures import (
        DecodedChunkFigures,
        Exposure,
        LongWaits,
        PartExposure,
        StageExposure,
        WaitStatistics,
    )

__all__ = ["long_waits_to_json", "phases_to_json", "window_to_json"]


def window_to_json(window: PartExposure) -> dict[str, Any]:
    """Return the figures of the whole run, or of its steady state."""
    return {
        "batches": window.n_batches,
        "samples": window.n_samples,
        "nbytes": window.nbytes,
        "wall_s": seconds(window.wall_ns),
        "compute_s": seconds(window.compute_ns),
        "wait_s": seconds(window.wait_ns),
        "wait_ns": window.wait_ns,
        "wait_fraction": window.wait_fraction,
        "samples_per_s": rates.samples_per_s(window),
        "bytes_per_s": rates.bytes_per_s(window),
        "accelerator_utilisation": window.accelerator_utilisation,
        "overhead_fraction": window.overhead_fraction,
        "estimated_fraction": window.estimated_fraction,
        "read_nbytes": window.read_nbytes,
        "read_per_byte": rates.read_per_byte(window),
        "decoded": _decoded(window.decoded),
        "cold_fraction": window.cold_fraction,
        "exposed_ns": window.exposed_ns,
        "stages": [_stage(row, window.wait_ns) for row in window.stages],
        "compute_stages": [
            {"stage": row.stage, "busy_s": seconds(row.busy_ns), "n_spans": row.n_spans}
            for row in window.compute_stages
        ],
        "wait_per_step": _wait(window.wait),
    }


def _decoded(decoded: DecodedChunkFigures | None) -> dict[str, Any] | None:
    if decoded is None:
        return None
    return {
        "nbytes": decoded.nbytes,
        "used_nbytes": decoded.used_nbytes,
        "per_used": decoded.per_used,
        "chunks_needed": decoded.n_needed,
        "chunks_decoded": decoded.n_decoded,
    }


def _stage(row: StageExposure, wait_ns: int) -> dict[str, Any]:
    return {
        "stage": row.stage,
        "busy_s": seconds(row.busy_ns),
        "hidden_s": seconds(row.hidden_ns),
        "exposed_s": seconds(row.exposed_ns),
        "nbytes": row.nbytes,
        "n_spans": row.n_spans,
        "cpu_s": _seconds(row.cpu_ns),
        "off_cpu_s": _seconds(rates.off_cpu_ns(row)),
        "busy_bytes_per_s": rates.busy_bytes_per_s(row),
        "wait_fraction": row.exposed_ns / wait_ns if wait_ns else None,
    }


def _wait(wait: WaitStatistics | None) -> dict[str, Any] | None:
    if wait is None:
        return None
    return {
        "n_steps": wait.n_steps,
        **{f"{name}_s": _seconds(getattr(wait, f"{name}_ns")) for name in PUBLISHED_FIGURES},
    }


def phases_to_json(exposure: Exposure) -> dict[str, Any]:
    """Return the stretches of rounds by name."""
    return {
        phase.phase: {
            "wall_s": seconds(phase.wall_ns),
            "wait_s": seconds(phase.wait_ns),
            "wait_fraction": phase.wait_ns / phase.wall_ns if phase.wall_ns else None,
            "n_deliveries": phase.n_deliveries,
        }
        for phase in exposure.phases
    }


def long_waits_to_json(long: LongWaits | None) -> dict[str, Any] | None:
    """Return the few waits that hold much of a run; None where there are none."""
    if long is None:
        return None
    return {
        "n_waits": long.n_waits,
        "n_steps": long.n_steps,
        "wait_s": seconds(long.wait_ns),
        "typical_s": seconds(long.typical_ns),
        "excess_fraction": long.excess_fraction,
        "period_steps": long.period_steps,
        "in_step": long.in_step,
        "coincidences": [
            {"what": what.what, "n_long": what.n_long, "n_steps": what.n_steps}
            for what in long.coincidences
        ],
    }


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else seconds(ns)
