"""What a replay says of a run, in words and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.report import units
from iobench.report.sentences import PARTS

if TYPE_CHECKING:
    from iobench.analysis.diagnosis import Diagnosis
    from iobench.analysis.replay.payoffs import Payoff, Payoffs, ReplayJudgement

__all__ = ["replay_sentence", "replay_to_json"]

WINDOWS: Final = {part: f"the {what}" for part, what in PARTS.items()}


def replay_sentence(diagnosis: Diagnosis) -> str:
    """Return what faster stages would gain, and how far that may miss; empty without batches.

    Where the replay misses the measured run by more than 10 %, or nobody knows by how much, it says
    so and promises nothing.
    """
    found = diagnosis.replay
    if found is None:
        return ""
    if found.payoffs is None:
        return f"Replay error unknown ({found.reason}), so no gain is predicted."
    error = units.signed_fraction(found.error_fraction)
    if not found.is_told:
        return f"Replay error {error}, more than 10 % off, so no gain is predicted."
    gain = _gain(found, found.payoffs, diagnosis)
    return f"{gain}. Replay error of the run as it was{_extent(found)}: {error}."


def _gain(found: ReplayJudgement, payoffs: Payoffs, diagnosis: Diagnosis) -> str:
    of, best, together = f" of {WINDOWS[found.window]}", found.best, payoffs.together
    if best is None or payoffs.nothing_helps:
        share = units.fraction(max(0.0, payoffs.fraction(payoffs.joint_ns)))
        return f"Nothing to gain from faster stages: halving all of them would save {share}{of}"
    if together is not None and payoffs.no_single_stage_helps:
        return (
            f"No single stage will help, the best alone would save {_share(payoffs, best)}{of}; "
            f"halving {together.stage} together would save {_share(payoffs, together)}"
            f"{_miss(together)}"
        )
    text = f"Halving {best.stage} would save {_share(payoffs, best)}{of}{_miss(best)}"
    if together is not None:
        share = _share(payoffs, together)
        text += f"; halving {together.stage} together {share}{_miss(together)}"
    other = next((each for each in payoffs.stages if each.stage == diagnosis.top_stage), None)
    if other is not None and other.stage not in (together or best).stages:
        text += (
            f", though most of the wait falls on {other.stage}: halving that would save "
            f"{_share(payoffs, other)}"
        )
    return text


def _share(payoffs: Payoffs, each: Payoff) -> str:
    return units.fraction(max(0.0, payoffs.fraction(each.saved_ns)))


def _miss(each: Payoff) -> str:
    """Return between what it lies in another run, whose batches vary as this one's do."""
    if each.low is None or each.high is None:
        return " (too few batches to tell how surely)"
    low, high = (units.fraction(max(0.0, value)) for value in (each.low, each.high))
    return f" ({low} to {high} in another run)"


def _extent(found: ReplayJudgement) -> str:
    """Say what was replayed, where that is not all of the run."""
    text = ""
    if found.n_loaders > 1:
        text += f", of {found.loader} alone, one of {units.count(found.n_loaders)} loaders"
    if found.is_part:
        text += f", over the first {units.count(found.n_batches)} batches"
    return text


def replay_to_json(found: ReplayJudgement | None) -> dict[str, Any] | None:
    """Return a replay as plain values; see `to_json`."""
    if found is None:
        return None
    payoffs = found.payoffs
    told = payoffs if found.is_told else None
    return {
        "error_fraction": found.error_fraction,
        "reason": found.reason or None,
        "withheld": told is None,
        "batches": found.n_batches,
        "is_part": found.is_part,
        "window": found.window,
        "wall_s": units.seconds(found.wall_ns),
        "factor": None if payoffs is None else payoffs.factor,
        "joint_fraction": None if told is None else told.fraction(told.joint_ns),
        "no_single_stage_helps": None if told is None else told.no_single_stage_helps,
        "stages": []
        if told is None
        else [{"stage": each.stage, **_saved(told, each)} for each in told.stages],
        "together": None
        if told is None or told.together is None
        else {"stages": list(told.together.stages), **_saved(told, told.together)},
    }


def _saved(payoffs: Payoffs, each: Payoff) -> dict[str, float | None]:
    return {
        "saved_fraction": payoffs.fraction(each.saved_ns),
        "low_fraction": each.low,
        "high_fraction": each.high,
    }
