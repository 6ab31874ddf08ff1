"""A script's own figures as people read them: a row for each, its first epoch and its last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report.document import Column, Count, Number, Section, Table
from iobench.subjects.contract import Subject
from iobench.subjects.metrics.figures import metrics_of_ranks, script_metrics

if TYPE_CHECKING:
    from iobench.report.document import Cell
    from iobench.subjects.metrics.figures import ScriptMetrics

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


SUBJECT: Final = Subject("metrics", 40, script_metrics, metrics_section, metrics_of_ranks)
"""A script's own figures, as the entry point names them."""
