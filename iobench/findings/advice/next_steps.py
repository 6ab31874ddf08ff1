"""What to try next, with the command that tries it: the advice in short, and longer runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.analysis.replay.runs import reported_loaders
from iobench.findings.advice.advising import advice_of, saving
from iobench.findings.advice.loading import Loading, ProfileCommand, loading_of
from iobench.findings.advice.proposals import Evidence
from iobench.findings.contract import Finding
from iobench.masking import as_typed
from iobench.report import units
from iobench.report.document import Command, Section

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun

MOST_ADVISED: Final = 2


class NextStep(msgspec.Struct, frozen=True):
    """What to try, why, and the command line; None where there is nothing to run."""

    reason: str
    command: str | None = None


class NextSteps(tuple[NextStep, ...]):
    """What to try, surest first; ``loadings`` are the training processes that it is of."""

    loadings: tuple[Loading, ...]

    @classmethod
    def after(cls, loadings: Iterable[Loading]) -> NextSteps:
        """Return what to try after these."""
        loadings = tuple(loadings)
        steps = cls(_steps(loadings))
        steps.loadings = loadings
        return steps


def _steps(loadings: Sequence[Loading]) -> Iterator[NextStep]:
    best = min(loadings, key=lambda each: each.wait_fraction or 0.0)
    exposure, verdict = best.exposure, diagnose(best.exposure).verdict
    facts, given = best.facts, ProfileCommand.parsed(best.facts.command)
    if verdict is Verdict.HUNG or facts.free_data:
        return
    if verdict is not Verdict.NO_COMPUTE:
        hidden = verdict is Verdict.HIDDEN and best.is_hidden
        if best.slows_steps:
            yield NextStep("loading that needs less CPU, to be tried: steps may become shorter too")
        yield from _advised([best] if hidden else loadings, hidden=hidden)
    elif given is not None:
        reason = "with a step time, the report shows how much loading compute can hide"
        yield NextStep(reason, given.varied({"--compute": "25ms"}))
    # Rounds end where epochs do on a cold cache: however many there are, each has to fill again.
    if given is not None and exposure.window == "whole" and exposure.n_rounds <= 1:
        longer = given.varied({"--batches": "200"}, ("--duration", "--epochs"))
        yield NextStep("a longer run, so that it reaches a steady state", longer)
    if given is not None and facts.stand_in and facts.sources != ():
        real = given.varied({"--data-dir": "DIR"}, ("--tiny",), facts.sources)
        yield NextStep(f"the same profile on real files of {facts.dataset}, in DIR", real)


def _advised(loadings: Sequence[Loading], *, hidden: bool) -> Iterator[NextStep]:
    """Yield the best few changes that ``iobench advise`` proposes."""
    advice = advice_of(loadings)
    changes = () if advice is None else (*advice.changes, *advice.to_measure)
    is_script = loadings[0].facts.is_script
    whose = "the training loop's time" if is_script else "the time"
    for change in changes[:MOST_ADVISED]:
        # A script's dataset is an object of its own: a command would not find it by name.
        lines = [line for line in change.commands if line.startswith("iobench ") and not is_script]
        command = lines[0 if change.evidence is Evidence.MEASURED else -1] if lines else None
        saves = saving(change, units.fraction(change.expected), whose)
        yield NextStep(f"{change.title}: saves {saves}", command)
    if changes and is_script:
        command = shlex.join(["iobench", "advise", str(as_typed(loadings[0].path))])
        yield NextStep("the lines to change, what they cost, and other changes", command)
    if hidden and not changes:
        after = loadings[0].after_first
        yield NextStep(f"nothing to gain from faster loading{after} at this step time")


def next_section(steps: NextSteps) -> Section | None:
    """Return what to try next, where there is anything."""
    commands = tuple(Command(step.command or "", step.reason) for step in steps)
    return Section("next", "What to try next", commands) if commands else None


def next_steps(run: RankRun) -> NextSteps | None:
    """Return what to try after a training process was measured."""
    loading = loading_of(run, run.cached(reported_loaders))
    return None if loading is None or loading.wait_fraction is None else NextSteps.after([loading])


def of_job(ranks: Sequence[NextSteps]) -> NextSteps:
    """Return what to try with a job: with its training process that waits longest."""
    return max(ranks, key=lambda each: each.loadings[0].exposure.whole.wait_ns)


def side_by_side(runs: Sequence[NextSteps]) -> NextSteps:
    """Return what to try of several configurations that load the same samples."""
    return NextSteps.after(loading for each in runs for loading in each.loadings)


FINDING: Final = Finding(
    "next_steps", 70, tuple[NextStep, ...], next_steps, next_section, of_job, side_by_side
)
"""What to try next, as the entry point names it."""
