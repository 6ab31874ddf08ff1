"""What to try next, with the command that tries it; what would be gained is the replay's to say."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.analysis import Verdict
from iobench.report import units
from iobench.report.run_report import SOURCE
from iobench.report.sentences import MOST

if TYPE_CHECKING:
    from iobench.report.run_report import RunReport

__all__ = ["NextStep", "next_steps"]

ONE_RUN_OPTIONS: Final = {"--out": 1, "--json": 0}
"""Options not to repeat, with how many values they take: a run directory is written once."""
START_FRACTION: Final = 0.1
"""Waits outside of the steady state are worth a word from this share of the run on."""
STAND_IN_OPTIONS: Final = {"--tiny": 0, "--scale": 1}


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to try: the reason, and the command line, None where there is nothing to run."""

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
    if verdict is Verdict.HIDDEN:
        which = f" of {best.facts.label}" if len(reports) > 1 and best.facts.label else ""
        text = f"nothing to gain from faster loading{which} at this step time"
        share = best.diagnosis.loop_fraction
        if share is not None and share < MOST:
            text += (
                f" in the training loop, which is {units.fraction(share)} of the script's time: "
                "look at what the script does before and beside it"
            )
        if best.facts.is_script and (best.diagnosis.start_fraction or 0) > START_FRACTION:
            text += _about_starts(best)
        return [NextStep(text)]
    if best.config.get("own_order"):  # it has no samples by number, to convert or to deal out
        return []
    if best.facts.format == SOURCE and {report.facts.format for report in reports} == {SOURCE}:
        stored = "numpy" if best.facts.framework == "torch" else "tfrecord"
        step = _varied(best, {"--format": stored})
        return (
            [NextStep(f"the same samples, finished beforehand, as {stored}", step)] if step else []
        )
    if best.facts.is_script:
        return _about_a_script(best)
    cpus = best.facts.machine.get("cpus")
    # Threads of the training process load as well as processes do.
    at_work = best.exposure.workers or best.facts.threads
    if not isinstance(cpus, int) or at_work >= cpus:
        return []
    step = _varied(best, {"--workers": str(cpus)})
    return [NextStep(f"a loading process on each of the {cpus} CPUs", step)] if step else []


def _about_a_script(best: RunReport) -> list[NextStep]:
    """Return what may help a script: only for the loader behind most of its wait, if known."""
    waits = best.exposure.whole.wait_ns
    main = max(best.exposure.loaders, key=lambda each: each.wait_ns, default=None)
    cpus = best.facts.machine.get("cpus")
    if main is None or not isinstance(cpus, int) or 2 * main.wait_ns < waits:
        return []
    ranks = [told for told in best.job if told.role == "consumer"]
    here = {told.host for told in best.told}
    each = cpus // max(1, sum(told.host in here for told in ranks))
    if main.framework != "torch" or main.workers >= each:
        return []
    name = f" of {main.name}" if main.name else ""
    if main.number is not None and len(best.exposure.loaders) > 1:
        name = f" {main.number}{name}"
    return [
        NextStep(
            f"num_workers={each} in the loader{name}, one for each CPU this process has; "
            f"there are {main.workers} now"
        )
    ]


def _about_starts(best: RunReport) -> str:
    """Return what may help where the steady state waits for nothing, but the rest of a run does."""
    again = any(
        each.framework == "torch" and each.workers and each.n_rounds > 1
        for each in best.exposure.loaders
    )
    how = " or persistent_workers=True, if it is not set" if again else ""
    return f", once it is steady; longer rounds{how} make its starts weigh less"


def _about_length(best: RunReport) -> list[NextStep]:
    # Rounds end where epochs do on a cold cache: however many there are, each has to fill again.
    if best.diagnosis.steady or best.exposure.n_rounds > 1:
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
