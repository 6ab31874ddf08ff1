"""What to try next, with the command that tries it: the advice in short, and longer runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.commands import ProfileCommand
from iobench.findings.advice.loading import Loading, reported_loading
from iobench.findings.advice.proposals import Evidence
from iobench.findings.contract import Finding
from iobench.masking import as_typed
from iobench.report import units
from iobench.report.document import Command, Section

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun

MOST_ADVISED: Final = 2
EVIDENCE: Final = {
    Evidence.MEASURED: "as measured here",
    Evidence.REPLAYED: "by replay",
    Evidence.BOUND: "at most, to be measured",
}


class NextStep(msgspec.Struct, frozen=True):
    """What to try, why, and the command line; None where there is nothing to run."""

    reason: str
    command: str | None = None


class NextSteps(tuple[NextStep, ...]):
    """What to try, best first; ``ways`` are the training processes that it is of."""

    ways: tuple[Loading, ...]

    @classmethod
    def after(cls, ways: Iterable[Loading]) -> NextSteps:
        """Return what to try after these; of several the one that waits least is gone on from."""
        ways = tuple(ways)
        steps = cls(_steps(ways))
        steps.ways = ways
        return steps


def _steps(ways: Sequence[Loading]) -> Iterator[NextStep]:
    measured = [each for each in ways if each.wait_fraction is not None]
    if not measured:
        return
    best = min(measured, key=lambda each: each.wait_fraction or 0.0)
    exposure, facts = best.exposure, best.facts
    yield from _about_waiting(best, ways)
    # Rounds end where epochs do on a cold cache: however many there are, each has to fill again.
    if exposure.window == "whole" and exposure.n_rounds <= 1:
        reason = "a longer run, so that it reaches a steady state"
        yield from _varied(best, reason, {"--batches": "200"}, ("--duration", "--epochs"))
    if facts.stand_in and facts.sources != ():  # a store is of what it was made of
        reason = f"the same profile on real files of {facts.dataset}, in DIR"
        yield from _varied(best, reason, {"--data-dir": "DIR"}, ("--tiny",), facts.sources)


def _about_waiting(best: Loading, ways: Sequence[Loading]) -> Iterator[NextStep]:
    verdict, of = diagnose(best.exposure).verdict, best.facts.label
    if verdict is Verdict.NO_COMPUTE:
        reason = "with a step time, the report shows how much loading compute can hide"
        yield from _varied(best, reason, {"--compute": "25ms"})
        return
    hidden = verdict is Verdict.HIDDEN
    advised = [*_advised([best] if hidden else ways)]
    if hidden and not advised:
        which = f" of {of}" if len(ways) > 1 and of else ""
        advised = [NextStep(f"nothing to gain from faster loading{which} at this step time")]
    yield from advised


def _advised(ways: Sequence[Loading]) -> Iterator[NextStep]:
    """Yield what ``iobench advise`` has to say of these runs, in short: the best few changes."""
    advice = advice_of(ways)
    if advice is None:
        return
    whose = "the training loop's time" if advice.is_script else "the time"
    if len(ways) > 1 and not advice.is_script:  # others are spoken of as well
        whose += f" of {advice.baseline.label}"
    changes = (*advice.changes, *advice.to_measure)[:MOST_ADVISED]
    for change in changes:
        reason = f"saves {units.fraction(change.expected)} of {whose} {EVIDENCE[change.evidence]}"
        if not change.is_proven and change.evidence is not Evidence.BOUND:
            reason += ", too few batches to be certain"
        # A script's dataset is an object of its own: a command would not find it by name.
        commands = [line for line in change.commands if line.startswith("iobench ")]
        if change.evidence is not Evidence.MEASURED:  # first of all to be tried
            commands.sort(key=lambda line: not line.startswith("iobench profile "))
        command = None if advice.is_script or not commands else commands[0]
        lines = [line for line in change.commands if line.startswith("DataLoader(...")]
        code = f" ({lines[0]})" if lines and command is None else ""
        yield NextStep(f"{change.title}{code}: {reason}", command)
    if advice.is_script and changes:
        command = shlex.join(["iobench", "advise", str(as_typed(ways[0].path))])
        yield NextStep("the lines to change, what they cost, and other changes", command)


def _varied(
    best: Loading,
    reason: str,
    options: Mapping[str, str],
    without: Sequence[str] = (),
    targets: tuple[str, ...] | None = None,
) -> Iterator[NextStep]:
    """Yield the run's own command with options set; nothing if it was no ``iobench profile``."""
    given = ProfileCommand.parsed(best.facts.command)
    if given is not None:
        yield NextStep(reason, given.varied(options, without, targets))


def next_section(steps: NextSteps) -> Section | None:
    """Return what to try next, where there is anything."""
    commands = tuple(Command(step.command or "", step.reason) for step in steps)
    return Section("next", "What to try next", commands) if commands else None


def next_steps(run: RankRun) -> NextSteps:
    """Return what to try after a training process was measured."""
    return NextSteps.after([run.cached(reported_loading)])


def of_job(ranks: Sequence[NextSteps]) -> NextSteps:
    """Return what to try with a job: with its training process that waits longest."""
    return max(ranks, key=lambda each: each.ways[0].exposure.whole.wait_ns)


def side_by_side(runs: Sequence[NextSteps]) -> NextSteps:
    """Return what to try of several ways of loading the same samples."""
    return NextSteps.after(way for each in runs for way in each.ways)


FINDING: Final = Finding(
    "next_steps", 70, tuple[NextStep, ...], next_steps, next_section, of_job, side_by_side
)
"""What to try next, as the entry point names it."""
