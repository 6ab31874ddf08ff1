"""Runs logged to an MLflow server, through MLflow's public client and its environment alone.

What MLflow's environment says holds: server, token, user, experiment, and ``MLFLOW_RUN_ID``, the
run that is joined. That is all that ``mantik.init_tracking()`` sets. Whatever is done may be done
again: a run is found by its key, which is a tag, and a metric at the same time is the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import IobenchError, MissingExtraError, OptionError, TrackingError
from iobench.masking import mask_line, mask_urls

if TYPE_CHECKING:
    from iobench.tracking.run_metrics import RunContents

ENVIRONMENT: Final = "env"
"""In place of a URI: the server that ``MLFLOW_TRACKING_URI`` names."""
KEY: Final = "iobench.key"
JOINED: Final = "iobench.joined"
PARENT: Final = "mlflow.parentRunId"
ARTIFACTS: Final = "iobench"
MOST: Final = {"params": 100, "tags": 100, "metrics": 500}
"""How many one request may hold."""
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
        try:
            with added_environment(DEFAULTS):
                from mlflow import MlflowClient
        except ImportError as error:
            raise MissingExtraError(
                "--mlflow needs MLflow, which is not installed: pip install 'iobench[track]'"
            ) from error
        with self._errors():
            self._client = MlflowClient(tracking_uri=self.server)

    def log(self, contents: RunContents, files: Sequence[Path]) -> str:
        """Log a training process; return where people look at it, of several at them all."""
        from mlflow.entities import Metric, Param, RunTag

        with self._errors():
            if contents.name and not self._top:
                self._top = self._open(f"{contents.key}-all", contents.title, contents.start_ms)
            run = self._open(contents.key, contents.full_name, contents.start_ms, self._top)
            existing = self._client.get_run(run).data.params
            parameters = contents.parameters.items()
            self._send(run, "params", [Param(k, v) for k, v in parameters if k not in existing])
            self._send(run, "tags", [RunTag(k, v) for k, v in contents.tags.items()])
            values = [(each.time_ms, each.epoch, each.metrics) for each in contents.epochs]
            values.append((contents.end_ms, 0, contents.totals))
            metrics = [Metric(k, v, *when) for *when, each in values for k, v in each.items()]
            self._send(run, "metrics", metrics)
            for file in files:
                self._client.log_artifact(self._top or run, str(file), ARTIFACTS)
            for each in {run, self._top or run}:
                self._end(each, contents.end_ms)
            return self._address(self._top or run)

    def _open(self, key: str, title: str, start_ms: int, parent: str = "") -> str:
        """Return the id of a run: the one that is joined, one that was created before, or a new."""
        joined = os.environ.get("MLFLOW_RUN_ID", "") if not parent else ""
        if joined:
            self._client.set_tag(joined, KEY, key)
            self._client.set_tag(joined, JOINED, "true")
            return joined
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

    def _send(self, run: str, what: str, values: Sequence[Any]) -> None:
        for start in range(0, len(values), MOST[what]):
            self._client.log_batch(run, **{what: values[start : start + MOST[what]]})

    def _end(self, run: str, end_ms: int) -> None:
        if JOINED not in self._client.get_run(run).data.tags:
            self._client.set_terminated(run, "FINISHED", end_time=end_ms or None)

    def _address(self, run: str) -> str:
        server = mask_urls(self.server)
        if not server.startswith(("http:", "https:")):
            return f"{server}, run {run}"
        experiment = self._client.get_run(run).info.experiment_id
        return f"{server.partition('?')[0].rstrip('/')}/#/experiments/{experiment}/runs/{run}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from mlflow.exceptions import MlflowException

        where = mask_line(self.server)
        with client_errors(MlflowException, where, self._retry), added_environment(DEFAULTS):
            yield


@contextmanager
def client_errors(kind: type[Exception], where: str, retry: str) -> Iterator[None]:
    """Turn what a server's library raises into one line without credentials."""
    try:
        yield
    except IobenchError:
        raise
    except (kind, OSError) as error:  # some parts of it let those of requests pass
        raise TrackingError(f"{where}: {short_reason(error)}; {retry}") from None


def _server_of(uri: str) -> str:
    """Return the URI of a server, of the environment for `ENVIRONMENT`."""
    if not uri.strip():
        raise OptionError("--mlflow: expected the URI of a server, such as http://127.0.0.1:5000")
    if uri != ENVIRONMENT:
        return uri
    server = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if not server:
        raise OptionError("--mlflow env: MLFLOW_TRACKING_URI is not set; set it, or name the URI")
    return server


def short_reason(error: Exception) -> str:
    """Return what went wrong: errors of connections hold a line for each layer of a client."""
    text = mask_line(str(error))
    for what in ("Connection refused", "timed out", "Name or service not known"):
        if what in text:
            return f"is not answering ({what.lower()})"
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3]}..."


@contextmanager
def added_environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Add to the environment what it does not have, and take that away again."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
