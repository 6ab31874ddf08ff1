"""Shared fixtures: a clean place for what iobench makes, and the command line as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Completed = subprocess.CompletedProcess[str]
RunIobench = Callable[..., Completed]

COMMAND = [sys.executable, "-c", "import sys; from iobench.cli import main; sys.exit(main())"]


@pytest.fixture(scope="session")
def store_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for stores and stand-ins that all tests share, so that each is made once."""
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(autouse=True)
def no_places_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep tests out of the user's caches, mirrors and stores."""
    folder = tmp_path_factory.getbasetemp() / "home"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    for name in ("IOBENCH_STORE_DIR", "SCRATCH", "CLIMETLAB_MIRROR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def iobench(tmp_path: Path) -> RunIobench:
    """Run the command line in a process of its own, in an empty folder; workers fork from it."""

    def run(*arguments: str | Path, **more: object) -> Completed:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=100,
            cwd=tmp_path,
            check=False,
            **more,  # type: ignore[call-overload]
        )

    return run
