"""``--mlflow`` and ``--wandb``: where a run is told to besides being reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.analysis.run import Run
    from iobench.report.document import Document

__all__ = ["check_tracking_options", "tell_of_run"]


def check_tracking_options(mlflow: str | None, wandb: str | None) -> None:
    """Refuse options that name nothing, before anything is done.

    Raises
    ------
    typer.BadParameter
        If one is empty.
    """
    if mlflow is not None and not mlflow.strip():
        raise typer.BadParameter(
            "is empty; expected the URI of a server, or env for MLFLOW_TRACKING_URI",
            param_hint="--mlflow",
        )
    if wandb is not None and "://" in wandb:
        raise typer.BadParameter(
            "is an address; expected PROJECT or ENTITY/PROJECT. The server is $WANDB_BASE_URL",
            param_hint="--wandb",
        )
    if wandb is not None and not wandb.strip("/ "):
        raise typer.BadParameter(
            "is empty; expected PROJECT or ENTITY/PROJECT", param_hint="--wandb"
        )


def tell_of_run(
    run: Path,
    opened: Sequence[Run],
    document: Document,
    trace: Path | None,
    mlflow: str | None,
    wandb: str | None,
) -> None:
    """Tell whoever was named of a run; lines about it go to stderr.

    Raises
    ------
    IobenchError
        As `log_run`.
    """
    from iobench.tracking.telling import log_run

    log_run(
        run, mlflow=mlflow, wandb=wandb, opened=opened, document=document, trace=trace,
        say=lambda line: typer.echo(f"iobench: {line}", err=True),
    )  # fmt: skip
