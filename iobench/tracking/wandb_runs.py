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
from iobench.masking import mask_line
from iobench.tracking.legal_names import PREFIX
from iobench.tracking.trackers import retry_command, short_reason, with_defaults

if TYPE_CHECKING:
    from iobench.tracking.run_metrics import RunContents
    from iobench.tracking.tracking_notes import TrackingNotes

EPOCH: Final = f"{PREFIX}epoch"
"""The axis of all our metrics: W&B's own steps count calls."""
SECONDS_TO_BEGIN: Final = 30.0
SECONDS_TO_END: Final = 300.0
"""For how long all is sent at the end, unless ``$WANDB_FINISH_TIMEOUT`` says otherwise."""
MS_PER_S: Final = 1000
_SILENT: Final = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}


class WandbRuns:
    """A `Tracker`: the runs of one run directory in one project of Weights & Biases.

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

    title = "Weights & Biases"

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

    def begin(self, contents: RunContents, *, title: str, several: bool = False) -> Any:
        """Return the library's run, as of `Tracker`; several are grouped."""
        name = contents.name
        known = self.notes.find(self.server, name) or {}
        run_id = known.get("run_id")
        if not isinstance(run_id, str):
            run_id = secrets.token_hex(8)
            self.notes.keep(self.server, name, run_id=run_id, epochs={})
        with self._told(), with_defaults(_SILENT):
            return self._begin(
                run_id,
                name=f"{title} {name}".strip(),
                group=title if several else None,
                job_type=name or None,
            )

    def _begin(self, run_id: str, *, name: str, group: str | None, job_type: str | None) -> Any:
        settings = self._wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            finish_timeout=os.environ.get("WANDB_FINISH_TIMEOUT") or SECONDS_TO_END,
            finish_timeout_raises=True,
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

    def tell(self, run: Any, contents: RunContents) -> None:
        """Log what a run was not told yet, as of `Tracker`."""
        known = self.notes.find(self.server, contents.name) or {}
        told: dict[str, float] = dict(known.get("epochs") or {})
        due = [e for e in contents.epochs if told.get(str(e.epoch)) != e.mark]
        with self._told():
            run.config.update(contents.parameters, allow_val_change=True)
            run.define_metric(f"{PREFIX}*", step_metric=EPOCH)
            for epoch in due:
                run.log(
                    {
                        **epoch.metrics,
                        EPOCH: epoch.epoch,
                        "_timestamp": epoch.time_ms / MS_PER_S,
                    }
                )
            run.summary.update({**contents.totals, **contents.tags})
        told |= {str(each.epoch): each.mark for each in due}
        self.notes.keep(self.server, contents.name, run_id=run.id, epochs=told)

    def add_files(self, run: Any, files: Sequence[Path]) -> None:
        """Show the page, and keep other files as an artifact."""
        pages = [file for file in files if file.suffix == ".html"]
        others = [file for file in files if file not in pages]
        with self._told():
            for page in pages:
                shown = self._wandb.Html(page.read_text("utf-8"), inject=False)
                run.log({f"{PREFIX}page": shown})
            if others:
                kept = self._wandb.Artifact(f"iobench-{run.id}", type="iobench-report")
                for file in others:
                    kept.add_file(str(file))
                run.log_artifact(kept)

    def end(self, run: Any, contents: RunContents, *, failed: bool = False) -> None:
        """End a run of the library, and wait until it has sent all of it, but not for ever."""
        with self._told(), with_defaults(_SILENT):
            try:
                run.finish(exit_code=int(failed))
            except TimeoutError as error:
                if failed:
                    return  # why it failed is what is to be said
                limit = f"{run.settings.finish_timeout:g} s"
                raise TimeoutError(f"not everything was sent within {limit}") from error

    def address(self, run: Any) -> str:
        """Return where people look at a run."""
        if run.offline:
            return f"{Path(run.dir).parent} (offline; wandb sync sends it)"
        return mask_line(str(run.url))

    def close(self) -> None:
        """Each run has said itself that it is over."""

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what the library raises into one line that tells no credentials."""
        try:
            yield
        except IobenchError:
            raise
        except (self._wandb.Error, OSError) as error:
            reason = short_reason(mask_line(str(error)))
            raise TrackingError(
                f"Weights & Biases, {self.asked}: {reason}; the run is kept, log it again with: "
                f"{retry_command(self.run, wandb=self.asked)} "
                "(WANDB_MODE=offline needs no server)"
            ) from None
