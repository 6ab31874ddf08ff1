"""Runs told to a real MLflow server on loopback, and read back through MLflow's own client.

All that needs the server is here: it takes seconds to start.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.metadata import version
from threading import Event
from types import SimpleNamespace

import pytest

mlflow = pytest.importorskip("mlflow", reason="needs the MLflow server")
pytest.importorskip("sqlalchemy", reason="needs the whole of MLflow, not mlflow-skinny")

import requests  # noqa: E402

from iobench.cli import main  # noqa: E402

pytestmark = [pytest.mark.timeout(240), pytest.mark.long]

SECRET = "QQsecretQQ"
START_S = 120


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The port of a server of one worker, on sqlite."""
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "IOBENCH_"))}
    more = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(number),
        "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}",
        "--artifacts-destination", str(folder / "artifacts"), "--workers", "1",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=folder, env={**kept, **more}, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        _wait_for(f"http://127.0.0.1:{number}/health", server, folder / "log")
        yield number
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)


def _wait_for(address, server, log):
    pause = Event()
    for _ in range(START_S * 10):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pause.wait(0.1)
    pytest.fail(f"no server after {START_S} s: {log.read_text()}")


@pytest.fixture
def line(monkeypatch):
    """A line that breaks after some requests: the next is not sent, or its answer is lost."""
    told, send = SimpleNamespace(limit=None, answers=False, headers=[]), requests.Session.send

    def limited(self, request, **options):
        is_over = told.limit is not None and len(told.headers) >= told.limit
        told.headers.append(request.headers)
        answer = None if is_over and not told.answers else send(self, request, **options)
        if is_over:
            raise requests.ConnectionError(f"{request.url}: the line is broken")
        return answer

    monkeypatch.setattr(requests.Session, "send", limited)
    return told


@pytest.fixture
def uri(port, monkeypatch, request):
    """The server, with an experiment of the test's own."""
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    return f"http://127.0.0.1:{port}"


@pytest.fixture
def one_file(monkeypatch):
    """A page that takes no time."""
    renderer = "iobench.tracking.run_logging.HtmlRenderer.render"
    monkeypatch.setattr(renderer, lambda *_: "<p>a page</p>")


def runs_of(uri):
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
    return client, client.search_runs([experiment.experiment_id]) if experiment else []


def history(client, run, name):
    told = client.get_metric_history(run.info.run_id, name)
    return [(m.step, m.value) for m in sorted(told, key=lambda m: (m.step, m.timestamp, m.value))]


def artifacts(client, run):
    return {each.path for each in client.list_artifacts(run.info.run_id, "iobench")}


def test_a_run_is_read_back(uri, make_run, capsys):
    told = {"versions": {"numpy": "2.0"}, "thread_settings": {"MKL_NUM_THREADS": "3"}}
    run = make_run(name="wide net", commit={"hash": "1f" * 20}, **told)
    assert main(["report", str(run), "--json", "--mlflow", uri]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)["runs"][0]
    client, (found,) = runs_of(uri)
    assert f"/runs/{found.info.run_id}" in printed.err
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "wide net"
    assert found.info.start_time == 1_700_000_000_000
    assert found.info.end_time - found.info.start_time == 333
    for name, text in {
        "dataset": "maelstrom-yr", "machine/cpu_model": "a CPU", "workers": "1",
        "commit": "1f" * 20, "version/numpy": "2.0", "threads/MKL_NUM_THREADS": "3",
    }.items():  # fmt: skip
        assert found.data.params[f"iobench/{name}"] == text
    for name, value in {
        "read/exposed_s/min": [0.01, 0.04], "read/exposed_s/median": [0.02, 0.05],
        "read/exposed_s/stdev": [0.01, 0.01], "decode.grib/busy_s/mean": [0.005, 0.005],
        "batch_s/mean": [0.04, 0.07], "exposed_io_s/max": [0.035, 0.065],
        "forward_s/mean": [0.005, 0.005], "epoch/samples": [12, 12],
    }.items():  # fmt: skip
        steps, values = zip(*history(client, found, f"iobench/{name}"), strict=True)
        assert steps == (0, 1), name
        assert values == pytest.approx(value, abs=1e-9), name
    metrics = found.data.metrics
    assert metrics["iobench/run/exposed_fraction"] == pytest.approx(document["wait_fraction"])
    assert metrics["iobench/run/samples_per_s"] == pytest.approx(document["samples_per_s"])
    assert metrics["iobench/run/accelerator_utilisation"] == pytest.approx(
        1 - document["wait_ns"] / document["wall_ns"]
    )
    assert found.data.tags["iobench.verdict"] == document["verdict"]
    assert found.data.tags["iobench.run"] == "run"
    assert found.data.tags["iobench.version"] == version("iobench")
    assert artifacts(client, found) == {"iobench/iobench.html"}
    # Again: nothing twice, nothing new.
    assert main(["report", str(run), "--mlflow", uri]) == 0
    client, (again,) = runs_of(uri)
    assert again.info.run_id == found.info.run_id
    assert len(history(client, again, "iobench/batch_s/mean")) == 2
    assert len(history(client, again, "iobench/run/wall_s")) == 1


@pytest.mark.usefixtures("one_file")
def test_a_server_that_dies_at_any_request_leaves_a_run_to_go_on_with(uri, line, make_run, capsys):
    """Each try gets one request further; what is there in the end is there once."""
    run = make_run()
    address = uri.replace("//", f"//me:{SECRET}@")
    reached = 0
    for limit in range(60):
        line.limit, line.answers, line.headers = limit, bool(limit % 2), []
        code = main(["report", str(run), "--mlflow", address])
        printed = capsys.readouterr()
        assert "batch" in printed.out  # the report is there whatever the server does
        assert SECRET not in printed.out + printed.err
        if code == 0:
            break
        assert code == 75
        said = [each for each in printed.err.splitlines() if each.startswith("iobench:")][-1]
        assert f"iobench report {run} --mlflow" in said
        assert "the run is kept" in said
        reached = limit
    assert reached >= 5
    line.limit = None
    client, (found,) = runs_of(uri)
    assert found.info.status == "FINISHED"
    for name in found.data.metrics:
        told = history(client, found, name)
        assert len(told) == len({step for step, _ in told}), name
    assert [step for step, _ in history(client, found, "iobench/epoch/wall_s")] == [0, 1]
    assert artifacts(client, found) == {"iobench/iobench.html"}
    everything = b"".join(file.read_bytes() for file in run.rglob("*") if file.is_file())
    assert SECRET.encode() not in everything
    assert SECRET not in repr(found.to_dictionary())


@pytest.mark.usefixtures("one_file")
def test_the_environment_alone_says_where_as_mantik_leaves_it(
    line, uri, make_run, monkeypatch, capfd
):
    """``mantik.init_tracking()`` sets server and token, and takes user and password away."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{uri}/")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    run = make_run(command=f"train.py --token {SECRET}")
    assert main(["report", str(run), "--mlflow", "env"]) == 0
    assert {each.get("Authorization") for each in line.headers} == {f"Bearer {SECRET}"}
    _, (found,) = runs_of(uri)
    assert SECRET not in repr(found.to_dictionary())
    printed = capfd.readouterr()
    assert SECRET not in printed.err


@pytest.mark.usefixtures("one_file")
def test_a_run_that_goes_on_is_joined_and_not_ended(uri, make_run, monkeypatch):
    client = mlflow.MlflowClient(uri)
    experiment = client.create_experiment(os.environ["MLFLOW_EXPERIMENT_NAME"])
    mine = client.create_run(experiment, run_name="my training")
    monkeypatch.setenv("MLFLOW_RUN_ID", mine.info.run_id)
    run = make_run()
    for _ in range(2):
        assert main(["report", str(run), "--mlflow", uri]) == 0
    _, (found,) = runs_of(uri)
    assert found.info.run_id == mine.info.run_id
    assert found.info.status == "RUNNING"
    assert found.info.run_name == "my training"
    assert found.data.params["iobench/format"] == "tfrecord"


@pytest.mark.usefixtures("one_file")
@pytest.mark.parametrize("several", ["formats", "ranks"])
def test_several_profiles_are_nested_in_one(uri, tmp_path, make_run, several):
    if several == "ranks":
        run, names = make_run(ranks=2), {"rank-0", "rank-1"}
    else:
        run, names = tmp_path / "run", {"zarr", "tfrecord"}
        for name in names:
            make_run(f"run/{name}", format=name)
    for _ in range(2):
        assert main(["report", str(run), "--mlflow", uri]) == 0
    client, found = runs_of(uri)
    (top,) = [each for each in found if "mlflow.parentRunId" not in each.data.tags]
    nested = [each for each in found if each is not top]
    assert {each.info.run_name for each in nested} == {f"run {name}" for name in names}
    assert {each.data.tags["mlflow.parentRunId"] for each in nested} == {top.info.run_id}
    assert {each.info.status for each in found} == {"FINISHED"}
    assert artifacts(client, top) == {"iobench/iobench.html"}
    for each in nested:
        assert len(history(client, each, "iobench/batch_s/mean")) == 2
