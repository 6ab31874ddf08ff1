"""A run directory logged to whoever keeps experiments: one run there for each training process."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from iobench.masking import mask_urls
from iobench.report.renderers.html_page import HtmlRenderer
from iobench.tracking.mlflow_runs import MlflowRuns
from iobench.tracking.run_metrics import run_contents
from iobench.tracking.wandb_runs import WandbRuns

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.analysis.run import Run
    from iobench.report.document import Document


def log_run(
    run: Path, opened: Sequence[Run], document: Document, mlflow: str | None, wandb: str | None
) -> tuple[str, ...]:
    """Log a run, or one per format, to MLflow, to Weights & Biases, or both; return where it is."""
    title = next((each.about.name for each in opened if each.about.name), run.absolute().name)
    logs: list[MlflowRuns | WandbRuns] = []
    if mlflow is not None:
        logs.append(MlflowRuns(mlflow, _retry(run, "--mlflow", mask_urls(mlflow))))
    if wandb is not None:
        logs.append(WandbRuns(wandb, _retry(run, "--wandb", wandb)))
    contents = []
    for each in opened:
        for rank in each:
            names = [each.path.name] * (len(opened) > 1) + [f"rank-{rank.rank}"] * (len(each) > 1)
            contents.append(run_contents(rank, title, "-".join(names)))
    page = HtmlRenderer().render(document)
    places = (
        log.log(each, "" if number else page)
        for log in logs
        for number, each in enumerate(contents)
    )
    return tuple(dict.fromkeys(places))


def _retry(run: Path, option: str, server: str) -> str:
    command = shlex.join(["iobench", "report", str(run), option, server])
    return f"the run is kept, log it again with: {command}"
