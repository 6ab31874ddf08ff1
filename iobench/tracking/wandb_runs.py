"""Runs logged to Weights & Biases, through its public library and its environment alone.

``WANDB_MODE=offline`` keeps everything in a folder, for ``wandb sync`` to send later. The same run
has the same id, and an epoch the same step, however often it is logged.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.errors import OptionError, import_extra
from iobench.masking import mask_line, mask_urls
from iobench.tracking.mlflow_runs import client_errors
from iobench.tracking.run_metrics import PREFIX

if TYPE_CHECKING:
    from iobench.tracking.run_metrics import RunContents

SETTINGS: Final = {
    "console": "off", "disable_code": True, "disable_git": True, "disable_job_creation": True,
    "finish_timeout": 300.0, "finish_timeout_raises": True, "init_timeout": 30.0, "quiet": True,
    "save_code": False, "silent": True, "x_disable_stats": True, "x_save_requirements": False,
    "x_disable_machine_info": True,  # of here, where the run was not recorded
    "x_disable_meta": True,  # this command line, with what it may hold
}  # fmt: skip


class WandbRuns:
    """The runs of one run directory in one project, ``PROJECT`` or ``ENTITY/PROJECT``."""

    def __init__(self, project: str, retry: str) -> None:
        self._where = f"Weights & Biases, {project}"
        self._retry = f"{retry} (WANDB_MODE=offline needs no server)"
        self._entity, _, self._project = project.rpartition("/")
        if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", project):  # a URL, whose secrets it would log
            raise OptionError(f"--wandb {mask_urls(project)}: expected PROJECT or ENTITY/PROJECT")
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb = import_extra("wandb", "--wandb needs wandb", extra="track")

    def log(self, contents: RunContents, page: str) -> str:
        """Log a training process, of several in a group; return where people look at it."""
        with client_errors(self._wandb.Error, self._where, self._retry):
            run = self._wandb.init(
                dir=os.environ.get("WANDB_DIR"),  # the library looks at it once in a process
                project=self._project,
                entity=self._entity or None,
                id=contents.key[:16],
                resume="allow",
                reinit="create_new",
                name=contents.full_name,
                group=contents.title if contents.name else None,
                settings=self._wandb.Settings(**SETTINGS),
            )
            with run:
                run.config.update(contents.parameters, allow_val_change=True)
                for step, each in enumerate(contents.epochs):
                    run.log({**each.metrics, f"{PREFIX}epoch": each.epoch}, step=step)
                if page:
                    shown = self._wandb.Html(page, inject=False)
                    run.log({f"{PREFIX}page": shown}, step=len(contents.epochs))
                run.summary.update({**contents.totals, **contents.tags})
            if run.offline:
                return f"{Path(run.dir).parent} (offline; wandb sync sends it)"
            return mask_line(str(run.url))
