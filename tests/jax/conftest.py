"""Pipelines of grain with known times, recorded in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

grain = pytest.importorskip("grain", reason="its pipelines are what is recorded")


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


class Scale(grain.transforms.Map):
    """A transform that takes a known time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {**element, "x": element["x"] * 2}


class Jitter(grain.transforms.RandomMap):
    """A transform that draws random numbers."""

    def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**element, "x": element["x"] + rng.normal(size=element["x"].shape)}


@pytest.fixture
def hooks() -> Iterator[Any]:
    """Put the hooks of ``iobench run`` there, and away again."""
    from iobench.jax import hooks

    hooks.install()
    yield hooks
    hooks.uninstall()


@pytest.fixture
def fields() -> type[Fields]:
    return Fields


@pytest.fixture
def scale() -> type[Scale]:
    return Scale


@pytest.fixture
def jitter() -> type[Jitter]:
    return Jitter
