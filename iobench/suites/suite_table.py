"""What suites have measured: cells, figures, how far runs differ, what is in doubt; and of D2.3.

In that table the newest of cells with equal options in several suites stands. Cells are not merged:
they may be of other machines and weeks.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.analysis.intervals import Interval, trimmed_mean
from iobench.errors import ProfileError
from iobench.findings.compare import ENERGY, own_title
from iobench.report import units
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
from iobench.suites.results import FAILED, MEASURED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.suites.results import Result, SuiteFolder

OPEN: Final = "open"


class CellFigure(msgspec.Struct, frozen=True):
    """One figure of a cell: its mean without what the recipe drops; deviation of all over mean."""

    mean: Interval
    spread: float | None
    n_runs: int


class CellRow(msgspec.Struct, frozen=True):
    """One cell: ``measured``, ``failed``, ``not available``, or ``open`` while runs are left.

    ``doubts`` name what was not the same in all its runs.
    """

    cell: Mapping[str, str]
    status: str
    reason: str | None
    n_runs: int
    started: str  # the last of its runs, in UTC
    figures: Mapping[str, CellFigure]
    doubts: tuple[str, ...]


class SuiteTable(msgspec.Struct, frozen=True):
    """All that is known of a suite, by cells in the order of the recipe."""

    suite: str
    title: str
    recipe_digest: str
    repeats: int
    drop: int
    metrics: tuple[str, ...]
    cells: tuple[CellRow, ...]
    hosts: tuple[str, ...]
    stand_in: bool | None  # whether some files were generated
    n_failed: int
    n_open: int


def suite_table(folder: SuiteFolder, metrics: tuple[str, ...]) -> SuiteTable:
    """Return what is known of a suite so far, to be shown by these metrics."""
    recipe, results = folder.recipe, folder.results()
    by_cell: dict[Any, list[Result]] = defaultdict(list)
    for each in sorted(results, key=lambda each: each.round):
        by_cell[each.key].append(each)
    rows = []
    for cell in folder.cells:
        runs = [each for each in by_cell[cell.key] if each.status == MEASURED]
        ended = next((each for each in by_cell[cell.key] if each.status != MEASURED), None)
        status = MEASURED if len(runs) >= recipe.repeats else OPEN
        names = dict.fromkeys(name for each in runs for name in each.figures)
        rows.append(
            CellRow(
                cell=cell.values,
                status=status if ended is None else ended.status,
                reason=None if ended is None else ended.reason,
                n_runs=len(runs),
                started=max((each.started for each in runs), default=""),
                figures={name: _figure(name, runs, recipe.drop) for name in names},
                doubts=_doubts(runs),
            )
        )
    stand_in = {each.stand_in for each in results if each.stand_in is not None}
    return SuiteTable(
        suite=recipe.name,
        title=recipe.title,
        recipe_digest=recipe.digest,
        repeats=recipe.repeats,
        drop=recipe.drop,
        metrics=metrics,
        cells=tuple(rows),
        hosts=tuple(sorted({str(each.machine.get("host")) for each in results})),
        stand_in=any(stand_in) if stand_in else None,
        n_failed=sum(each.status == FAILED for each in rows),
        n_open=sum(each.status == OPEN for each in rows),
    )


def _figure(name: str, runs: Sequence[Result], drop: int) -> CellFigure:
    values = [each.figures[name] for each in runs if name in each.figures]
    mean = statistics.fmean(values)
    spread = statistics.stdev(values) / mean if len(values) > 1 and mean > 0 else None
    return CellFigure(trimmed_mean(values, drop), spread, len(values))


def _doubts(runs: Sequence[Result]) -> tuple[str, ...]:
    values: dict[str, set[str]] = defaultdict(set)
    for each in runs:
        versions = {f"version of {name}": version for name, version in each.versions.items()}
        for name, value in {**each.machine, **versions, "samples": each.samples_digest}.items():
            values[name].add(str(value))
    return tuple(name for name, every in values.items() if len(every) > 1)


def suite_document(table: SuiteTable) -> Document:
    """Return the suite as a document; what all its cells have in common stands below its table."""
    first = table.cells[0].cell.items() if len(table.cells) > 1 else ()
    same = {k: v for k, v in first if all(row.cell.get(k) == v for row in table.cells)}
    names = [said_cell({k: v for k, v in row.cell.items() if k not in same}) for row in table.cells]
    cautions = [
        f"{name}: {row.status} after {row.n_runs} of {table.repeats} runs: {row.reason}"
        for row, name in zip(table.cells, names, strict=True)
        if row.status not in (MEASURED, OPEN)
    ]
    if len(table.hosts) > 1:
        cautions.append(f"Runs are of several machines: {', '.join(table.hosts)}.")
    if table.n_open:
        cautions.append(f"{units.count(table.n_open)} cells have runs left: the command continues.")
    cautions += [
        f"{name}: not the same in all runs: {', '.join(row.doubts)}"
        for row, name in zip(table.cells, names, strict=True)
        if row.doubts
    ]
    sections = (
        Section("cells", "", (_means(table, names), *sentences(_notes(table, same)))),
        Section("cautions", "Cautions", sentences(cautions, "caution")),
    )
    return Document(
        f"{table.title} ({table.suite}, recipe {table.recipe_digest})",
        tuple(each for each in sections if each.blocks),
        figures=lambda: table,
    )


def _means(table: SuiteTable, names: Sequence[str]) -> Table:
    first = table.metrics[0]
    shown = [name for name in table.metrics if any(name in row.figures for row in table.cells)]
    columns = ["cell", *map(said_metric, shown), f"spread of {said_metric(first)}", "runs"]
    rows = []
    for row, name in zip(table.cells, names, strict=True):
        means = {each: figure_cell(each, row.figures[each].mean.value) for each in row.figures}
        spread = row.figures[first].spread if first in row.figures else None
        rows.append(
            (
                name,
                *(means.get(each, NOT_APPLICABLE) for each in shown),
                NOT_APPLICABLE if spread is None else Quantity(spread, "share"),
                f"{row.n_runs} of {table.repeats}",
            )
        )
    return Table("", tuple(map(Column, columns)), tuple(rows))


def said_metric(metric: str) -> str:
    """Return what a table calls a metric, whose unit is said with its figures."""
    if metric == "samples_per_s":
        return "samples/s"
    if metric.startswith(OWN):
        return metric.removeprefix(OWN)
    return re.sub(r"_(s|j|bytes)$", "", metric.removesuffix("_per_s")).replace("_", " ")


def _notes(table: SuiteTable, same: Mapping[str, str]) -> Iterator[str]:
    if same:
        yield f"All cells: {', '.join(f'{key} {value}' for key, value in same.items())}."
    if table.drop:
        yield (
            f"Each figure drops its own {table.drop} lowest and highest of {table.repeats} runs; "
            f"none of fewer than {2 * table.drop + 1}. Spread is of all runs."
        )
    if table.stand_in:
        yield "Runs read generated files (a stand-in) where no real ones lie."


# -- the table of MAELSTROM D2.3: application by framework by format --------------------------

TIMES: Final = {
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
            if times := _times(measured, PUBLISHED):
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
    times, pipeline = _times(measured), options.get("pipeline", "own")
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


def _times(measured: CellRow, prefix: str = "") -> dict[str, float]:
    names = {key: f"{prefix}{name}" for key, name in TIMES.items()}
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
    columns = ("", "exposed", *TIMES, *map(own_title, names), "runs", "suite")
    lines = tuple(
        (
            row.name,
            Quantity(row.exposed_fraction, "share"),
            *(
                figure_cell("_s", row.means_s[key]) if key in row.means_s else NOT_APPLICABLE
                for key in TIMES
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
