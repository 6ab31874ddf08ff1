"""A run directory told to whoever keeps experiments: one run there for each profile."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.profiles.reading import open_profiles
from iobench.tracking.artifacts import make_artifacts
from iobench.tracking.contents import RunContents, run_contents
from iobench.tracking.mlflow_runs import MlflowRuns, bounded_mlflow
from iobench.tracking.notes import TrackingNotes
from iobench.tracking.wandb_runs import WandbRuns

if TYPE_CHECKING:
    from iobench.profiles.contents import Profile
    from iobench.report.run_report import RunReport
    from iobench.storage.traces.contents import StorageTrace

__all__ = ["log_run", "part_name"]


def log_run(
    run: Path | str,
    *,
    mlflow: str | None = None,
    wandb: str | None = None,
    traces: Mapping[Path, StorageTrace] | None = None,
    profiles: Sequence[Profile] | None = None,
    reports: Sequence[RunReport] | None = None,
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
    traces : mapping of Path to StorageTrace, optional
        What a tracer saw, for page and trace.
    profiles : sequence of Profile, optional
        Of `open_profiles`, where the run has been opened before.
    reports : sequence of RunReport, optional
        From `make_reports` of these profiles and traces, for the page.
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
    profiles = open_profiles(run) if profiles is None else profiles
    notes = TrackingNotes(run)
    found = []
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        # Not before a server has answered: they may take a while.
        files = functools.cache(lambda: _artifacts(profiles, Path(folder), traces, reports, say))
        if mlflow is not None:
            with bounded_mlflow():
                runs = MlflowRuns(run, mlflow, notes)
                found.append(_to_mlflow(runs, profiles, files, say))
                say(f"told MLflow: {found[-1]}")
        if wandb is not None:
            found += _to_wandb(WandbRuns(run, wandb, notes), profiles, files, say)
    return tuple(found)


def _artifacts(
    profiles: Sequence[Profile],
    folder: Path,
    traces: Mapping[Path, StorageTrace] | None,
    reports: Sequence[RunReport] | None,
    say: Callable[[str], None],
) -> list[Path]:
    files, left_out = make_artifacts(profiles, folder, traces, reports)
    for line in left_out:
        say(line)
    return files


def part_name(profile: Profile, n_profiles: int) -> str:
    """Return what a profile is called among those of its run directory; ``""`` where alone."""
    if profile.rank is not None and len(profile.ranks) > 1:
        return f"rank-{profile.rank}"
    return profile.path.name if n_profiles > 1 else ""


def _to_mlflow(
    runs: MlflowRuns,
    profiles: Sequence[Profile],
    files: Callable[[], Sequence[Path]],
    say: Callable[[str], None],
) -> str:
    """Tell MLflow of every profile; return where the first run can be looked at."""
    title = runs.run.absolute().name
    several = len(profiles) > 1
    top: str | None = None
    end_ms = 0
    for profile in profiles:
        contents = run_contents(profile, name=part_name(profile, len(profiles)))
        end_ms = max(end_ms, contents.end_ms)
        _say_cut(contents, say)
        if top is None:
            top = runs.open("", title=title, start_ms=contents.start_ms)
        if several:
            own = runs.open(
                contents.name, title=f"{title} {contents.name}", start_ms=contents.start_ms,
                parent=top,
            )  # fmt: skip
            runs.tell(own, contents)
            runs.close(own, contents.name, end_ms=contents.end_ms)
        else:
            runs.tell(top, contents)
    assert top is not None  # there is no run without a profile
    runs.add_files(top, files())
    runs.close(top, "", end_ms=end_ms)
    return runs.address(top)


def _to_wandb(
    runs: WandbRuns,
    profiles: Sequence[Profile],
    files: Callable[[], Sequence[Path]],
    say: Callable[[str], None],
) -> list[str]:
    """Tell Weights & Biases of every profile; return where each can be looked at."""
    found = []
    several = len(profiles) > 1
    for number, profile in enumerate(profiles):
        contents = run_contents(profile, name=part_name(profile, len(profiles)))
        _say_cut(contents, say)
        found.append(
            runs.tell(
                contents,
                files() if not number else (),
                title=runs.run.absolute().name,
                several=several,
            )
        )
        say(f"told Weights & Biases: {found[-1]}")
    return found


def _say_cut(contents: RunContents, say: Callable[[str], None]) -> None:
    if contents.cut:
        say(f"too long for a parameter, and cut: {', '.join(contents.cut)}")
