"""Samples and transforms of grain's pipelines, and the hooks that record waits for them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "analysis" / "support"))
grain = pytest.importorskip("grain", reason="waits for its pipelines are what is recorded")


class Fields:
    """Samples that take a known time to read; each tells its number."""

    def __init__(self, n_samples: int, seconds: float = 0.0, side: int = 8) -> None:
        self.n_samples, self.seconds, self.side = n_samples, seconds, side

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, number: int) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {
            "x": np.full((self.side, self.side), number, np.float32),
            "number": np.int64(number),
        }

    def __repr__(self) -> str:
        return f"Fields({self.n_samples})"


class Jitter(grain.transforms.RandomMap):
    """A transform that draws random numbers."""

    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**element, "x": element["x"] + rng.normal(size=element["x"].shape)}


@pytest.fixture
def hooks() -> Iterator[Any]:
    """Put the hooks of ``iobench run`` in place, and take them away again."""
    from iobench.jax import hooks

    hooks.install()
    yield hooks
    hooks.uninstall()


@pytest.fixture
def fields() -> type[Fields]:
    return Fields


@pytest.fixture
def jitter() -> type[Jitter]:
    return Jitter
