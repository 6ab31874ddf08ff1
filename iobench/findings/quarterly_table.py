"""The table of MAELSTROM D2.3 from folders of runs and suites: application by framework by format.

The newest run that can be used stands for its cell. Runs are not merged: those of one cell may be
of other machines, batch sizes and weeks, and their pooled figures would be of no run at all. Where
a suite's result files alone are left of it, its cell has the means over its repeats.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.epochs import step_times
from iobench.analysis.intervals import trimmed_mean
from iobench.analysis.run import Run, open_runs
from iobench.analysis.waits import step_statistics
from iobench.errors import IobenchError, ProfileError
from iobench.findings.run_figures import ENERGY, last_figures, own_title
from iobench.recording.run_directory import RunDirectory
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
from iobench.runs.folders import start_ns
from iobench.runs.run_facts import PUBLISHED_FIGURES, RunFacts

if TYPE_CHECKING:
    from iobench.report.document import Block, Cell, Unit
    from iobench.suites.results import Result, SuiteResults

METRICS: Final = {
    "epoch": "",
    "batch": "step_s",
    "forward": "forward_s",
    "backward": "backward_s",
    "I/O": "wait_s",
}
"""What rows are of, and what results of suites call the mean of such a time."""
KEYS: Final = (*METRICS,)
SOURCE, UNKNOWN = "source", "unknown"
TABLED: Final = ("dataset", "format", "framework", "pipeline", "tiny")
NO_TIMES: Final = dict.fromkeys((f"{name}_s" for name in PUBLISHED_FIGURES), None)
NOTE: Final = (
    "A batch lasts from one request to the next; I/O is the part of it that was waited for. An "
    "epoch is the sum of its batches where all of them were measured. Exposed is mean I/O divided "
    "by mean batch. Rows without a number are published, or means of a suite."
)
Place = tuple[str, bool, str | None, str | None]
"""Application, whether of the small stand-ins, framework, format: what one run stands for."""
Times = dict[str, dict[str, Any]]
"""By key what a row has of its times: those of `NO_TIMES`, and their number."""


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sort of time of a run, a cell of a suite, or a published table.

    ``run`` is a directory or the suite's name, ``number`` of how many times; these,
    ``started_ns`` (since 1970), ``framework`` and ``format`` are None of what is ``published``.
    ``exposed_fraction`` and ``figures`` (energy, and a script's own in the last epoch) are of all
    rows of the run.
    """

    application: str
    tiny: bool
    framework: str | None
    format: str | None
    published: str | None = None
    run: str | None = None
    started_ns: int | None = None
    key: str
    min_s: float | None
    mean_s: float | None
    median_s: float | None
    max_s: float | None
    stdev_s: float | None
    number: int | None = None
    exposed_fraction: float | None
    figures: Mapping[str, float | None] = {}
    about: str = ""


class SkippedRun(msgspec.Struct, frozen=True):
    """A run that is not in the table, and why."""

    run: str
    why: str


class Quarterly(msgspec.Struct, frozen=True):
    """What was measured, by cell, the original files first; what was published; the rest."""

    rows: tuple[TableRow, ...]
    skipped: tuple[SkippedRun, ...]
    schema_version: int = 1


def make_quarterly(
    folders: Sequence[Path],
    suites: Iterable[SuiteResults] = (),
    skipped: Iterable[SkippedRun] = (),
) -> Quarterly:
    """Look through folders for runs, however deep, and take the newest of each cell.

    ``suites`` are those whose result files are there, ``skipped`` what of them cannot be read.
    """
    left_out = list(skipped)
    cells: dict[Place, list[TableRow]] = {}
    published: dict[tuple[str, str | None], list[TableRow]] = {}
    for rows in (rows for suite in suites for rows in _of_suite(suite, left_out)):
        place, first = _place(rows[0]), rows[0]
        if first.published is not None:
            published.setdefault((first.application, first.published), rows)
        elif place not in cells or _started_ns(cells[place]) < _started_ns(rows):
            cells[place] = rows
    dated: list[tuple[int, str, Path]] = []
    for path in dict.fromkeys(path for folder in folders for path in _runs_in(folder, left_out)):
        try:
            RunDirectory.open(path).gather()
            dated.append((-start_ns(path), str(path), path))
        except IobenchError as error:
            left_out.append(SkippedRun(str(path), str(error)))
    for before_ns, name, path in sorted(dated):
        try:
            runs = open_runs(path)
            rows = _of_run(path, -before_ns, runs, cells)
        except IobenchError as error:
            left_out.append(SkippedRun(name, str(error)))
            continue
        cells[_place(rows[0])] = rows
        for title, table in runs[0].about.published.tables.items():
            times = {
                key: dict(zip(NO_TIMES, table[key], strict=True)) for key in KEYS if key in table
            }
            application = rows[0].application
            if of := _rows((application, False, None, None), times, published=title):
                published.setdefault((application, title), of)
    if not cells:
        where = ", ".join(map(str, folders))
        why = left_out[0].why if left_out else "expected folders with a run.json in or below them"
        raise ProfileError(f"{where}: none of {len(left_out)} run(s) can be used; {why}")
    order = sorted(cells, key=lambda each: (*each[:3], each[3] != SOURCE, each[3]))
    every = (*(cells[place] for place in order), *published.values())
    left_out.sort(key=lambda one: one.run)
    return Quarterly(tuple(row for rows in every for row in rows), tuple(left_out))


def _place(row: TableRow) -> Place:
    return row.application, row.tiny, row.framework, row.format


def _started_ns(rows: Sequence[TableRow]) -> int:
    return rows[0].started_ns or 0


def _rows(place: Place, times: Times, **of_run: Any) -> list[TableRow]:
    """Return what is known of a run, of a suite's cell or of a publication, by key."""
    batch, wait = (times.get(key, NO_TIMES)["mean_s"] for key in ("batch", "I/O"))
    of_run |= dict(zip(("application", "tiny", "framework", "format"), place, strict=True))
    of_run["exposed_fraction"] = None if wait is None or not batch else wait / batch
    return [TableRow(key=key, **times[key], **of_run) for key in KEYS if key in times]


def _of_suite(suite: SuiteResults, skipped: list[SkippedRun]) -> Iterator[list[TableRow]]:
    """Yield the cells of a suite by its results, and what these keep of publications.

    Of those that differ in other options alone the first stands for the cell.
    """
    names: dict[Place, str] = {}
    cells: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for result in suite.results:
        if result.status == "measured":
            options = tuple(sorted((result.options or result.cell).items()))
            cells.setdefault(options, []).append(result)
    for key, of in cells.items():
        options_of, pipeline = dict(key), dict(key).get("pipeline", "own")
        place = (
            options_of.get("dataset", UNKNOWN),
            options_of.get("tiny") == "true",
            options_of.get("framework", "native"),
            options_of.get("format", SOURCE) if pipeline == "own" else pipeline,
        )
        times = _means(of, "", suite.drop)
        others = said_cell({k: v for k, v in of[0].cell.items() if k not in TABLED})
        if place in names:
            why = f"of the same cell as {names[place]}"
            skipped.append(SkippedRun(f"{suite.name}, {said_cell(of[0].cell)}", why))
        elif "batch" in times:
            name = names[place] = f"{suite.name}, {others}" if others else suite.name
            figures = dict.fromkeys(each for one in of for each in one.figures)
            yield _rows(
                place,
                times,
                run=name,
                started_ns=max(each.started_ns for each in of) or None,
                figures={
                    each.removeprefix(OWN): _mean(of, each, suite.drop)
                    for each in figures
                    if each == ENERGY or each.startswith(OWN)
                },
                about=f"means over {units.count(len(of))} runs, {_machine(of[0].machine)}",
            )
        if times := _means(of, "published_", suite.drop):
            yield _rows((place[0], False, None, None), times, published="as published")


def _means(of: Sequence[Result], prefix: str, drop: int) -> Times:
    means = {key: _mean(of, prefix + metric, drop) for key, metric in METRICS.items()}
    return {key: NO_TIMES | {"mean_s": mean} for key, mean in means.items() if mean is not None}


def _mean(of: Sequence[Result], name: str, drop: int) -> float | None:
    """Return the mean that the suite's own table has; None where no run has such a figure."""
    known = [each.figures[name] for each in of if each.figures.get(name) is not None]
    return trimmed_mean(known, drop).value


def _runs_in(folder: Path, skipped: list[SkippedRun]) -> Iterator[Path]:
    """Yield run directories by name; what cannot be listed is skipped, and said to be."""
    if not folder.is_dir():
        raise ProfileError(f"{folder}: is not a folder; expected one with runs in it or below")

    def refused(error: OSError) -> None:
        skipped.append(SkippedRun(str(error.filename), f"cannot be listed ({error.strerror})"))

    for parent, folders, files in os.walk(folder, onerror=refused):
        if "run.json" in files:
            folders.clear()
            yield Path(parent)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def _of_run(
    path: Path, started_ns: int, runs: Sequence[Run], cells: Mapping[Place, list[TableRow]]
) -> list[TableRow]:
    """Return a run for its cell; raise `ProfileError` where it cannot stand for it."""
    facts, layout = runs[0].about, ""
    if facts.is_script:
        if path.with_name(f"{path.name}.result.json").exists():
            raise ProfileError("of a suite, whose result says of what application and format")
        facts = runs[0].of_rank(runs[0].ranks[0]).about
    else:
        layout = (facts.layout if facts.pipeline == "own" else None) or facts.pipeline or ""
    place = (facts.dataset or UNKNOWN, facts.tiny, facts.framework or UNKNOWN, layout)
    if place in cells and _started_ns(cells[place]) >= started_ns:
        raise ProfileError(f"older than {cells[place][0].run}, which is of the same cell")
    ranks = [each for run in runs for each in run]
    times_of_ranks = [step_times(rank) for rank in ranks if rank.ranks]
    if len(times_of_ranks) < len(ranks):
        raise ProfileError("no training process left spans")
    times: Times = {}
    for key in KEYS:
        row = step_statistics(np.concatenate([of[key] for of in times_of_ranks]))
        if row is not None:
            known = (row.min_ns, row.mean_ns, row.median_ns, row.max_ns, row.stdev_ns)
            seconds = (None if ns is None else ns / 1e9 for ns in known)
            times[key] = {**dict(zip(NO_TIMES, seconds, strict=True)), "number": row.n_steps}
    if "batch" not in times:
        raise ProfileError("no batch was delivered")
    if lost := sum(rank.lost_spans for rank in ranks):
        raise ProfileError(f"{lost} of its spans were lost or are damaged")
    return _rows(
        place, times, run=str(path), started_ns=started_ns or None,
        figures=last_figures(ranks), about=_about(facts, len(ranks)),
    )  # fmt: skip


def _about(facts: RunFacts, n_ranks: int) -> str:
    parts = (
        facts.batch_size is not None and f"batch size {facts.batch_size}",
        n_ranks > 1 and f"{units.count(n_ranks)} ranks",
        facts.stand_in and not facts.tiny and "stand-ins",
        _machine(facts.machine),
    )
    return ", ".join(part for part in parts if part)


def _machine(machine: Mapping[str, Any]) -> str:
    cpus = machine.get("cpus", machine.get("cores"))
    return ", ".join(map(str, filter(None, (cpus and f"{cpus} CPUs", machine.get("cpu_model")))))


def quarterly_document(table: Quarterly) -> Document:
    """Return two tables for each application, what stands in them, and what was left out."""
    sections = []
    measured = (row for row in table.rows if row.published is None)
    groups = groupby(measured, key=lambda row: (row.application, row.tiny))
    for number, ((application, tiny), group) in enumerate(groups):
        rows = [*group]
        rows += [row for row in table.rows if row.published and row.application == application]
        # One row for each run or publication: what is of all of its rows.
        sources = {(_place(row), row.published): row for row in rows}.values()
        lines = (
            f"{_name(of)}: {of.run}, {_date(of.started_ns)}; {of.about}."
            for of in sources
            if of.run
        )
        title = application + (", tiny stand-ins" if tiny else "")
        blocks: list[Block] = [_sums(sources), _times(rows), *sentences(lines)]
        sections.append(Section(f"application-{number}", title, tuple(blocks)))
    sections.append(Section("notes", "", sentences((NOTE,))))
    if table.skipped:
        title = f"Not in the table: {units.count(len(table.skipped))}"
        left_out = sentences(f"{each.run}: {each.why}" for each in table.skipped)
        sections.append(Section("skipped", title, left_out))
    return Document("Applications, frameworks and formats", tuple(sections), figures=lambda: table)


def _name(row: TableRow) -> str:
    return row.published or f"{row.framework} {row.format}".strip()


def _sums(sources: Iterable[TableRow]) -> Table:
    """Return the share that was waited for, energy, and scripts' own figures: D2.2, table 1."""
    names = dict.fromkeys(name for of in sources for name in of.figures)
    rows = tuple(
        (
            _name(of),
            _known(of.exposed_fraction, "share"),
            *(figure_cell(name, of.figures[name]) if name in of.figures else "" for name in names),
        )
        for of in sources
    )
    return Table("", tuple(map(Column, ("", "exposed", *map(own_title, names)))), rows)


def _times(rows: Iterable[TableRow]) -> Table:
    lines = tuple(
        (
            f"{row.key}, {_name(row)}",
            *(_known(getattr(row, name), "s") for name in NO_TIMES),
            _known(row.number, "count"),
        )
        for row in sorted(rows, key=lambda row: KEYS.index(row.key))
    )
    columns = tuple(map(Column, ("", *PUBLISHED_FIGURES, "number")))
    return Table("As in MAELSTROM D2.3, in seconds", columns, lines)


def _known(value: float | None, unit: Unit) -> Cell:
    return NOT_APPLICABLE if value is None else Quantity(value, unit)


def _date(moment_ns: int | None) -> str:
    moment = datetime.fromtimestamp((moment_ns or 0) // 10**9, UTC)
    return f"{moment:%Y-%m-%d %H:%M} UTC" if moment_ns else "of an unknown date"
