"""Advice in words: what would help, by how much, at what price, and what was ruled out."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from iobench.analysis.advice import (
    WITHHELD_ABOVE,
    Advice,
    AdvisedChange,
    BreakEven,
    Cost,
    Evidence,
    Outcome,
    Reason,
    RuledOut,
)
from iobench.report import units
from iobench.report.advice_commands import commands_of, title_of

if TYPE_CHECKING:
    from iobench.analysis.paired import PairedRatio
    from iobench.report.advice_input import AdviceInput

__all__ = ["advice_lines", "bill_line", "outcome_sentence", "reason_text", "trial_lines"]

WIDTH: Final = 100
EVIDENCE: Final = {
    Evidence.MEASURED: "measured in turns with it",
    Evidence.REPLAYED: "by replay",
    Evidence.BOUND: "at most; what it does save has to be measured",
}


def advice_lines(advice: Advice, given: AdviceInput) -> list[str]:
    """Return what is advised, line by line.

    Parameters
    ----------
    advice : Advice
    given : AdviceInput
        What it was made from.
    """
    lines = list(_wrapped(_opening(advice, given)))
    lines += _wrapped(outcome_sentence(advice))
    for more in (_replay_line(advice), _payoff_line(advice)):
        lines += _wrapped(more)
    if advice.changes:
        lines += ["", *_wrapped(f"What would help, best first{_per(advice)}")]
        lines += _changes(advice.changes, given, advice)
    if advice.to_measure:
        lines += ["", "What may help, and has to be measured; the most it can save"]
        lines += _changes(advice.to_measure, given, advice, first=len(advice.changes))
    if advice.ruled_out:
        lines += ["", "Not proposed"]
        for ruled_out in advice.ruled_out:
            what = title_of(ruled_out.candidate)
            lines += _wrapped(f"{what}: {reason_text(ruled_out)}", indent=2)
    bill = bill_line(advice)
    if bill:
        lines += ["", *_wrapped(bill)]
    return lines


def _wrapped(text: str, *, indent: int = 0) -> Iterator[str]:
    margin = " " * indent
    yield from textwrap.wrap(
        text,
        WIDTH,
        initial_indent=margin,
        subsequent_indent=f"{margin}  " if indent else "",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _opening(advice: Advice, given: AdviceInput) -> str:
    way, facts = advice.baseline, given.facts
    what = facts.dataset or "a script"
    by = f" through {way.framework}" if way.framework else ""
    number = way.run.workers
    threads = "threads" if facts.threads and not facts.is_script else "workers"
    loaders = f", of {advice.n_loaders} loaders the one waited for most" * (advice.n_loaders > 1)
    when = "in steady state" if way.steady is not None else "over the whole, short run"
    stand_in = ", a stand-in" if facts.stand_in else ""
    return (
        f"{what}{stand_in}: {way.label}{by}, {units.count(number)} {threads}{loaders}. "
        f"It waits {units.fraction(advice.wait_fraction)} of its time {when}; a sample takes "
        f"{units.duration(way.sample_ns)}."
    )


def outcome_sentence(advice: Advice) -> str:
    """Return what comes of it all, in one sentence."""
    match advice.outcome:
        case Outcome.NO_BATCH:
            return "No advice: no batch was delivered."
        case Outcome.NOTHING_TO_GAIN:
            return (
                f"Nothing to gain: {units.fraction(advice.hidden_fraction)} of the loading is "
                "hidden, and no change of it can save more than the "
                f"{units.fraction(advice.wait_fraction)} of the time that is waited."
            )
        case Outcome.WITHHELD | Outcome.OPAQUE:
            return f"No advice: {_untrusted(advice)}."
        case Outcome.NO_SINGLE_STAGE:
            return (
                "No single stage will help: stages take turns in holding the loop up, and only "
                "several faster ones together gain."
            )
        case Outcome.NOTHING_FOUND:
            return "It waits, but nothing that iobench knows of is predicted to help."
        case Outcome.ADVICE:
            return _advice_sentence(advice)


def _advice_sentence(advice: Advice) -> str:
    text = ""
    if advice.changes:
        best = advice.changes[0]
        saved = units.fraction(best.gain.saved)
        text = f"Best: {title_of(best.candidate)}, which saves {saved} of the time."
    else:
        text = "Nothing is sure to help, but some changes are worth a measurement."
    if not _trusted(advice):
        text += f" What was not measured is left out: {_untrusted(advice)}."
    elif advice.payoffs is not None and advice.payoffs.no_single_stage_helps:
        text += " No single faster stage will help."
    return text


def _trusted(advice: Advice) -> bool:
    error = advice.error_fraction
    return error is not None and abs(error) <= WITHHELD_ABOVE


def _untrusted(advice: Advice) -> str:
    """Return why nothing is said that rests on a replay."""
    error = advice.error_fraction
    if error is None:
        return advice.baseline.run.reason or "who made the batches is not known"
    return (
        f"a replay of the unmodified run misses its time by {signed_fraction(error)}, and beyond "
        f"{units.fraction(WITHHELD_ABOVE)} its predictions mean nothing"
    )


def _replay_line(advice: Advice) -> str:
    if advice.error_fraction is None or not _trusted(advice):
        return ""
    return (
        "A replay of the unmodified run misses its time by "
        f"{signed_fraction(advice.error_fraction)}: no prediction by replay is better than that."
    )


def _payoff_line(advice: Advice) -> str:
    payoffs = advice.payoffs
    if payoffs is None or payoffs.joint_ns <= 0 or advice.outcome is Outcome.NOTHING_TO_GAIN:
        return ""
    wall_ns = advice.payoff_wall_ns
    if not wall_ns:
        return ""
    parts = [
        f"{each.stage} {units.fraction(max(0, each.saved_ns) / wall_ns)}"
        for each in payoffs.stages[:4]
    ]
    return (
        f"Were a stage {units.fraction(1 - payoffs.factor)} shorter, a run would be shorter by: "
        f"{', '.join(parts)}; were all, {units.fraction(payoffs.joint_ns / wall_ns)}."
    )


def _per(advice: Advice) -> str:
    if advice.epoch_s is None:
        return ""
    return (
        f" (an epoch over all samples takes {_seconds(advice.epoch_s)} now)"
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
        for line in commands_of(change.candidate, given.facts, advice.baseline.run.batch_size):
            yield f"       {line}"


def _gain_text(change: AdvisedChange) -> str:
    gain = change.gain
    epoch = "" if change.saved_s is None else f", {_seconds(change.saved_s)} of an epoch"
    if gain.saved is None:
        return f"saves {units.fraction(gain.high)}{epoch} {EVIDENCE[gain.evidence]}"
    return (
        f"saves {units.fraction(gain.saved)} of the time ({signed_fraction(gain.low)} to "
        f"{signed_fraction(gain.high)}){epoch}; {EVIDENCE[gain.evidence]}"
    )


def _cost_text(change: AdvisedChange) -> str:
    parts = [*_cost_parts(change.cost)]
    text = f"costs {', '.join(parts)}" if parts else "costs nothing"
    if change.break_even is not None:
        text += f"; {_pays(change.break_even, bound=change.gain.saved is None)}"
    return text


def _cost_parts(cost: Cost) -> Iterator[str]:
    if cost.convert_s is None:
        yield "a conversion of unknown length"
    elif cost.convert_s:
        least = "at least " if cost.at_least else ""
        yield f"{least}{_seconds(cost.convert_s)} to convert"
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


def reason_text(ruled_out: RuledOut) -> str:
    """Return why something is not proposed."""
    needed, there = ruled_out.needed, ruled_out.there
    match ruled_out.reason:
        case Reason.IN_USE:
            return "in use already."
        case Reason.NO_ACCELERATOR:
            return "no accelerator was seen in this run; without one it only costs a copy."
        case Reason.NO_MORE_CPUS:
            return f"there are {units.count(_whole(there))} CPUs, and all have a worker."
        case Reason.CACHED_ALREADY:
            return "everything came from memory in this run already."
        case Reason.TOO_LARGE:
            return f"takes {units.nbytes(needed)}, and there is room for {units.nbytes(there)}."
        case Reason.SIZE_UNKNOWN:
            return "unknown: the run does not tell the sizes it takes."
        case Reason.GAINS_NOTHING:
            return (
                f"predicted to save {signed_fraction(needed or 0.0)}, which is within the error "
                f"of {units.fraction(there)}."
                if (needed or 0.0) > 0
                else f"predicted to save nothing ({signed_fraction(needed or 0.0)})."
            )
        case Reason.OWN_ORDER:
            return "this source hands out samples in its own order and by its own workers."
        case Reason.NEEDS_REPLAY:
            return "its gain needs a replay, and this run cannot be replayed."
        case Reason.NOT_WAITED_FOR:
            most = "" if needed is None else f": it could save {units.fraction(needed)} at the most"
            return f"the training loop does not wait for what it removes{most}."
        case Reason.NO_WORKERS:
            return "the training loop loads for itself: there is nobody to be ahead."
        case Reason.READS_WHAT_IT_USES:
            read = None if needed is None or not there else needed / there
            return f"{units.ratio(read)} bytes are read for each one used: chunks fit."


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def bill_line(advice: Advice) -> str:
    """Return what waiting costs a whole training; empty where an epoch is not known."""
    bill = advice.bill
    if bill is None:
        return ""
    by = (
        "the devices' own idle time"
        if bill.on_device
        else "the wait of the training loop, as no device was timed"
    )
    return (
        f"The bill: on {units.count(bill.ranks)} rank{'s' * (bill.ranks > 1)} and "
        f"{units.count(bill.epochs)} epoch{'s' * (bill.epochs > 1)}, waiting costs "
        f"{units.number(bill.idle_hours)} of {units.number(bill.all_hours)} device-hours "
        f"(by {by}; every rank taken to wait as this one does)."
    )


def signed_fraction(value: float) -> str:
    """Return a share that may be below 0."""
    return f"-{units.fraction(-value)}" if value < 0 else units.fraction(value)


def _seconds(value: float) -> str:
    if value < 0:
        return f"-{_seconds(-value)}"
    return units.duration(units.nanoseconds(value))


def trial_lines(tried: Sequence[tuple[AdvisedChange, PairedRatio]]) -> list[str]:
    """Return what was predicted against what was obtained, a line or two for each change."""
    if not tried:
        return []
    band = tried[0][1]
    lines = [
        *_wrapped(
            f"Tried, in {units.count(band.n_rounds)} rounds of turns: the time of a sample saved, "
            f"predicted and obtained. The baseline again, unchanged, "
            f"{_saved_between(band.band_low, band.band_high)}: that is noise."
        )
    ]
    for change, ratio in tried:
        gain = change.gain
        predicted = (
            f"at most {units.fraction(gain.high)}"
            if gain.saved is None
            else f"{signed_fraction(gain.saved)} ({signed_fraction(gain.low)} to "
            f"{signed_fraction(gain.high)})"
        )
        noise = "" if ratio.faster or ratio.slower else "; not to be told from noise"
        lines.append(f"  {title_of(change.candidate)}")
        lines += _wrapped(
            f"predicted {predicted}; obtained {signed_fraction(1 - ratio.ratio)} "
            f"({signed_fraction(1 - ratio.high)} to {signed_fraction(1 - ratio.low)}){noise}",
            indent=5,
        )
    return lines


def _saved_between(low: float, high: float) -> str:
    return f"saved {signed_fraction(1 - high)} to {signed_fraction(1 - low)}"
