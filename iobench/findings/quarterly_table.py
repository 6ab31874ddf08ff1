"""The table of MAELSTROM D2.3 from results of suites: application by framework by format.

A cell is the mean over its runs, as in the suite's own table; of cells with equal options in
several suites the newest stands. Cells are not merged: they may be of other machines and weeks.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.analysis.intervals import trimmed_mean
from iobench.errors import ProfileError
from iobench.findings.run_figures import ENERGY, own_title
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iobench.report.document import Block
    from iobench.suites.results import Result, SuiteFolder

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


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
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
    machine: str = ""

    @property
    def name(self) -> str:
        """What a table calls it."""
        if self.suite is None:
            return "as published"
        return " ".join(filter(None, (self.framework, self.format, self.others)))


class Quarterly(msgspec.Struct, frozen=True):
    """What was measured, by application, the original files first; then what was published."""

    rows: tuple[TableRow, ...]
    schema_version: int = 2


def quarterly_of(suites: Iterable[SuiteFolder]) -> Quarterly:
    """Return the cells of suites that were measured, the newest of each."""
    newest: dict[Any, TableRow] = {}
    published: dict[str, TableRow] = {}
    for suite in suites:
        cells: dict[Any, list[Result]] = defaultdict(list)
        for each in suite.results():
            if each.figures:
                cells[tuple(sorted((each.options or each.cell).items()))].append(each)
        for key, of in cells.items():
            row = _row(str(suite.path), suite.recipe.drop, dict(key), of)
            if key not in newest or newest[key].started < row.started:
                newest[key] = row
            if times := _means(of, suite.recipe.drop, PUBLISHED):
                published[row.application] = TableRow(
                    application=row.application,
                    tiny=row.tiny,
                    means_s=times,
                    exposed_fraction=_exposed(times),
                )
    if not newest:
        raise ProfileError("none of these suites has a measured run; run iobench suite first")
    rows = (*newest.values(), *published.values())
    return Quarterly(tuple(sorted(rows, key=_order)))


def _order(row: TableRow) -> tuple[object, ...]:
    is_published, is_source = row.suite is None, row.format == "source"
    return row.application, row.tiny, is_published, row.framework, not is_source, row.name


def _row(suite: str, drop: int, options: Mapping[str, str], of: Sequence[Result]) -> TableRow:
    """Return the row of a cell's runs."""
    times, machine = _means(of, drop), of[0].machine
    pipeline, cpus = options.get("pipeline", "own"), machine.get("cores")
    names = dict.fromkeys(name for each in of for name in each.figures)
    return TableRow(
        application=options.get("dataset", "unknown"),
        tiny=options.get("tiny") == "true",
        framework=options.get("framework", "native"),
        format=options.get("format", "source") if pipeline == "own" else pipeline,
        others=said_cell({k: v for k, v in of[0].cell.items() if k not in PLACE}),
        suite=suite,
        started=max(each.started for each in of),
        n_runs=len(of),
        means_s=times,
        exposed_fraction=_exposed(times),
        figures={
            name.removeprefix(OWN): _mean(of, name, drop)
            for name in names
            if name == ENERGY or name.startswith(OWN)
        },
        machine=", ".join(filter(None, (cpus and f"{cpus} CPUs", machine.get("cpu_model")))),
    )


def _means(of: Sequence[Result], drop: int, prefix: str = "") -> dict[str, float]:
    names = {key: f"{prefix}{name}" for key, name in METRICS.items()}
    known = {key for key, name in names.items() if any(name in each.figures for each in of)}
    return {key: _mean(of, name, drop) for key, name in names.items() if key in known}


def _mean(of: Sequence[Result], name: str, drop: int) -> float:
    """Return the mean that the suite's own table has."""
    values = [each.figures[name] for each in of if name in each.figures]
    return float(trimmed_mean(values, drop).value or 0.0)


def _exposed(times: Mapping[str, float]) -> float | None:
    return times["I/O"] / times["batch"] if times.get("batch") and "I/O" in times else None


def quarterly_document(table: Quarterly) -> Document:
    """Return a table for each application, and of what machines its suites are."""
    sections = []
    groups = groupby(table.rows, key=lambda row: (row.application, row.tiny))
    for number, ((application, tiny), group) in enumerate(groups):
        rows = [*group]
        title = application + (", tiny stand-ins" if tiny else "")
        machines = dict.fromkeys(f"{row.suite}: {row.machine}." for row in rows if row.machine)
        blocks: tuple[Block, ...] = (_table(rows), *sentences(machines))
        sections.append(Section(f"application-{number}", title, blocks))
    sections.append(Section("notes", "", sentences((NOTE,))))
    return Document("Applications, frameworks and formats", tuple(sections), figures=lambda: table)


def _table(rows: Sequence[TableRow]) -> Table:
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
