"""Each script of benchmarks says how it is called, wherever it may be started from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = [
    path
    for path in sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))
    if "argparse" in path.read_text()  # not what they share
]


@pytest.mark.quick_cases(0)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_benchmark_says_how_it_is_called(script: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="some benchmarks import it at their top")
    pytest.importorskip("tensorflow", reason="some benchmarks import it at their top")
    found = subprocess.run(
        [sys.executable, script, "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"usage: {script.name}")
