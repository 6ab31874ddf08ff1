"""What a suite has found so far: each cell, its figures, how far runs differ, what is in doubt."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from iobench.analysis.intervals import Interval, trimmed_mean
from iobench.json_keys import HIDDEN, figure
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Column,
    Document,
    Section,
    Share,
    Table,
    sentences,
)
from iobench.report.json_walk import to_plain
from iobench.report.renderers.quantities import said
from iobench.report.suite_words import OWN, figure_cell, said_cell
from iobench.suites.metrics import why_not_given
from iobench.suites.results import FAILED, MEASURED, NOT_AVAILABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.report.document import Cell as TableCell
    from iobench.suites.recipe import SuiteRecipe
    from iobench.suites.results import Result, SkippedFile
    from iobench.suites.suite_folder import SuiteFolder

OPEN: Final = "open"
OF_THE_RUN: Final = ("file_system", "accelerator")
"""Facts of a machine that differ from cell to cell by what a cell asks for."""


class CellFigure(msgspec.Struct, frozen=True):
    """One figure of a cell, over its runs.

    Parameters
    ----------
    mean : Interval
        Without the lowest and the highest runs that the recipe drops.
    spread : float or None
        Standard deviation of all runs over their mean; None of fewer than two.
    n_runs, n_kept : int
        Runs that have it, and those in the mean.
    """

    mean: Interval
    spread: float | None
    n_runs: int
    n_kept: int


class CellRow(msgspec.Struct, frozen=True):
    """One cell.

    Parameters
    ----------
    status : str
        ``"measured"``, ``"failed"``, ``"not available"``, or ``"open"`` while runs are left.
    reason : str or None
        Why it failed.
    n_runs : int
        Measured.
    figures : mapping of str to CellFigure
        All there are.
    doubts : tuple of str
        What was not the same in all its runs, or not as for other cells.
    not_given : mapping of str to str
        Metrics of the recipe that it cannot give, and why.
    """

    cell: Mapping[str, str]
    status: str
    reason: str | None
    n_runs: int
    figures: Mapping[str, CellFigure]
    doubts: tuple[str, ...]
    not_given: Mapping[str, str]
    JSON_KEYS: ClassVar = {
        "not_given": HIDDEN,
    }


class SuiteTable(msgspec.Struct, frozen=True):
    """All that is known of a suite.

    Parameters
    ----------
    repeats, drop : int
        Runs of each cell, and how many lowest and highest of them are in no mean.
    cells : tuple of CellRow
        In the order of the recipe.
    stand_in : bool or None
        Whether files were generated: of some runs at least; None where unknown.
    skipped : tuple of SkippedFile
        Files that are no results.
    """

    suite: str
    title: str
    recipe_digest: str
    repeats: int
    drop: int
    metrics: tuple[str, ...]
    cells: tuple[CellRow, ...]
    stand_in: bool | None
    skipped: tuple[SkippedFile, ...]

    @figure
    def n_failed(self) -> int:
        """Cells that failed."""
        return sum(each.status == FAILED for each in self.cells)

    @figure
    def n_open(self) -> int:
        """Cells of which runs are left."""
        return sum(each.status == OPEN for each in self.cells)


def suite_table(folder: SuiteFolder, metrics: Sequence[str] = ()) -> SuiteTable:
    """Return what a suite has found so far.

    Parameters
    ----------
    metrics : sequence of str
        What to show; by default those of the recipe.

    Raises
    ------
    ProfileError
        If there is no such folder.
    """
    recipe, skipped = folder.recipe, list[Any]()
    shown = tuple(metrics) or recipe.metrics
    results = folder.results(skipped)
    runs: dict[tuple[tuple[str, str], ...], list[Result]] = defaultdict(list)
    for each in sorted(results, key=lambda each: each.round):
        runs[each.key].append(each)
    usual = _usual_facts(results)
    rows = []
    for cell in folder.cells:
        own = runs[cell.key]
        told = {metric: why for metric in shown if (why := why_not_given(metric, cell.options))}
        rows.append(_row(cell.values, own, recipe, usual, told, varied=cell.machine != "*"))
    known = {each.stand_in for each in results if each.stand_in is not None}
    return SuiteTable(
        suite=recipe.name,
        title=recipe.title,
        recipe_digest=recipe.digest,
        repeats=recipe.repeats,
        drop=recipe.drop,
        metrics=shown,
        cells=tuple(rows),
        stand_in=any(known) if known else None,
        skipped=tuple(skipped),
    )


def _row(
    cell: Mapping[str, str],
    runs: Sequence[Result],
    recipe: SuiteRecipe,
    usual: Mapping[str, str],
    not_given: Mapping[str, str],
    *,
    varied: bool,
) -> CellRow:
    measured = [each for each in runs if each.status == MEASURED]
    ended = next((each for each in runs if each.status != MEASURED), None)
    status = MEASURED if ended is None else ended.status
    if ended is None and len(measured) < recipe.repeats:
        status = OPEN
    names = dict.fromkeys(name for each in measured for name in each.figures)
    return CellRow(
        cell=cell,
        status=status,
        reason=None if ended is None else ended.reason,
        n_runs=len(measured),
        figures={name: _figure(name, measured, recipe.drop) for name in names},
        doubts=tuple(_doubts(measured, usual, varied=varied)),
        not_given=not_given,
    )


def _figure(name: str, runs: Sequence[Result], drop: int) -> CellFigure:
    values = [each.figures[name] for each in runs if name in each.figures]
    mean = statistics.fmean(values)
    spread = statistics.stdev(values) / mean if len(values) > 1 and mean > 0 else None
    n_kept = len(values) - 2 * drop if len(values) > 2 * drop else len(values)
    return CellFigure(trimmed_mean(values, drop), spread, len(values), n_kept)


def _facts(result: Result) -> dict[str, str]:
    told = {name.replace("_", " "): str(each) for name, each in result.machine.items()}
    return told | {f"version of {name}": each for name, each in result.versions.items()}


def _usual_facts(results: Iterable[Result]) -> dict[str, str]:
    """Return the commonest value of each fact, the first one seen of equally common ones."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for each in results:
        if each.status == MEASURED:
            for name, value in _facts(each).items():
                counts[name][value] += 1
    return {name: each.most_common(1)[0][0] for name, each in counts.items()}


def _doubts(runs: Sequence[Result], usual: Mapping[str, str], *, varied: bool) -> Iterator[str]:
    """Yield what of machine and versions differs from run to run, or from other cells."""
    by_fact: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for each in runs:
        for name, value in _facts(each).items():
            by_fact[name][value].append(each.round + 1)
    for name, values in by_fact.items():
        if len(values) > 1:
            told = "; ".join(f"{value} in round {_listed(at)}" for value, at in values.items())
            yield f"{name} changed: {told}"
        elif not varied and name.replace(" ", "_") not in OF_THE_RUN:
            value = next(iter(values))
            if value != usual.get(name, value):
                yield f"{name} {value}, elsewhere {usual[name]}"
    digests = {each.samples_digest for each in runs if each.samples_digest is not None}
    if len(digests) > 1:
        yield "samples were not the same in all runs"


def _listed(rounds: Sequence[int]) -> str:
    return ", ".join(map(str, rounds))


def _names(found: SuiteTable) -> tuple[dict[str, str], list[str]]:
    """Return what all cells have in common, and what the table calls each."""
    first = found.cells[0].cell
    same = {
        key: value
        for key, value in first.items()
        if len(found.cells) > 1 and all(each.cell.get(key) == value for each in found.cells)
    }
    parts = [{k: v for k, v in each.cell.items() if k not in same} for each in found.cells]
    return same, [said_cell(each) for each in parts]


def suite_document(found: SuiteTable) -> Document:
    """Return the suite as a document."""
    main = Section("cells", "", (_means(found), *sentences(_notes(found))))
    sections = [main]
    if any(told.n_runs > 1 for row in found.cells for told in row.figures.values()):
        sections.append(Section("figures", "Each figure", (_each_figure(found),), is_folded=True))
    if told := list(_not_measured(found)):
        sections.append(Section("not-measured", "Without figures", sentences(told, "caution")))
    if doubts := list(_told_doubts(found)):
        sections.append(Section("doubts", "What changed meanwhile", sentences(doubts, "caution")))
    return Document(
        f"{found.title} ({found.suite}, recipe {found.recipe_digest})",
        tuple(sections),
        figures=lambda: dict(to_plain(found)),
    )


def _means(found: SuiteTable) -> Table:
    first = found.metrics[0]
    shown = [name for name in found.metrics if any(name in row.figures for row in found.cells)]
    columns = ["cell", *map(said_metric, shown), f"spread of {said_metric(first)}", "runs"]
    rows: list[tuple[TableCell, ...]] = []
    marks = []
    for row, name in zip(found.cells, _names(found)[1], strict=True):
        cells = [_cell(metric, row) for metric in shown]
        spread = row.figures.get(first)
        told = Share(spread.spread) if spread is not None else NOT_APPLICABLE
        rows.append((name, *cells, told, f"{row.n_runs} of {found.repeats}"))
        state = [] if row.status == MEASURED else [row.status]
        marks.append(", ".join([*state, *(["changed"] if row.doubts else [])]))
    if any(marks):
        columns.append("")
        rows = [(*row, mark) for row, mark in zip(rows, marks, strict=True)]
    return Table("", tuple(map(Column, columns)), tuple(rows))


def _each_figure(found: SuiteTable) -> Table:
    rows: list[tuple[TableCell, ...]] = []
    for row, cell in zip(found.cells, _names(found)[1], strict=True):
        for name in found.metrics:
            if (told := row.figures.get(name)) is None or told.n_runs < 2:
                continue
            ends = (figure_cell(name, each) for each in (told.mean.low, told.mean.high))
            mean = figure_cell(name, told.mean.value)
            kept = f"{told.n_kept} of {told.n_runs}"
            rows.append((f"{cell}: {said_metric(name)}", mean, *ends, Share(told.spread), kept))
    columns = ("", "mean", "low", "high", "spread", "kept")
    return Table("", tuple(map(Column, columns)), tuple(rows))


def _cell(metric: str, row: CellRow) -> TableCell:
    if metric in row.not_given or not row.n_runs:
        return NOT_APPLICABLE
    told = row.figures.get(metric)
    return figure_cell(metric, None if told is None else told.mean.value)


def said_metric(metric: str) -> str:
    """Return what a table calls a metric, whose unit is said with its figures."""
    if metric == "samples_per_s":
        return "samples/s"
    if metric.startswith(OWN):
        return metric.removeprefix(OWN)
    name = re.sub(r"_(s|j|bytes|per_s)$", "", metric.removesuffix("_per_s"))
    return name.replace("_", " ")


def said_figure(metric: str, value: float) -> str:
    """Return a figure as text."""
    return said(figure_cell(metric, value))


def _notes(found: SuiteTable) -> Iterator[str]:
    if same := _names(found)[0]:
        yield f"All cells: {', '.join(f'{key} {value}' for key, value in same.items())}."
    if found.drop:
        yield (
            f"Of {found.repeats} runs of a cell the lowest and the highest "
            f"{'' if found.drop == 1 else f'{found.drop} '}of each figure are dropped, as MLPerf "
            "drops the fastest and the slowest, and the others averaged; of fewer runs than "
            f"{2 * found.drop + 1} none is."
        )
    if found.repeats > 1:
        yield (
            "Low and high are an interval of 95 % of the mean; spread is the standard deviation of "
            "all runs over their mean."
        )
    yield "Steps are those after the first epoch, else of the steady state."
    if found.stand_in:
        yield "Runs read generated files (a stand-in) where no real ones lie."
    if any(name.startswith("published_") for name in found.metrics):
        yield (
            "Published means are those of the run's framework where there are such, else what is "
            "published of the application first; on other machines, with the data of its time."
        )
    for name in found.metrics:
        if name.startswith(OWN):
            yield from _differences(found, name)
    untold: dict[str, list[str]] = defaultdict(list)
    for metric in found.metrics:
        of = [each for each in found.cells if each.n_runs and metric not in each.not_given]
        n_told = sum(metric in each.figures for each in of)
        if n_told < len(of):
            untold["some" if n_told else "all"].append(said_metric(metric))
    for who, names in untold.items():
        yield (
            f"Unknown of {who} cells, whose runs do not record it or have no such part: "
            f"{', '.join(names)}."
        )


def _differences(found: SuiteTable, metric: str) -> Iterator[str]:
    """Yield by how much a script's own figure differs by format, which few digits do not show."""
    others: dict[tuple[tuple[str, str], ...], list[tuple[str, Interval]]] = defaultdict(list)
    for row in found.cells:
        cell = dict(row.cell)
        name = cell.pop("format", "")
        if name and (told := row.figures.get(metric)) is not None and told.mean.value:
            others[tuple(sorted(cell.items()))].append((name, told.mean))
    for told_cell, of in others.items():
        (base, first), *rest = of
        said_of = [
            f"{name} {_signed((mean.value or 0.0) / (first.value or 1.0) - 1)}"
            f"{' (no more than their runs differ)' if _overlap(first, mean) else ''}"
            for name, mean in rest
        ]
        if said_of:
            alike = f" ({said_cell(dict(told_cell))})" if len(others) > 1 else ""
            yield f"{said_metric(metric)} over that of {base}, less 1{alike}: {', '.join(said_of)}."


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{units.number(value)}"


def _overlap(a: Interval, b: Interval) -> bool:
    """Whether two means with intervals are not apart; equal ones differ by nothing."""
    if a.low is None or a.high is None or b.low is None or b.high is None or a.value == b.value:
        return False
    return a.low <= b.high and b.low <= a.high


def _not_measured(found: SuiteTable) -> Iterator[str]:
    for row, name in zip(found.cells, _names(found)[1], strict=True):
        if row.status in (FAILED, NOT_AVAILABLE):
            at = f" in round {row.n_runs + 1}" if row.n_runs else ""
            yield f"{name}: {row.status}{at}: {row.reason or 'it does not say why'}"
    for each in found.skipped:
        yield f"{each.file}: {each.why}"
    if found.n_open:
        # Of machines that it is for nowhere else.
        machines = dict.fromkeys(
            each.cell["machine"]
            for each in found.cells
            if each.status == OPEN and each.cell.get("machine", "*") != "*"
        )
        cells = "1 cell has" if found.n_open == 1 else f"{units.count(found.n_open)} cells have"
        where = f", each on its own machines ({', '.join(machines)})" if machines else ""
        yield f"{cells} runs left; the same command continues{where}."


def _told_doubts(found: SuiteTable) -> Iterator[str]:
    for row, name in zip(found.cells, _names(found)[1], strict=True):
        if row.doubts:
            yield f"{name}: {'; '.join(row.doubts)}"
