"""One run, ready to be shown: what it was, was measured, is concluded, and is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from iobench.analysis.diagnosis import Diagnosis, diagnosis_of
from iobench.analysis.epochs import epoch_figures
from iobench.analysis.processes import other_loops, process_work
from iobench.registry import installed_findings
from iobench.runs.run_facts import SOURCE

if TYPE_CHECKING:
    from iobench.analysis.epochs import EpochFigures
    from iobench.analysis.exposure_figures import Exposure
    from iobench.analysis.processes import ProcessWork
    from iobench.analysis.run import RankRun, Run
    from iobench.recording.facts import ProcessFacts
    from iobench.runs.run_facts import RunFacts


class RunReport(msgspec.Struct, frozen=True):
    """All that is shown of one run, or of one of its training processes."""

    run: str | None  # its directory
    facts: RunFacts
    exposure: Exposure
    diagnosis: Diagnosis
    unclosed: tuple[str, ...] = ()  # processes that did not end their span file themselves
    unended: tuple[str, ...] = ()  # of these the ones that it is a surprise of
    damaged: tuple[str, ...] = ()  # processes whose span file holds spans that cannot be read
    process_facts: tuple[ProcessFacts, ...] = ()  # of this rank of a script
    others: tuple[str, ...] = ()  # processes of this rank that trained too, not in these figures
    processes: tuple[ProcessWork, ...] = ()  # where nothing waited, and no exposure can be shown
    job_size: int = 1  # training processes of its job
    figures: Mapping[str, Any] = msgspec.field(default_factory=dict)
    for_job: Mapping[str, Any] = msgspec.field(default_factory=dict)
    epochs: tuple[EpochFigures, ...] = ()  # empty for one of many ranks


def make_reports(runs: Iterable[Run]) -> tuple[RunReport, ...]:
    """Analyse runs: one report for each training process, the original files first."""
    known = (_report(each) for run in runs for each in run)
    return tuple(sorted(known, key=lambda report: report.facts.format != SOURCE))


def _report(rank: RankRun) -> RunReport:
    profile, exposure, findings = rank.job or rank, rank.exposure, installed_findings()
    processes = [(f"{each.name} (process {each.pid})", each) for each in rank.all_processes]
    unended = {each.pid for each in rank.unended}
    return RunReport(
        run=str(profile.path),
        facts=rank.about,
        # Of many ranks the wait of every step would fill the memory.
        exposure=replace(exposure, waits_ns=()) if rank.is_one_of_many else exposure,
        diagnosis=diagnosis_of(rank),
        unclosed=tuple(name for name, each in processes if not each.closed),
        unended=tuple(name for name, each in processes if each.pid in unended),
        damaged=tuple(name for name, each in processes if each.damaged),
        process_facts=rank.own_facts,
        others=other_loops(rank),
        processes=()
        if exposure.has_consumer
        else process_work(profile, rank=None if rank.is_alone else rank.rank),
        job_size=rank.job_size,
        figures={each.name: rank.cached(each.figures) for each in findings if not each.of_job},
        for_job={each.name: rank.cached(each.figures) for each in findings if each.of_job},
        epochs=() if rank.is_one_of_many else rank.cached(epoch_figures),
    )
