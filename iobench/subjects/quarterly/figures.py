"""The table of MAELSTROM D2.3 from folders of runs: application by framework by format.

The newest run that can be used stands for its cell. Runs are not merged: those of one cell may be
of other machines, batch sizes and weeks, and their pooled figures would be of no run at all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.epochs import step_times
from iobench.analysis.run import Run, open_runs
from iobench.analysis.waits import step_statistics
from iobench.errors import IobenchError, ProfileError
from iobench.profiles.folders import made_ns
from iobench.profiles.run_facts import PUBLISHED_FIGURES, Five, RunFacts
from iobench.recording.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.analysis.exposure_figures import StepStatistics


__all__ = ["KEYS", "Published", "Quarterly", "QuarterlyRun", "SkippedRun", "make_quarterly"]

KEYS: Final = ("epoch", "batch", "forward", "backward", "I/O")
SOURCE: Final = "source"
UNTOLD: Final = "unknown"
"""What a published time may be; no number at all is none either."""


@dataclass(frozen=True, slots=True)
class Published:
    """What was published of an application, in seconds.

    Parameters
    ----------
    application, source : str
    rows : mapping of str to tuple of five float
        By key of `KEYS`: `PUBLISHED_FIGURES`.
    """

    application: str
    source: str
    rows: Mapping[str, Five]

    @property
    def exposed_fraction(self) -> float | None:
        """Share of the mean batch that was waited for; None where either is not told."""
        at = PUBLISHED_FIGURES.index("mean")
        batch, wait = self.rows.get("batch"), self.rows.get("I/O")
        return None if batch is None or wait is None or not batch[at] else wait[at] / batch[at]


@dataclass(frozen=True, slots=True)
class QuarterlyRun:
    """The run that stands for a cell.

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
    facts : RunFacts
    n_ranks : int
    rows : mapping of str to StepStatistics or None
        By key of `KEYS`, of all ranks; None where nothing of that sort was timed.
    """

    run: str
    made_ns: int
    application: str
    framework: str
    format: str
    tiny: bool
    facts: RunFacts
    n_ranks: int
    rows: Mapping[str, StepStatistics | None]

    @property
    def cell(self) -> tuple[str, bool, str, str]:
        """What it stands for."""
        return self.application, self.tiny, self.framework, self.format

    @property
    def exposed_fraction(self) -> float | None:
        """Share of the time of all batches that was waited for, from their means."""
        batch, wait = self.rows["batch"], self.rows["I/O"]
        if batch is None or wait is None or not batch.mean_ns:
            return None
        return wait.mean_ns / batch.mean_ns


@dataclass(frozen=True, slots=True)
class SkippedRun:
    """A run that is not in the table, and why."""

    run: str
    why: str


@dataclass(frozen=True, slots=True)
class Quarterly:
    """All that the table shows.

    Parameters
    ----------
    runs : tuple of QuarterlyRun
        By application, framework and format; the original files first.
    published : tuple of Published
        Of these applications.
    skipped : tuple of SkippedRun
    """

    runs: tuple[QuarterlyRun, ...]
    published: tuple[Published, ...]
    skipped: tuple[SkippedRun, ...]


def make_quarterly(folders: Sequence[Path]) -> Quarterly:
    """Look through folders for runs, however deep, and take the newest of each cell.

    Raises
    ------
    ProfileError
        If there is no folder, or no run in any of them that can be used.
    """
    skipped: list[SkippedRun] = []
    dated: list[tuple[int, Path]] = []
    for path in dict.fromkeys(path for folder in folders for path in _runs_below(folder, skipped)):
        try:
            RunDirectory.open(path).gather()
            dated.append((made_ns(path), path))
        except IobenchError as error:
            skipped.append(SkippedRun(str(path), str(error)))
    taken: dict[tuple[str, bool, str, str], QuarterlyRun] = {}
    published: dict[tuple[str, str], Published] = {}
    for started_ns, path in sorted(dated, key=lambda each: (-each[0], str(each[1]))):
        try:
            runs = open_runs(path)
            found = _run(path, started_ns, runs, taken)
        except IobenchError as error:
            skipped.append(SkippedRun(str(path), str(error)))
            continue
        if isinstance(found, SkippedRun):
            skipped.append(found)
            continue
        taken[found.cell] = found
        for each in _published(found.application, runs[0].about):
            published.setdefault((each.application, each.source), each)
    if not taken:
        raise _nothing(folders, skipped)
    return Quarterly(
        runs=tuple(sorted(taken.values(), key=_place)),
        published=tuple(published.values()),
        skipped=tuple(sorted(skipped, key=lambda each: each.run)),
    )


def _place(run: QuarterlyRun) -> tuple[str, bool, str, bool, str]:
    return run.application, run.tiny, run.framework, run.format != SOURCE, run.format


def _nothing(folders: Sequence[Path], skipped: Sequence[SkippedRun]) -> ProfileError:
    where = ", ".join(map(str, folders))
    if skipped:
        first = skipped[0]
        return ProfileError(
            f"{where}: none of {len(skipped)} run(s) can be used; of {first.run}: {first.why}"
        )
    return ProfileError(f"{where}: no run in it, however deep; expected folders with a run.json")


def _runs_below(folder: Path, skipped: list[SkippedRun]) -> Iterator[Path]:
    """Yield run directories by name; what cannot be listed is skipped, and said to be."""
    if not folder.is_dir():
        raise ProfileError(f"{folder}: is no folder; expected one that holds runs, however deep")

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
    taken: Mapping[tuple[str, bool, str, str], QuarterlyRun],
) -> QuarterlyRun | SkippedRun:
    """Return a run for its cell, or why it is in none."""
    name = str(path)
    facts = runs[0].about
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
    if not all(each.whole.ranks for run in runs for each in run):
        return SkippedRun(name, "no training process left spans")
    lost = 0
    times: dict[str, list[Any]] = {key: [] for key in KEYS}
    for each in (each for run in runs for each in run):
        lost += each.profile.lost_spans
        for key, values in step_times(each).items():
            times[key].append(values)
    rows = {key: step_statistics(np.concatenate(values)) for key, values in times.items()}
    if rows["batch"] is None:
        return SkippedRun(name, "no batch was delivered")
    if lost:
        return SkippedRun(name, f"{lost} of its spans were lost or are damaged")
    application, tiny, framework, layout = cell
    return QuarterlyRun(
        name, made_ns, application, framework, layout, tiny, facts, sum(map(len, runs)), rows
    )


def _published(application: str, about: RunFacts) -> Iterator[Published]:
    """Yield the published tables that a run keeps."""
    for source, table in about.published_tables.items():
        rows = {key: table[key] for key in KEYS if key in table}
        if rows:
            yield Published(application, source, rows)
