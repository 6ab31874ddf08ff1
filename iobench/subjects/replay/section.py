"""What faster stages would gain, and how far that may miss, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report import units
from iobench.report.document import Section, sentences
from iobench.report.sentences import PARTS
from iobench.subjects.contract import Subject
from iobench.subjects.replay.figures import faster_stages

if TYPE_CHECKING:
    from iobench.subjects.replay.figures import Payoff, Payoffs


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
    of, together = f" of the {PARTS[found.window]}", found.together
    if not found.stages or found.nothing_helps:
        share = units.fraction(max(0.0, found.joint_fraction or 0.0))
        return f"Nothing to gain from faster stages: halving all of them would save {share}{of}"
    best = found.stages[0]
    if together is not None and found.no_single_stage_helps:
        return (
            f"No single stage will help: the best one alone would save {_saved(best)}{of}; halving "
            f"{together.title} together would save {_saved(together)}{_miss(together)}"
        )
    text = f"Halving {best.title} would save {_saved(best)}{of}{_miss(best)}"
    if together is not None:
        text += f"; halving {together.title} together {_saved(together)}{_miss(together)}"
    other = next((each for each in found.stages if each.stage == found.waited_for), None)
    if other is not None and other.stage not in (together or best).stages:
        text += (
            f", though most of the wait falls on {other.title}: halving that would save "
            f"{_saved(other)}"
        )
    return text


def _saved(each: Payoff) -> str:
    return units.fraction(max(0.0, each.saved_fraction))


def _miss(each: Payoff) -> str:
    """Return between what it lies in another run, whose batches vary as this one's do."""
    if each.low is None or each.high is None:
        return " (too few batches for an interval)"
    low, high = (units.fraction(max(0.0, value)) for value in (each.low, each.high))
    return f" ({low} to {high} in another run)"


def _extent(found: Payoffs) -> str:
    """Say what was replayed, where that is not all of the run."""
    text = ""
    if found.n_loaders > 1:
        text += f", only of {found.loader}, one of {units.count(found.n_loaders)} loaders"
    if found.is_part:
        text += f", over the first {units.count(found.n_batches)} batches"
    return text


SUBJECT: Final = Subject("replay", 60, faster_stages, replay_section)
"""What faster stages would gain, as the entry point names it."""
