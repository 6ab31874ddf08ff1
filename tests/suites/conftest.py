"""A suite of tiny cells: samples of an object, which each process that makes them notes down."""

from __future__ import annotations

import pytest

DATA = """
import os
import signal
import numpy as np
from iobench import errors

class Samples:
    def __len__(self):
        return 8

    def __getitem__(self, number):
        if os.environ.get("BROKEN") == "yes":
            raise ValueError("no such sample today")
        if os.environ.get("BROKEN") == "ended":
            os.kill(os.getpid(), signal.SIGTERM)
        return {"x": np.random.default_rng(number).random((16, 16), "f4")}

def make():
    if os.environ.get("BROKEN") == "extra":
        raise errors.MissingExtraError("needs rain: pip install rain")
    if os.environ.get("BROKEN") == "full":
        full = errors.StorageError("No space left on device")
        full.exit_code = 75
        raise full
    return Samples()
"""
RECIPE = """
[suite]
repeats = 3
limit = "60s"
metrics = ["step_s", "samples_per_s"]

[fixed]
dataset = "tiny_samples:make"
batches = 4
batch-size = 2
compute = "none"
device = "none"
energy = "off"
digests = true
store-dir = "stores"

[vary]
workers = [0, 1]
"""


@pytest.fixture
def write_recipe(tmp_path, monkeypatch):
    """Make a folder with tiny samples the working one; return what writes a recipe there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny_samples.py").write_text(DATA)

    def write(*changes):
        text = RECIPE
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        path = tmp_path / "tiny.toml"
        path.write_text(text)
        return path

    return write
