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

MEAN: Final = PUBLISHED_FIGURES.index("mean")
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
NOTE: Final = (
    "A batch lasts from one request to the next; I/O is the part of it that was waited for. An "
    "epoch is the sum of its batches where all of them were measured. Exposed is mean I/O divided "
    "by mean batch. Rows without a number are published, or means of a suite."
)
Place = tuple[str, bool, str | None, str | None]
"""Application, whether of the small stand-ins, framework, format: what one run stands for."""
Times = dict[str, tuple[tuple[float | None, ...], int | None]]
"""`PUBLISHED_FIGURES` in seconds, and of how many times, by key."""


class TableRow(msgspec.Struct, frozen=True):
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
    published: str | None
    run: str | None
    started_ns: int | None
    key: str
    min_s: float | None
    mean_s: float | None
    median_s: float | None
    max_s: float | None
    stdev_s: float | None
    number: int | None
    exposed_fraction: float | None
    figures: Mapping[str, float | None]
    about: str

    @property
    def name(self) -> str:
        """What its rows are called."""
        return self.published or f"{self.framework} {self.format}".strip()


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

    Raises
    ------
    ProfileError
        If there is no folder, or nothing in any of them that can be used.
    """
    left_out = list(skipped)
    dated: list[tuple[int, str, Path | list[TableRow]]] = []
    published: dict[tuple[str, str], list[TableRow]] = {}
    for path in dict.fromkeys(path for folder in folders for path in _runs_in(folder, left_out)):
        try:
            RunDirectory.open(path).gather()
            dated.append((start_ns(path), str(path), path))
        except IobenchError as error:
            left_out.append(SkippedRun(str(path), str(error)))
    for suite in suites:
        for rows in _of_suite(suite, left_out):
            if rows[0].published is None:
                dated.append((rows[0].started_ns or 0, rows[0].run or "", rows))
            else:
                published.setdefault((rows[0].application, rows[0].published), rows)
    cells: dict[Place, list[TableRow]] = {}
    for started_ns, name, entry in sorted(dated, key=lambda one: (-one[0], one[1])):
        if isinstance(entry, list):
            cells.setdefault(_place(entry[0]), entry)
            continue
        try:
            runs = open_runs(entry)
            rows = _of_run(entry, started_ns, runs, cells)
        except IobenchError as error:
            left_out.append(SkippedRun(name, str(error)))
            continue
        cells[_place(rows[0])] = rows
        for title, table in runs[0].about.published.tables.items():
            times: Times = {key: (table[key], None) for key in KEYS if key in table}
            if times:
                of = _rows((rows[0].application, False, None, None), times, published=title)
                published.setdefault((rows[0].application, title), of)
    if not cells:
        where, why = ", ".join(map(str, folders)), "expected folders with a run.json in or below it"
        if left_out:
            why = f"for example {left_out[0].run}: {left_out[0].why}"
        raise ProfileError(f"{where}: none of {len(left_out)} run(s) can be used; {why}")
    order = sorted(cells, key=lambda each: (*each[:3], each[3] != SOURCE, each[3]))
    every = (*(cells[place] for place in order), *published.values())
    left_out.sort(key=lambda one: one.run)
    return Quarterly(tuple(row for rows in every for row in rows), tuple(left_out))


def _place(row: TableRow) -> Place:
    return row.application, row.tiny, row.framework, row.format


def _rows(
    place: Place,
    times: Times,
    *,
    published: str | None = None,
    run: str | None = None,
    started_ns: int | None = None,
    figures: Mapping[str, float | None] | None = None,
    about: str = "",
) -> list[TableRow]:
    batch, wait = (times[key][0][MEAN] if key in times else None for key in ("batch", "I/O"))
    share = None if wait is None or not batch else wait / batch
    application, tiny, framework, form = place
    rows = []
    for key in KEYS:
        if key in times:
            (least, mean, median, most, stdev), number = times[key]
            row = TableRow(
                application=application, tiny=tiny, framework=framework, format=form,
                published=published, run=run, started_ns=started_ns or None, key=key,
                min_s=least, mean_s=mean, median_s=median, max_s=most, stdev_s=stdev,
                number=number, exposed_fraction=share, figures=figures or {}, about=about,
            )  # fmt: skip
            rows.append(row)
    return rows


def _of_suite(suite: SuiteResults, skipped: list[SkippedRun]) -> Iterator[list[TableRow]]:
    """Yield the cells of a suite by its results, and what these keep of publications.

    Of those that differ in other options alone the first stands for the cell.
    """
    first: dict[Place, str | None] = {}
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
        times = _times_of_results(of, "", suite.drop)
        others = said_cell({k: v for k, v in of[0].cell.items() if k not in TABLED})
        if place in first:
            why = f"of the same cell as {first[place]}"
            skipped.append(SkippedRun(f"{suite.name}, {said_cell(of[0].cell)}", why))
        elif "batch" in times:
            first[place] = ", ".join(filter(None, (suite.name, others)))
            names = dict.fromkeys(name for one in of for name in one.figures)
            runs = f"means over {units.count(len(of))} runs of a suite"
            yield _rows(
                place,
                times,
                run=first[place],
                started_ns=max(each.started_ns for each in of),
                figures={
                    name.removeprefix(OWN): _mean(of, name, suite.drop)
                    for name in names
                    if name == ENERGY or name.startswith(OWN)
                },
                about=f"{runs}, {_machine(of[0].machine)}",
            )
        if times := _times_of_results(of, "published_", suite.drop):
            yield _rows((place[0], False, None, None), times, published="as published")


def _times_of_results(of: Sequence[Result], prefix: str, drop: int) -> Times:
    means = {key: _mean(of, prefix + metric, drop) for key, metric in METRICS.items()}
    return {
        k: ((None, mean, None, None, None), None) for k, mean in means.items() if mean is not None
    }


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
    if place in cells:
        raise ProfileError(f"older than {cells[place][0].run}, which is of the same cell")
    ranks = [each for run in runs for each in run]
    if not all(each.ranks for each in ranks):
        raise ProfileError("no training process left spans")
    all_times: dict[str, list[Any]] = {key: [] for key in KEYS}
    for rank in ranks:
        for key, values in step_times(rank).items():
            all_times[key].append(values)
    times: Times = {}
    for key, parts in all_times.items():
        row = step_statistics(np.concatenate(parts))
        if row is not None:
            known = (row.min_ns, row.mean_ns, row.median_ns, row.max_ns, row.stdev_ns)
            times[key] = tuple(ns if ns is None else ns / 1e9 for ns in known), row.n_steps
    if "batch" not in times:
        raise ProfileError("no batch was delivered")
    if lost := sum(rank.lost_spans for rank in ranks):
        raise ProfileError(f"{lost} of its spans were lost or are damaged")
    own, about = last_figures(ranks), _about(facts, len(ranks))
    return _rows(place, times, run=str(path), started_ns=started_ns, figures=own, about=about)


def _about(facts: RunFacts, n_ranks: int) -> str:
    emulated = facts.compute.step_ns
    parts = (
        facts.batch_size is not None and f"batch size {facts.batch_size}",
        n_ranks > 1 and f"{units.count(n_ranks)} ranks",
        bool(emulated) and f"{units.duration(emulated)} of compute emulated",
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
            f"{of.name}: {of.run}, {_date(of.started_ns)}; {of.about}." for of in sources if of.run
        )
        title = application + (", tiny stand-ins" if tiny else "")
        blocks: list[Block] = [_sums(sources), _times(rows), *sentences(lines)]
        sections.append(Section(f"application-{number}", title, tuple(blocks)))
    sections.append(Section("notes", "", sentences((NOTE,))))
    if table.skipped:
        title = f"Not in the table: {units.count(len(table.skipped))}"
        left_out = sentences(f"{each.run}: {each.why}" for each in table.skipped)
        sections.append(Section("skipped", title, left_out))
    return Document(
        "Applications, frameworks and formats",
        tuple(sections),
        figures=lambda: msgspec.to_builtins(table),
    )


def _sums(sources: Iterable[TableRow]) -> Table:
    """Return the share that was waited for, energy, and scripts' own figures: D2.2, table 1."""
    names = dict.fromkeys(name for of in sources for name in of.figures)
    rows = tuple(
        (
            of.name,
            _known(of.exposed_fraction, "share"),
            *(figure_cell(name, of.figures[name]) if name in of.figures else "" for name in names),
        )
        for of in sources
    )
    return Table("", tuple(map(Column, ("", "exposed", *map(own_title, names)))), rows)


def _times(rows: Iterable[TableRow]) -> Table:
    lines = tuple(
        (
            f"{row.key}, {row.name}",
            *(_known(getattr(row, f"{name}_s"), "s") for name in PUBLISHED_FIGURES),
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
