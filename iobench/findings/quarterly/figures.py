"""The table of MAELSTROM D2.3 from folders of runs and suites: application by framework by format.

The newest run that can be used stands for its cell. Runs are not merged: those of one cell may be
of other machines, batch sizes and weeks, and their pooled figures would be of no run at all. Where
a suite's result files alone are left of it, its cell has the means over its repeats.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.epochs import step_times
from iobench.analysis.intervals import trimmed_mean
from iobench.analysis.run import Run, open_runs
from iobench.analysis.waits import step_statistics
from iobench.errors import IobenchError, ProfileError
from iobench.findings.metrics.figures import ENERGY, last_figures
from iobench.recording.run_directory import RunDirectory
from iobench.report.suite_words import OWN, said_cell
from iobench.runs.folders import made_ns
from iobench.runs.run_facts import PUBLISHED_FIGURES, RunFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.analysis.exposure_figures import StepStatistics
    from iobench.suites.results import Result, SuiteResults


KEYS: Final = ("epoch", "batch", "forward", "backward", "I/O")
SOURCE: Final = "source"
UNTOLD: Final = "unknown"
MEAN: Final = PUBLISHED_FIGURES.index("mean")
METRICS: Final = {
    "batch": "step_s",
    "forward": "forward_s",
    "backward": "backward_s",
    "I/O": "wait_s",
}
"""What results of suites call the mean of such a time."""
AS_PUBLISHED: Final = "as published"
TABLED: Final = ("dataset", "format", "framework", "pipeline", "tiny")
Cell = tuple[str, bool, str, str]
"""Application, whether of the small stand-ins, framework and format."""


class TimedRow(msgspec.Struct, frozen=True):
    """Figures of one sort of time, as they were measured or published.

    Parameters
    ----------
    figures : tuple of float or None
        `PUBLISHED_FIGURES`, in seconds.
    number : int or None
        Of how many times; None where that is not told.
    """

    figures: tuple[float | None, ...]
    number: int | None = None

    @property
    def mean(self) -> float | None:
        """In seconds."""
        return self.figures[MEAN]


def exposed_fraction(rows: Mapping[str, TimedRow]) -> float | None:
    """Return the share of the mean batch that was waited for; None where either is not told."""
    batch, wait = (rows[key].mean if key in rows else None for key in ("batch", "I/O"))
    return None if wait is None or not batch else wait / batch


class Published(msgspec.Struct, frozen=True):
    """What was published of an application.

    Parameters
    ----------
    rows : mapping of str to TimedRow
        By key of `KEYS`.
    """

    application: str
    source: str
    rows: Mapping[str, TimedRow]


class QuarterlyRun(msgspec.Struct, frozen=True):
    """The run, or suite, that stands for a cell.

    Parameters
    ----------
    run : str
        Its directory.
    made_ns : int
        When its first process started, since the epoch.
    application, framework, format : str
        Of scripts the name of the loader's dataset, and ``""`` for the format.
    tiny : bool
        Whether it is of the small stand-ins, a cell of its own.
    facts : RunFacts or None
        None of a suite of which only result files are left.
    n_ranks, n_repeats : int
        Its training processes; runs that its figures are means over.
    rows : mapping of str to TimedRow
        By key of `KEYS`, of all ranks; what was not timed is missing.
    figures : mapping of str to float or None
        Energy, and a script's own figures in the last epoch, as `last_figures` has them.
    """

    run: str
    made_ns: int
    application: str
    framework: str
    format: str
    tiny: bool
    facts: RunFacts | None
    machine: Mapping[str, Any]
    n_ranks: int
    n_repeats: int
    rows: Mapping[str, TimedRow]
    figures: Mapping[str, float | None] = msgspec.field(default_factory=dict)

    @property
    def cell(self) -> Cell:
        """What it stands for."""
        return self.application, self.tiny, self.framework, self.format


class SkippedRun(msgspec.Struct, frozen=True):
    """A run that is not in the table, and why."""

    run: str
    why: str


class Quarterly(msgspec.Struct, frozen=True):
    """All that the table shows.

    Parameters
    ----------
    runs : tuple of QuarterlyRun
        By application, framework and format; the original files first.
    published : tuple of Published
        Of these applications.
    """

    runs: tuple[QuarterlyRun, ...]
    published: tuple[Published, ...]
    skipped: tuple[SkippedRun, ...]


def make_quarterly(
    folders: Sequence[Path],
    suites: Iterable[SuiteResults] = (),
    skipped: Iterable[SkippedRun] = (),
) -> Quarterly:
    """Look through folders for runs, however deep, and take the newest of each cell.

    Parameters
    ----------
    suites : iterable of SuiteResults
        Those whose result files are in them.
    skipped : iterable of SkippedRun
        What could not be read of these.

    Raises
    ------
    ProfileError
        If there is no folder, or nothing in any of them that can be used.
    """
    left_out = list(skipped)
    dated: list[tuple[int, str, Path | QuarterlyRun]] = []
    published: dict[tuple[str, str], Published] = {}
    for path in dict.fromkeys(path for folder in folders for path in _runs_below(folder, left_out)):
        try:
            RunDirectory.open(path).gather()
            dated.append((made_ns(path), str(path), path))
        except IobenchError as error:
            left_out.append(SkippedRun(str(path), str(error)))
    for suite in suites:
        dated += ((run.made_ns, run.run, run) for run in _of_suite(suite, published, left_out))
    taken: dict[Cell, QuarterlyRun] = {}
    for started_ns, name, each in sorted(dated, key=lambda one: (-one[0], one[1])):
        if isinstance(each, QuarterlyRun):
            taken.setdefault(each.cell, each)
            continue
        try:
            runs = open_runs(each)
            found = _run(each, started_ns, runs, taken)
        except IobenchError as error:
            left_out.append(SkippedRun(name, str(error)))
            continue
        if isinstance(found, SkippedRun):
            left_out.append(found)
            continue
        taken[found.cell] = found
        for told in _published(found.application, runs[0].about):
            published.setdefault((told.application, told.source), told)
    if not taken:
        raise _nothing(folders, left_out)
    return Quarterly(
        runs=tuple(sorted(taken.values(), key=_place)),
        published=tuple(published.values()),
        skipped=tuple(sorted(left_out, key=lambda one: one.run)),
    )


def _of_suite(
    suite: SuiteResults, published: dict[tuple[str, str], Published], skipped: list[SkippedRun]
) -> Iterator[QuarterlyRun]:
    """Yield the cells of a suite by its results, and note what these keep of publications.

    Of those that differ in other options alone the first stands for the cell.
    """
    yielded: dict[Cell, str] = {}
    cells: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for result in suite.results:
        if result.status == "measured":
            options = tuple(sorted((result.options or result.cell).items()))
            cells.setdefault(options, []).append(result)
    for key, of in cells.items():
        told = dict(key)
        rows, publication = (
            {
                key: TimedRow((None, mean, None, None, None))
                for key, metric in METRICS.items()
                if (mean := _mean([one.figures.get(name + metric) for one in of], suite.drop))
                is not None
            }
            for name in ("", "published_")
        )
        application, pipeline = told.get("dataset", UNTOLD), told.get("pipeline", "own")
        others = {k: v for k, v in of[0].cell.items() if k not in TABLED}
        name = ", ".join(filter(None, (suite.name, said_cell(others))))
        layout = told.get("format", SOURCE) if pipeline == "own" else pipeline
        framework, tiny = told.get("framework", "native"), told.get("tiny") == "true"
        cell = application, tiny, framework, layout
        if cell in yielded:
            other = f"{suite.name}, {said_cell(of[0].cell)}"
            skipped.append(SkippedRun(other, f"of the same cell as {yielded[cell]}"))
        elif "batch" in rows:
            yielded[cell] = name
            yield QuarterlyRun(
                run=name,
                made_ns=max(each.started_ns for each in of),
                application=application,
                framework=framework,
                format=layout,
                tiny=tiny,
                facts=None,
                machine=of[0].machine,
                n_ranks=1,
                n_repeats=len(of),
                rows=rows,
                figures={
                    name.removeprefix(OWN): _mean([one.figures.get(name) for one in of], suite.drop)
                    for name in dict.fromkeys(name for one in of for name in one.figures)
                    if name == ENERGY or name.startswith(OWN)
                },
            )
        if publication:
            found = Published(application, AS_PUBLISHED, publication)
            published.setdefault((application, AS_PUBLISHED), found)


def _mean(values: Sequence[float | None], drop: int) -> float | None:
    """Return the mean that the suite's own table has; None where no run tells it."""
    known = [each for each in values if each is not None]
    return trimmed_mean(known, drop).value


def _place(run: QuarterlyRun) -> tuple[str, bool, str, bool, str]:
    return run.application, run.tiny, run.framework, run.format != SOURCE, run.format


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

    def untold(error: OSError) -> None:
        skipped.append(SkippedRun(str(error.filename), f"cannot be listed ({error.strerror})"))

    for parent, folders, files in os.walk(folder, onerror=untold):
        if "run.json" in files:
            folders.clear()
            yield Path(parent)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def _run(
    path: Path,
    made_ns: int,
    runs: Sequence[Run],
    taken: Mapping[Cell, QuarterlyRun],
) -> QuarterlyRun | SkippedRun:
    """Return a run for its cell, or why it is in none."""
    name = str(path)
    facts = runs[0].about
    if facts.is_script and path.with_name(f"{path.name}.result.json").exists():
        return SkippedRun(name, "of a suite, whose result says of what application and format")
    if facts.is_script:
        facts = runs[0].of_rank(runs[0].ranks[0]).about
    cell = (
        facts.dataset or UNTOLD,
        facts.tiny,
        facts.framework or UNTOLD,
        ""
        if facts.is_script
        else (facts.layout if facts.pipeline == "own" else None) or facts.pipeline,
    )
    if cell in taken:
        return SkippedRun(name, f"older than {taken[cell].run}, which is of the same cell")
    if not all(each.ranks for run in runs for each in run):
        return SkippedRun(name, "no training process left spans")
    lost = 0
    times: dict[str, list[Any]] = {key: [] for key in KEYS}
    for each in (each for run in runs for each in run):
        lost += each.lost_spans
        for key, values in step_times(each).items():
            times[key].append(values)
    found = {key: step_statistics(np.concatenate(values)) for key, values in times.items()}
    rows = {key: _row(row) for key, row in found.items() if row is not None}
    if "batch" not in rows:
        return SkippedRun(name, "no batch was delivered")
    if lost:
        return SkippedRun(name, f"{lost} of its spans were lost or are damaged")
    n_ranks = sum(map(len, runs))
    application, tiny, framework, layout = cell
    return QuarterlyRun(
        name, made_ns, application, framework, layout, tiny, facts, facts.machine, n_ranks, 1, rows,
        last_figures(each for run in runs for each in run),
    )  # fmt: skip


def _row(row: StepStatistics) -> TimedRow:
    """Return `PUBLISHED_FIGURES` in seconds; one value has no standard deviation."""
    deviation = None if row.stdev_ns is None else row.stdev_ns / 1e9
    plain = (row.min_ns, row.mean_ns, row.median_ns, row.max_ns)
    return TimedRow((*(value / 1e9 for value in plain), deviation), row.n_steps)


def _published(application: str, about: RunFacts) -> Iterator[Published]:
    """Yield the published tables that a run keeps."""
    for source, table in about.published_tables.items():
        rows = {key: TimedRow(table[key]) for key in KEYS if key in table}
        if rows:
            yield Published(application, source, rows)
