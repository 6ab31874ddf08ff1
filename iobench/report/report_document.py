"""The document of a report: of one run, of runs compared, or of a job of several processes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from iobench.errors import ProfileError
from iobench.report import units
from iobench.report.comparison_section import comparison_section, published_section
from iobench.report.document import Document, Drawing, Section, Sentence
from iobench.report.finding_sections import (
    AFTER_VERDICT,
    BEFORE_VERDICT,
    LAST,
    Joint,
    compared_sections,
    job_figures,
    job_sections,
    run_sections,
)
from iobench.report.json_report import reports_to_json
from iobench.report.loading_sections import (
    compute_section,
    epochs_section,
    loaders_section,
    phases_section,
    processes_section,
    stages_section,
    verdict_section,
    waits_section,
)
from iobench.report.run_report import make_reports
from iobench.report.setting import configuration_section, title
from iobench.report.trust import trust_section

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.analysis.run import Run
    from iobench.report.run_report import RunReport
    from iobench.report.timeline.page_payload import TimelinePayload

MOST_RUNS: Final = 8
"""Ranks of a job that have a part of their own, those that wait longest; JSON has them all."""


def report_document(runs: Sequence[Run], reports: Sequence[RunReport] | None = None) -> Document:
    """Return all that is said of runs, compared where they are several of the same samples.

    Parameters
    ----------
    runs : sequence of Run
        One, or one per format of the same samples.
    reports : sequence of RunReport, optional
        From `make_reports` of these runs, where that was done before.

    Raises
    ------
    ProfileError
        If one cannot be analysed, or there is none.
    """
    reports = make_reports(runs) if reports is None else reports
    if not reports:
        raise ProfileError("no run to report: expected at least one with spans")
    job = job_figures(reports)
    shown = _shown(reports, job)
    parts = tuple(
        Document(
            _name(reports[number]) if job is None else _rank_name(reports[number], place),
            _run_sections(reports[number], number, runs, len(shown), job=job),
            key=f"run-{number}",
            is_spare=job is not None and place > 0,
        )
        for place, number in enumerate(shown)
    )
    lead = _lead(runs, reports, job)
    if not lead:
        parts = tuple(replace(each, title=title(reports)) for each in parts)
        return replace(parts[0], figures=lambda: reports_to_json(reports, job))
    return Document(title(reports), lead, parts, figures=lambda: reports_to_json(reports, job))


def _shown(reports: Sequence[RunReport], job: Mapping[str, Any] | None) -> list[int]:
    """Return the places of the reports that have a part of their own, in the order of the parts."""
    places = range(len(reports))
    if job is None:
        return list(places)
    longest = sorted(places, key=lambda place: -reports[place].exposure.whole.wait_ns)
    return longest[:MOST_RUNS]


def _name(report: RunReport) -> str:
    return report.facts.label or report.run or "unnamed run"


def _rank_name(report: RunReport, place: int) -> str:
    return f"rank {report.exposure.rank}{'' if place else ', which waits longest'}"


def _lead(
    runs: Sequence[Run],
    reports: Sequence[RunReport],
    job: Mapping[str, Any] | None,
) -> tuple[Section, ...]:
    """Return what is said of several runs together; nothing of a single one."""
    if job is not None:
        known = job_sections(job)
        if known and len(reports) > MOST_RUNS:
            note = Sentence(
                f"This page has a part for each of the {MOST_RUNS} ranks that wait longest; "
                f"{units.count(len(reports) - MOST_RUNS)} more are in the JSON."
            )
            known = (replace(known[0], blocks=(*known[0].blocks, note)), *known[1:])
        return known
    if len(reports) == 1:
        return ()
    result = (comparison_section(reports), published_section(runs))
    return *(each for each in result if each is not None), *compared_sections(reports)


def _run_sections(
    report: RunReport,
    number: int,
    runs: Sequence[Run],
    n_parts: int,
    *,
    job: Mapping[str, Any] | None,
) -> tuple[Section, ...]:
    """Return what is said of one run; what a job's section tells, its energy, is not repeated."""
    exposure, facts = report.exposure, report.facts
    alone = n_parts == 1 and job is None
    joint: Joint | None = "together" if job is not None else None if alone else "side_by_side"
    result: list[Section | None] = [
        *run_sections(report, BEFORE_VERDICT, told_of_all=joint),
        verdict_section(report, with_setting=alone or job is not None),
        *run_sections(report, AFTER_VERDICT, told_of_all=joint),
        _timeline_section(report, runs, n_parts),
    ]
    if exposure.whole.n_batches:
        result += [
            epochs_section(report),
            stages_section(exposure),
            waits_section(report),
            compute_section(exposure) if facts.is_script else None,
            phases_section(report),
        ]
    if facts.is_script and len(exposure.loaders) > 1:
        result.append(loaders_section(exposure))
    result += [
        processes_section(report.processes),
        *run_sections(report, LAST, told_of_all=joint),
        configuration_section(report),
        trust_section(report),
    ]
    return tuple(each for each in result if each is not None)


def _timeline_section(report: RunReport, runs: Sequence[Run], n_parts: int) -> Section | None:
    """Return the lanes of a run, for pages that draw them; the spans are read when it is drawn."""
    run = next(
        (one for one in runs if str(one.path) == report.run and report.exposure.rank in one.ranks),
        None,
    )
    if run is None or not run.has_spans(report.exposure.rank):
        return None

    @functools.cache  # a page may be written, and told to a server
    def payload() -> TimelinePayload | None:
        from iobench.report.timeline.page_payload import SPAN_LIMIT, timeline_payload

        one = run.of_rank(report.exposure.rank)
        return timeline_payload(one, SPAN_LIMIT // n_parts) if len(one.spans) else None

    return Section("timeline", "Timeline", (Drawing("timeline", payload),))
