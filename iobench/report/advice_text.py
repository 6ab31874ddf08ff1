"""Advice in words: what would help, by how much, at what price, and what was ruled out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from iobench.analysis.advice.gains import UNSEEN_WORKERS_ERROR
from iobench.analysis.advice.levers import AdviceOutcome, Evidence, Lever
from iobench.analysis.replay.payoffs import UNSEEN_ERROR
from iobench.report import units
from iobench.report.advice_commands import commands_of, title_of
from iobench.report.advice_sentences import (
    bill_line,
    is_trusted,
    outcome_sentence,
    reason_text,
    seconds_text,
    signed_fraction,
)
from iobench.report.sentences import OVER, kept_words
from iobench.report.wrapping import fitted

if TYPE_CHECKING:
    from iobench.analysis.advice.break_even import BreakEven
    from iobench.analysis.advice.figures import Advice, AdvisedChange, Cost
    from iobench.analysis.intervals import RoundRatio
    from iobench.report.advice_input import AdviceInput

__all__ = ["WIDTH", "advice_lines", "trial_lines"]

WIDTH: Final = 100
"""Of a line where there is no terminal."""
EVIDENCE: Final = {
    Evidence.MEASURED: "measured in turns with it",
    Evidence.REPLAYED: "by replay",
    Evidence.BOUND: "at most; what it does save has to be measured",
}
FEW: Final = "under 6 rounds have no interval of 95 %; --rounds 6 has one"


def advice_lines(advice: Advice, given: AdviceInput, *, width: int = WIDTH) -> list[str]:
    """Return what is advised, line by line.

    Parameters
    ----------
    advice : Advice
    given : AdviceInput
        What it was made from.
    width : int
        Characters of a line.
    """
    lines = list(_wrapped(_opening(advice, given)))
    lines += _wrapped(outcome_sentence(advice))
    for more in (_replay_line(advice), _payoff_line(advice)):
        lines += _wrapped(more)
    if advice.changes:
        lines += ["", *_wrapped(f"What would help, best first{_per(advice)}")]
        lines += _changes(advice.changes, given, advice)
    if advice.to_measure:
        lines += ["", *_wrapped(f"What may help, and has to be measured{_assumed(advice)}")]
        lines += _changes(advice.to_measure, given, advice, first=len(advice.changes))
    if advice.ruled_out:
        lines += ["", "Not proposed"]
        for ruled_out in advice.ruled_out:
            what = title_of(ruled_out.candidate)
            lines += _wrapped(f"{what}: {reason_text(ruled_out)}", indent=2)
    bill = bill_line(advice)
    if bill:
        lines += ["", *_wrapped(bill)]
    return list(fitted(lines, width))


def _wrapped(text: str, *, indent: int = 0) -> Iterator[str]:
    """Yield the line, which `fitted` breaks once its width is known."""
    if text:
        yield " " * indent + text


def _opening(advice: Advice, given: AdviceInput) -> str:
    way, facts = advice.baseline, given.facts
    what = facts.dataset or "a script"
    by = f" through {way.framework}" if way.framework not in way.label else ""
    number = way.run.workers
    maker = "thread" if facts.threads and not facts.is_script else "worker"
    makers = f"{units.count(number)} {maker}{'s' * (number != 1)}"
    loaders = f", of {advice.n_loaders} loaders the one waited for most" * (advice.n_loaders > 1)
    when = OVER[way.part]
    if given.n_folded:
        when = f"in {kept_words(way.whole.n_batches, given.n_folded)}, {when}"
    stand_in = ", a stand-in" if facts.stand_in else ""
    return (
        f"{what}{stand_in}: {way.label}{by}, {makers}{loaders}. "
        f"It waits {units.fraction(advice.wait_fraction)} of its time {when}; a sample takes "
        f"{units.duration(way.sample_ns)}."
    )


def _replay_line(advice: Advice) -> str:
    if advice.error_fraction is None or not is_trusted(advice):
        return ""
    return (
        "A replay of the unmodified run misses its time by "
        f"{signed_fraction(advice.error_fraction)}, which tells whether it is understood, not how "
        "far a prediction may miss: that is beside each. For what no span tells, it takes "
        f"{units.fraction(UNSEEN_ERROR)} of the time, {units.fraction(UNSEEN_WORKERS_ERROR)} for "
        "another number of workers: goals of iobench's benchmarks, not measured here."
    )


def _payoff_line(advice: Advice) -> str:
    payoffs = advice.payoffs
    if payoffs is None or payoffs.joint_ns <= 0 or advice.outcome is AdviceOutcome.NOTHING_TO_GAIN:
        return ""
    told = [*payoffs.stages[:4], *([payoffs.together] if payoffs.together else [])]
    parts = [
        f"{each.stage} {units.fraction(max(0.0, payoffs.fraction(each.saved_ns)))}" for each in told
    ]
    return (
        f"Were a stage {units.fraction(1 - payoffs.factor)} shorter, the time would be shorter by: "
        f"{', '.join(parts)}; were all, {units.fraction(payoffs.fraction(payoffs.joint_ns))}."
    )


def _assumed(advice: Advice) -> str:
    """Say what bounds take for granted of the training itself."""
    if all(each.gain.evidence is not Evidence.BOUND for each in advice.to_measure):
        return ""
    return " (at most: with every step of the training as short as the shortest tenth are now)"


def _per(advice: Advice) -> str:
    if advice.epoch_s is None:
        return ""
    return (
        f" (an epoch over all samples takes {seconds_text(advice.epoch_s)} now)"
        if advice.epoch_s
        else ""
    )


def _changes(
    changes: Sequence[AdvisedChange], given: AdviceInput, advice: Advice, *, first: int = 0
) -> Iterator[str]:
    for number, change in enumerate(changes, start=first + 1):
        yield f"{number:3}. {title_of(change.candidate)}"
        yield from _wrapped(_gain_text(change), indent=5)
        yield from _wrapped(_cost_text(change), indent=5)
        for line in commands_of(change.candidate, given.facts, advice.baseline):
            yield f"       {line}"


def _gain_text(change: AdvisedChange) -> str:
    gain = change.gain
    epoch = "" if change.saved_s is None else f", {seconds_text(change.saved_s)} of an epoch"
    if gain.saved is None:
        return f"saves {units.fraction(gain.high)}{epoch} {EVIDENCE[gain.evidence]}"
    between = ""
    if gain.low is not None and gain.high is not None:
        another = " in another run" if gain.evidence is Evidence.REPLAYED else ""
        between = f" ({signed_fraction(gain.low)} to {signed_fraction(gain.high)}{another})"
    unproven = "" if gain.is_proven else "; too few batches to tell it from noise"
    return (
        f"saves {units.fraction(gain.saved)} of the time{between}{epoch}; "
        f"{EVIDENCE[gain.evidence]}{unproven}"
    )


def _cost_text(change: AdvisedChange) -> str:
    parts = [*_cost_parts(change.cost)]
    text = f"costs {', '.join(parts)}" if parts else "costs nothing"
    if change.cost.starts:
        kept = Lever.KEEP_WORKERS in change.candidate.levers
        again = "once, as they are kept" if kept else "each epoch, if they are not kept"
        text += f", beside the start of the workers, which no run told: {again}"
    if change.break_even is not None:
        text += f"; {_pays(change.break_even, bound=not change.gain.is_proven)}"
    return text


def _cost_parts(cost: Cost) -> Iterator[str]:
    if cost.convert_s is None:
        yield "a conversion of unknown length"
    elif cost.convert_s:
        least = "at least " if cost.at_least else ""
        yield f"{least}{seconds_text(cost.convert_s)} to convert"
    if cost.disk_nbytes is None:
        yield "unknown room on disk"
    elif cost.disk_nbytes:
        yield f"{units.nbytes(cost.disk_nbytes)} on disk"
    if cost.memory_nbytes is None:
        yield "unknown memory"
    elif cost.memory_nbytes:
        yield f"{units.nbytes(cost.memory_nbytes)} of memory"


def _pays(break_even: BreakEven, *, bound: bool) -> str:
    epochs = break_even.epochs
    if epochs is None:
        return "when it has paid for itself is unknown"
    if math.isinf(epochs):
        return "it never pays for itself"
    least = "no earlier than" if bound or break_even.at_least else "after"
    text = f"paid for {least} {units.epochs(epochs)} epochs"
    staged = break_even.staged
    if staged is not None and not bound:
        text += f" (T_staging / T_epoch {units.ratio(staged.ratio)})"
    return text


def trial_lines(
    tried: Sequence[tuple[AdvisedChange, RoundRatio]], *, width: int = WIDTH
) -> list[str]:
    """Return what was predicted against what was obtained, a line or two for each change."""
    if not tried:
        return []
    band = tried[0][1]
    between = _saved_between(band.band_low, band.band_high)
    noise = f"saved {between}: that is noise" if between else f"is no measure of noise: {FEW}"
    lines = [
        *_wrapped(
            f"Tried, in {units.count(band.n_rounds)} rounds of turns: the time of a sample saved, "
            f"predicted and obtained. The baseline again, unchanged, {noise}."
        )
    ]
    for change, ratio in tried:
        gain = change.gain
        predicted = f"at most {units.fraction(gain.high)}"
        if gain.saved is not None:
            between = "by too few batches to tell how surely"
            if gain.low is not None and gain.high is not None:
                between = f"{signed_fraction(gain.low)} to {signed_fraction(gain.high)}"
            predicted = f"{signed_fraction(gain.saved)} ({between})"
        between = _saved_between(ratio.low, ratio.high)
        told = f" ({between})" if between else ", without an interval"
        noise = "" if not between or ratio.faster or ratio.slower else "; not to be told from noise"
        lines.append(f"  {title_of(change.candidate)}")
        lines += _wrapped(
            f"predicted {predicted}; obtained {signed_fraction(1 - ratio.ratio)}{told}{noise}",
            indent=5,
        )
    return list(fitted(lines, width))


def _saved_between(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    return f"{signed_fraction(1 - high)} to {signed_fraction(1 - low)}"
