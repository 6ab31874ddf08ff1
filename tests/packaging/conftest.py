"""The sdist of the tree, and the wheel that is built from it, outside the tree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = dict(os.environ)
"""With the user's own home, where pip has its settings; tests get another one."""


def pip(python: Path, *arguments: str) -> None:
    """Run pip, away from the tree."""
    answer = subprocess.run(
        [python, "-m", "pip", *arguments],
        capture_output=True, text=True, check=False, cwd=python.parent, env=ENVIRONMENT,
    )  # fmt: skip
    if "(from versions: none)" in answer.stderr and not os.environ.get("IOBENCH_INDEX_REQUIRED"):
        pytest.skip("no package index can be reached")
    assert answer.returncode == 0, answer.stderr


@pytest.fixture(scope="session")
def new_environment(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Path]:
    """Return a function that makes an environment with what pip is given."""

    def make(*wanted: str) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip(folder / "bin" / "python", "install", "--quiet", *wanted)
        return folder

    return make


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory, new_environment: Callable[..., Path]) -> Path:
    """Return the source distribution of the tree."""
    built = tmp_path_factory.mktemp("built")
    builder = new_environment("hatchling") / "bin" / "hatchling"
    subprocess.run([builder, "build", "-t", "sdist", "-d", built], cwd=ROOT, check=True)
    (found,) = built.glob("*.tar.gz")
    return found


@pytest.fixture(scope="session")
def wheel(sdist: Path) -> Path:
    """Return the wheel that pip makes of the source distribution."""
    pip(Path(sys.executable), "wheel", "--quiet", "--no-deps", "-w", str(sdist.parent), str(sdist))
    (found,) = sdist.parent.glob("*.whl")
    return found
