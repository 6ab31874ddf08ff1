"""Reading stores with other libraries, in processes of their own; counting what is decoded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from iobench.chunks import sampled_variable

sys.path.append(str(Path(__file__).parent / "support"))


@pytest.fixture
def read_elsewhere(tmp_path: Path) -> Callable[..., dict[str, np.ndarray]]:
    """Run a script, whose first argument is a file for its arrays; return the arrays."""

    def run(script: str, *arguments: Path) -> dict[str, np.ndarray]:
        command = [sys.executable, "-c", script, str(tmp_path / "out.npz"), *map(str, arguments)]
        environ = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=110)
        assert done.returncode == 0, done.stderr
        with np.load(tmp_path / "out.npz") as found:
            return dict(found)

    return run


@pytest.fixture
def tensorflow_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, np.ndarray]]:
    """Run such a script with TensorFlow, here: its start takes seconds."""
    pytest.importorskip("tensorflow", reason="TensorFlow reads its own records")

    def run(script: str, *arguments: Path) -> dict[str, np.ndarray]:
        monkeypatch.setattr(sys, "argv", ["-c", str(tmp_path / "out.npz"), *map(str, arguments)])
        exec(compile(script, "script", "exec"), {})
        with np.load(tmp_path / "out.npz") as found:
            return dict(found)

    return run


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[object, ...]]:
    """Count how often each chunk is read to be decoded."""
    counts: Counter[tuple[object, ...]] = Counter()
    read = sampled_variable.read_chunks

    def counted(wanted, **more):
        counts.update((file, variable.name, place) for file, variable, place in wanted)
        return read(wanted, **more)

    monkeypatch.setattr(sampled_variable, "read_chunks", counted)
    return counts


@pytest.fixture
def dali() -> None:
    """Skip where NVIDIA DALI is not installed; import it in a process of its own."""
    if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
        pytest.skip("needs pip install 'iobench[dali]' (1 GB, not in the test extra)")
