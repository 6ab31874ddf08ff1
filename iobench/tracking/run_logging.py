"""A run directory logged to whoever keeps experiments: one run there for each training process."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.analysis.run import open_runs
from iobench.masking import mask_urls
from iobench.tracking.mlflow_runs import MlflowRuns
from iobench.tracking.run_metrics import run_contents
from iobench.tracking.wandb_runs import WandbRuns

if TYPE_CHECKING:
    from iobench.analysis.run import Run
    from iobench.report.document import Document


def log_run(
    run: Path | str,
    *,
    mlflow: str | None = None,
    wandb: str | None = None,
    opened: Sequence[Run] | None = None,
    document: Document | None = None,
) -> tuple[str, ...]:
    """Log a run to an MLflow server, a project of Weights & Biases, or both; return where it is.

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
    opened, document : sequence of Run, Document, optional
        The run as `open_runs` has opened it before, and its `report_document`.

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
    logs: list[Callable[..., str]] = []
    if mlflow is not None:
        logs.append(MlflowRuns(mlflow, _retry(run, "--mlflow", mask_urls(mlflow))).log)
    if wandb is not None:
        logs.append(WandbRuns(wandb, _retry(run, "--wandb", wandb)).log)
    ranks = []
    for each in opened:
        for rank in each:
            names = [each.path.name] * (len(opened) > 1) + [f"rank-{rank.rank}"] * (len(each) > 1)
            ranks.append((rank, "-".join(names)))
    places: dict[str, None] = {}
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        files = write_files(opened, Path(folder), document)
        for log in logs:
            for number, (rank, name) in enumerate(ranks):
                contents = run_contents(rank, name=name)
                of_all = () if number else files
                places[log(contents, title, of_all, several=len(ranks) > 1)] = None
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
