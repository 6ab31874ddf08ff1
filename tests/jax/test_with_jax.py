"""What needs JAX itself, in a process of its own.

JAX starts threads in the process that uses it, and warns of each fork from then on: the tests of
loaders that fork run in this one.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


def test_all_of_it_passes() -> None:
    if find_spec("jax") is None or find_spec("grain") is None:
        pytest.skip("its transfers are what is recorded")
    tests = str(Path(__file__).with_name("device_puts.py"))
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", tests]
    found = subprocess.run(words, capture_output=True, text=True, timeout=110, check=False)
    assert found.returncode == 0, found.stdout
    assert " passed" in found.stdout
    assert "skipped" not in found.stdout
