"""Runs told to an MLflow server, through MLflow's public client and its environment alone.

What MLflow's environment says holds: server, token, user, experiment, and ``MLFLOW_RUN_ID``, the
run that is joined. That is all that ``mantik.init_tracking()`` sets.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import IobenchError, MissingExtraError, OptionError, TrackingError
from iobench.masking import mask_line, mask_urls
from iobench.tracking.run_metrics import EPOCH_MARK, RunContents
from iobench.tracking.trackers import retry_command, short_reason, with_defaults

if TYPE_CHECKING:
    from iobench.tracking.tracking_notes import TrackingNotes

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
    """A `Tracker`: the runs of one run directory at one MLflow server, several nested in one.

    Parameters
    ----------
    run : Path
        The run directory.
    uri : str
        Of the server, or `ENVIRONMENT`.
    notes : TrackingNotes
        Of the run directory.

    Raises
    ------
    MissingExtraError
        If MLflow is not installed.
    OptionError
        If no server is named.
    """

    title = "MLflow"

    def __init__(self, run: Path, uri: str, notes: TrackingNotes) -> None:
        self.run, self.asked = run, uri
        self.server = server_of(uri)
        try:
            with with_defaults(_DEFAULTS):
                from mlflow import MlflowClient
        except ImportError as error:
            raise MissingExtraError(
                "--mlflow needs MLflow, which is not installed: pip install 'iobench[track]'"
            ) from error
        self.notes = notes
        self._join = os.environ.get(_JOINED) or None
        self._top: str | None = None
        self._end_ms = 0
        with self._told():
            self._client = MlflowClient(tracking_uri=self.server)

    def begin(self, contents: RunContents, *, title: str, several: bool = False) -> str:
        """Return the id of MLflow's run, as of `Tracker`; of several each is nested in one."""
        if several and self._top is None:
            self._top = self._open("", title, contents.start_ms)
        named = f"{title} {contents.name}".strip()
        return self._open(contents.name, named, contents.start_ms, self._top)

    def _open(self, name: str, title: str, start_ms: int, parent: str | None = None) -> str:
        """Return the id of the run of a part; the run itself, ``""``, may be one that is joined."""
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

    def tell(self, run: str, contents: RunContents) -> None:
        """Tell what is not there yet, as of `Tracker`."""
        from mlflow.entities import Metric, Param, RunTag

        client = self._client
        with self._told():
            there = client.get_run(run).data
            missing = {k: v for k, v in contents.parameters.items() if k not in there.params}
            tags = {k: v for k, v in contents.tags.items() if there.tags.get(k) != v}
            for part in _parts([Param(k, v) for k, v in missing.items()], AT_ONCE):
                client.log_batch(run, params=part)
            for part in _parts([RunTag(k, v) for k, v in tags.items()], AT_ONCE):
                client.log_batch(run, tags=part)
            told: dict[int, float] = {}
            if EPOCH_MARK in there.metrics:
                marks = client.get_metric_history(run, EPOCH_MARK)
                told = {each.step: each.value for each in sorted(marks, key=lambda m: m.timestamp)}
            due = [e for e in contents.epochs if told.get(e.epoch) != e.mark]
            for epoch in due:
                # Its mark comes last: with it, all of the epoch is there.
                names = sorted(epoch.metrics, key=lambda name: (name == EPOCH_MARK, name))
                self._metrics(
                    run,
                    [Metric(n, epoch.metrics[n], epoch.time_ms, epoch.epoch) for n in names],
                )
            totals = contents.totals.items()
            changed = [(k, v) for k, v in totals if there.metrics.get(k) != v]
            self._metrics(run, [Metric(k, v, contents.end_ms, 0) for k, v in changed])

    def _metrics(self, run_id: str, metrics: Sequence[Any]) -> None:
        for part in _parts(metrics, METRICS_AT_ONCE):
            self._client.log_batch(run_id, metrics=part)

    def add_files(self, run: str, files: Sequence[Path]) -> None:
        """Keep files as artifacts, as of `Tracker`."""
        with self._told():
            for file in files:
                self._client.log_artifact(self._top or run, str(file), ARTIFACTS)

    def end(self, run: str, contents: RunContents, *, failed: bool = False) -> None:
        """Say that a part is over, as of `Tracker`; one that failed is gone on with."""
        self._end_ms = max(self._end_ms, contents.end_ms)
        if not failed:
            self._terminate(run, contents.name, contents.end_ms)

    def close(self) -> None:
        """Say that the run that others are nested in is over."""
        if self._top is not None:
            self._terminate(self._top, "", self._end_ms)

    def _terminate(self, run: str, name: str, end_ms: int) -> None:
        if not (self.notes.find(self.server, name) or {}).get("joined"):
            with self._told():
                self._client.set_terminated(run, "FINISHED", end_time=end_ms or None)

    def address(self, run: str) -> str:
        """Return where people look at a run, of several at what they are nested in."""
        run_id = self._top or run
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
            with with_defaults(_DEFAULTS):
                yield
        except IobenchError:
            raise
        except (MlflowException, OSError) as error:  # some parts of it let those of requests pass
            reason = short_reason(mask_line(str(error)))
            raise TrackingError(
                f"{mask_line(self.server)}: {reason}; the run is kept, log it again with: "
                f"{retry_command(self.run, mlflow=self.asked)}"
            ) from None


def _parts(values: Sequence[Any], longest: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), longest):
        yield values[start : start + longest]
