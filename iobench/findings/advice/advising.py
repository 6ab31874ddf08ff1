"""Ranked advice on what was measured, and how reports say it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from iobench.analysis.break_even import BreakEven
from iobench.analysis.replay.runs import beginning_of
from iobench.findings.advice.commands import commands_of
from iobench.findings.advice.gains import UNSEEN_WORKERS_ERROR, GainPredictor
from iobench.findings.advice.levers import measured_changes, predicted_changes
from iobench.findings.advice.loading import Loading, baseline_first
from iobench.findings.advice.proposals import (
    Advice,
    AdviceBaseline,
    AdviceOutcome,
    AdvisedChange,
    Evidence,
    Reason,
    RuledOut,
    signed,
)
from iobench.findings.faster_stages import UNSEEN_ERROR, WITHHELD_ABOVE, is_trusted, payoffs
from iobench.report import units
from iobench.report.document import (
    Column,
    Command,
    Document,
    Section,
    Sentence,
    Table,
    sentences,
)
from iobench.report.sentences import OVER, detailed_batches, extent_text

if TYPE_CHECKING:
    from iobench.findings.advice.proposals import Cost, TriedChange
    from iobench.report.document import Block

PAYOFF_BATCHES: Final = 500
PAYOFF_FACTOR: Final = 0.8
"""Of the time of a stage, what a faster one takes."""
WORTH_FRACTION: Final = 0.01
"""Of the time, what a change saves at least that is proposed."""
EVIDENCE: Final = {
    Evidence.MEASURED: "measured, alternating with the baseline",
    Evidence.REPLAYED: "by replay",
    Evidence.BOUND: "the actual saving has to be measured",
}


def advice_of(measured: Iterable[Loading], *, epochs: int | None = None) -> Advice | None:
    """Return what would help, ranked by what it gains; None of what delivered no batch.

    Ways of loading the same samples are compared with the first that `baseline_first` returns.
    ``epochs`` is how many the training has, where its run does not say.
    """
    ways = baseline_first(measured)
    if not ways or not len(ways[0].loader) or not ways[0].judged.wall_ns:
        return None
    baseline = ways[0] if epochs is None else replace(ways[0], epochs=epochs)
    ways[0], run = baseline, baseline.loader
    predictor = GainPredictor(ways) if run.can_replay else None
    error = None if predictor is None else predictor.error_fraction
    items = [*measured_changes(ways)]
    faster = None
    if predictor is not None and is_trusted(error):
        items += predicted_changes(predictor)
        faster = payoffs(beginning_of(run, PAYOFF_BATCHES), PAYOFF_FACTOR)
    judged = [_judged(item, baseline) for item in items]
    proposed = [each for each in judged if isinstance(each, AdvisedChange)]
    proposed.sort(key=lambda each: -each.expected)
    advice = Advice(
        run=str(baseline.path),
        is_script=baseline.facts.is_script,
        outcome=AdviceOutcome.ADVICE,
        about=_about(baseline),
        sentence="",
        batches=baseline.exposure.whole.n_batches,
        summed_batches=baseline.exposure.n_summed,
        baseline=AdviceBaseline(
            label=baseline.label,
            format=baseline.format or None,
            workers=run.workers,
            prefetch=run.prefetch,
            batch_size=run.batch_size,
            sample_ns=baseline.sample_ns,
            epoch_s=baseline.epoch_s,
            wait_fraction=baseline.wait_fraction,
        ),
        replay_error_fraction=error,
        payoffs=faster,
        changes=tuple(each for each in proposed if each.is_proven),
        to_measure=tuple(each for each in proposed if not each.is_proven),
        ruled_out=tuple(each for each in judged if isinstance(each, RuledOut)),
    )
    advice = replace(advice, outcome=_outcome(advice, baseline))
    return replace(advice, sentence=_sentence(advice, baseline))


def _judged(item: AdvisedChange | RuledOut, baseline: Loading) -> AdvisedChange | RuledOut:
    """Return a change with what its price comes to and its commands, or the reason against it."""
    if isinstance(item, RuledOut):
        return item
    saved, gains = item.expected, item.expected >= WORTH_FRACTION
    if item.is_proven is False or not (gains or item.evidence is Evidence.BOUND):
        noisy = item.evidence is Evidence.MEASURED and gains
        error = None if item.low_fraction is None else saved - item.low_fraction
        return item.against(Reason.WITHIN_NOISE if noisy else Reason.GAINS_NOTHING, saved, error)
    if not gains or (baseline.is_hidden and not item.is_proven):
        return item.against(Reason.NOT_WAITED_FOR, saved)
    epoch_s, spent_s = baseline.epoch_s, item.cost.spent_s
    saved_s = None if epoch_s is None else epoch_s * saved
    pays = None if spent_s == 0.0 else BreakEven.of(spent_s, epoch_s, saved_s)
    after, last = None if pays is None else pays.epochs, baseline.epochs
    if "stage" in item.settings and after is not None and last is not None and last <= after:
        return item.against(Reason.TOO_FEW_EPOCHS, after, last)
    commands = commands_of(item, baseline)
    return replace(item, saved_s=saved_s, break_even=pays, commands=commands)


def _outcome(advice: Advice, baseline: Loading) -> AdviceOutcome:
    if advice.changes or advice.to_measure:
        return AdviceOutcome.ADVICE
    if baseline.is_hidden:
        return AdviceOutcome.NOTHING_TO_GAIN
    if advice.payoffs is None:
        return (
            AdviceOutcome.OPAQUE if advice.replay_error_fraction is None else AdviceOutcome.WITHHELD
        )
    alone = advice.payoffs.no_single_stage_helps
    return AdviceOutcome.NO_SINGLE_STAGE if alone else AdviceOutcome.NOTHING_FOUND


def _about(baseline: Loading) -> str:
    run, facts, exposure = baseline.loader, baseline.facts, baseline.exposure
    when = OVER[exposure.window]
    if exposure.n_summed:
        when = f"in {detailed_batches(exposure.whole.n_batches, exposure.n_summed)}, {when}"
    return (
        f"{facts.dataset or 'a script'}{', a stand-in' if facts.stand_in else ''}: "
        f"{baseline.label}, workers: {units.count(run.workers)}. The training loop waits "
        f"{units.fraction(baseline.wait_fraction)} of its time {when}; a sample takes "
        f"{units.duration(baseline.sample_ns)}."
    )


def _sentence(advice: Advice, baseline: Loading) -> str:
    """Return what comes of it all, in one sentence: how much of a script it is of among it."""
    extent = extent_text(baseline.exposure.loop_fraction, in_script=advice.is_script)
    why = _untrusted(advice, baseline)
    match advice.outcome:
        case AdviceOutcome.NOTHING_TO_GAIN:
            wait = units.fraction(baseline.wait_fraction)
            text = f"Nothing to gain: the training loop waits {wait} of its time{extent}"
        case AdviceOutcome.WITHHELD | AdviceOutcome.OPAQUE:
            text = f"No advice: {why}"
        case AdviceOutcome.NO_SINGLE_STAGE:
            text = (
                "No single faster stage will help: different stages hold up the loop at different "
                f"times, so only several faster stages together gain time{extent}"
            )
        case AdviceOutcome.NOTHING_FOUND:
            text = f"The training loop waits, but no change is predicted to help{extent}"
        case AdviceOutcome.ADVICE:
            text = f"Nothing is certain to help, but some changes are worth measuring{extent}"
            if advice.changes:
                best = advice.changes[0]
                of = "the training loop's time" if extent else "the time"
                text = f"Best: {best.title} saves {units.fraction(best.expected)} of {of}{extent}"
            if advice.payoffs is None:
                text += f". Only what was measured is here: {why}"
    return f"{text}."


def _untrusted(advice: Advice, baseline: Loading) -> str:
    """Return why nothing is said that rests on a replay."""
    error = advice.replay_error_fraction
    if error is None:
        return baseline.loader.reason or "it is not known which workers made the batches"
    return (
        f"a replay of the unmodified run misses its time by {signed(error)}; above "
        f"{units.fraction(WITHHELD_ABOVE)}, iobench gives no predictions"
    )


def advice_document(advice: Advice) -> Document:
    """Return what is advised on a run."""
    result = [Section("advice", "", sentences(_summary(advice)))]
    if advice.changes:
        epoch_s = advice.baseline.epoch_s
        epoch = f" (an epoch over all samples now takes {_seconds(epoch_s)})" if epoch_s else ""
        changes = _blocks(advice.changes, 1)
        result.append(Section("changes", f"What would help, best first{epoch}", changes))
    if advice.to_measure:
        changes = _blocks(advice.to_measure, 1 + len(advice.changes))
        result.append(Section("to-measure", "What may help but has to be measured", changes))
    if advice.ruled_out:
        known = sentences(f"{each.title}: {each.sentence}" for each in advice.ruled_out)
        result.append(Section("ruled-out", "Not proposed", known))
    return Document("Advice", tuple(result), figures=lambda: advice)


def _summary(advice: Advice) -> Iterator[str]:
    yield advice.about
    yield advice.sentence
    if advice.payoffs is not None and advice.payoffs.gains:
        error = signed(advice.replay_error_fraction)
        yield (
            f"A replay of the unmodified run misses its time by {error}. Predictions include an "
            f"error of {units.fraction(UNSEEN_ERROR)} of the time, or "
            f"{units.fraction(UNSEEN_WORKERS_ERROR)} for another number of workers."
        )


def _blocks(changes: Sequence[AdvisedChange], first: int) -> tuple[Block, ...]:
    result: list[Block] = []
    for number, change in enumerate(changes, first):
        result += [
            Sentence(f"{number}. {change.title}", "strong"),
            Sentence(f"It saves {_gain_text(change)}. It costs {_cost_text(change)}."),
            *(Command(line) for line in change.commands),
        ]
    return tuple(result)


def _gain_text(change: AdvisedChange) -> str:
    bound = change.evidence is Evidence.BOUND
    epoch = "" if change.saved_s is None else f", {_seconds(change.saved_s)} of an epoch"
    few = "; too few batches to distinguish it from noise" * (not bound and not change.is_proven)
    return f"{_share_text(change)} of the time{epoch}; {EVIDENCE[change.evidence]}{few}"


def _cost_text(change: AdvisedChange) -> str:
    text, pays = ", ".join(_cost_parts(change.cost)) or "nothing", change.break_even
    if pays is None or pays.epochs is None:
        return text
    least = "at least " * (change.cost.at_least or not change.is_proven)
    return f"{text}; it pays for itself after {least}{units.epochs(pays.epochs)} epochs"


def _cost_parts(cost: Cost) -> Iterator[str]:
    if cost.convert_s is None:
        yield "a conversion of unknown length"
    elif cost.convert_s:
        yield f"{'at least ' * cost.at_least}{_seconds(cost.convert_s)} to convert"
    if cost.stage_s is None:
        yield "copying the files once, which takes an unknown time"
    elif cost.stage_s:
        yield f"{_seconds(cost.stage_s)} to copy the files once, at the rate of this run's reads"
    for nbytes, what in ((cost.disk_nbytes, "on disk"), (cost.memory_nbytes, "of memory")):
        if nbytes != 0:
            yield f"{'an unknown amount' if nbytes is None else units.nbytes(nbytes)} {what}"


def trial_section(advice: Advice) -> Section:
    """Return what was predicted against what was obtained; or why nothing was tried."""
    tried = advice.tried
    if not tried:
        return Section("tried", "Tried", sentences([advice.not_tried or ""]))
    band = _between(tried[0].band_low_fraction, tried[0].band_high_fraction)
    lead = (
        f"Time saved per sample, predicted and measured, in {units.count(tried[0].rounds)} "
        f"alternating rounds. The unchanged baseline, run a second time, saved {band}: that is the "
        "noise."
    )
    if tried[0].band_low_fraction is None:
        lead = "Fewer than 6 rounds give no 95 % interval and no noise; use --rounds 6 or more."
    promised = {each.title: _share_text(each) for each in (*advice.changes, *advice.to_measure)}
    rows = tuple(
        (each.title, promised[each.title], _share_text(each), "noise" * bool(each.is_noise))
        for each in tried
    )
    table = Table("", tuple(map(Column, ("", "predicted", "obtained", ""))), rows)
    staged = (
        f"{each.title}: staging took {_seconds(each.staging_s)}; the copy has been removed."
        for each in tried
        if each.staging_s is not None
    )
    return Section("tried", "Tried", (Sentence(lead), table, *sentences(staged)))


def _share_text(saved: AdvisedChange | TriedChange) -> str:
    """Return what was saved, and between what; or no more than what."""
    if saved.saved_fraction is None:
        assert isinstance(saved, AdvisedChange)
        return f"at most {units.fraction(saved.expected)}"
    known = saved.low_fraction is not None
    between = f" ({_between(saved.low_fraction, saved.high_fraction)})" if known else ""
    return f"{signed(saved.saved_fraction)}{between}"


def _between(low: float | None, high: float | None) -> str:
    return "unknown" if low is None or high is None else f"{signed(low)} to {signed(high)}"


def _seconds(value: float) -> str:
    return units.duration(units.nanoseconds(value))
