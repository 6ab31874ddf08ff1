"""What to try next, with the command that tries it: the advice in short, and longer runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.candidates import WORTH_SAYING
from iobench.findings.advice.commands import ProfileCommand
from iobench.findings.advice.figures import Evidence
from iobench.findings.advice.measured import reported_rank
from iobench.findings.contract import Finding
from iobench.json_keys import HIDDEN, ITSELF, figure
from iobench.masking import as_typed
from iobench.report import units
from iobench.report.document import Command, Section
from iobench.report.sentences import MOST

if TYPE_CHECKING:
    from iobench.analysis.diagnosis import Diagnosis
    from iobench.analysis.run import RankRun
    from iobench.findings.advice.measured import MeasuredRank

MOST_ADVISED: Final = 2
EVIDENCE: Final = {
    Evidence.MEASURED: "as measured here",
    Evidence.REPLAYED: "by replay",
    Evidence.BOUND: "at most, to be measured",
}
START_FRACTION: Final = 0.1
"""Waits outside of the steady state are worth a word from this share of the run on."""


class NextStep(msgspec.Struct, frozen=True):
    """What to try.

    Parameters
    ----------
    reason : str
        Why.
    command : str or None
        The command line, None where there is nothing to run.
    """

    reason: str
    command: str | None = None


class NextSteps(msgspec.Struct, frozen=True):
    """What to try, best first.

    Parameters
    ----------
    ranks : tuple of MeasuredRank
        A training process; or, of several ways of loading the same samples, one of each.
    """

    ranks: tuple[MeasuredRank, ...]
    JSON_KEYS: ClassVar = {
        "ranks": HIDDEN,
    }

    @figure.named(ITSELF)
    def steps(self) -> tuple[NextStep, ...]:
        """What to try; of several runs the one that waits least is gone on from.

        Runs that ``iobench profile`` did not make have no command to vary.
        """
        measured = [each for each in self.ranks if each.wait_fraction is not None]
        if not measured:
            return ()
        best = min(measured, key=lambda each: each.wait_fraction or 0.0)
        result = [*_about_waiting(best, self.ranks), *_about_length(best)]
        sources = best.facts.sources
        if best.facts.stand_in and sources != ():  # a store is of what it was made of
            reason = f"the same profile on real files of {best.facts.dataset}, in DIR"
            without = ("--tiny",)
            result += _varied(best, reason, {"--data-dir": "DIR"}, without, sources)
        return tuple(result)


def next_steps(run: RankRun) -> NextSteps:
    """Return what to try after a training process was measured."""
    return NextSteps((run.cached(reported_rank),))


def next_section(found: NextSteps) -> Section | None:
    """Return what to try next, where there is anything."""
    steps = tuple(Command(step.command or "", step.reason) for step in found.steps)
    return Section("next", "What to try next", steps) if steps else None


def of_job(ranks: Sequence[NextSteps]) -> NextSteps:
    """Return what to try with a job: with its training process that waits longest."""
    return max(ranks, key=lambda each: each.ranks[0].exposure.whole.wait_ns)


def side_by_side(ways: Sequence[NextSteps]) -> NextSteps:
    """Return what to try of several ways of loading the same samples."""
    return NextSteps(tuple(rank for each in ways for rank in each.ranks))


def _about_waiting(best: MeasuredRank, ranks: Sequence[MeasuredRank]) -> Iterator[NextStep]:
    diagnosis, facts = diagnose(best.exposure), best.facts
    if diagnosis.verdict is Verdict.NO_COMPUTE:
        reason = "with a step time, the report shows how much loading compute can hide"
        yield from _varied(best, reason, {"--compute": "25ms"})
    elif diagnosis.verdict is not Verdict.HIDDEN:
        yield from _advised(ranks, proven=False)
    elif helps := [*_advised([best], proven=True)]:
        yield from helps
    else:
        which = f" of {facts.label}" if len(ranks) > 1 and facts.label else ""
        text = f"nothing to gain from faster loading{which} at this step time"
        share = diagnosis.loop_fraction
        if share is not None and share < MOST:
            text += f" in the training loop, which is {units.fraction(share)} of the script's time"
        if facts.is_script and diagnosis.start_fraction > START_FRACTION:
            text += _about_starts(best, diagnosis)
        yield NextStep(text)


def _advised(ranks: Sequence[MeasuredRank], *, proven: bool) -> Iterator[NextStep]:
    """Yield what ``iobench advise`` has to say of these runs, in short: the best few changes."""
    advice = advice_of(ranks)
    if advice is None:
        return
    script = advice.circumstances.facts.is_script
    whose = "the training loop's time" if script else "the time"
    if len(ranks) > 1 and not script:  # others are spoken of as well
        whose += f" of {advice.baseline.label}"
    changes = advice.changes if proven else (*advice.changes, *advice.to_measure)
    for change in changes[:MOST_ADVISED]:
        gain, lines = change.gain, change.commands
        # A script's dataset is an object of its own: a command would not find it by name.
        commands = [line for line in lines if line.startswith("iobench ") and not script]
        if gain.evidence is not Evidence.MEASURED:  # first of all to be tried
            commands.sort(key=lambda line: not line.startswith("iobench profile "))
        how = f"saves {units.fraction(gain.expected)} of {whose} {EVIDENCE[gain.evidence]}"
        if gain.evidence is Evidence.BOUND and (gain.high or 0.0) >= gain.expected + WORTH_SAYING:
            how += "; more only if training steps get shorter as well"
        if not gain.is_proven and gain.evidence is not Evidence.BOUND:
            how += ", too few batches to be certain"
        settings = [line for line in lines if line.startswith("DataLoader(...")]
        code = f" ({settings[0]})" if settings and not commands else ""
        reason = f"{change.candidate.title}{code}: {how}"
        yield NextStep(reason, commands[0] if commands else None)
    if script and changes:
        command = shlex.join(["iobench", "advise", str(as_typed(ranks[0].path))])
        yield NextStep("the lines to change, what they cost, and other changes", command)


def _about_starts(best: MeasuredRank, diagnosis: Diagnosis) -> str:
    """Return what may help where only the rest of a run waits: its starts."""
    if diagnosis.window == "recurring":
        return ", after the first epoch; more epochs make its start-up count for less"
    again = any(
        each.framework == "torch" and each.workers and each.n_rounds > 1
        for each in best.exposure.loaders
    )
    how = " or persistent_workers=True if it is not set" if again else ""
    return f", in steady state; longer rounds{how} make start-up count for less"


def _about_length(best: MeasuredRank) -> Iterator[NextStep]:
    # Rounds end where epochs do on a cold cache: however many there are, each has to fill again.
    if best.exposure.window == "whole" and best.exposure.n_rounds <= 1:
        reason, without = (
            "a longer run, so that it reaches a steady state",
            ("--duration", "--epochs"),
        )
        yield from _varied(best, reason, {"--batches": "200"}, without)


def _varied(
    best: MeasuredRank,
    reason: str,
    options: Mapping[str, str],
    without: Sequence[str] = (),
    targets: tuple[str, ...] | None = None,
) -> Iterator[NextStep]:
    """Yield the run's own command with options set; nothing if it was no ``iobench profile``."""
    given = ProfileCommand.parsed(best.facts.command)
    if given is not None:
        yield NextStep(reason, given.varied(options, without, targets))


FINDING: Final = Finding("next_steps", 70, next_steps, next_section, of_job, side_by_side)
"""What to try next, as the entry point names it."""
