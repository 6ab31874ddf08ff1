"""What faster stages would gain, and how far that may miss, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.findings.contract import Finding
from iobench.findings.replay.figures import faster_stages
from iobench.report import units
from iobench.report.document import Section, sentences
from iobench.report.sentences import PARTS

if TYPE_CHECKING:
    from iobench.findings.replay.figures import Payoff, Payoffs

NEARLY_ALL: Final = 0.9
"""Of what all stages gain: where one gains as much, the others are not worth a word."""


def replay_section(found: Payoffs) -> Section:
    """Return what faster stages would gain, beside the error of the replay that says so."""
    told = sentences([replay_sentence(found)])
    return Section("replay", "What faster stages would gain", told)


def replay_sentence(found: Payoffs) -> str:
    """Return what faster stages would gain, and how far that may miss.

    Where the replay misses the measured run by more than 10 %, or by how much is unknown, it says
    so and promises nothing.
    """
    if found.error_fraction is None:
        return f"Replay error unknown ({found.reason}), so no gain is predicted."
    error = units.signed_fraction(found.error_fraction)
    if found.withheld:
        return f"Replay error {error}, more than 10 % off, so no gain is predicted."
    return f"{_gain(found)}. Replay error on the unmodified run{_extent(found)}: {error}."


def _gain(found: Payoffs) -> str:
    of = f" of the {PARTS[found.window]}"
    joint = units.fraction(max(0.0, found.joint_fraction or 0.0))
    if not found.stages or found.nothing_helps:
        return f"Nothing to gain from faster stages: halving all of them would save {joint}{of}"
    best, all_of_them = found.stages[0], f"{joint}{_miss(found.joint_low, found.joint_high)}"
    if found.no_single_stage_helps:
        return (
            f"No single stage will help: the best one alone would save {_saved(best)}{of}; halving "
            f"all of them would save {all_of_them}"
        )
    text = f"Halving {best.title} would save {_saved(best)}{of}{_miss(best.low, best.high)}"
    if best.saved_ns < NEARLY_ALL * (found.joint_ns or 0):
        text += f"; halving all stages {all_of_them}"
    other = next((each for each in found.stages if each.stage == found.waited_for), None)
    if other is not None and other is not best:
        text += (
            f", though most of the wait falls on {other.title}: halving that would save "
            f"{_saved(other)}"
        )
    return text


def _saved(each: Payoff) -> str:
    return units.fraction(max(0.0, each.saved_fraction))


def _miss(low: float | None, high: float | None) -> str:
    """Return between what a saving lies in another run, whose batches vary as this one's do."""
    if low is None or high is None:
        return " (too few batches for an interval)"
    least, most = (units.fraction(max(0.0, value)) for value in (low, high))
    return f" ({least} to {most} in another run)"


def _extent(found: Payoffs) -> str:
    """Say what was replayed, where that is not all of the run."""
    text = ""
    if found.n_loaders > 1:
        text += f", only of {found.loader}, one of {units.count(found.n_loaders)} loaders"
    if found.is_part:
        text += f", over the first {units.count(found.n_batches)} batches"
    return text


FINDING: Final = Finding("replay", 60, faster_stages, replay_section)
"""What faster stages would gain, as the entry point names it."""
