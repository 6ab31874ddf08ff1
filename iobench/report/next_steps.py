"""What to try next, with the command that tries it: the advice in short, and longer runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.analysis.advice.levers import Evidence
from iobench.analysis.diagnosis import Verdict
from iobench.report import units
from iobench.report.advice_commands import commands_of, title_of
from iobench.report.advice_input import advice_input, advice_of
from iobench.report.sentences import MOST

if TYPE_CHECKING:
    from iobench.report.run_report import RunReport

__all__ = ["NextStep", "next_steps"]

ONE_RUN_OPTIONS: Final = {"--out": 1, "--json": 0}
"""Options not to repeat, with how many values they take: a run directory is written once."""
MOST_ADVISED: Final = 2
EVIDENCE: Final = {
    Evidence.MEASURED: "as measured here",
    Evidence.REPLAYED: "by replay",
    Evidence.BOUND: "at most, to be measured",
}
START_FRACTION: Final = 0.1
"""Waits outside of the steady state are worth a word from this share of the run on."""
STAND_IN_OPTIONS: Final = {"--tiny": 0, "--scale": 1}


@dataclass(frozen=True, slots=True)
class NextStep:
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


def next_steps(reports: Sequence[RunReport]) -> tuple[NextStep, ...]:
    """Return what to try next, best first.

    Of several runs the one that waits least is gone on from. Runs that ``iobench profile`` did
    not make have no command to vary.
    """
    measured = [report for report in reports if report.wait_fraction is not None]
    if not measured:
        return ()
    best = min(measured, key=lambda report: report.wait_fraction or 0.0)
    steps = [*_about_waiting(best, reports), *_about_length(best)]
    if best.facts.stand_in:
        own = _varied(best, {"--data-dir": "DIR"}, without=STAND_IN_OPTIONS)
        steps.extend([NextStep("the same on your own files, in DIR", own)] if own else [])
    return tuple(steps)


def _about_waiting(best: RunReport, reports: Sequence[RunReport]) -> list[NextStep]:
    verdict = best.diagnosis.verdict
    if verdict is Verdict.NO_COMPUTE:
        step = _varied(best, {"--compute": "25ms"})
        return [NextStep("a step time shows what compute can hide", step)] if step else []
    if verdict is not Verdict.HIDDEN:
        return _advised(reports, proven=False)
    helps = _advised([best], proven=True)
    if helps:
        return helps
    which = f" of {best.facts.label}" if len(reports) > 1 and best.facts.label else ""
    text = f"nothing to gain from faster loading{which} at this step time"
    share = best.diagnosis.loop_fraction
    if share is not None and share < MOST:
        text += (
            f" in the training loop, which is {units.fraction(share)} of the script's time: "
            "look at what the script does before and beside it"
        )
    if best.facts.is_script and best.diagnosis.start_fraction > START_FRACTION:
        text += _about_starts(best)
    return [NextStep(text)]


def _advised(reports: Sequence[RunReport], *, proven: bool) -> list[NextStep]:
    """Return what ``iobench advise`` has to say of these runs, in short: the best few changes."""
    given = advice_input("", (report.way for report in reports))
    if given is None:
        return []
    advice, script = advice_of(given), given.facts.is_script
    found = []
    changes = advice.changes if proven else (*advice.changes, *advice.to_measure)
    for change in changes[:MOST_ADVISED]:
        lines = commands_of(change.candidate, given.facts, advice.baseline)
        # A script's dataset is an object of its own: a command would not find it by name.
        commands = [line for line in lines if line.startswith("iobench ") and not script]
        if change.gain.evidence is not Evidence.MEASURED:  # first of all to be tried
            commands.sort(key=lambda line: not line.startswith("iobench profile "))
        saved = units.fraction(change.gain.expected)
        how = f"saves {saved} of the time {EVIDENCE[change.gain.evidence]}"
        if not change.gain.is_proven and change.gain.evidence is not Evidence.BOUND:
            how += ", too few batches to be sure"
        settings = [line for line in lines if line.startswith("DataLoader(...")]
        code = f" ({settings[0]})" if settings and not commands else ""
        title = f"{title_of(change.candidate)}{code}: {how}"
        found.append(NextStep(title, commands[0] if commands else None))
    return found


def _about_starts(best: RunReport) -> str:
    """Return what may help where only the rest of a run waits: its starts."""
    if best.diagnosis.window == "recurring":
        return ", after the first epoch; that its start weighs less takes more epochs"
    again = any(
        each.framework == "torch" and each.workers and each.n_rounds > 1
        for each in best.exposure.loaders
    )
    how = " or persistent_workers=True, if it is not set" if again else ""
    return f", once it is steady; longer rounds{how} make its starts weigh less"


def _about_length(best: RunReport) -> list[NextStep]:
    # Rounds end where epochs do on a cold cache: however many there are, each has to fill again.
    if best.exposure.window != "whole" or best.exposure.n_rounds > 1:
        return []
    step = _varied(best, {"--batches": "200"}, without={"--duration": 1, "--epochs": 1})
    return [NextStep("a longer run, to have a steady state", step)] if step else []


def _varied(
    report: RunReport, options: Mapping[str, str], *, without: Mapping[str, int] | None = None
) -> str | None:
    """Return the run's own command with options set; None if it was no ``iobench profile``.

    ``without`` names options to leave out, each with how many values it takes.
    """
    try:
        words = shlex.split(report.facts.command or "")
    except ValueError:  # not a command line, whoever wrote it
        return None
    if words[:2] != ["iobench", "profile"]:
        return None
    dropped = {**ONE_RUN_OPTIONS, **(without or {}), **dict.fromkeys(options, 1)}
    kept, skip = [], 0
    for word in words:
        name, equals, _ = word.partition("=")
        if skip:
            skip -= 1
        elif name in dropped:
            skip = 0 if equals else dropped[name]
        else:
            kept.append(word)
    return shlex.join([*kept, *(word for pair in options.items() for word in pair)])
