"""What is said of each finding of a run: a section, of one process or of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from iobench.registry import installed_findings
from iobench.report.renderers.json_text import to_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.report.document import Section
    from iobench.report.run_report import RunReport


AFTER_VERDICT: Final = range(75)
AFTER_TIMELINE: Final = range(75, 100)
LAST: Final = range(100, 1 << 31)
"""Orders of findings, by where their sections stand."""
Joint = Literal["together", "side_by_side"]
"""How several reports belong to one another, as `Finding` calls it."""


def run_sections(report: RunReport, orders: range, joint: Joint | None) -> Iterator[Section]:
    """Yield the sections of a run by findings of these orders, but for those of all runs."""
    shown = {
        each.name: report.figures.get(each.name)
        for each in installed_findings()
        if each.order in orders
        and not each.of_job
        and not (joint is not None and getattr(each, joint))
    }
    return finding_sections(shown)


def finding_sections(figures: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the sections that findings make of their figures."""
    for each in installed_findings():
        known = figures.get(each.name)
        section = None if known is None else each.section(known)
        if section is not None:
            yield section


def compared_sections(reports: Sequence[RunReport]) -> Iterator[Section]:
    """Yield the sections of several configurations that load the same samples."""
    result = {}
    for each in installed_findings():
        known = _known([report.figures for report in reports], each.name)
        if each.side_by_side is not None and known:
            result[each.name] = each.side_by_side(known)
    return finding_sections(result)


def job_figures(reports: Sequence[RunReport]) -> Mapping[str, Any] | None:
    """Return the figures of all training processes of a job together; None of other runs."""
    if reports[0].job_size < 2 or len({report.run for report in reports}) > 1:
        return None
    result = {}
    for each in installed_findings():
        if each.together is not None:
            of = [report.for_job if each.of_job else report.figures for report in reports]
            known = _known(of, each.name)
            result[each.name] = each.together(known) if known else None
    return result


def _known(figures: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [each[name] for each in figures if each.get(name) is not None]


def job_to_plain(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a job for JSON."""
    result: dict[str, Any] = {}
    for each in installed_findings():
        if each.name in figures:
            plain = to_plain(figures[each.name])
            result |= (plain or {}) if each.of_job or each.name == "job" else {each.name: plain}
    return result
