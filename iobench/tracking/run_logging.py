"""A run directory told to whoever keeps experiments: one run there for each profile."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.analysis.run import open_runs
from iobench.tracking.artifacts import make_artifacts
from iobench.tracking.mlflow_runs import MlflowRuns
from iobench.tracking.run_metrics import run_contents
from iobench.tracking.tracking_notes import TrackingNotes
from iobench.tracking.wandb_runs import WandbRuns

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun, Run
    from iobench.report.document import Document
    from iobench.tracking.run_metrics import RunContents
    from iobench.tracking.trackers import Tracker


def log_run(
    run: Path | str,
    *,
    mlflow: str | None = None,
    wandb: str | None = None,
    opened: Sequence[Run] | None = None,
    document: Document | None = None,
    trace: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[str, ...]:
    """Tell an MLflow server, a project of Weights & Biases, or both, of a run.

    Parameters, metrics of each epoch (as ``iobench/<what>/min``, ``mean``, ``median``, ``max``,
    ``stdev``, at the epoch's number), metrics of the whole run, the page and the trace. May be
    done again: what is there is found by the notes in the run directory, and not told twice.

    Parameters
    ----------
    run : Path or str
        A run directory, or one that holds a run per format: these are nested in one.
    mlflow : str, optional
        URI of a server, or ``"env"``: the one that ``MLFLOW_TRACKING_URI`` names.
    wandb : str, optional
        Project, or ``entity/project``.
    opened : sequence of Run, optional
        The run as `open_runs` has opened it before.
    document : Document, optional
        From `report_document` of these runs, for the page.
    trace : Path, optional
        What `write_trace` made of these runs and nothing else, where that was done before.
    say : callable
        Called with lines about what is done.

    Returns
    -------
    tuple of str
        Where it can be looked at.

    Raises
    ------
    ProfileError
        If it is no run.
    OptionError, MissingExtraError
        If no server is named, or the library is not installed.
    TrackingError
        If the server does not answer, or refuses; the message says how to go on.
    StorageError
        If the run directory or a temporary file cannot be written.
    """
    run = Path(run)
    opened = open_runs(run) if opened is None else opened
    title = next((each.about.name for each in opened if each.about.name), run.absolute().name)
    several = sum(map(len, opened)) > 1
    notes = TrackingNotes(run)
    trackers: list[Tracker] = []
    if mlflow is not None:
        trackers.append(MlflowRuns(run, mlflow, notes))
    if wandb is not None:
        trackers.append(WandbRuns(run, wandb, notes))
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:

        @functools.cache
        def files() -> Sequence[Path]:
            """Return the page and the trace, made once a server has answered: they take a while."""
            return _artifacts(opened, Path(folder), document, trace, say)

        for tracker in trackers:
            parts = (run_contents(each, name=name) for name, each in _named(opened))
            found += _tell(tracker, parts, files, title, several, say)
    return tuple(found)


def _tell(
    tracker: Tracker,
    parts: Iterable[RunContents],
    files: Callable[[], Sequence[Path]],
    title: str,
    several: bool,
    say: Callable[[str], None],
) -> list[str]:
    """Tell a server of every part; return where they can be looked at."""
    found: dict[str, None] = {}
    for number, contents in enumerate(parts):
        if contents.cut:
            say(f"too long for a parameter, and cut: {', '.join(contents.cut)}")
        part = tracker.begin(contents, title=title, several=several)
        finished = False
        try:
            tracker.tell(part, contents)
            if not number:
                tracker.add_files(part, files())
            finished = True
        finally:
            tracker.end(part, contents, failed=not finished)
        found[tracker.address(part)] = None
    tracker.close()
    for place in found:
        say(f"logged to {tracker.title}: {place}")
    return list(found)


def _artifacts(
    opened: Sequence[Run],
    folder: Path,
    document: Document | None,
    trace: Path | None,
    say: Callable[[str], None],
) -> list[Path]:
    files, left_out = make_artifacts(opened, folder, document, trace)
    for line in left_out:
        say(line)
    return files


def part_name(rank: int | None, run: str) -> str:
    """Return what a training process is called among those told of; ``""`` where it is alone.

    Parameters
    ----------
    rank : int or None
        None where its run has no other.
    run : str
        Name of its run directory, ``""`` where that is the only one.
    """
    return "-".join(part for part in (run, "" if rank is None else f"rank-{rank}") if part)


def _named(opened: Sequence[Run]) -> Iterator[tuple[str, RankRun]]:
    """Yield all training processes with their names, one after the other."""
    for run in opened:
        of_run = run.path.name if len(opened) > 1 else ""
        for each in run:
            several = len(each.ranks) > 1
            yield part_name(each.rank if several else None, of_run), each
