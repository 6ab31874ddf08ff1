"""The document of a report: of one run, of runs compared, or of a job of several processes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from iobench.errors import ProfileError
from iobench.report.document import Document, Drawing, Section
from iobench.report.finding_sections import (
    AFTER_TIMELINE,
    AFTER_VERDICT,
    LAST,
    Joint,
    compared_sections,
    finding_sections,
    job_figures,
    run_sections,
)
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
    from collections.abc import Iterator, Sequence

    from iobench.analysis.run import Run
    from iobench.report.run_report import RunReport
    from iobench.report.timeline.page_payload import TimelinePayload

MOST_RUNS: Final = 8
"""Ranks of a job that have a part of their own, those that wait longest; JSON has them all."""


def report_document(runs: Sequence[Run], reports: Sequence[RunReport] | None = None) -> Document:
    """Return all that is said of runs, compared where they are several of the same samples."""
    reports = make_reports(runs) if reports is None else reports
    if not reports:
        raise ProfileError("no run to report: expected at least one with spans")
    job = job_figures(reports)
    joint: Joint | None = None
    lead: tuple[Section, ...] = ()
    if job is not None:
        joint, lead = "together", tuple(finding_sections(job))
    elif len(reports) > 1:
        joint, lead = "side_by_side", (comparison_section(reports), *compared_sections(reports))
    parts = tuple(_parts(runs, reports, joint))
    whole = Document(title(reports), lead, parts)
    if not lead:
        whole = replace(parts[0], title=whole.title)
    return replace(whole, figures=lambda: reports_to_json(reports, job))


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
    exposure, facts = report.exposure, report.facts
    yield verdict_section(report, with_setting=joint != "side_by_side")
    yield from run_sections(report, AFTER_VERDICT, joint)
    yield _timeline_section(report, runs, n_parts)
    yield from run_sections(report, AFTER_TIMELINE, joint)
    if exposure.whole.n_batches:
        yield epochs_section(report)
        yield stages_section(report)
        yield waits_section(report)
    if facts.is_script and len(exposure.loaders) > 1:
        yield loaders_section(exposure)
    yield processes_section(report.processes)
    yield from run_sections(report, LAST, joint)
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
