"""Runs told to Weights & Biases, through its public library and its environment alone.

``WANDB_MODE=offline`` keeps everything in a folder, for ``wandb sync`` to send later;
``WANDB_DIR``, ``WANDB_BASE_URL``, ``WANDB_ENTITY`` and ``WANDB_API_KEY`` hold as everywhere.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import IobenchError, MissingExtraError, TrackingError
from iobench.tracking.masks import masked
from iobench.tracking.names import PREFIX
from iobench.tracking.retrying import retry_command, short_reason

if TYPE_CHECKING:
    from iobench.tracking.contents import EpochMetrics, RunContents
    from iobench.tracking.notes import TrackingNotes

__all__ = ["WandbRuns", "log_epoch"]

EPOCH: Final = f"{PREFIX}epoch"
"""The axis of all our metrics: W&B's own steps count calls."""
SECONDS_TO_BEGIN: Final = 30.0
MS_PER_S: Final = 1000
_SILENT: Final = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}


class WandbRuns:
    """The runs of one run directory in one project of Weights & Biases.

    Parameters
    ----------
    run : Path
        The run directory.
    project : str
        ``PROJECT`` or ``ENTITY/PROJECT``.
    notes : TrackingNotes
        Of the run directory.

    Raises
    ------
    MissingExtraError
        If the library is not installed.
    """

    def __init__(self, run: Path, project: str, notes: TrackingNotes) -> None:
        self.run, self.asked, self.notes = run, project, notes
        entity, _, self.project = project.strip("/ ").rpartition("/")
        self.entity = entity or None
        self.server = f"wandb:{project.strip('/ ')}"
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError(
                "--wandb needs wandb, which is not installed: pip install 'iobench[track]'"
            ) from error
        self._wandb = wandb

    def tell(
        self, contents: RunContents, files: Sequence[Path], *, title: str, several: bool
    ) -> str:
        """Tell one run of Weights & Biases of a training process; return where it is.

        Parameters
        ----------
        contents : RunContents
        files : sequence of Path
            The page, shown as such, and others, kept as an artifact.
        title : str
            Of the run directory.
        several : bool
            Whether it is one of several, which are grouped.

        Raises
        ------
        TrackingError
            If the server does not answer, or refuses.
        StorageError
            If the run directory cannot be written.
        """
        known = self.notes.find(self.server, contents.name) or {}
        run_id = known.get("run_id")
        if not isinstance(run_id, str):
            run_id = secrets.token_hex(8)
        told = set(known.get("epochs") or ())
        self.notes.keep(self.server, contents.name, run_id=run_id, epochs=sorted(told))
        with self._told(), silent_wandb():
            run = self._begin(
                run_id,
                name=f"{title} {contents.name}".strip(),
                group=title if several else None,
                job_type=contents.name or None,
            )
            failed = True
            try:
                self._log(run, contents, told, files)
                failed = False
            finally:
                run.finish(exit_code=int(failed))
        epochs = sorted(told | {each.epoch for each in contents.epochs})
        self.notes.keep(self.server, contents.name, run_id=run_id, epochs=epochs)
        if run.offline:
            return f"{Path(run.dir).parent} (offline; wandb sync sends it)"
        return masked(str(run.url))

    def _begin(self, run_id: str, *, name: str, group: str | None, job_type: str | None) -> Any:
        settings = self._wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            init_timeout=SECONDS_TO_BEGIN,
            quiet=True,
            save_code=False,
            silent=True,
            x_disable_machine_info=True,  # of here, where the run was not made
            x_disable_meta=True,  # this command line, with what it may hold
            x_disable_stats=True,
            x_save_requirements=False,
        )
        return self._wandb.init(
            dir=os.environ.get("WANDB_DIR"),  # the library looks at it once in a process
            project=self.project,
            entity=self.entity,
            id=run_id,
            resume="allow",
            reinit="create_new",
            name=name,
            group=group,
            job_type=job_type,
            settings=settings,
        )

    def _log(self, run: Any, contents: RunContents, told: set[int], files: Sequence[Path]) -> None:
        run.config.update(contents.parameters, allow_val_change=True)
        run.define_metric(f"{PREFIX}*", step_metric=EPOCH)
        for epoch in contents.epochs:
            if epoch.epoch not in told:
                log_epoch(run, epoch)
        run.summary.update({**contents.totals, **contents.tags})
        pages = [file for file in files if file.suffix == ".html"]
        for page in pages:
            run.log({f"{PREFIX}page": self._wandb.Html(page.read_text("utf-8"), inject=False)})
        others = [file for file in files if file not in pages]
        if others:
            kept = self._wandb.Artifact(f"iobench-{run.id}", type="iobench-report")
            for file in others:
                kept.add_file(str(file))
            run.log_artifact(kept)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what the library raises into one line that tells no credentials."""
        try:
            yield
        except IobenchError:
            raise
        except (self._wandb.Error, OSError) as error:
            raise TrackingError(
                f"Weights & Biases, {self.asked}: {short_reason(masked(str(error)))}; the run is "
                f"kept, tell it again with: {retry_command(self.run, wandb=self.asked)} "
                "(WANDB_MODE=offline needs no server)"
            ) from None


def log_epoch(run: Any, epoch: EpochMetrics, *, joined: bool = False) -> None:
    """Log an epoch's metrics to a run of Weights & Biases.

    In a run that is not our own they go into the row that its owner logs next: a row more would
    move its steps.
    """
    metrics: dict[str, float] = {**epoch.metrics, EPOCH: epoch.epoch}
    if joined:
        run.log(metrics, commit=False)
    else:
        run.log({**metrics, "_timestamp": epoch.time_ms / MS_PER_S})


@contextmanager
def silent_wandb() -> Iterator[None]:
    """Let the library be silent, unless the environment says otherwise."""
    added = {name: value for name, value in _SILENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
