"""A suite as an MLflow project, run by ``mlflow run``, and its figures read back from MLflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import iobench.suites
from iobench.analysis.run import Run

PROJECT = Path(iobench.suites.__path__[0]) / "mlproject"
LOOK = """
import json, sys, mlflow
runs = mlflow.MlflowClient(sys.argv[1]).search_runs(["0"])
print(json.dumps([[run.info.status, run.data.params, run.data.metrics] for run in runs]))
"""


@pytest.mark.long
@pytest.mark.timeout(400)
def test_mlflow_runs_the_project_and_has_the_figures_of_each_run(
    write_recipe: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("mlflow", reason="it runs the project")
    pytest.importorskip("sqlalchemy", reason="needs the whole of MLflow, not mlflow-skinny")
    recipe = write_recipe(
        ("repeats = 3", "repeats = 1\ndrop = 0"),
        ('"stores"', f'"{tmp_path / "stores"}"'),
        ('"tiny_samples:make"', '"maelstrom-yr"\ntiny = true'),
    )
    out, uri = tmp_path / "out", f"sqlite:///{tmp_path / 'mlflow.db'}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "IOBENCH_"))}
    more = {
        "MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        [
            sys.executable, "-m", "mlflow", "run", str(PROJECT), "-e", "suite",
            "-P", f"recipe={recipe}", "-P", f"out={out}", "--env-manager", "local",
        ],
        env=kept | more, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # By a process of its own: in this one, what other tests loaded may have brought an SQLite too
    # old for MLflow's database (ecCodes' wheels do).
    asked = subprocess.run(
        [sys.executable, "-c", LOOK, uri],
        env=kept | more, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    logged = json.loads(asked.stdout.splitlines()[-1])
    assert {status for status, _, _ in logged} == {"FINISHED"}
    waits = {
        params["iobench/workers"]: metrics["iobench/run/wait_s"]
        for _, params, metrics in logged
        if "iobench/workers" in params
    }
    runs = [Run(file.parent).of_rank() for file in out.glob("cells/*/*/run.json")]
    assert waits == {str(e.exposure.workers): e.exposure.whole.wait_ns / 1e9 for e in runs}
    assert len(logged) == len(waits) + 1 == 3  # and that of the project itself
    # Nothing of the run is left where the project lies.
    assert [path.name for path in PROJECT.iterdir()] == ["MLproject"]
