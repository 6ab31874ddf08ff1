"""What is said of each question asked of a run: a section, of one process or of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from iobench.registry import installed_findings
from iobench.report.json_walk import to_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.findings.contract import Finding
    from iobench.report.document import Section
    from iobench.report.run_report import RunReport


BEFORE_VERDICT: Final = range(1)
AFTER_VERDICT: Final = range(1, 100)
LAST: Final = range(100, 1 << 31)
"""Orders of findings, by where their sections stand."""
Joint = Literal["together", "side_by_side"]
"""How several reports belong to one another, as `Finding` calls it."""


def run_sections(
    report: RunReport, orders: range, *, told_of_all: Joint | None = None
) -> tuple[Section, ...]:
    """Return the sections of a run by findings of these orders.

    What is told of several runs or processes as a whole is not told again of one of them.
    """
    requested = [
        each
        for each in installed_findings()
        if each.order in orders
        and not (each.of_job or (told_of_all is not None and getattr(each, told_of_all)))
    ]
    return _sections(requested, report.figures)


def compared_sections(reports: Sequence[RunReport]) -> tuple[Section, ...]:
    """Return the sections of several ways of loading the same samples."""
    result = {}
    for each in installed_findings():
        known = [text for report in reports if (text := report.figures.get(each.name)) is not None]
        if each.side_by_side is not None and known:
            result[each.name] = each.side_by_side(known)
    return _sections(installed_findings(), result)


def job_figures(reports: Sequence[RunReport]) -> Mapping[str, Any] | None:
    """Return the figures of all training processes of a job together; None of other runs."""
    if reports[0].job_size < 2 or len({report.run for report in reports}) > 1:
        return None
    result = {}
    for each in installed_findings():
        text = [(r.for_job if each.of_job else r.figures).get(each.name) for r in reports]
        known = [figures for figures in text if figures is not None]
        if each.together is not None:
            result[each.name] = each.together(known) if known else None
    return result


def job_sections(figures: Mapping[str, Any]) -> tuple[Section, ...]:
    """Return the sections of a job of several training processes."""
    return _sections(installed_findings(), figures)


def job_to_plain(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a job for JSON."""
    result: dict[str, Any] = {}
    for each in installed_findings():
        if each.name in figures:
            plain = to_plain(figures[each.name])
            result |= (plain or {}) if each.of_job or each.name == "job" else {each.name: plain}
    return result


def _sections(asked: Sequence[Finding[Any]], figures: Mapping[str, Any]) -> tuple[Section, ...]:
    text = [(each, figures.get(each.name)) for each in asked]
    result = (each.section(known) for each, known in text if known is not None)
    return tuple(section for section in result if section is not None)
