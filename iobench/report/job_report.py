"""A job of several training processes, ready to be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.analysis.ranks import compare_ranks, missing_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.rank_figures import JobExposure
    from iobench.report.run_report import RunReport

__all__ = ["make_job"]


def make_job(reports: Sequence[RunReport]) -> JobExposure | None:
    """Return what a job waited for, from the reports of its ranks; None for a single process."""
    steps = [report.steps for report in reports if report.steps is not None]
    if not steps or len({report.run for report in reports}) > 1:
        return None
    first = reports[0]
    unclosed = {
        report.exposure.rank: report.steps.host
        for report in reports
        if report.steps is not None and any(name.startswith("consumer") for name in report.unclosed)
    }
    world_size, missing = missing_ranks(
        first.job, [each.rank for each in steps], about=first.facts, unclosed=unclosed
    )
    if world_size < 2:
        return None
    return compare_ranks(steps, world_size=world_size, missing=missing)
