"""What a replay says of a run, in words and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.report import units

if TYPE_CHECKING:
    from iobench.analysis import Diagnosis
    from iobench.analysis.replay import ReplayJudgement

__all__ = ["replay_sentence", "replay_to_json"]

WORTH_FRACTION: Final = 0.01
"""Less than this share of a run is nothing to gain."""


def replay_sentence(diagnosis: Diagnosis) -> str:
    """Return what faster stages would gain, and how far the replay is off; empty without batches.

    Where the replay misses the measured run by more than 10 %, or nobody knows by how much, it says
    so and promises nothing.
    """
    found = diagnosis.replay
    if found is None:
        return ""
    if found.payoffs is None:
        return f"Replay error unknown ({found.reason}), so no gain is foretold."
    error = units.signed_fraction(found.error_fraction)
    if not found.is_told:
        return f"Replay error {error}, more than 10 % off, so no gain is foretold."
    return f"{_gain(found, diagnosis)} (replay error {error}{_extent(found)})."


def _gain(found: ReplayJudgement, diagnosis: Diagnosis) -> str:
    best, payoffs = found.best, found.payoffs
    if payoffs is None or best is None or found.fraction(payoffs.joint_ns) < WORTH_FRACTION:
        share = units.fraction(found.fraction(payoffs.joint_ns if payoffs else 0))
        return f"Nothing to gain from faster stages: halving all of them would save {share}"
    saved = units.fraction(found.fraction(best.saved_ns))
    if payoffs.no_single_stage_helps:
        joint = units.fraction(found.fraction(payoffs.joint_ns))
        return (
            f"No single stage will help: halving {best.stage} alone would save {saved} of the run, "
            f"halving all stages {joint}"
        )
    text = f"Halving {best.stage} would save {saved} of the run"
    top = diagnosis.top_stage
    other = next((each for each in payoffs.stages if each.stage == top), None)
    if other is not None and other.stage != best.stage:
        text += (
            f", though most of the wait falls on {other.stage}: halving that would save "
            f"{units.fraction(found.fraction(other.saved_ns))}"
        )
    return text


def _extent(found: ReplayJudgement) -> str:
    """Say what was replayed, where that is not all of the run."""
    text = ""
    if found.n_loaders > 1:
        text += f"; of the loader with most batches of {units.count(found.n_loaders)}"
    if found.is_part:
        text += f"; over the first {units.count(found.n_batches)} batches"
    return text


def replay_to_json(found: ReplayJudgement | None) -> dict[str, Any] | None:
    """Return a replay as plain values; see `iobench.report.to_json`."""
    if found is None:
        return None
    payoffs = found.payoffs
    return {
        "error_fraction": found.error_fraction,
        "reason": found.reason or None,
        "withheld": not found.is_told,
        "batches": found.n_batches,
        "is_part": found.is_part,
        "wall_s": units.seconds(found.wall_ns),
        "factor": None if payoffs is None else payoffs.factor,
        "joint_fraction": found.fraction(payoffs.joint_ns) if payoffs and found.is_told else None,
        "no_single_stage_helps": payoffs.no_single_stage_helps
        if payoffs and found.is_told
        else None,
        "stages": [
            {
                "stage": each.stage,
                "saved_fraction": found.fraction(each.saved_ns),
                "shapley_fraction": found.fraction(each.shapley_ns),
            }
            for each in (payoffs.stages if payoffs and found.is_told else ())
        ],
    }
