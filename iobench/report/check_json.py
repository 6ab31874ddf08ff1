"""What a gate found, as plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from iobench.analysis.gates import CountsGate, GrowthGate, PairedGate, ShareGate, worst_outcome
from iobench.report.check_text import WORDS

if TYPE_CHECKING:
    from iobench.analysis.count_differences import CountDifference
    from iobench.analysis.exposed_share import ExposedShare
    from iobench.report.check_text import Gate

__all__ = ["check_to_json"]


def check_to_json(gates: Sequence[Gate]) -> dict[str, Any]:
    """Return the outcome, and each gate with all its figures."""
    outcome = worst_outcome([gate.judged[0] for gate in gates])
    return {
        "outcome": WORDS[outcome],
        "exit_code": int(outcome),
        "gates": [_gate(gate) for gate in gates],
    }


def _gate(gate: Gate) -> dict[str, Any]:
    outcome, doubt = gate.judged
    told: dict[str, Any] = {"outcome": WORDS[outcome], "doubt": doubt and doubt.value}
    match gate:
        case CountsGate():
            return {"gate": "counts", "run": gate.run, **told, **_counts(gate)}
        case PairedGate():
            return {
                "gate": "commands",
                **told,
                "command": list(gate.command),
                "reference": list(gate.reference),
                "by_cpu": gate.by_cpu,
                "margin_fraction": gate.margin,
                "noise_fraction": gate.noise,
                "command_s": gate.command_s,
                "reference_s": gate.reference_s,
                "planned_rounds": gate.planned,
                "rounds_to_decide": gate.enough,
                **asdict(gate.paired),
            }
        case ShareGate():
            limit = {"limit_fraction": gate.limit}
            return {"gate": "exposed", "run": gate.run, **told, **limit, **_share(gate.found)}
        case GrowthGate():
            growth = gate.growth or (None, None, None)
            return {
                "gate": "growth",
                "run": gate.run,
                **told,
                "margin_fraction": gate.margin,
                "growth_fraction": growth[0],
                "low_fraction": growth[1],
                "high_fraction": growth[2],
                "found": _share(gate.found),
                "stored": _share(gate.stored),
            }


def _counts(gate: CountsGate) -> dict[str, Any]:
    comparison = gate.comparison
    return {
        "n_equal": comparison.n_equal,
        "differences": [_difference(each) for each in comparison.differences],
        "improvements": [_difference(each) for each in comparison.improvements],
        "unknown": dict(comparison.unknown),
        "not_expected": list(comparison.not_expected),
    }


def _difference(difference: CountDifference) -> dict[str, Any]:
    return {
        "name": difference.name,
        "how": difference.how,
        "expected": _plain(difference.expected),
        "found": _plain(difference.found),
    }


def _plain(value: int | str | Fraction | None) -> int | str | float | None:
    return float(value) if isinstance(value, Fraction) else value


def _share(found: ExposedShare) -> dict[str, Any]:
    return {
        "window": found.window,
        "exposed_fraction": found.share,
        "low_fraction": found.low,
        "high_fraction": found.high,
        "wall_ns": found.wall_ns,
        "wait_ns": found.wait_ns,
        "unknown_ns": found.unknown_ns,
        "n_steps": found.n_steps,
        "n_samples": found.n_samples,
        "lost_spans": found.lost_spans,
        "folded_batches": found.n_folded,
    }
