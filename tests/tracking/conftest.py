"""Puts what the tests of this folder share on the path, and keeps them from real servers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture(autouse=True)
def nothing_of_mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No server, token or account of whoever runs the tests; no server that is not ours."""
    for name in [*os.environ]:
        if name.startswith(("MLFLOW_", "WANDB_", "IOBENCH_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
