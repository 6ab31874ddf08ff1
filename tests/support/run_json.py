"""Runs as JSON has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.report.json_report import reports_to_json
from iobench.report.report_document import job_figures
from iobench.report.run_report import make_reports

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.analysis.run import Run


def to_json(runs: Iterable[Run]) -> dict[str, Any]:
    """Return the document of runs, of a job a run for each rank."""
    reports = make_reports(runs)
    return reports_to_json(reports, job_figures(reports) if reports else None)
