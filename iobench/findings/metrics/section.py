"""A script's own figures as people read them: a row for each, its first epoch and its last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.findings.contract import Finding
from iobench.findings.metrics.figures import metrics_of_ranks, script_metrics
from iobench.report.document import Column, Count, Number, Section, Table

if TYPE_CHECKING:
    from iobench.findings.metrics.figures import ScriptMetrics
    from iobench.report.document import Cell

COLUMNS: Final = tuple(map(Column, ("", "first epoch", "last epoch", "epochs")))


def metrics_section(found: ScriptMetrics) -> Section:
    """Return a table of the figures."""
    rows = [
        (name, _cell(of[0].mean), _cell(of[-1].mean), Count(len(of)))
        for name, of in found.epochs.items()
    ]
    return Section("metrics", "Figures of the script", (Table("", COLUMNS, tuple(rows)),))


def _cell(value: float | None) -> Cell:
    """Return a script's own figure; None is the mean of values that are not all finite."""
    return "not finite" if value is None else Number(value)


FINDING: Final = Finding("metrics", 40, script_metrics, metrics_section, metrics_of_ranks)
"""A script's own figures, as the entry point names them."""
