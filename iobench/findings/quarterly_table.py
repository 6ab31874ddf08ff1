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
from iobench.findings.script_figures import ENERGY, last_figures, own_title
from iobench.recording.run_directory import RunDirectory
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Column,
    Count,
    Document,
    Seconds,
    Section,
    Share,
    Table,
    sentences,
)
from iobench.report.suite_words import OWN, figure_cell, said_cell
from iobench.runs.folders import made_ns
from iobench.runs.run_facts import PUBLISHED_FIGURES, RunFacts

if TYPE_CHECKING:
    from iobench.report.document import Cell
    from iobench.suites.results import Result, SuiteResults

QUARTERLY_VERSION: Final = 1
KEYS: Final = ("epoch", "batch", "forward", "backward", "I/O")
MEAN: Final = PUBLISHED_FIGURES.index("mean")
METRICS: Final = {
    "batch": "step_s",
    "forward": "forward_s",
    "backward": "backward_s",
    "I/O": "wait_s",
}
"""What results of suites call the mean of such a time."""
AS_PUBLISHED: Final = "as published"
SOURCE: Final = "source"
UNKNOWN: Final = "unknown"
TABLED: Final = ("dataset", "format", "framework", "pipeline", "tiny")
NOTES: Final = (
    "A batch lasts from one request to the next; I/O is the part of it that was waited for. An "
    "epoch is the sum of its batches where all of them were measured.",
    "Exposed share of the sum: mean I/O divided by mean batch. A median may hide the cost of a few "
    "long waits.",
)


class TimedRow(msgspec.Struct, frozen=True):
    """One sort of time: `PUBLISHED_FIGURES` in seconds, and of how many times, where known."""

    figures: tuple[float | None, ...] = (None,) * len(PUBLISHED_FIGURES)
    number: int | None = None

    @property
    def mean(self) -> float | None:
        """In seconds."""
        return self.figures[MEAN]


UNTIMED: Final = TimedRow()


class TableSource(msgspec.Struct, frozen=True):
    """A run, a cell of a suite, or a published table, by application, framework and format.

    Parameters
    ----------
    published : str or None
        Where it was published; None of what was measured.
    run : str or None
        Its directory, or the suite's name.
    made_ns : int
        When its first process started, since the epoch.
    tiny : bool
        Whether it is of the small stand-ins, a cell of its own.
    rows : mapping of str to TimedRow
        By key of `KEYS`, of all ranks; what was not timed is missing.
    figures : mapping of str to float or None
        Energy, and a script's own figures in the last epoch, as `last_figures` has them.
    about : str
        What else it is of, in words.
    """

    application: str
    tiny: bool
    framework: str | None
    format: str | None
    published: str | None
    run: str | None
    made_ns: int | None
    rows: Mapping[str, TimedRow]
    figures: Mapping[str, float | None] = {}
    about: str = ""

    @property
    def cell(self) -> tuple[str, bool, str, str]:
        """What it stands for."""
        return self.application, self.tiny, self.framework or "", self.format or ""

    @property
    def name(self) -> str:
        """What its rows are called."""
        return self.published or f"{self.framework} {self.format}".strip()

    @property
    def exposed_fraction(self) -> float | None:
        """The share of the mean batch that was waited for; None where either is unknown."""
        batch, wait = (self.rows.get(key, UNTIMED).mean for key in ("batch", "I/O"))
        return None if wait is None or not batch else wait / batch


class SkippedRun(msgspec.Struct, frozen=True):
    """A run that is not in the table, and why."""

    run: str
    why: str


class Quarterly(msgspec.Struct, frozen=True):
    """What was measured, by cell, the original files first; what was published of it; the rest."""

    runs: tuple[TableSource, ...]
    published: tuple[TableSource, ...]
    skipped: tuple[SkippedRun, ...]


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
    dated: list[tuple[int, str, Path | TableSource]] = []
    published: dict[tuple[str, str | None], TableSource] = {}
    for path in dict.fromkeys(path for folder in folders for path in _runs_below(folder, left_out)):
        try:
            RunDirectory.open(path).gather()
            dated.append((made_ns(path), str(path), path))
        except IobenchError as error:
            left_out.append(SkippedRun(str(path), str(error)))
    for suite in suites:
        for each in _of_suite(suite, left_out):
            if each.published is None:
                dated.append((each.made_ns or 0, each.run or "", each))
            else:
                published.setdefault((each.application, each.published), each)
    taken: dict[tuple[str, bool, str, str], TableSource] = {}
    for started_ns, name, entry in sorted(dated, key=lambda one: (-one[0], one[1])):
        if isinstance(entry, TableSource):
            taken.setdefault(entry.cell, entry)
            continue
        try:
            runs = open_runs(entry)
            source = _of_run(entry, started_ns, runs, taken)
        except IobenchError as error:
            left_out.append(SkippedRun(name, str(error)))
            continue
        taken[source.cell] = source
        for title, table in runs[0].about.published_tables.items():
            rows = {key: TimedRow(table[key]) for key in KEYS if key in table}
            if rows:
                publication = _publication(source.application, title, rows)
                published.setdefault((source.application, title), publication)
    if not taken:
        raise _nothing(folders, left_out)
    ordered = sorted(
        taken.values(), key=lambda each: (*each.cell[:3], each.format != SOURCE, each.format)
    )
    left_out.sort(key=lambda one: one.run)
    return Quarterly(tuple(ordered), tuple(published.values()), tuple(left_out))


def _publication(application: str, title: str, rows: Mapping[str, TimedRow]) -> TableSource:
    return TableSource(application, False, None, None, title, None, None, rows)


def _of_suite(suite: SuiteResults, skipped: list[SkippedRun]) -> Iterator[TableSource]:
    """Yield the cells of a suite by its results, and what these keep of publications.

    Of those that differ in other options alone the first stands for the cell.
    """
    yielded: dict[tuple[str, bool, str, str], str | None] = {}
    cells: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for result in suite.results:
        if result.status == "measured":
            options = tuple(sorted((result.options or result.cell).items()))
            cells.setdefault(options, []).append(result)
    for key, of in cells.items():
        options_of, pipeline = dict(key), dict(key).get("pipeline", "own")
        others = {k: v for k, v in of[0].cell.items() if k not in TABLED}
        names = dict.fromkeys(name for one in of for name in one.figures)
        source = TableSource(
            application=options_of.get("dataset", UNKNOWN),
            tiny=options_of.get("tiny") == "true",
            framework=options_of.get("framework", "native"),
            format=options_of.get("format", SOURCE) if pipeline == "own" else pipeline,
            published=None,
            run=", ".join(filter(None, (suite.name, said_cell(others)))),
            made_ns=max(each.started_ns for each in of),
            rows=_rows_of_results(of, "", suite.drop),
            figures={
                name.removeprefix(OWN): _mean(of, name, suite.drop)
                for name in names
                if name == ENERGY or name.startswith(OWN)
            },
            about=f"means over {units.count(len(of))} runs of a suite{_machine(of[0].machine)}",
        )
        if source.cell in yielded:
            other = f"{suite.name}, {said_cell(of[0].cell)}"
            skipped.append(SkippedRun(other, f"of the same cell as {yielded[source.cell]}"))
        elif "batch" in source.rows:
            yielded[source.cell] = source.run
            yield source
        if rows := _rows_of_results(of, "published_", suite.drop):
            yield _publication(source.application, AS_PUBLISHED, rows)


def _rows_of_results(of: Sequence[Result], prefix: str, drop: int) -> dict[str, TimedRow]:
    means = {key: _mean(of, prefix + metric, drop) for key, metric in METRICS.items()}
    return {
        key: TimedRow((None, mean, None, None, None))
        for key, mean in means.items()
        if mean is not None
    }


def _mean(of: Sequence[Result], name: str, drop: int) -> float | None:
    """Return the mean that the suite's own table has; None where no run has such a figure."""
    known = [each.figures[name] for each in of if each.figures.get(name) is not None]
    return trimmed_mean(known, drop).value


def _nothing(folders: Sequence[Path], skipped: Sequence[SkippedRun]) -> ProfileError:
    where = ", ".join(map(str, folders))
    if skipped:
        first = skipped[0]
        return ProfileError(
            f"{where}: none of {len(skipped)} run(s) can be used; for example {first.run}: "
            f"{first.why}"
        )
    return ProfileError(f"{where}: no run in it or below; expected folders with a run.json")


def _runs_below(folder: Path, skipped: list[SkippedRun]) -> Iterator[Path]:
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
    path: Path,
    made_ns: int,
    runs: Sequence[Run],
    taken: Mapping[tuple[str, bool, str, str], TableSource],
) -> TableSource:
    """Return a run for its cell; raise `ProfileError` where it cannot stand for it."""
    facts, layout = runs[0].about, ""
    if facts.is_script:
        if path.with_name(f"{path.name}.result.json").exists():
            raise ProfileError("of a suite, whose result says of what application and format")
        facts = runs[0].of_rank(runs[0].ranks[0]).about
    else:
        layout = (facts.layout if facts.pipeline == "own" else None) or facts.pipeline or ""
    cell = (facts.dataset or UNKNOWN, facts.tiny, facts.framework or UNKNOWN, layout)
    if cell in taken:
        raise ProfileError(f"older than {taken[cell].run}, which is of the same cell")
    ranks = [each for run in runs for each in run]
    if not all(each.ranks for each in ranks):
        raise ProfileError("no training process left spans")
    times: dict[str, list[Any]] = {key: [] for key in KEYS}
    for rank in ranks:
        for key, values in step_times(rank).items():
            times[key].append(values)
    rows = {}
    for key, parts in times.items():
        row = step_statistics(np.concatenate(parts))
        if row is not None:
            deviation = None if row.stdev_ns is None else row.stdev_ns / 1e9
            plain = (row.min_ns, row.mean_ns, row.median_ns, row.max_ns)
            rows[key] = TimedRow((*(value / 1e9 for value in plain), deviation), row.n_steps)
    if "batch" not in rows:
        raise ProfileError("no batch was delivered")
    if lost := sum(rank.lost_spans for rank in ranks):
        raise ProfileError(f"{lost} of its spans were lost or are damaged")
    own, about = last_figures(ranks), _about(facts, len(ranks))
    return TableSource(*cell, None, str(path), made_ns, rows, own, about)


def _about(facts: RunFacts, n_ranks: int) -> str:
    parts = [] if facts.batch_size is None else [f"batch size {facts.batch_size}"]
    parts += [f"{units.count(n_ranks)} ranks"] if n_ranks > 1 else []
    if facts.compute.step_ns:
        parts.append(f"{units.duration(facts.compute.step_ns)} of compute emulated")
    parts += ["stand-ins"] if facts.stand_in and not facts.tiny else []
    return f"{', '.join(parts)}{_machine(facts.machine)}"


def _machine(machine: Mapping[str, Any]) -> str:
    cpu, cpus = machine.get("cpu_model"), machine.get("cpus", machine.get("cores"))
    text = f", {cpus} CPUs" if isinstance(cpus, int) else ""
    return f"{text}, {cpu}" if isinstance(cpu, str) and cpu else text


def quarterly_document(table: Quarterly) -> Document:
    """Return two tables for each application, what stands in them, and what was left out."""
    sections = []
    cells = groupby(table.runs, key=lambda run: (run.application, run.tiny))
    for number, ((application, tiny), group) in enumerate(cells):
        runs = list(group)
        published = [each for each in table.published if each.application == application]
        title = application + (", tiny stand-ins" if tiny else "")
        tables = _shares([*runs, *published]), *_own(runs), _times([*runs, *published])
        lines = [f"{each.name}: {each.run}, {_date(each.made_ns)}; {each.about}." for each in runs]
        if published:
            lines.append(
                "Rows without a number of batches are published figures, of samples of the real "
                "size, from the machines named there."
            )
        sections.append(Section(f"application-{number}", title, (*tables, *sentences(lines))))
    sections.append(Section("notes", "", sentences(NOTES)))
    if table.skipped:
        title = f"Not in the table: {units.count(len(table.skipped))}"
        left_out = sentences(f"{each.run}: {each.why}" for each in table.skipped)
        sections.append(Section("skipped", title, left_out))
    return Document(
        "Applications, frameworks and formats",
        tuple(sections),
        figures=lambda: quarterly_to_json(table),
    )


def _shares(sources: Sequence[TableSource]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for each in sources:
        batch, wait, epoch = (each.rows.get(key, UNTIMED) for key in ("batch", "I/O", "epoch"))
        share = each.exposed_fraction
        # Where batches were counted no epoch is none.
        n_epochs = epoch.number or (None if batch.number is None else 0)
        rows.append(
            (
                each.name,
                _seconds(batch.mean),
                _seconds(wait.mean),
                NOT_APPLICABLE if share is None else Share(share),
                *("" if n is None else Count(n) for n in (batch.number, n_epochs)),
            )
        )
    headings = ("", "batch mean s", "I/O mean s", "exposed", "batches", "epochs")
    return Table("Exposed share of the sum", tuple(map(Column, headings)), tuple(rows))


def _own(runs: Sequence[TableSource]) -> Iterator[Table]:
    """Yield scripts' own figures next to time and energy, where there are any: D2.2, table 1."""
    names = dict.fromkeys(name for run in runs for name in run.figures)
    rows = tuple(
        (
            run.name,
            *(_seconds(run.rows.get(key, UNTIMED).mean) for key in ("epoch", "batch")),
            *(figure_cell(name, run.figures.get(name)) for name in names),
        )
        for run in runs
    )
    columns = map(Column, ("", "epoch mean s", "batch mean s", *map(own_title, names)))
    if names:
        yield Table("Time, energy and figures of the script", tuple(columns), rows)


def _times(sources: Sequence[TableSource]) -> Table:
    rows = tuple(
        (f"{key}, {each.name}", *map(_seconds, each.rows.get(key, UNTIMED).figures))
        for key in KEYS
        for each in sources
        if key in each.rows or each.published is None
    )
    columns = tuple(map(Column, ("", *PUBLISHED_FIGURES)))
    return Table("As in MAELSTROM D2.3, in seconds", columns, rows)


def _seconds(value: float | None) -> Cell:
    """Return seconds as D2.3 prints them."""
    return NOT_APPLICABLE if value is None else Seconds(value)


def _date(made_ns: int | None) -> str:
    if not made_ns:
        return "of an unknown date"
    return f"{datetime.fromtimestamp(made_ns // 10**9, UTC):%Y-%m-%d %H:%M} UTC"


def quarterly_to_json(table: Quarterly) -> dict[str, Any]:
    """Return the table for JSON: a row for each time of each run and publication.

    ``published`` is null of a run; ``run``, ``made``, ``framework``, ``format`` and ``number`` of
    published rows. ``exposed_fraction`` and ``figures`` are those of the cell, in each of its rows.
    """
    return {
        "schema_version": QUARTERLY_VERSION,
        "rows": [
            {
                "application": each.application,
                "tiny": each.tiny,
                "framework": each.framework,
                "format": each.format,
                "published": each.published,
                "run": each.run,
                "made": each.made_ns or None,
                "key": key,
                **{
                    f"{name}_s": value
                    for name, value in zip(PUBLISHED_FIGURES, row.figures, strict=True)
                },
                "number": row.number,
                "exposed_fraction": each.exposed_fraction,
                "figures": {**each.figures},
            }
            for each in (*table.runs, *table.published)
            for key, row in each.rows.items()
        ],
        "skipped": [{"run": each.run, "why": each.why} for each in table.skipped],
    }
