"""Runs logged to Weights & Biases, through its public library and its environment alone.

``WANDB_MODE=offline`` keeps everything in a folder, for ``wandb sync`` to send later;
``WANDB_DIR``, ``WANDB_BASE_URL``, ``WANDB_ENTITY`` and ``WANDB_API_KEY`` hold as everywhere. The
same run has the same id, and an epoch the same step, however often it is logged.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import MissingExtraError
from iobench.masking import mask_line
from iobench.tracking.mlflow_runs import added_environment, client_errors
from iobench.tracking.run_metrics import PREFIX

if TYPE_CHECKING:
    from iobench.tracking.run_metrics import RunContents

EPOCH: Final = f"{PREFIX}epoch"
SECONDS_TO_END: Final = 300.0
"""For how long all is sent at the end, unless ``$WANDB_FINISH_TIMEOUT`` says otherwise."""
SETTINGS: Final = {
    "console": "off", "disable_code": True, "disable_git": True, "disable_job_creation": True,
    "finish_timeout_raises": True, "init_timeout": 30.0, "quiet": True, "save_code": False,
    "silent": True, "x_disable_stats": True, "x_save_requirements": False,
    "x_disable_machine_info": True,  # of here, where the run was not recorded
    "x_disable_meta": True,  # this command line, with what it may hold
}  # fmt: skip
SILENT: Final = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}


class WandbRuns:
    """The runs of one run directory in one project, ``PROJECT`` or ``ENTITY/PROJECT``."""

    def __init__(self, project: str, retry: str) -> None:
        self._where = f"Weights & Biases, {project}"
        self._retry = f"{retry} (WANDB_MODE=offline needs no server)"
        entity, _, self._project = project.strip("/ ").rpartition("/")
        self._entity = entity or None
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError(
                "--wandb needs wandb, which is not installed: pip install 'iobench[track]'"
            ) from error
        self._wandb = wandb

    def log(self, contents: RunContents, files: Sequence[Path]) -> str:
        """Log a training process, of several in a group; return where people look at it."""
        with (
            client_errors(self._wandb.Error, self._where, self._retry),
            added_environment(SILENT),
        ):
            run = self._wandb.init(
                dir=os.environ.get("WANDB_DIR"),  # the library looks at it once in a process
                project=self._project,
                entity=self._entity,
                id=contents.key[:16],
                resume="allow",
                reinit="create_new",
                name=contents.full_name,
                group=contents.title if contents.name else None,
                job_type=contents.name or None,
                settings=self._wandb.Settings(
                    finish_timeout=os.environ.get("WANDB_FINISH_TIMEOUT") or SECONDS_TO_END,
                    **SETTINGS,
                ),
            )
            with run:
                self._send(run, contents, files)
            if run.offline:
                return f"{Path(run.dir).parent} (offline; wandb sync sends it)"
            return mask_line(str(run.url))

    def _send(self, run: Any, contents: RunContents, files: Sequence[Path]) -> None:
        run.config.update(contents.parameters, allow_val_change=True)
        run.define_metric(f"{PREFIX}*", step_metric=EPOCH)
        for step, each in enumerate(contents.epochs):
            values = {EPOCH: each.epoch, "_timestamp": each.time_ms / 1000}
            run.log({**each.metrics, **values}, step=step)
        for file in files:
            if file.suffix == ".html":
                page = self._wandb.Html(file.read_text("utf-8"), inject=False)
                run.log({f"{PREFIX}page": page}, step=len(contents.epochs))
                continue
            artifact = self._wandb.Artifact(f"iobench-{run.id}", type="iobench-report")
            artifact.add_file(str(file))
            run.log_artifact(artifact)
        run.summary.update({**contents.totals, **contents.tags})
