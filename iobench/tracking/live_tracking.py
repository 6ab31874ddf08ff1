"""Epochs told to MLflow and Weights & Biases while a script trains.

The figures are made and sent by a process beside the training (`iobench.tracking.live_process`):
the training writes a line for each epoch. Whatever fails is one warning, never an error.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Self

from iobench.masking import mask_line
from iobench.recording.session import current_recording
from iobench.tracking.live_start import beside_command, beside_environment, told_on
from iobench.tracking.mlflow_runs import ENVIRONMENT
from iobench.tracking.run_metrics import EpochMetrics
from iobench.tracking.trackers import retry_command
from iobench.tracking.wandb_runs import log_epoch

if TYPE_CHECKING:
    from types import TracebackType

    from iobench.recording.session import Recording

logger = logging.getLogger(__name__)

PROJECT: Final = "iobench"
WAIT_S: Final = 60.0
LEAVES_S: Final = 5.0
"""For how long the process beside may take to end, once it has told all."""


class LiveTracking:
    """Tells of each epoch; made by `live`, a context manager.

    Parameters
    ----------
    recording : Recording or None
        Of this process; None tells nothing.
    mlflow : str or None
        URI, or ``"env"``.
    wandb : str or None
        Project.
    wait_s : float
        For how long the end of the training is held up, at most, by what is still to be told.
    """

    def __init__(
        self,
        recording: Recording | None,
        *,
        mlflow: str | None,
        wandb: str | None,
        wait_s: float = WAIT_S,
    ) -> None:
        self._recording, self._wait_s = recording, wait_s
        self._mlflow, self._wandb = mlflow, wandb
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._joined: Any = None
        self._environment: dict[str, str] = {}
        self._warned = self._ended = False
        self._failures: dict[str, str] = {}
        self.told: list[str] = []
        """Where the run can be looked at, known at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def end_epoch(self) -> None:
        """Say that an epoch is over: its figures are made and told meanwhile.

        Epochs are numbered as the loader numbers its passes, from 0. Takes a fraction of a
        millisecond, but for the first time, when the process is started.
        """
        if self._recording is None or self._recording.closed or self._ended:
            return
        if self._process is None and not self._start(self._recording):
            return
        self._order({})

    def close(self) -> None:
        """Tell the rest, and wait until it is told, but not for ever. Idempotent."""
        if self._ended:
            return
        self._ended = True
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return
        self._order({"ended": True})
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        reader.join(self._wait_s)
        if reader.is_alive():
            process.kill()
            self._fail(f"not everything was logged within {self._wait_s:g} s")
        try:
            process.wait(min(self._wait_s, LEAVES_S))
        except subprocess.TimeoutExpired:  # nobody reads what it says any more
            process.kill()
            process.wait()
        if process.stdout is not None and not reader.is_alive():
            process.stdout.close()
        for place in self.told:
            logger.info("told %s", place)
        for failure in self._failures.values():
            logger.warning("%s", failure)

    # -- the process beside ---------------------------------------------------------------

    def _start(self, recording: Recording) -> bool:
        rank = recording.job.rank
        join = None
        if self._mlflow is not None and "mlflow" in sys.modules:
            active = sys.modules["mlflow"].active_run()
            join = None if active is None else active.info.run_id
        if self._wandb is not None and "wandb" in sys.modules:
            self._joined = getattr(sys.modules["wandb"], "run", None)
        order = {
            "run": str(recording.run.path),
            "rank": rank,
            "name": f"rank-{rank}" if rank else "",
            "mlflow": self._mlflow,
            "join": join,
            "wandb": None if self._joined is not None else self._wandb,
            "figures": self._joined is not None,
        }
        try:
            self._process = subprocess.Popen(
                beside_command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=beside_environment(),
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is the training's, which then ends this
            )
        except OSError as error:
            self._ended = True
            self._fail(f"no helper process for tracking ({error.strerror or error})")
            return False
        self._reader = threading.Thread(
            target=self._read, args=(self._process,), name="iobench-tracking", daemon=True
        )
        try:
            self._reader.start()
        except RuntimeError as error:  # no more threads for this user
            self._ended = True
            self._process.kill()
            self._process.communicate()
            self._fail(f"no helper thread for tracking ({error})")
            return False
        self._environment = told_on()
        self._write(order)
        return True

    def _order(self, order: dict[str, Any]) -> None:
        now = told_on()
        changed = {
            name: value for name, value in now.items() if self._environment.get(name) != value
        }
        self._environment = now
        self._write({**order, "environment": changed})

    def _write(self, order: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            self._fail(f"the helper process for tracking has ended ({error.strerror or error})")

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Take what the process answers, until it ends."""
        refused: type[Exception] = getattr(sys.modules.get("wandb"), "Error", RuntimeError)
        ended = False
        try:
            for line in process.stdout or ():
                try:
                    answer = json.loads(line)
                except ValueError:
                    continue  # cut off: it was killed
                if "ended" in answer:
                    ended = True
                    break  # its stdout may stay open: what a library started beside may have it
                try:
                    self._take(answer)
                except refused as error:
                    self._fail(str(error))
        finally:
            if not ended:
                self._fail("the helper process for tracking has ended early")

    def _take(self, answer: dict[str, Any]) -> None:
        if "failed" in answer:
            self._fail(answer["failed"], by=answer["by"])
        elif "told" in answer:
            self.told.append(answer["told"])
            self._failures.pop(answer["by"], None)  # it answered after all
        elif "epoch" in answer:
            log_epoch(self._joined, EpochMetrics(**answer["epoch"]), joined=True)
        elif "totals" in answer:
            self._joined.summary.update(answer["totals"])

    def _fail(self, reason: str, *, by: str = "") -> None:
        """Keep what went wrong for the end; say it at once the first time."""
        text = mask_line(reason)
        if not by and self._recording is not None:
            again = retry_command(self._recording.run.path, mlflow=self._mlflow, wandb=self._wandb)
            text = f"{text}; the run is kept, log it again with: {again}"
        self._failures[by] = text
        if not self._warned:
            self._warned = True
            logger.warning("%s", text)


def live(
    recording: Recording | None = None,
    *,
    mlflow: bool | str = False,
    wandb: bool | str = False,
    every_rank: bool = False,
    wait_s: float = WAIT_S,
) -> LiveTracking:
    """Tell MLflow or Weights & Biases of each epoch of this script while it trains.

    ::

        from iobench.tracking.live_tracking import live

        with iobench.record("run") as recording, live(recording, mlflow=True) as told:
            for epoch in range(10):
                train(loader)
                told.end_epoch()

    Where a framework owns the loop, a callback says so: ``keras.callbacks.LambdaCallback(
    on_epoch_end=lambda epoch, logs: told.end_epoch())``, or Lightning's ``LambdaCallback(
    on_train_epoch_end=lambda trainer, module: told.end_epoch())``.

    An MLflow run or a run of Weights & Biases that is active is joined. Under ``iobench run``
    leave ``recording`` out. Of several training processes only the first tells anything.

    Parameters
    ----------
    recording : Recording, optional
        By default the one of this process, if there is one.
    mlflow : bool or str
        URI of a server; True is the one that MLflow uses in this script.
    wandb : bool or str
        Project; True is ``$WANDB_PROJECT``, else ``iobench``.
    every_rank : bool
        Whether the other training processes tell as well, a run each.
    wait_s : float
        For how long the end of the training is held up, at most.

    Returns
    -------
    LiveTracking
        A context manager with ``end_epoch()``.
    """
    recording = recording or current_recording()
    if recording is None:
        logger.warning("nothing is recorded here, so there is nothing to log")
    elif recording.job.rank and not every_rank:
        recording = None
    server: str | None = None
    if mlflow is True:
        server = ENVIRONMENT
        if "mlflow" in sys.modules:
            server = str(sys.modules["mlflow"].get_tracking_uri())
    elif mlflow:
        server = mlflow
    project: str | None = None
    if wandb:
        project = os.environ.get("WANDB_PROJECT") or PROJECT if wandb is True else wandb
    if server is None and project is None:
        recording = None
    return LiveTracking(recording, mlflow=server, wandb=project, wait_s=wait_s)
