"""Runs logged to an MLflow server, through MLflow's public client and its environment alone.

What MLflow's environment says holds: server, token, user, experiment, and ``MLFLOW_RUN_ID``, the
run that is joined. That is all that ``mantik.init_tracking()`` sets. Whatever is done may be done
again: a run of ours is found by its key, which is a tag, and a metric at the same time is the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from iobench.errors import OptionError, TrackingError, import_extra
from iobench.masking import mask_line, mask_urls

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from iobench.tracking.run_metrics import RunContents

ENVIRONMENT: Final = "env"
"""In place of a URI: the server that ``MLFLOW_TRACKING_URI`` names."""
KEY: Final = "iobench.key"
PARENT: Final = "mlflow.parentRunId"
PAGE: Final = "iobench/iobench.html"
# A server that is down is found out in seconds, not in MLflow's four minutes; and MLflow says
# nothing but to the server.
DEFAULTS: Final = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
LONGEST_REASON: Final = 300


class MlflowRuns:
    """The runs of one run directory at one MLflow server; several are nested in one."""

    def __init__(self, uri: str, retry: str) -> None:
        self.server, self._retry, self._top = _server_of(uri), retry, ""
        self._joined = os.environ.get("MLFLOW_RUN_ID", "")
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        mlflow = import_extra("mlflow", "--mlflow needs MLflow", extra="track")
        with self._errors():
            self._client = mlflow.MlflowClient(tracking_uri=self.server)

    def log(self, contents: RunContents, page: str) -> str:
        """Log a training process; return where people look at it, of several at them all."""
        from mlflow.entities import Metric, Param, RunTag

        key, start_ms = contents.key, contents.start_ms
        with self._errors():
            if not self._top:
                whole = f"{key}-all" if contents.name else key
                self._top = self._joined or self._open(whole, contents.title, start_ms)
            run = self._top
            if contents.name:
                run = self._open(key, contents.full_name, start_ms, run)
            values = [(each.time_ms, each.epoch, each.metrics) for each in contents.epochs]
            values.append((contents.end_ms, 0, contents.totals))
            metrics = [Metric(k, v, *when) for *when, each in values for k, v in each.items()]
            params = [Param(k, v) for k, v in contents.parameters.items()]
            tags = [RunTag(k, v) for k, v in contents.tags.items()]
            self._client.log_batch(run, metrics=metrics, params=params, tags=tags)
            if page:
                self._client.log_text(self._top, page, PAGE)
            for each in {run, self._top} - {self._joined}:  # which goes on
                self._client.set_terminated(each, "FINISHED", end_time=contents.end_ms or None)
            return self._address()

    def _open(self, key: str, title: str, start_ms: int, parent: str = "") -> str:
        """Return the id of a run: the one that was created before, or a new."""
        experiment = self._experiment()
        runs = self._client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", max_results=1)
        if runs:
            return str(runs[0].info.run_id)
        tags = {KEY: key, "mlflow.source.name": "iobench"} | ({PARENT: parent} if parent else {})
        run = self._client.create_run(
            experiment, start_time=start_ms or None, tags=tags, run_name=title
        )
        return str(run.info.run_id)

    def _experiment(self) -> str:
        """Return the experiment that the environment names, else MLflow's default one."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if not name:
            return os.environ.get("MLFLOW_EXPERIMENT_ID") or "0"
        known = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if known is None else known.experiment_id)

    def _address(self) -> str:
        server = mask_urls(self.server)
        if not server.startswith(("http:", "https:")):
            return f"{server}, run {self._top}"
        experiment = self._client.get_run(self._top).info.experiment_id
        server = server.partition("?")[0].rstrip("/")
        return f"{server}/#/experiments/{experiment}/runs/{self._top}"

    def _errors(self) -> AbstractContextManager[None]:
        from mlflow.exceptions import MlflowException

        return client_errors(MlflowException, mask_line(self.server), self._retry)


@contextmanager
def client_errors(kind: type[Exception], where: str, retry: str) -> Iterator[None]:
    """Turn what a server's library raises into one line without credentials."""
    try:
        yield
    except (kind, OSError) as error:  # some parts of it let those of requests pass
        raise TrackingError(f"{where}: {_reason(error)}; {retry}") from None


def _server_of(uri: str) -> str:
    """Return the URI of a server, of the environment for `ENVIRONMENT`."""
    server = os.environ.get("MLFLOW_TRACKING_URI", "") if uri == ENVIRONMENT else uri
    if not server.strip():
        raise OptionError(
            f"--mlflow {uri}: expected the URI of a server, such as http://127.0.0.1:5000, or "
            "env with MLFLOW_TRACKING_URI set"
        )
    return server.strip()


def _reason(error: Exception) -> str:
    """Return what went wrong: errors of connections hold a line for each layer of a client."""
    text = mask_line(str(error))
    for what in ("Connection refused", "timed out", "Name or service not known"):
        if what in text:
            return f"is not answering ({what.lower()})"
    return text[:LONGEST_REASON]
