"""Runs told to an MLflow server, through MLflow's public client and its environment alone.

What MLflow's environment says holds: server, token, user, experiment, and ``MLFLOW_RUN_ID``, the
run that is joined. That is all that ``mantik.init_tracking()`` sets.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import IobenchError, MissingExtraError, OptionError, TrackingError
from iobench.masking import mask_line, mask_urls
from iobench.tracking.contents import EPOCH_MARK, RunContents
from iobench.tracking.defaults import with_defaults
from iobench.tracking.retrying import retry_command, short_reason

if TYPE_CHECKING:
    from iobench.tracking.notes import TrackingNotes

__all__ = ["ENVIRONMENT", "MlflowRuns", "bounded_mlflow", "server_of"]

ENVIRONMENT: Final = "env"
"""In place of a URI: the server that ``MLFLOW_TRACKING_URI`` names."""
KEY: Final = "iobench.key"
"""A tag by which a run is found that was made, though nobody heard of it."""
ARTIFACTS: Final = "iobench"
AT_ONCE: Final = 100
"""Parameters or tags that one request may hold."""
METRICS_AT_ONCE: Final = 500

# A server that is down is found out in seconds, not in MLflow's four minutes; and MLflow tells
# nobody but the server, and prints nothing of its own.
_DEFAULTS: Final = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_JOINED: Final = "MLFLOW_RUN_ID"


def bounded_mlflow() -> AbstractContextManager[None]:
    """Let MLflow give up soon and be silent, unless the environment says otherwise."""
    return with_defaults(_DEFAULTS)


def server_of(uri: str) -> str:
    """Return the URI of a server, of the environment where that is asked for.

    Raises
    ------
    OptionError
        If there is none.
    """
    if not uri.strip():
        raise OptionError("--mlflow: expected the URI of a server, such as http://127.0.0.1:5000")
    if uri != ENVIRONMENT:
        return uri
    found = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if not found:
        raise OptionError("--mlflow env: MLFLOW_TRACKING_URI is not set; set it, or name the URI")
    return found


class MlflowRuns:
    """The runs of one run directory at one MLflow server; use within `bounded_mlflow`.

    Everything may be done again: what is there already is found, and not told twice.

    Parameters
    ----------
    run : Path
        The run directory.
    uri : str
        Of the server, or `ENVIRONMENT`.
    notes : TrackingNotes
        Of the run directory.
    join : str, optional
        MLflow's run to be joined; by default ``MLFLOW_RUN_ID``, if that is set.

    Raises
    ------
    MissingExtraError
        If MLflow is not installed.
    OptionError
        If no server is named.
    """

    def __init__(
        self, run: Path, uri: str, notes: TrackingNotes, *, join: str | None = None
    ) -> None:
        self.run, self.asked = run, uri
        self.server = server_of(uri)
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise MissingExtraError(
                "--mlflow needs MLflow, which is not installed: pip install 'iobench[track]'"
            ) from error
        self.notes = notes
        self._join = join or os.environ.get(_JOINED) or None
        with self._told():
            self._client = MlflowClient(tracking_uri=self.server)

    def open(self, name: str, *, title: str, start_ms: int, parent: str | None = None) -> str:
        """Return the id of the MLflow run of a part of the run; makes it where there is none.

        Parameters
        ----------
        name : str
            Of the part; ``""`` is the run itself, which may be one that is joined.
        title : str
            What it is called.
        start_ms : int
        parent : str, optional
            The run that it is nested in.

        Raises
        ------
        TrackingError
            If the server does not answer, or refuses.
        StorageError
            If the run directory cannot be written.
        """
        known = self.notes.find(self.server, name) or {}
        if not name and self._join is not None and known.get("run_id") != self._join:
            self.notes.keep(self.server, name, run_id=self._join, joined=True)
            return self._join
        with self._told():
            found = self._find(known)
            if found is None:
                key = secrets.token_hex(16)
                # Before the run is made: its answer may be lost.
                self.notes.keep(self.server, name, key=key)
                found = self._make(key, title, start_ms, parent)
                known = {"key": key, "joined": False}
            elif parent is not None:
                self._client.set_tag(found, "mlflow.parentRunId", parent)
        self.notes.keep(self.server, name, **{**known, "run_id": found})
        return found

    def _find(self, known: Mapping[str, Any]) -> str | None:
        """Return the run that was made before, if it is still there."""
        from mlflow.exceptions import MlflowException

        run_id = known.get("run_id")
        if isinstance(run_id, str):
            try:
                run = self._client.get_run(run_id)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                return None
            return run_id if run.info.lifecycle_stage == "active" else None
        if isinstance(known.get("key"), str):
            runs = self._client.search_runs(
                [self._experiment()], f"tags.`{KEY}` = '{known['key']}'", max_results=1
            )
            return str(runs[0].info.run_id) if runs else None
        return None

    def _make(self, key: str, title: str, start_ms: int, parent: str | None) -> str:
        tags = {KEY: key, "mlflow.source.name": "iobench"}
        if parent is not None:
            tags["mlflow.parentRunId"] = parent
        run = self._client.create_run(
            self._experiment(), start_time=start_ms or None, tags=tags, run_name=title
        )
        return str(run.info.run_id)

    def _experiment(self) -> str:
        """Return the experiment that the environment names, else MLflow's default one."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if not name:
            return os.environ.get("MLFLOW_EXPERIMENT_ID") or "0"
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)

    def tell(self, run_id: str, contents: RunContents, *, final: bool = True) -> int:
        """Tell what is not there yet of a training process; return how many epochs were.

        Parameters
        ----------
        run_id : str
        contents : RunContents
        final : bool
            Whether the run is over: then its whole figures are told as well, and an epoch that
            was cut off; else the epochs that are over.

        Raises
        ------
        TrackingError
            If the server does not answer, or refuses.
        """
        from mlflow.entities import Metric, Param, RunTag

        client = self._client
        with self._told():
            there = client.get_run(run_id).data
            missing = {k: v for k, v in contents.parameters.items() if k not in there.params}
            tags = {k: v for k, v in contents.tags.items() if there.tags.get(k) != v}
            for part in _parts([Param(k, v) for k, v in missing.items()], AT_ONCE):
                client.log_batch(run_id, params=part)
            for part in _parts([RunTag(k, v) for k, v in tags.items()], AT_ONCE):
                client.log_batch(run_id, tags=part)
            told: dict[int, float] = {}
            if EPOCH_MARK in there.metrics:
                marks = client.get_metric_history(run_id, EPOCH_MARK)
                told = {each.step: each.value for each in sorted(marks, key=lambda m: m.timestamp)}
            due = [e for e in contents.due(final=final) if told.get(e.epoch) != e.mark]
            for epoch in due:
                # Its mark comes last: with it, all of the epoch is there.
                names = sorted(epoch.metrics, key=lambda name: (name == EPOCH_MARK, name))
                self._metrics(
                    run_id,
                    [Metric(n, epoch.metrics[n], epoch.time_ms, epoch.epoch) for n in names],
                )
            if final:
                totals = contents.totals.items()
                changed = [(k, v) for k, v in totals if there.metrics.get(k) != v]
                self._metrics(run_id, [Metric(k, v, contents.end_ms, 0) for k, v in changed])
        return len(due)

    def _metrics(self, run_id: str, metrics: Sequence[Any]) -> None:
        for part in _parts(metrics, METRICS_AT_ONCE):
            self._client.log_batch(run_id, metrics=part)

    def add_files(self, run_id: str, files: Sequence[Path]) -> None:
        """Keep files as artifacts; those of the same name are replaced.

        Raises
        ------
        TrackingError
            If the server does not answer, or refuses.
        """
        with self._told():
            for file in files:
                self._client.log_artifact(run_id, str(file), ARTIFACTS)

    def close(self, run_id: str, name: str, *, end_ms: int) -> None:
        """Say that a part of the run is over; one that was joined goes on.

        Raises
        ------
        TrackingError
            If the server does not answer, or refuses.
        """
        if (self.notes.find(self.server, name) or {}).get("joined"):
            return
        with self._told():
            self._client.set_terminated(run_id, "FINISHED", end_time=end_ms or None)

    def address(self, run_id: str) -> str:
        """Return where people look at a run, without credentials."""
        with self._told():
            experiment = self._client.get_run(run_id).info.experiment_id
        if not self.server.startswith(("http:", "https:")):
            return f"{mask_urls(self.server)}, run {run_id}"
        server = mask_urls(self.server).partition("?")[0].rstrip("/")
        return f"{server}/#/experiments/{experiment}/runs/{run_id}"

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what MLflow raises into one line that tells no credentials."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except IobenchError:
            raise
        except (MlflowException, OSError) as error:  # some parts of it let those of requests pass
            reason = short_reason(mask_line(str(error)))
            raise TrackingError(
                f"{mask_line(self.server)}: {reason}; the run is kept, tell it again "
                f"with: {retry_command(self.run, mlflow=self.asked)}"
            ) from None


def _parts(values: Sequence[Any], longest: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), longest):
        yield values[start : start + longest]
