"""A run directory logged to whoever keeps experiments: one run there for each training process."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.analysis.run import open_runs
from iobench.masking import mask_urls
from iobench.tracking.mlflow_runs import MlflowRuns
from iobench.tracking.run_metrics import run_contents
from iobench.tracking.wandb_runs import WandbRuns

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun, Run
    from iobench.report.document import Document


def log_run(
    run: Path | str,
    *,
    mlflow: str | None = None,
    wandb: str | None = None,
    opened: Sequence[Run] | None = None,
    document: Document | None = None,
) -> tuple[str, ...]:
    """Log a run to an MLflow server, a project of Weights & Biases, or both.

    Parameters, metrics of each epoch (as ``iobench/<what>/min``, ``mean``, ``median``, ``max``,
    ``stdev``, at the epoch's number), metrics of the whole run, the page and the trace. May be
    done again: the run there is the same.

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
        If a temporary file cannot be written.
    """
    run = Path(run)
    opened = open_runs(run) if opened is None else opened
    title = next((each.about.name for each in opened if each.about.name), run.absolute().name)
    several = sum(map(len, opened)) > 1
    logs: list[Callable[..., str]] = []
    if mlflow is not None:
        logs.append(MlflowRuns(mlflow, _retry(run, "--mlflow", mask_urls(mlflow))).log)
    if wandb is not None:
        logs.append(WandbRuns(wandb, _retry(run, "--wandb", wandb)).log)
    places: dict[str, None] = {}
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        files: Sequence[Path] = write_files(opened, Path(folder), document)
        for log in logs:
            of_all = files
            for name, each in _named(opened):
                contents = run_contents(each, name=name)
                places[log(contents, title, of_all, several=several)] = None
                of_all = ()
    return tuple(places)


def write_files(runs: Sequence[Run], folder: Path, document: Document | None) -> list[Path]:
    """Write the page and the trace of runs; return the files."""
    from iobench.report.renderers.html_page import HtmlRenderer
    from iobench.report.report_document import report_document
    from iobench.report.timeline.chrome_trace import write_trace
    from iobench.report.written import write_whole

    page, trace = folder / "iobench.html", folder / "iobench-trace.json.gz"
    write_whole(page, HtmlRenderer().render(document or report_document(runs)))
    write_trace(trace, runs)
    return [page, trace]


def _retry(run: Path, option: str, server: str) -> str:
    command = shlex.join(["iobench", "report", str(run), option, server])
    return f"the run is kept, log it again with: {command}"


def _named(opened: Sequence[Run]) -> Iterator[tuple[str, RankRun]]:
    """Yield training processes with their names: of the run, the rank; ``""`` of the only one."""
    for run in opened:
        for each in run:
            of_run = run.path.name if len(opened) > 1 else ""
            of_rank = f"rank-{each.rank}" if len(each.ranks) > 1 else ""
            yield "-".join(part for part in (of_run, of_rank) if part), each
