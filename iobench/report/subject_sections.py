"""What is said of each question asked of a run: a section, of one training process or of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.registry import installed_subjects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.report.document import Section
    from iobench.report.run_report import RunReport

__all__ = ["job_figures", "job_sections", "run_sections"]


def run_sections(report: RunReport, *, in_job: bool = False) -> tuple[Section, ...]:
    """Return the sections of a run; what its job is told of as a whole is not told again of it."""
    asked = [each for each in installed_subjects() if not (in_job and each.together)]
    told = [(each, report.figures.get(each.name)) for each in asked]
    found = (each.section(figures) for each, figures in told if figures is not None)
    return tuple(section for section in found if section is not None)


def job_figures(reports: Sequence[RunReport]) -> Mapping[str, Any]:
    """Return the figures of all training processes together, of subjects that have such."""
    found = {}
    for each in installed_subjects():
        told = [report.figures.get(each.name) for report in reports]
        known = [figures for figures in told if figures is not None]
        if each.together is not None:
            found[each.name] = each.together(known) if known else None
    return found


def job_sections(reports: Sequence[RunReport]) -> tuple[Section, ...]:
    """Return the sections of a job of several training processes."""
    figures = job_figures(reports)
    told = [(each, figures.get(each.name)) for each in installed_subjects()]
    found = (each.section(known) for each, known in told if known is not None)
    return tuple(section for section in found if section is not None)
