"""Samples and transforms of grain's pipelines, and the hooks that record waits for them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))


class Fields:
    """Samples that take a known time to read; each tells its number."""

    def __init__(self, n_samples, seconds=0.0):
        self.n_samples, self.seconds = n_samples, seconds

    def __len__(self):
        return self.n_samples

    def __getitem__(self, number):
        time.sleep(self.seconds)
        return {"x": np.full((8, 8), number, np.float32), "number": np.int64(number)}

    def __repr__(self):
        return f"Fields({self.n_samples})"


@pytest.fixture
def hooks():
    """Put the hooks of ``iobench run`` in place, and take them away again."""
    from iobench.jax import hooks

    hooks.install()
    yield hooks
    hooks.uninstall()


@pytest.fixture
def fields():
    return Fields
