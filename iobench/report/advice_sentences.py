"""The sentences of advice: what comes of it, why something is ruled out, what waiting costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.analysis.advice.advising import WITHHELD_ABOVE
from iobench.analysis.advice.levers import AdviceOutcome, Reason
from iobench.report import units
from iobench.report.advice_commands import title_of
from iobench.report.sentences import extent_text

if TYPE_CHECKING:
    from iobench.analysis.advice.figures import Advice, RuledOut

__all__ = [
    "bill_line",
    "is_trusted",
    "outcome_sentence",
    "reason_text",
    "seconds_text",
    "signed_fraction",
]


def outcome_sentence(advice: Advice) -> str:
    """Return what comes of it all, in one sentence: how much of a script it is of among it."""
    extent = extent_text(advice.loop_fraction, in_script=advice.in_script)
    match advice.outcome:
        case AdviceOutcome.NO_BATCH:
            return "No advice: no batch was delivered."
        case AdviceOutcome.NOTHING_TO_GAIN:
            hidden = advice.hidden_fraction
            known = (
                "" if hidden is None else f"{units.fraction(hidden)} of the loading is hidden, and "
            )
            return (
                f"Nothing to gain: {known}no change of it can save more than the "
                f"{units.fraction(advice.wait_fraction)} of the training loop's time that is "
                f"waited{extent}."
            )
        case AdviceOutcome.WITHHELD | AdviceOutcome.OPAQUE:
            return f"No advice: {_untrusted(advice)}."
        case AdviceOutcome.NO_SINGLE_STAGE:
            return (
                "No single stage will help: stages take turns in holding the loop up, and only "
                f"several faster ones together gain{_together(advice)}{extent}."
            )
        case AdviceOutcome.NOTHING_FOUND:
            return f"It waits, but nothing that iobench knows of is predicted to help{extent}."
        case AdviceOutcome.ADVICE:
            return _advice_sentence(advice, extent)


def _advice_sentence(advice: Advice, extent: str) -> str:
    text = ""
    if advice.changes:
        best = advice.changes[0]
        saved = units.fraction(best.gain.saved)
        of = "the training loop's time" if extent else "the time"
        text = f"Best: {title_of(best.candidate)}, which saves {saved} of {of}{extent}."
    else:
        text = f"Nothing is sure to help, but some changes are worth a measurement{extent}."
    if not is_trusted(advice):
        text += f" What was not measured is left out: {_untrusted(advice)}."
    elif advice.payoffs is not None and advice.payoffs.no_single_stage_helps:
        text += f" No single faster stage will help, only several together{_together(advice)}."
    return text


def _together(advice: Advice) -> str:
    together = None if advice.payoffs is None else advice.payoffs.together
    return "" if together is None else f": {together.stage}"


def is_trusted(advice: Advice) -> bool:
    """Return whether the replay tells the run's own time well enough to predict others."""
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


def reason_text(ruled_out: RuledOut) -> str:
    """Return why something is not proposed."""
    needed, there = ruled_out.needed, ruled_out.there
    match ruled_out.reason:
        case Reason.IN_USE:
            return "in use already."
        case Reason.NO_ACCELERATOR:
            return "no accelerator was seen in this run; without one it only costs a copy."
        case Reason.NO_MORE_CPUS:
            return f"CPUs to use: {units.count(_whole(there))}; each has a worker."
        case Reason.CACHED_ALREADY:
            return "everything came from memory in this run already."
        case Reason.TOO_LARGE:
            return f"takes {units.nbytes(needed)}, and there is room for {units.nbytes(there)}."
        case Reason.SIZE_UNKNOWN:
            return "unknown: the run does not tell the sizes it takes."
        case Reason.GAINS_NOTHING:
            if (needed or 0.0) <= 0:
                return _loss(-(needed or 0.0))
            error = (
                "" if there is None else f", which is within the error of {units.fraction(there)}"
            )
            return f"predicted to save {units.fraction(needed)}{error}."
        case Reason.WITHIN_NOISE:
            return (
                f"saved {units.fraction(needed)} when it was measured, but by noise it may save "
                "nothing; measure more batches."
            )
        case Reason.OWN_ORDER:
            return "this source hands out samples in its own order and by its own workers."
        case Reason.NOT_WAITED_FOR:
            most = "" if needed is None else f": it could save {units.fraction(needed)} at the most"
            return f"the training loop does not wait for what it removes{most}."
        case Reason.NO_WORKERS:
            return "the training loop loads for itself: there is nobody to be ahead."
        case Reason.READS_WHAT_IT_USES:
            read = None if needed is None or not there else needed / there
            return (
                f"{units.ratio(read)} bytes are read for each one used; how many are decoded for "
                "each was not counted."
            )
        case Reason.CHUNKS_FIT:
            return (
                f"{units.ratio(needed)} bytes are read and {units.ratio(there)} decoded for each "
                "one used: chunks fit."
            )


def _loss(share: float) -> str:
    if not share:
        return "predicted to save nothing."
    return f"predicted to save nothing, but to take {units.fraction(share)} longer."


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


def seconds_text(value: float) -> str:
    """Return seconds as a time, below 0 as well."""
    if value < 0:
        return f"-{seconds_text(-value)}"
    return units.duration(units.nanoseconds(value))
