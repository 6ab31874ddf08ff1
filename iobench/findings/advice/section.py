"""Advice in words: what would help, by how much, at what price, and what was ruled out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from iobench.findings.advice.figures import AdviceOutcome, Evidence
from iobench.findings.advice.gains import PAYOFF_FACTOR, UNSEEN_WORKERS_ERROR
from iobench.findings.advice.levers import Lever
from iobench.findings.faster_stages import UNSEEN_ERROR, WITHHELD_ABOVE, is_trusted
from iobench.json_keys import INLINE, figure
from iobench.recording.kinds import stage_title
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Column,
    Command,
    Document,
    Section,
    Sentence,
    Share,
    SignedShare,
    Table,
    sentences,
)
from iobench.report.json_walk import to_plain
from iobench.report.sentences import OVER, extent_text, kept_words

if TYPE_CHECKING:
    from iobench.analysis.break_even import BreakEven
    from iobench.findings.advice.figures import Advice, AdvisedChange, Cost, TriedChange
    from iobench.report.document import Block, Cell

ADVICE_VERSION: Final = 1
"""Raised when a key changes its meaning or goes; new keys do not raise it."""
EVIDENCE: Final = {
    Evidence.MEASURED: "measured, alternating with the baseline",
    Evidence.REPLAYED: "by replay",
    Evidence.BOUND: "at most; the actual saving has to be measured",
}
MOST_STAGES: Final = 4


class AdviceDocument(msgspec.Struct, frozen=True):
    """Advice as JSON has it.

    Parameters
    ----------
    run : str
        The run directory.
    tried : tuple of TriedChange
        What came of trying the best changes.
    not_tried : str
        Why none was tried, though that was asked for.
    """

    advice: Advice
    run: str
    tried: tuple[TriedChange, ...] = ()
    not_tried: str = ""
    schema_version: int = ADVICE_VERSION
    JSON_KEYS: ClassVar = {
        "advice": INLINE,
    }

    @figure
    def sentence(self) -> str:
        """What comes of it all."""
        return outcome_sentence(self.advice)

    @figure
    def batches(self) -> int:
        """Batches that it is about."""
        return self.advice.baseline.whole.n_batches

    @figure
    def summed_batches(self) -> int:
        """Batches before them, of which there are sums only."""
        return self.advice.circumstances.n_summed

    @figure
    def baseline(self) -> dict[str, Any]:
        """What everything is compared with; ``epoch_s`` is an epoch over all samples now."""
        result: dict[str, Any] = to_plain(self.advice.baseline)
        return result | {"epoch_s": self.advice.epoch_s}


def advice_document(advice: Advice, run: str) -> Document:
    """Return what is advised on a run."""
    result = [Section("advice", "", sentences(_summary(advice)))]
    if advice.changes:
        now = "" if not advice.epoch_s else _seconds(advice.epoch_s)
        epoch = f" (an epoch over all samples now takes {now})" if now else ""
        changes = _changes(advice.changes, 1)
        result.append(Section("changes", f"What would help, best first{epoch}", changes))
    if advice.to_measure:
        bounds = any(each.gain.evidence is Evidence.BOUND for each in advice.to_measure)
        most = " (upper bounds on the waiting that goes; steps that loading slows may get shorter)"
        title = f"What may help but has to be measured{most if bounds else ''}"
        changes = _changes(advice.to_measure, 1 + len(advice.changes))
        result.append(Section("to-measure", title, changes))
    if advice.ruled_out:
        known = sentences(f"{each.candidate.title}: {each.sentence}" for each in advice.ruled_out)
        result.append(Section("ruled-out", "Not proposed", known))
    what = advice.circumstances.facts.dataset or "a script"
    title = f"Advice on {what}"
    return Document(title, tuple(result), figures=lambda: to_plain(AdviceDocument(advice, run)))


def _summary(advice: Advice) -> Iterator[str]:
    yield _opening(advice)
    yield outcome_sentence(advice)
    if is_trusted(advice.error_fraction):
        yield (
            "A replay of the unmodified run misses its time by "
            f"{_signed(advice.error_fraction or 0.0)}. That shows whether the loader is "
            "understood; how far a prediction may miss stands beside each prediction. Where no "
            f"span was recorded, the assumed error is {units.fraction(UNSEEN_ERROR)} of the time, "
            f"or {units.fraction(UNSEEN_WORKERS_ERROR)} for another number of workers: goals of "
            "iobench's benchmarks, not measured here."
        )
    result = advice.payoffs
    nothing = advice.outcome is AdviceOutcome.NOTHING_TO_GAIN
    if result is None or not result.joint_fraction or nothing:
        return
    known = [*result.alone.items()][:MOST_STAGES]
    shares = (units.fraction(max(0.0, each.saved_fraction)) for _, each in known)
    parts = [f"{stage_title(stage)} {of}" for (stage, _), of in zip(known, shares, strict=True)]
    yield (
        f"If one stage took {units.fraction(1 - PAYOFF_FACTOR)} less time, the run would be "
        f"shorter by: {', '.join(parts)}; if all of them did, by "
        f"{units.fraction(result.joint_fraction)}."
    )


def _opening(advice: Advice) -> str:
    method, circumstances, facts = advice.baseline, advice.circumstances, advice.circumstances.facts
    what = facts.dataset or "a script"
    by = f" through {method.framework}" if method.framework not in method.label else ""
    maker = "thread" if facts.threads and not facts.is_script else "worker"
    makers = f"{units.count(method.workers)} {maker}{'s' * (method.workers != 1)}"
    several = circumstances.n_loaders > 1
    loaders = f", the most waited for of {circumstances.n_loaders} loaders" * several
    when = OVER[method.part]
    if circumstances.n_summed:
        when = f"in {kept_words(method.whole.n_batches, circumstances.n_summed)}, {when}"
    stand_in = ", a stand-in" if facts.stand_in else ""
    return (
        f"{what}{stand_in}: {method.label}{by}, {makers}{loaders}. The training loop waits "
        f"{units.fraction(method.wait_fraction)} of its time {when}; a sample takes "
        f"{units.duration(method.sample_ns)}."
    )


def outcome_sentence(advice: Advice) -> str:
    """Return what comes of it all, in one sentence: how much of a script it is of among it."""
    method, circumstances = advice.baseline, advice.circumstances
    extent = extent_text(circumstances.loop_fraction, in_script=circumstances.facts.is_script)
    match advice.outcome:
        case AdviceOutcome.NO_BATCH:
            return "No advice: no batch was delivered."
        case AdviceOutcome.NOTHING_TO_GAIN:
            hidden = method.hidden_fraction
            known = f"{units.fraction(hidden)} of the loading is hidden, and "
            return (
                f"Nothing to gain: {'' if hidden is None else known}no change to loading can save "
                f"more than the {units.fraction(method.wait_fraction)} of its time that the "
                f"training loop waits{extent}."
            )
        case AdviceOutcome.WITHHELD | AdviceOutcome.OPAQUE:
            return f"No advice: {_untrusted(advice)}."
        case AdviceOutcome.NO_SINGLE_STAGE:
            return (
                "No single faster stage will help: different stages hold up the loop at different "
                f"times, so only several faster stages together gain time{extent}."
            )
        case AdviceOutcome.NOTHING_FOUND:
            return (
                "The training loop waits, but none of the changes that iobench knows is "
                f"predicted to help{extent}."
            )
        case AdviceOutcome.ADVICE:
            return _advice_sentence(advice, extent)


def _advice_sentence(advice: Advice, extent: str) -> str:
    text = f"Nothing is certain to help, but some changes are worth measuring{extent}."
    if advice.changes:
        best = advice.changes[0]
        saved = units.fraction(best.gain.saved)
        of = "the training loop's time" if extent else "the time"
        text = f"Best: {best.candidate.title} saves {saved} of {of}{extent}."
    if not is_trusted(advice.error_fraction):
        text += f" Changes that were not measured are left out: {_untrusted(advice)}."
    elif advice.payoffs is not None and advice.payoffs.no_single_stage_helps:
        text += " No single faster stage will help; only several together do."
    return text


def _untrusted(advice: Advice) -> str:
    """Return why nothing is said that rests on a replay."""
    error = advice.error_fraction
    if error is None:
        return advice.baseline.run.reason or "it is not known which workers made the batches"
    return (
        f"a replay of the unmodified run misses its time by {_signed(error)}; above "
        f"{units.fraction(WITHHELD_ABOVE)}, iobench gives no predictions"
    )


def _changes(changes: Sequence[AdvisedChange], first: int) -> tuple[Block, ...]:
    result: list[Block] = []
    for number, change in enumerate(changes, first):
        result += [
            Sentence(f"{number}. {change.candidate.title}", "strong"),
            Sentence(f"It {_gain_text(change)}. It {_cost_text(change)}."),
            *(Command(line) for line in change.commands),
        ]
    return tuple(result)


def _gain_text(change: AdvisedChange) -> str:
    gain = change.gain
    epoch = "" if change.saved_s is None else f", {_seconds(change.saved_s)} of an epoch"
    if gain.saved is None:
        return f"saves {units.fraction(gain.expected)}{epoch} {EVIDENCE[gain.evidence]}"
    between = ""
    if gain.low is not None and gain.high is not None:
        another = " in another run" if gain.evidence is Evidence.REPLAYED else ""
        between = f" ({_signed(gain.low)} to {_signed(gain.high)}{another})"
    unproven = "" if gain.is_proven else "; too few batches to distinguish it from noise"
    return (
        f"saves {units.fraction(gain.saved)} of the time{between}{epoch}; "
        f"{EVIDENCE[gain.evidence]}{unproven}"
    )


def _cost_text(change: AdvisedChange) -> str:
    text = f"costs {', '.join(_cost_parts(change.cost)) or 'nothing'}"
    if change.cost.starts:
        retained = Lever.KEEP_WORKERS in change.candidate.levers
        again = "once, because they are kept" if retained else "in each epoch, unless they are kept"
        text += f", plus worker start-up, which no run has measured: {again}"
    if change.break_even is not None:
        text += (
            f"; {_pays(change.break_even, bound=change.cost.at_least or not change.gain.is_proven)}"
        )
    return text


def _cost_parts(cost: Cost) -> Iterator[str]:
    if cost.convert_s is None:
        yield "a conversion of unknown length"
    elif cost.convert_s:
        yield f"{'at least ' * cost.at_least}{_seconds(cost.convert_s)} to convert"
    if cost.stage_s is None:
        yield "copying the files once, which takes an unknown time"
    elif cost.stage_s:
        yield f"{_seconds(cost.stage_s)} to copy the files once, at the rate of this run's reads"
    for nbytes, what, unknown in (
        (cost.disk_nbytes, "on disk", "an unknown amount of disk space"),
        (cost.memory_nbytes, "of memory", "unknown memory"),
    ):
        if nbytes is None:
            yield unknown
        elif nbytes:
            yield f"{units.nbytes(nbytes)} {what}"


def _pays(break_even: BreakEven, *, bound: bool) -> str:
    if break_even.never:
        return "it never pays for itself"
    if break_even.epochs is None:
        return "after how many epochs it pays for itself is unknown"
    least = "after at least" if bound else "after"
    text = f"it pays for itself {least} {units.epochs(break_even.epochs)} epochs"
    if break_even.staging_to_epoch is not None and not bound:
        text += f" (T_staging / T_epoch {units.ratio(break_even.staging_to_epoch)})"
    return text


def trial_section(tried: Sequence[TriedChange], why_not: str = "") -> Section:
    """Return what was predicted against what was obtained; or why nothing was tried."""
    if not tried:
        return Section("tried", "Tried", sentences([why_not]))
    columns = map(Column, ("", "predicted", "between", "obtained", "between", ""))
    rows = tuple(_trial_row(each) for each in tried)
    band = tried[0]
    between = _between(band.band_low_fraction, band.band_high_fraction)
    few = "fewer than 6 rounds give no 95 % interval; use --rounds 6 or more"
    noise = (
        f"does not measure the noise: {few}"
        if between is None
        else f"saved {between}: that is the noise"
    )
    lead = (
        f"Time saved per sample, predicted and measured, in {units.count(band.rounds)} alternating "
        f"rounds. The unchanged baseline, run a second time, {noise}."
    )
    staged = [
        f"{each.title}: staging took {_seconds(each.staging_s)}, "
        f"{'unknown' if each.predicted_staging_s is None else _seconds(each.predicted_staging_s)} "
        "was predicted; the copy has been removed."
        for each in tried
        if each.staging_s is not None
    ]
    table = Table("", tuple(columns), rows)
    return Section("tried", "Tried", (Sentence(lead), table, *sentences(staged)))


def _trial_row(tried: TriedChange) -> tuple[Cell, ...]:
    gain = tried.predicted
    bound = gain.saved is None
    obtained = _between(tried.low_fraction, tried.high_fraction)
    return (
        tried.title,
        Share(gain.expected, "at most {}") if bound else SignedShare(gain.saved),
        NOT_APPLICABLE if bound else _between(gain.low, gain.high) or "too few batches",
        SignedShare(tried.saved_fraction),
        obtained or "no interval",
        "indistinguishable from noise" if tried.is_noise else "",
    )


def _between(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"{_signed(low)} to {_signed(high)}"


def _signed(value: float) -> str:
    """Return a share that may be below 0."""
    return f"-{units.fraction(-value)}" if value < 0 else units.fraction(value)


def _seconds(value: float) -> str:
    """Return seconds as a time, below 0 as well."""
    sign = "-" * (value < 0)
    return f"{sign}{units.duration(units.nanoseconds(abs(value)))}"
