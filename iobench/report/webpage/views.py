"""What the page shows of a run and of a job: its sentences, tables and bars, ready to be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from iobench.analysis.diagnosis import Verdict
from iobench.analysis.utilisation import mean_utilisation
from iobench.report import lines, script_lines, units
from iobench.report.replay_lines import replay_sentence
from iobench.report.section_page import sentences_of, tables_of
from iobench.report.sentences import long_waits_sentence, starts_sentence
from iobench.report.subject_sections import job_sections, run_sections
from iobench.report.tables import PARTS
from iobench.report.utilisation_lines import digest_lines, utilisation_lines
from iobench.report.webpage import bars, page_tables
from iobench.report.webpage.circumstances import configuration, machine_facts
from iobench.report.webpage.storage_part import (
    access_sentences,
    storage_part_tables,
    storage_sentences,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.analysis.figures import Exposure
    from iobench.analysis.rank_figures import JobExposure
    from iobench.report.document import Section
    from iobench.report.run_report import RunReport
    from iobench.report.webpage.figures import PageFigures
    from iobench.report.webpage.page_tables import PageTable

__all__ = ["JobView", "RunView", "StageView", "job_view", "run_view"]

STYLES: Final = {
    Verdict.HIDDEN: "good",
    Verdict.PARTLY_HIDDEN: "fair",
    Verdict.IO_BOUND: "bad",
}


@dataclass(frozen=True, slots=True)
class StageView:
    """The stages of a window: its name, where it stands in the document, bars and table."""

    name: str
    window: str
    bars: tuple[bars.BarRow, ...]
    table: PageTable


@dataclass(frozen=True, slots=True)
class SubjectView:
    """What is said of one question asked of a run."""

    key: str
    title: str
    tables: tuple[PageTable, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunView:
    """All that the page shows of one run.

    Parameters
    ----------
    number : int
        Its place in the document.
    path : str
        The same as ``"runs.N"``.
    name : str
        What it is called among others.
    verdict_style : str
        How the style sheet calls the verdict.
    window : str
        Where the figures of the window judged stand.
    when : str
        What that window is.
    has_batches : bool
    warnings, evidence : tuple of str
    gain : str
        Where the largest gain of a replay stands, empty without.
    gain_stage : str
    time : tuple of DrawnPart
    most : tuple of str
        Where the stages stand that were waited for longest.
    stages : tuple of StageView
    stage_lines, wait_lines, phase_lines : tuple of str
    waits, phases, epochs : PageTable or None
    phase_lead : str
        What start-up means for a long training.
    phase_bars, rates : tuple of BarRow
    storage_lines, access_lines : tuple of str
    storage : tuple of PageTable
    tables : tuple of PageTable
        Of loaders, and of processes where nobody waited.
    subjects : tuple of SubjectView
    facts : tuple
        Names and texts of the configuration.
    machine : tuple
    quality, setup : tuple of str
    timeline : mapping or None
        What the page tells of the spans it carries; None where it carries none.
    """

    number: int
    path: str
    name: str
    verdict_style: str
    window: str
    when: str
    has_batches: bool
    warnings: tuple[str, ...]
    evidence: tuple[str, ...]
    gain: str
    gain_stage: str
    time: tuple[bars.DrawnPart, ...]
    most: tuple[str, ...]
    stages: tuple[StageView, ...]
    stage_lines: tuple[str, ...]
    wait_lines: tuple[str, ...]
    phase_lines: tuple[str, ...]
    waits: PageTable | None
    phases: PageTable | None
    epochs: PageTable | None
    phase_lead: str
    phase_bars: tuple[bars.BarRow, ...]
    rates: tuple[bars.BarRow, ...]
    storage_lines: tuple[str, ...]
    access_lines: tuple[str, ...]
    storage: tuple[PageTable, ...]
    tables: tuple[PageTable, ...]
    subjects: tuple[SubjectView, ...]
    facts: tuple[tuple[str, Any], ...]
    machine: tuple[tuple[str, str], ...]
    quality: tuple[str, ...]
    setup: tuple[str, ...]
    timeline: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """What the page shows of a job of several training processes."""

    title: str
    lines: tuple[str, ...]
    missing: tuple[str, ...]
    table: PageTable | None
    heat: bars.DrawnHeat | None
    utilisation: tuple[str, ...]
    subjects: tuple[SubjectView, ...]


def run_view(
    report: RunReport,
    figures: PageFigures,
    number: int,
    name: str,
    timeline: Mapping[str, Any] | None = None,
    *,
    epochs: PageTable | None = None,
    in_job: bool = False,
) -> RunView:
    """Return what the page shows of a run, the ``number``-th of the document.

    What is told of a job as a whole, its energy, is not told of its ranks again.
    """
    path, exposure = f"runs.{number}", report.exposure
    window = path if exposure.window == "whole" else f"{path}.{exposure.window}"
    has_batches = exposure.whole.n_batches > 0
    gain = _gain(figures, path)
    return RunView(
        number=number,
        path=path,
        name=name,
        verdict_style=STYLES.get(report.diagnosis.verdict, "none"),
        window=window,
        when=PARTS[exposure.window],
        has_batches=has_batches,
        warnings=tuple(_warnings(report)),
        evidence=tuple(_evidence(report)),
        gain=gain,
        gain_stage=str(figures.value(f"{gain}.stage")) if gain else "",
        time=bars.time_bar(figures, window) if has_batches else (),
        most=bars.most_exposed(figures, window) if has_batches else (),
        stages=_stages(figures, path, exposure) if has_batches else (),
        stage_lines=(
            *lines.fused_lines(exposure.whole, is_script=report.facts.is_script),
            *lines.estimated_lines(exposure.whole),
        )
        if has_batches
        else (),
        wait_lines=_wait_lines(report) if has_batches else (),
        phase_lines=tuple(utilisation_lines(report.utilisation)) if has_batches else (),
        waits=page_tables.waits_table(figures, path) if has_batches else None,
        phases=page_tables.phases_table(figures, path) if has_batches else None,
        epochs=epochs,
        phase_lead=starts_sentence(report.diagnosis, is_script=report.facts.is_script),
        phase_bars=bars.phase_bars(figures, path) if has_batches else (),
        rates=bars.rate_bars(figures, path) if has_batches else (),
        storage_lines=tuple(storage_sentences(report)),
        access_lines=tuple(access_sentences(report)),
        storage=tuple(storage_part_tables(report, figures, path)),
        tables=tuple(_tables(report, figures, path)),
        subjects=_subjects(run_sections(report, in_job=in_job)),
        facts=tuple(configuration(figures, path)),
        machine=machine_facts(report),
        quality=(
            *lines.measurement_lines(report),
            *digest_lines(report.samples, exposure.whole),
        ),
        setup=tuple(lines.setup_lines(report)),
        timeline=timeline,
    )


def job_view(reports: Sequence[RunReport], job: JobExposure, figures: PageFigures) -> JobView:
    """Return what the page shows of a job."""
    known = [each.utilisation for each in reports if each.utilisation is not None]
    return JobView(
        title=script_lines.script_title(reports, job),
        lines=tuple(script_lines.job_lines(job, reports)),
        missing=tuple(script_lines.missing_rank_lines(job)),
        table=page_tables.ranks_table(figures) if job.ranks else None,
        heat=bars.heat_map(figures) if job.wall_ns else None,
        utilisation=tuple(utilisation_lines(mean_utilisation(known))),
        subjects=_subjects(job_sections(reports)),
    )


def _subjects(sections: Sequence[Section]) -> tuple[SubjectView, ...]:
    return tuple(
        SubjectView(
            each.key,
            each.title,
            tuple(map(page_tables.plain_table, tables_of(each))),
            tuple(sentences_of(each)),
        )
        for each in sections
    )


def _warnings(report: RunReport) -> Iterator[str]:
    stand_in = lines.stand_in_line(report.facts)
    if stand_in and not report.facts.is_script:
        yield stand_in
    exposure = report.exposure
    if exposure.lost_spans or exposure.missing_workers:
        yield (
            f"Not all was kept: {units.count(exposure.lost_spans)} spans lost, missing workers: "
            f"{', '.join(exposure.missing_workers) or 'none'}. What they would explain is unknown."
        )


def _evidence(report: RunReport) -> Iterator[str]:
    if not report.exposure.whole.n_batches:
        yield from lines.headline(report.exposure)
    replayed = replay_sentence(report.diagnosis)
    if replayed:
        yield replayed
    decoded = lines.decoded_line(report.exposure.whole, report.facts)
    if decoded:
        yield decoded
    if report.facts.is_script:
        compute = script_lines.measured_compute_line(report)
    else:
        compute = lines.compute_line(report.facts)
    if compute:
        yield compute
    reader = lines.reader_line(report.facts)
    if reader:
        yield reader
    if report.facts.described_by:
        yield f"This pipeline: {report.facts.described_by}"


def _gain(figures: PageFigures, path: str) -> str:
    """Return where the stage stands whose halving saves most; empty where none is foretold."""
    stages = figures.value(f"{path}.replay.stages") or ()
    if not stages:
        return ""
    best = max(range(len(stages)), key=lambda place: stages[place]["saved_fraction"])
    return f"{path}.replay.stages.{best}"


def _stages(figures: PageFigures, path: str, exposure: Exposure) -> tuple[StageView, ...]:
    named = [
        (what.capitalize(), path if part == "whole" else f"{path}.{part}")
        for part, what in PARTS.items()
        if exposure.part(part) is not None
    ]
    return tuple(
        StageView(
            name,
            window,
            bars.stage_bars(figures, window),
            page_tables.stages_table(figures, window, f"Stages, {name.lower()}"),
        )
        for name, window in named
    )


def _wait_lines(report: RunReport) -> tuple[str, ...]:
    found = []
    if report.exposure.long_waits is not None:
        found.append(long_waits_sentence(report.exposure.long_waits))
    if report.facts.published_s is not None:
        source = report.facts.published_source or "an unknown source"
        real = ", with samples of the real size" if report.facts.tiny else ""
        found.append(f"Published: the exposed I/O of a step{real}, from {source}.")
    return tuple(found)


def _tables(report: RunReport, figures: PageFigures, path: str) -> Iterator[PageTable]:
    if report.facts.is_script and report.exposure.loaders:
        yield page_tables.loaders_table(figures, path)
    yield from page_tables.processes_tables(figures, path)
