"""Puts the small stores where tests can import them, and hooks away after each test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.append(str(Path(__file__).parents[1] / "loaders" / "support"))


@pytest.fixture(autouse=True)
def put_back():
    yield
    hooks = sys.modules.get("iobench.tensorflow.hooks")
    if hooks is not None:
        hooks.uninstall()
