"""Ranked advice on what was measured, and how reports say it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict, replace

from iobench.analysis.epochs import BreakEven
from iobench.analysis.replay.replay import is_trusted
from iobench.findings.advice.levers import (
    NOT_KNOWN,
    GainPredictor,
    measured_changes,
    predicted_changes,
)
from iobench.findings.advice.loading import Loading, baseline_first, commands_of
from iobench.findings.advice.proposals import (
    NO_COST,
    Advice,
    AdviceBaseline,
    AdviceOutcome,
    AdvisedChange,
    Evidence,
    Lever,
    Reason,
    RuledOut,
    ruled_out,
    signed,
)
from iobench.findings.free_data import WITH_FREE_DATA
from iobench.report import units
from iobench.report.document import Column, Command, Document, Section, Sentence, Table, sentences
from iobench.report.sentences import OVER, cpu_sentence, extent_text

if TYPE_CHECKING:
    from iobench.findings.advice.proposals import TriedChange
    from iobench.report.document import Block

LESS_CPU: Final = {Lever.FORMAT, Lever.LOADER, Lever.CHUNKS, Lever.CODEC}
"""Changes after which loading takes less of the CPUs."""
STORED: Final = {Lever.FORMAT, Lever.CHUNKS, Lever.CODEC}
"""What is converted: then samples share no chunks that stay in memory."""
WORTH_FRACTION: Final = 0.01
"""Of the time, what a change saves at least that is proposed."""


def advice_of(measured: Iterable[Loading | None]) -> Advice | None:
    """Return what would help, ranked by what it gains; None of what delivered no batch."""
    loadings = baseline_first(measured)
    if not loadings or not loadings[0].judged.wall_ns:
        return None
    baseline, predictor = loadings[0], GainPredictor(loadings)
    error = predictor.error_fraction
    items = [*measured_changes(loadings)]
    if is_trusted(error):
        items += predicted_changes(predictor)
    judged = [_judged(item, baseline) for item in items]
    proposed = [each for each in judged if isinstance(each, AdvisedChange)]
    proposed.sort(key=lambda each: each.rank)
    changes = tuple(each for each in proposed if each.is_proven)
    to_measure = tuple(each for each in proposed if not each.is_proven)
    outcome, sentence = _outcome(changes, to_measure, error, baseline)
    return Advice(
        run=str(baseline.path),
        outcome=outcome,
        about=_about(baseline),
        sentence=sentence,
        baseline=AdviceBaseline(
            label=baseline.label,
            format=baseline.format or None,
            sample_ns=baseline.sample_ns,
            first_epoch_s=None if baseline.epoch is None else baseline.epoch.first_s,
            epoch_s=None if baseline.epoch is None else baseline.epoch.later_s,
            wait_fraction=baseline.wait_fraction,
        ),
        replay_error_fraction=error,
        changes=changes,
        to_measure=to_measure,
        ruled_out=tuple(each for each in judged if isinstance(each, RuledOut)),
    )


def _judged(item: AdvisedChange | RuledOut, baseline: Loading) -> AdvisedChange | RuledOut:
    """Return a change with what its price comes to and its commands, or the reason against it."""
    if isinstance(item, RuledOut):
        return item
    if baseline.slows_steps and item.evidence is Evidence.BOUND and LESS_CPU & {*item.levers}:
        item = replace(item, **asdict(NOT_KNOWN))
    saved, epoch, spent_s = item.expected, baseline.epoch, item.cost.spent_s
    is_known = item.evidence is not Evidence.UNKNOWN
    if baseline.is_hidden and not item.is_proven:
        most = saved if is_known else baseline.wait_fraction
        return ruled_out(item.levers, item.settings, Reason.NOT_WAITED_FOR, most)
    if is_known and (item.is_proven is False or saved < WORTH_FRACTION):
        if saved < 0:
            return ruled_out(item.levers, item.settings, Reason.TAKES_LONGER, -saved)
        return ruled_out(item.levers, item.settings, Reason.GAINS_NOTHING, saved)
    epoch_s, saved_s, first_saved_s = None, None, None
    if epoch is not None and is_known:
        epoch_s, saved_s = epoch.later_s, epoch.later_s * saved
        if STORED.intersection(item.levers):  # whose first epoch is as later ones
            first_saved_s = epoch.first_s - epoch.later_s + saved_s
    pays = None if spent_s == 0.0 else BreakEven.of(spent_s, epoch_s, saved_s, first_saved_s)
    commands = commands_of(item, baseline)
    return replace(item, saved_s=saved_s, break_even=pays, commands=commands)


def _outcome(
    changes: Sequence[AdvisedChange],
    to_measure: Sequence[AdvisedChange],
    error: float | None,
    baseline: Loading,
) -> tuple[AdviceOutcome, str]:
    """Return what comes of it all, also in a sentence."""
    outcome, why = AdviceOutcome.ADVICE, ""
    if changes:
        text = f"Best: {changes[0].title} saves {units.fraction(changes[0].expected)} of the time"
    elif to_measure:
        first = to_measure[0]
        text = f"To be tried first: {first.title}; what that saves is not known"
        if first.evidence is Evidence.MEASURED:
            text = f"Best: {first.title} saved {units.fraction(first.expected)}, of too few batches"
        elif first.evidence is not Evidence.UNKNOWN:
            text = "Nothing is certain to help, but some changes are worth measuring"
    elif baseline.is_hidden:
        outcome, wait = AdviceOutcome.NOTHING_TO_GAIN, units.fraction(baseline.wait_fraction)
        text = f"Nothing to gain{baseline.after_first}: the training loop waits {wait} of its time"
    elif is_trusted(error):
        outcome = AdviceOutcome.NOTHING_FOUND
        text = "The training loop waits, but no change is predicted to help"
    else:
        outcome, text = AdviceOutcome.WITHHELD, "No advice"
    if error is None:
        why = baseline.loader.reason or "it is not known which workers made the batches"
    elif not is_trusted(error):
        why = f"a replay of the unmodified run misses its time by {signed(error)}"
    in_script = baseline.facts.is_script and outcome is not AdviceOutcome.WITHHELD
    text += f"{extent_text(baseline.exposure.loop_fraction, in_script=in_script)}."
    return outcome, f"{text} Nothing is predicted: {why}." if why else text


def _about(baseline: Loading) -> str:
    facts = baseline.facts
    cost = baseline.exposure.cpus
    cpus = f" {cpu_sentence(cost)}" if cost is not None and cost.slows_steps else ""
    sample_ns = baseline.sample_ns
    sample = f"; a sample takes {units.duration(sample_ns)}" if sample_ns else ""
    return (
        f"{facts.dataset or 'a script'}{', a stand-in' if facts.stand_in else ''}: "
        f"{baseline.label}, workers: {units.count(baseline.loader.workers)}. The training loop "
        f"waits {units.fraction(baseline.wait_fraction)} of its time "
        f"{OVER[baseline.exposure.window]}{sample}.{cpus}"
    )


def advice_document(advice: Advice) -> Document:
    """Return what is advised on a run."""
    summary = [advice.about, advice.sentence]
    if is_trusted(advice.replay_error_fraction):
        error = signed(advice.replay_error_fraction)
        summary.append(f"A replay of the unmodified run misses its time by {error}.")
    result = [Section("advice", "", sentences(summary))]
    if changes := (*advice.changes, *advice.to_measure):
        first_s, epoch_s = advice.baseline.first_epoch_s, advice.baseline.epoch_s
        epoch = f" (an epoch over all samples now takes {_seconds(epoch_s)}" if epoch_s else ""
        if first_s is not None and first_s != epoch_s:
            epoch += f", the first {_seconds(first_s)}"
        epoch += ")" * bool(epoch)
        result.append(
            Section("changes", f"What would help, by how sure it is{epoch}", _blocks(changes))
        )
    if advice.ruled_out:
        known = sentences(f"{each.title}: {each.sentence}" for each in advice.ruled_out)
        result.append(Section("ruled-out", "Not proposed", known))
    return Document("Advice", tuple(result), figures=lambda: advice)


def _blocks(changes: Sequence[AdvisedChange]) -> tuple[Block, ...]:
    result: list[Block] = []
    for number, change in enumerate(changes, 1):
        result += _block(f"{number}. {change.title}", change)
    return tuple(result)


def _block(title: str, change: AdvisedChange) -> tuple[Block, ...]:
    """Return what is said of a proposal."""
    epoch = "" if change.saved_s is None else f", {_seconds(change.saved_s)} of an epoch"
    costs = ", ".join(_cost_parts(change))
    text = f"It saves {saving(change, _share_text(change))}{epoch}. It costs {costs}."
    return Sentence(title, "strong"), Sentence(text), *map(Command, change.commands)


def saving(change: AdvisedChange, share: str, whose: str = "the time") -> str:
    """Return what is saved, and what says so."""
    if change.evidence is Evidence.UNKNOWN:
        return change.evidence.text
    few = "" if change.is_proven or change.evidence is Evidence.BOUND else ", too few batches"
    return f"{share} of {whose} {change.evidence.text}{few}"


def _cost_parts(change: AdvisedChange) -> Iterator[str]:
    cost, pays = change.cost, change.break_even
    if cost == NO_COST:
        yield "nothing"
    if cost.spent_s is None:
        yield "a conversion or copy of unknown length"
    elif cost.spent_s:
        yield f"{_seconds(cost.spent_s)} once"
    for nbytes, what in ((cost.disk_nbytes, "on disk"), (cost.memory_nbytes, "of memory")):
        if nbytes != 0:
            yield f"{'an unknown amount' if nbytes is None else units.nbytes(nbytes)} {what}"
    if pays is not None and pays.epochs is not None:
        least = "" if change.is_proven else "at least "
        yield f"and pays for itself after {least}{units.epochs(pays.epochs)} epochs"


def trial_section(advice: Advice) -> Section:
    """Return what was predicted against what was obtained; or why nothing was tried."""
    tried = advice.tried
    if not tried:
        return Section("tried", "Tried", sentences([advice.not_tried or ""]))
    low, high = tried[0].band_low_fraction, tried[0].band_high_fraction
    noise = "In fewer than 6 rounds the noise is unknown."
    if low is not None:
        noise = f"The unchanged baseline, run a second time, saved {_between(low, high)}: that is "
        noise += "the noise."
    lead = (
        "Time saved per sample, predicted and measured, alternating rounds: "
        f"{units.count(tried[0].rounds)}. {noise}"
    )
    promised = {
        each.title: "at most " * (each.evidence is Evidence.BOUND) + _share_text(each)
        if each.evidence is not Evidence.UNKNOWN
        else units.UNKNOWN
        for each in (*advice.changes, *advice.to_measure)
    }
    free = () if advice.free_data is None else (advice.free_data,)
    for each in free:
        waits = units.fraction(advice.baseline.wait_fraction)
        promised[WITH_FREE_DATA] = f"{waits} or more" if each.no_upper_bound else f"at most {waits}"
    rows = tuple(
        (each.title, promised[each.title], _share_text(each), "noise" * bool(each.is_noise))
        for each in tried
    )
    table = Table("", tuple(map(Column, ("", "predicted", "obtained", ""))), rows)
    rates = sentences(
        f"If data were free: {units.ratio(each.obtained_steps_per_s)} {each.words}."
        for each in free
    )
    return Section("tried", "Tried", (Sentence(lead), table, *rates))


def _share_text(saved: AdvisedChange | TriedChange) -> str:
    """Return what is saved, and between what where that is known."""
    if isinstance(saved, AdvisedChange) and saved.saved_fraction is None:
        return units.fraction(saved.expected)
    known = saved.low_fraction is not None
    between = f" ({_between(saved.low_fraction, saved.high_fraction)})" if known else ""
    return f"{signed(saved.saved_fraction)}{between}"


def _between(low: float | None, high: float | None) -> str:
    return "unknown" if low is None or high is None else f"{signed(low)} to {signed(high)}"


def _seconds(value: float) -> str:
    return units.duration(units.nanoseconds(value))
