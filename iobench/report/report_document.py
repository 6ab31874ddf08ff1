"""The document of a report: of one run, of runs compared, or of a job of several processes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec.structs import replace

from iobench.errors import ProfileError
from iobench.registry import installed_findings
from iobench.report.document import Document, Drawing, Section
from iobench.report.json_report import reports_to_json
from iobench.report.loading_sections import (
    comparison_section,
    epochs_section,
    loaders_section,
    processes_section,
    stages_section,
    verdict_section,
    waits_section,
)
from iobench.report.run_report import make_reports
from iobench.report.setting import configuration_section, title, trust_section

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.analysis.run import Run
    from iobench.report.run_report import RunReport
    from iobench.report.timeline.page_payload import TimelinePayload

MOST_RUNS: Final = 8
"""Ranks of a job that have a part of their own, those that wait longest; JSON has them all."""
AFTER_VERDICT, AFTER_TIMELINE, LAST = range(75), range(75, 100), range(100, 1 << 31)
"""Orders of findings, by where their sections stand."""
Joint = Literal["together", "side_by_side"]
"""How several reports belong to one another, as `Finding` calls it."""


def report_document(runs: Sequence[Run], reports: Sequence[RunReport] | None = None) -> Document:
    """Return all that is said of runs, compared where they are several of the same samples."""
    reports = make_reports(runs) if reports is None else reports
    if not reports:
        raise ProfileError("no run to report: expected at least one with spans")
    job = job_figures(reports)
    joint: Joint | None = None
    lead: tuple[Section, ...] = ()
    if job is not None:
        joint, lead = "together", tuple(_finding_sections(job))
    elif len(reports) > 1:
        compared = _finding_sections(_joined("side_by_side", [each.figures for each in reports]))
        joint, lead = "side_by_side", (comparison_section(reports), *compared)
    parts = tuple(_parts(runs, reports, joint))
    whole = Document(title(reports), lead, parts)
    if not lead:
        whole = replace(parts[0], title=whole.title)
    return replace(whole, figures=lambda: reports_to_json(reports, job))


def job_figures(reports: Sequence[RunReport]) -> Mapping[str, Any] | None:
    """Return the figures of all training processes of a job together; None of other runs."""
    if reports[0].job_size < 2 or len({report.run for report in reports}) > 1:
        return None
    return _joined("together", [{**each.figures, **each.for_job} for each in reports])


def _joined(joint: Joint, figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what findings make of the figures of several reports, by their names."""
    result = {}
    for each in installed_findings():
        join = getattr(each, joint)
        known = [of[each.name] for of in figures if of.get(each.name) is not None]
        if join is not None:
            result[each.name] = join(known) if known else None
    return result


def _finding_sections(
    figures: Mapping[str, Any], orders: range | None = None, joint: Joint | None = None
) -> Iterator[Section]:
    """Yield the sections of findings by their figures; of one run, of these orders alone.

    What is said of several runs together is not said again.
    """
    for each in installed_findings():
        said_of_all = joint is not None and getattr(each, joint) is not None
        if orders is None or (each.order in orders and not said_of_all):
            known = figures.get(each.name)
            section = None if known is None else each.section(known)
            if section is not None:
                yield section


def _parts(
    runs: Sequence[Run], reports: Sequence[RunReport], joint: Joint | None
) -> Iterator[Document]:
    """Yield what is said of each run; of a job, of the ranks that wait longest."""
    places, is_job = list(range(len(reports))), joint == "together"
    if is_job:
        places.sort(key=lambda place: -reports[place].exposure.whole.wait_ns)
        places = places[:MOST_RUNS]
    for number in places:
        report = reports[number]
        name = report.facts.label or report.run or "unnamed run"
        if is_job:
            longest = ", which waits longest" if number == places[0] else ""
            name = f"rank {report.exposure.rank}{longest}"
        sections = tuple(filter(None, _sections(report, runs, len(places), joint)))
        is_spare = is_job and number != places[0]
        yield Document(name, sections, key=f"run-{number}", is_spare=is_spare)


def _sections(
    report: RunReport, runs: Sequence[Run], n_parts: int, joint: Joint | None
) -> Iterator[Section | None]:
    """Yield what is said of one run, but for what is said of several together."""
    exposure, figures = report.exposure, report.figures
    yield verdict_section(report, with_setting=joint != "side_by_side")
    yield from _finding_sections(figures, AFTER_VERDICT, joint)
    yield _timeline_section(report, runs, n_parts)
    yield from _finding_sections(figures, AFTER_TIMELINE, joint)
    if exposure.whole.n_batches:
        yield epochs_section(report)
        yield stages_section(report)
        yield waits_section(report)
    if report.facts.is_script and len(exposure.loaders) > 1:
        yield loaders_section(exposure)
    yield processes_section(report.processes)
    yield from _finding_sections(figures, LAST, joint)
    yield configuration_section(report)
    yield trust_section(report)


def _timeline_section(report: RunReport, runs: Sequence[Run], n_parts: int) -> Section | None:
    """Return the rows of a timeline, for pages that draw them; spans are read when it is drawn."""
    rank = report.exposure.rank
    run = next((one for one in runs if str(one.path) == report.run and rank in one.ranks), None)
    if run is None or not run.has_spans(rank):
        return None

    @functools.cache  # a page may be written, and logged to a server
    def payload() -> TimelinePayload | None:
        from iobench.report.timeline.page_payload import SPAN_LIMIT, timeline_payload

        one = run.of_rank(rank)
        return timeline_payload(one, SPAN_LIMIT // n_parts) if len(one.spans) else None

    return Section("timeline", "Timeline", (Drawing("timeline", payload),))
