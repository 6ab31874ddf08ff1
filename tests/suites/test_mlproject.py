"""A suite as an MLflow project, run by ``mlflow run``, and its figures read back from MLflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from iobench.cli import main
from iobench.suites.recipe import said_cell
from iobench.suites.suite_folder import SuiteFolder, read_folder_recipe
from iobench.suites.suite_table import suite_table
from iobench.suites.suite_tracking import PROJECT

LOOK = """
import json, sys, mlflow
(run,) = mlflow.MlflowClient(sys.argv[1]).search_runs(["0"])
print(json.dumps([run.info.status, run.data.params, run.data.metrics]))
"""


@pytest.mark.long
@pytest.mark.timeout(400)
def test_mlflow_runs_the_project_and_has_its_figures(
    write_recipe: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("mlflow", reason="it runs the project")
    pytest.importorskip("sqlalchemy", reason="needs the whole of MLflow, not mlflow-skinny")
    recipe = write_recipe(
        ("repeats = 3", "repeats = 1\ndrop = 0"), ('"stores"', f'"{tmp_path / "stores"}"')
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
    status, params, metrics = json.loads(asked.stdout.splitlines()[-1])
    assert status == "FINISHED"
    table = suite_table(SuiteFolder.of(out, read_folder_recipe(out)))
    assert params["iobench/recipe_digest"] == table.recipe_digest
    for row in table.cells:
        name = said_cell(row.cell).replace(":", ".", 1).replace(" ", "_")
        for figure, each in row.figures.items():
            assert metrics[f"iobench/{name}/{figure}"] == each.mean.value
    # Nothing of the run is left where the project lies.
    assert [path.name for path in PROJECT.iterdir()] == ["MLproject"]


def test_a_suite_is_told_to_somebody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main(["suite", "tell", str(tmp_path)]) == 1
    assert "expected --mlflow URI, --wandb PROJECT" in capsys.readouterr().err
    assert main(["suite", "tell", str(tmp_path), "--mlflow", "env"]) == 1
    assert "expected a folder of 'iobench suite --out'" in capsys.readouterr().err


@pytest.mark.long
def test_a_server_that_is_down_is_told_with_the_command_to_go_on(
    write_recipe: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow", reason="it is its server that is down")
    recipe = write_recipe(("repeats = 3", "repeats = 1\ndrop = 0"), ("[0, 1]", "[0]"))
    out = tmp_path / "out"
    assert main(["suite", str(recipe), "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["suite", "tell", str(out), "--mlflow", "http://127.0.0.1:9"]) == 75
    said = capsys.readouterr().err.splitlines()
    assert f"iobench suite tell {out} --mlflow http://127.0.0.1:9" in said[-1]
