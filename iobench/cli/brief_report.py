"""``iobench report --json --brief``: what a program needs to act on a report, in few keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.analysis.diagnosis import Verdict, diagnose
from iobench.analysis.replay.runs import recorded_runs
from iobench.findings.advice.advising import advice_of
from iobench.findings.advice.loading import loading_of
from iobench.report.document import Sentence
from iobench.report.one_screen import JUDGED, of_style
from iobench.report.renderers.json_text import to_plain
from iobench.report.report_document import report_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from iobench.analysis.run import RankRun, Run
    from iobench.findings.advice.proposals import Advice

BRIEF_VERSION: Final = 1
"""Raised when a key changes its meaning or goes; new keys do not raise it."""
MOST_STAGES: Final = 8
MOST_PROPOSALS: Final = 5


class BriefStage(msgspec.Struct, frozen=True):
    """A stage of the part that is judged."""

    stage: str
    exposed_ns: int
    hidden_ns: int
    exposed_fraction: float | None  # of the wait


class BriefRun(msgspec.Struct, frozen=True, kw_only=True):
    """One training process: its verdict, and the part of it that the verdict is about."""

    name: str | None
    rank: int
    verdict: str  # "I/O-bound", "hidden", ...
    window: str  # "recurring" (epochs after the first), "steady" or "whole"
    wait_fraction: float | None
    hidden_fraction: float | None  # of the loading work, hidden behind computing
    wall_ns: int
    wait_ns: int
    batches: int
    samples_per_s: float | None
    stages: tuple[BriefStage, ...]  # the longest exposed first


class BriefProposal(msgspec.Struct, frozen=True, kw_only=True):
    """A change: shares of the loop's time that it saves."""

    title: str
    cause: str  # what it changes: "workers", "format", "chunks", ...
    evidence: str  # "measured", "replayed", "bound", or "unknown": to be tried
    saved_fraction: float | None  # null where only a bound is known
    low_fraction: float | None
    high_fraction: float | None  # of a bound, the most that it can save
    commands: tuple[str, ...]


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    run: str
    sentence: str  # the verdict; of a job of several ranks what is said of all of them
    cautions: tuple[str, ...]  # what must be known before the figures are believed
    runs: tuple[BriefRun, ...]
    outcome: str  # of the advice; "nothing to gain", "withheld", "nothing found", "advice"
    about: str  # why there are no proposals, or what they rest on
    proposals: tuple[BriefProposal, ...]
    schema_version: int = BRIEF_VERSION


def brief_figures(path: Path, runs: Sequence[Run]) -> dict[str, Any]:
    """Return verdicts, shares, stages and proposals of a run directory, ready for JSON."""
    ranks = [rank for run in runs for rank in run]
    judged = [each for each in ranks if each.exposure.has_consumer]
    hung = any(diagnose(each.exposure).verdict is Verdict.HUNG for each in judged)
    loadings = [loading_of(each, recorded_runs(each)) for each in judged]
    advice = None if hung or not loadings else advice_of(loadings)
    sentences = [each for each in _sentences_of(runs) if isinstance(each, Sentence)]
    usual = [each for each in sentences if each.style != "caution"]
    first = next((each.text for each in (*of_style(usual, *JUDGED), *usual)), "")
    result: dict[str, Any] = to_plain(
        Brief(
            run=str(path),
            sentence=first,
            cautions=tuple(each.text for each in sentences if each.style == "caution"),
            runs=tuple(map(_of_run, judged)),
            outcome="nothing found" if advice is None else advice.outcome.value,
            about="no loader delivered a batch" if advice is None else advice.sentence,
            proposals=() if advice is None else tuple(_proposals(advice)),
        )
    )
    return result


def _sentences_of(runs: Sequence[Run]) -> Iterator[object]:
    for section in report_document(runs).sections:
        yield from section.blocks


def _of_run(run: RankRun) -> BriefRun:
    diagnosis = diagnose(run.exposure)
    part = run.exposure.part(diagnosis.window) or run.exposure.whole
    return BriefRun(
        name=run.about.label or run.about.name,
        rank=run.rank,
        verdict=diagnosis.verdict.value,
        window=diagnosis.window,
        wait_fraction=part.wait_fraction,
        hidden_fraction=diagnosis.hidden_fraction,
        wall_ns=part.wall_ns,
        wait_ns=part.wait_ns,
        batches=part.n_batches,
        samples_per_s=part.samples_per_s,
        stages=tuple(
            BriefStage(
                each.stage,
                each.exposed_ns,
                each.hidden_ns,
                each.exposed_ns / part.wait_ns if part.wait_ns else None,
            )
            for each in part.stages[:MOST_STAGES]
        ),
    )


def _proposals(advice: Advice) -> Iterator[BriefProposal]:
    for change in (*advice.changes, *advice.to_measure)[:MOST_PROPOSALS]:
        yield BriefProposal(
            title=change.title,
            cause=change.levers[0].value,
            evidence=change.evidence.value,
            saved_fraction=change.saved_fraction,
            low_fraction=change.low_fraction,
            high_fraction=change.high_fraction,
            commands=change.commands,
        )
