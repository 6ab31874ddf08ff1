"""Puts parts that tests, and the processes they spawn, share where they can be imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "loaders" / "support"))
sys.path.append(str(Path(__file__).parent / "support"))
sys.path.append(str(Path(__file__).parents[1] / "support"))

from iobench.recording.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", {})


@pytest.fixture
def consumer(run):
    with run.recorder(role="consumer") as recorder:
        yield recorder


@pytest.fixture
def hooked(monkeypatch):
    """See torch's loaders, models and optimizers as in a script under ``iobench run``."""
    from iobench.torch import hooks

    for name in ("IOBENCH_RUN", "IOBENCH_RUN_DETAIL", "IOBENCH_RUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    hooks.install()
    yield
    hooks.uninstall()
