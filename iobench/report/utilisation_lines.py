"""Accelerator utilisation as MLPerf Storage has it, and digests of samples: words and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.analysis.utilisation import DLIO_VERSION, MLPERF_THRESHOLDS
from iobench.report import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.figures import PartExposure
    from iobench.analysis.samples_seen import SamplesSeen
    from iobench.analysis.utilisation import Utilisation

__all__ = [
    "digest_lines",
    "digest_ns",
    "digest_text",
    "digests_to_json",
    "utilisation_lines",
    "utilisation_to_json",
]

N_LABELS: Final = 4
"""Stages that are named; the rest is one."""
N_EPOCHS: Final = 3
"""Epochs whose digest is printed."""
STAGES: Final = {"verify:digest", "other:digest"}
"""Where digests are made: in loading processes, or by the loop while the accelerator computes."""


def utilisation_lines(found: Utilisation | None) -> list[str]:
    """Return the utilisation, what is missing to all of it, and what MLPerf Storage asks for."""
    if found is None or found.fraction is None:
        return []
    formula = f"Accelerator utilisation by MLPerf Storage's formula (DLIO {DLIO_VERSION})"
    if not found.n_counted:
        return [f"{formula}: unknown, as it leaves out the first step and there was no other."]
    over = f", mean of {found.n_ranks} ranks" if found.n_ranks > 1 else ""
    over += f", mean of {len(found.epochs)} epochs" if len(found.epochs) > 1 else ""
    missing = _missing(found.labels)
    rest = f"; the other {units.fraction(1 - found.fraction)}: {missing}" if missing else ""
    return [f"{formula}{over}: {units.fraction(found.fraction)}{rest}.", _thresholds()]


def _missing(labels: Sequence[tuple[str, float]]) -> str:
    shown = [f"{stage} {units.fraction(share)}" for stage, share in labels[:N_LABELS]]
    left = sum(share for _, share in labels[N_LABELS:])
    if left:
        shown.append(f"all else {units.fraction(left)}")
    return ", ".join(shown)


def _thresholds() -> str:
    by_value: dict[float, list[str]] = {}
    for workload, value in MLPERF_THRESHOLDS.items():
        by_value.setdefault(value, []).append(workload)
    told = [f"{units.fraction(value)} of {' and '.join(n)}" for value, n in by_value.items()]
    return f"For comparison, MLPerf Storage asks for {', '.join(told)}."


def digest_ns(window: PartExposure) -> int:
    """Return the time that digests took, over all processes."""
    loading = sum(row.busy_ns for row in window.stages if row.stage in STAGES)
    return loading + sum(row.busy_ns for row in window.compute_stages if row.stage in STAGES)


def digest_text(digest: int | None) -> str:
    """Return a digest as it is compared by eye: 32 hexadecimal digits."""
    return units.UNKNOWN if digest is None else f"{digest:032x}"


def digest_lines(seen: SamplesSeen | None, window: PartExposure) -> list[str]:
    """Return of how many samples there are digests, what they cost, and those of epochs."""
    if seen is None or not seen.recorded:
        return []
    spent_ns = digest_ns(window)
    share = spent_ns / window.wall_ns if window.wall_ns else None
    lines = [
        f"Digests of {units.count(seen.n_samples)} samples (XXH3, 128 bits): "
        f"{units.duration(spent_ns)} of all processes, {units.fraction(share)} of the run's time."
    ]
    if seen.n_unknown_batches:
        lines.append(
            f"{units.count(seen.n_unknown_batches)} batches have samples without a digest: lost, "
            "or of objects whose value cannot be told."
        )
    if seen.n_damaged:
        lines.append(f"{units.count(seen.n_damaged)} digests cannot be read.")
    for epoch in seen.epochs[:N_EPOCHS]:
        loader = f" of loader {epoch.loader}" if epoch.loader >= 0 else ""
        part = "" if epoch.is_complete else " (a part of it)"
        lines.append(
            f"Epoch {epoch.epoch}{loader}, {units.count(len(epoch))} samples{part}, in any order: "
            f"{digest_text(epoch.digest)}"
        )
    if len(seen.epochs) > N_EPOCHS:
        lines.append(f"{units.count(len(seen.epochs) - N_EPOCHS)} epochs more: --json.")
    return lines


def utilisation_to_json(found: Utilisation | None) -> dict[str, Any] | None:
    """Return what JSON has of it; null where no step was taken."""
    if found is None or found.fraction is None:
        return None
    return {
        "formula": f"DLIO {DLIO_VERSION}",
        "fraction": found.fraction if found.n_counted else None,
        "stdev_fraction": found.stdev if found.n_counted else None,
        "missing": dict(found.labels) if found.n_counted else None,
        "epochs": [{"epoch": epoch, "fraction": fraction} for epoch, fraction in found.epochs],
        "stretches": [
            {
                "epoch": stretch.epoch,
                "n_steps": stretch.n_steps,
                "total_ns": stretch.total_ns,
                "compute_ns": stretch.compute_ns,
                "missing_ns": dict(stretch.labels),
            }
            for stretch in found.stretches
        ],
        "n_counted": found.n_counted,
        "n_ranks": found.n_ranks,
        "mlperf_storage_thresholds": dict(MLPERF_THRESHOLDS),
    }


def digests_to_json(seen: SamplesSeen | None) -> dict[str, Any] | None:
    """Return what JSON has of digests; null where none were kept."""
    if seen is None or not seen.recorded:
        return None
    return {
        "hash": "xxh3_128",
        "n_samples": seen.n_samples,
        "n_unknown_batches": seen.n_unknown_batches,
        "n_damaged": seen.n_damaged,
        "epochs": [
            {
                "loader": None if epoch.loader < 0 else epoch.loader,
                "epoch": epoch.epoch,
                "n_samples": len(epoch),
                "is_complete": epoch.is_complete,
                "digest": None if epoch.digest is None else digest_text(epoch.digest),
            }
            for epoch in seen.epochs
        ],
    }
