"""What a report says, in its order; the page it is written on may be any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from iobench.analysis.utilisation import mean_utilisation
from iobench.report import (
    lines,
    script_lines,
    script_tables,
    storage_lines,
    storage_tables,
    tables,
    units,
)
from iobench.report.job_report import make_job
from iobench.report.next_steps import next_steps
from iobench.report.replay_lines import replay_sentence
from iobench.report.section_page import print_sections
from iobench.report.sentences import long_waits_sentence, today_sentence
from iobench.report.subject_sections import job_sections, run_sections
from iobench.report.utilisation_lines import digest_lines, utilisation_lines

if TYPE_CHECKING:
    from iobench.analysis.rank_figures import JobExposure
    from iobench.analysis.utilisation import Utilisation
    from iobench.report.page import Page
    from iobench.report.run_report import RunReport

__all__ = ["print_reports"]

STORAGE: Final = "What storage did"
PROCESSES: Final = "Processes, by what they did"


def print_reports(reports: Sequence[RunReport], page: Page) -> None:
    """Write what runs of the same samples measured, compared where they are several.

    Parameters
    ----------
    reports : sequence of RunReport
    page : Page
        What is written on.
    """
    job = make_job(reports)
    if job is not None:
        _job(page, reports, job)
        return
    _opening(page, reports)
    if len(reports) > 1:
        page.table(tables.comparison_table(reports))
        for report in reports:
            page.verdict(report, named=True)
        today = today_sentence(reports)
        if today:
            page.text(today, "bold")
        page.gap()
    for report in reports:
        if len(reports) > 1:
            page.heading(report.facts.label or report.run or "unnamed run")
        _run(page, report, judged=len(reports) == 1)
    _next(page, reports)


def _job(page: Page, reports: Sequence[RunReport], job: JobExposure) -> None:
    """Print a job of several training processes: the comparison, then the rank that waits most."""
    page.title(script_lines.script_title(reports, job))
    page.gap()
    for line in script_lines.job_lines(job, reports):
        page.text(line)
    for line in script_lines.missing_rank_lines(job):
        page.text(line, "bold yellow")
    page.gap()
    if job.ranks:
        page.table(script_tables.rank_table(job))
    if job.wall_ns:
        page.section(
            "Waiting by rank and time, from blank (not at all) to @ (all of it); a column is "
            f"{units.duration(job.bin_ns)}"
        )
        page.raw(script_tables.heat_lines(job))
    if not reports:
        return
    page.list(utilisation_lines(mean_utilisation(_utilisations(reports))))
    print_sections(page, job_sections(reports))
    slowest = max(reports, key=lambda report: report.exposure.whole.wait_ns)
    page.heading(f"rank {slowest.exposure.rank}, which waits longest")
    page.text(script_lines.measured_compute_line(slowest))
    page.gap()
    _run(page, slowest, judged=True, in_job=True)
    _next(page, [slowest])


def _utilisations(reports: Sequence[RunReport]) -> list[Utilisation]:
    return [report.utilisation for report in reports if report.utilisation is not None]


def _opening(page: Page, reports: Sequence[RunReport]) -> None:
    if reports[0].facts.is_script:
        page.title(script_lines.script_title(reports))
        page.text(script_lines.measured_compute_line(reports[0]))
        page.gap()
        return
    page.title(lines.title_line(reports))
    for stand_in in dict.fromkeys(lines.stand_in_line(report.facts) for report in reports):
        if stand_in:
            page.text(stand_in, "bold yellow")
    for reader in dict.fromkeys(lines.reader_line(report.facts) for report in reports):
        if reader:
            page.text(reader)
    for compute in dict.fromkeys(lines.compute_line(report.facts) for report in reports):
        page.text(compute)
    page.gap()


def _run(page: Page, report: RunReport, *, judged: bool, in_job: bool = False) -> None:
    exposure = report.exposure
    first, *rest = lines.headline(exposure)
    page.text(first, "bold")
    if judged:
        page.verdict(report)
    replayed = replay_sentence(report.diagnosis)
    if replayed:
        page.text(replayed)
    decoded = lines.decoded_line(exposure.whole, report.facts)
    for line in (*rest, *([decoded] if decoded else [])):
        page.text(line)
    if report.facts.described_by:
        page.text(f"This pipeline: {report.facts.described_by}")
    if exposure.long_waits is not None:
        page.text(long_waits_sentence(exposure.long_waits), "yellow")
    page.gap()
    if len(exposure.loaders) > 1:
        page.table(script_tables.loader_table(exposure))
    if exposure.whole.n_batches:
        _tables(page, report)
    processes = script_tables.process_tables(report.processes)
    if processes:
        with page.folded(PROCESSES):
            for table in processes:
                page.table(table)
    if (report.storage is not None and report.storage.rows) or report.trace is not None:
        with page.folded(STORAGE):
            _storage(page, report)
    print_sections(page, run_sections(report, in_job=in_job))
    with page.folded("How it was measured"):
        page.list(lines.setup_lines(report))
        page.list(lines.measurement_lines(report))
        page.list(digest_lines(report.samples, exposure.whole))


def _tables(page: Page, report: RunReport) -> None:
    exposure = report.exposure
    first, *others = tables.stage_tables(exposure)
    page.table(first)
    for table in others:
        with page.folded(table.title):
            page.table(table)
    page.list(
        lines.fused_lines(exposure.whole, is_script=report.facts.is_script)
        + lines.estimated_lines(exposure.whole)
    )
    page.table(tables.wait_table(report))
    if report.facts.published_s is not None:
        source = report.facts.published_source or "an unknown source"
        real = ", with samples of the real size" if report.facts.tiny else ""
        page.list([f"Published: the exposed I/O of a step{real}, from {source}."])
    phases = tables.phase_table(exposure)
    with page.folded(phases.title):
        page.table(phases)
    page.list(utilisation_lines(report.utilisation))


def _storage(page: Page, report: RunReport) -> None:
    """Print what storage did: how much of it is known, then bytes, stages and single reads."""
    figures, trace = report.storage, report.trace
    if figures is None or not figures.rows:
        if trace is not None:  # logs that are there, or were named, are not passed over in silence
            page.section(STORAGE)
            page.list(storage_lines.untold_lines(trace, many=figures is None))
        return
    page.section(STORAGE)
    placement = figures.placement
    if placement is not None and report.trace is not None:
        page.list(
            storage_lines.coverage_lines(placement, report.trace)
            + storage_lines.clock_lines(placement, report.who)
        )
    elif report.trace is not None:
        page.list([*report.trace.refused, *report.trace.notes])
    page.table(storage_tables.byte_table(figures))
    page.list(storage_lines.gap_lines(figures.rows))
    if figures.stages:
        page.table(storage_tables.storage_stage_table(figures.stages))
    costs = storage_lines.wait_line(figures)
    if costs is not None:
        page.text(costs, "bold")
    if figures.costliest:
        page.table(storage_tables.cost_table(figures.costliest))
    if figures.access is not None:
        page.table(storage_tables.size_table(figures.access))
        page.list(storage_lines.access_lines(figures.access, figures.sanity))


def _next(page: Page, reports: Sequence[RunReport]) -> None:
    steps = next_steps(reports)
    if steps:
        page.section("Next")
    for step in steps:
        page.text(f"{step.reason}{':' if step.command else '.'}", indent=2)
        if step.command:
            page.command(step.command)
