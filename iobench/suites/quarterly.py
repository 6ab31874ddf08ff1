"""The table of MAELSTROM D2.3 from tables of suites: application by framework by format.

Of cells with equal options in several suites the newest stands. Cells are not merged: they may be
of other machines and weeks.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import msgspec

from iobench.errors import ProfileError
from iobench.findings.script_figures import ENERGY, own_title
from iobench.report.document import (
    NOT_APPLICABLE,
    Column,
    Document,
    Quantity,
    Section,
    Table,
    sentences,
)
from iobench.report.suite_words import OWN, figure_cell, said_cell
from iobench.suites.suite_table import suite_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iobench.suites.results import SuiteFolder
    from iobench.suites.suite_table import CellRow

METRICS: Final = {
    "batch": "step_s", "forward": "forward_s", "backward": "backward_s", "I/O": "wait_s",
}  # fmt: skip
"""Columns, and what results of suites call the mean of such a time."""
PUBLISHED: Final = "published_"
"""Before the names of what is published of an application."""
PLACE: Final = ("dataset", "format", "framework", "pipeline", "tiny")
NOTE: Final = (
    "A batch lasts from one request to the next; I/O is the part of it that was waited for. "
    "Exposed is mean I/O divided by mean batch."
)


class QuarterlyRow(msgspec.Struct, frozen=True, kw_only=True):
    """The means of a cell of a suite in seconds, or what is published of its application.

    ``figures`` are energy, and a script's own in the last epoch.
    """

    application: str
    tiny: bool
    framework: str = ""
    format: str = ""
    others: str = ""  # what else varied in its suite
    suite: str | None = None  # None of what is published
    started: str = ""  # the last of its runs, in UTC
    n_runs: int = 0
    means_s: Mapping[str, float]
    exposed_fraction: float | None
    figures: Mapping[str, float] = {}

    @property
    def name(self) -> str:
        """What a table calls it."""
        if self.suite is None:
            return "as published"
        return " ".join(filter(None, (self.framework, self.format, self.others)))


class Quarterly(msgspec.Struct, frozen=True):
    """What was measured, by application, the original files first; then what was published."""

    rows: tuple[QuarterlyRow, ...]
    schema_version: int = 2


def quarterly_of(suites: Iterable[SuiteFolder]) -> Quarterly:
    """Return the cells of suites that were measured, the newest of each."""
    newest: dict[frozenset[tuple[str, str]], QuarterlyRow] = {}
    published: dict[str, QuarterlyRow] = {}
    for suite in suites:
        rows = suite_table(suite, suite.recipe.metrics).cells
        for cell, measured in zip(suite.cells, rows, strict=True):
            options = cell.masked_options
            key = frozenset(options.items())
            if not measured.n_runs or (key in newest and newest[key].started >= measured.started):
                continue
            newest[key] = row = _row(str(suite.path), options, measured)
            if times := _means(measured, PUBLISHED):
                published[row.application] = QuarterlyRow(
                    application=row.application,
                    tiny=row.tiny,
                    means_s=times,
                    exposed_fraction=_exposed(times),
                )
    if not newest:
        raise ProfileError("none of these suites has a measured run; run iobench suite first")
    return Quarterly(tuple(sorted((*newest.values(), *published.values()), key=_order)))


def _order(row: QuarterlyRow) -> tuple[object, ...]:
    is_published, is_source = row.suite is None, row.format == "source"
    return row.application, row.tiny, is_published, row.framework, not is_source, row.name


def _row(suite: str, options: Mapping[str, str], measured: CellRow) -> QuarterlyRow:
    times, pipeline = _means(measured), options.get("pipeline", "own")
    return QuarterlyRow(
        application=options["dataset"],
        tiny=options.get("tiny") == "true",
        framework=options.get("framework", "native"),
        format=options.get("format", "source") if pipeline == "own" else pipeline,
        others=said_cell({k: v for k, v in measured.cell.items() if k not in PLACE}),
        suite=suite,
        started=measured.started,
        n_runs=measured.n_runs,
        means_s=times,
        exposed_fraction=_exposed(times),
        figures={
            name.removeprefix(OWN): figure.mean.value or 0.0
            for name, figure in measured.figures.items()
            if name == ENERGY or name.startswith(OWN)
        },
    )


def _means(measured: CellRow, prefix: str = "") -> dict[str, float]:
    names = {key: f"{prefix}{name}" for key, name in METRICS.items()}
    figures = measured.figures
    return {key: figures[of].mean.value or 0.0 for key, of in names.items() if of in figures}


def _exposed(times: Mapping[str, float]) -> float | None:
    return times["I/O"] / times["batch"] if times.get("batch") and "I/O" in times else None


def quarterly_document(table: Quarterly) -> Document:
    """Return a table for each application."""
    sections = []
    groups = groupby(table.rows, key=lambda row: (row.application, row.tiny))
    for number, ((application, tiny), group) in enumerate(groups):
        title = application + (", tiny stand-ins" if tiny else "")
        sections.append(Section(f"application-{number}", title, (_table([*group]),)))
    sections.append(Section("notes", "", sentences((NOTE,))))
    return Document("Applications, frameworks and formats", tuple(sections), figures=lambda: table)


def _table(rows: Sequence[QuarterlyRow]) -> Table:
    """Return the share that was waited for, mean times, and figures of the script: D2.2, D2.3."""
    names = dict.fromkeys(name for row in rows for name in row.figures)
    columns = ("", "exposed", *METRICS, *map(own_title, names), "runs", "suite")
    lines = tuple(
        (
            row.name,
            Quantity(row.exposed_fraction, "share"),
            *(
                figure_cell("_s", row.means_s[key]) if key in row.means_s else NOT_APPLICABLE
                for key in METRICS
            ),
            *(
                figure_cell(name, row.figures[name]) if name in row.figures else NOT_APPLICABLE
                for name in names
            ),
            Quantity(row.n_runs, "count") if row.suite else NOT_APPLICABLE,
            row.suite or NOT_APPLICABLE,
        )
        for row in rows
    )
    return Table("", tuple(map(Column, columns)), lines)
