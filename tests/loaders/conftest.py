"""Puts the in-memory pipelines where tests, and the processes they spawn, can import them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "support"))

from iobench.recording.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", {})


@pytest.fixture
def consumer(run):
    with run.recorder(role="consumer") as recorder:
        yield recorder
