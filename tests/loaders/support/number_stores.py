"""Small stores whose samples tell their number, made without a dataset."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch
from weakref import WeakSet

import numpy as np

from iobench.loaders.ring import buffers
from iobench.loaders.ring.buffers import BatchMemory
from iobench.registry import find_format
from iobench.samples import SampleSpec, Variable
from iobench.stores.finished_store import open_store
from iobench.testing import write_store

SPEC = SampleSpec(
    (
        Variable("x", (6, 8), "<f4", ("y", "x"), "K"),
        Variable("half", (3,), "<f2", ("y",)),
        Variable("y", (2,), "<f8", ("z",), role="target"),
        Variable("number", (), "<i8", ()),
        Variable("flag", (), "|b1", ()),
    )
)


def sample_of(number):
    """Return a sample whose every value depends on its number."""
    return {
        "x": (number + np.arange(48).reshape(6, 8) / 64).astype("<f4"),
        "half": np.full(3, number, "<f2"),
        "y": np.array([number, -number], "<f8"),
        "number": np.array(number, "<i8"),
        "flag": np.array(number % 3 == 0),
    }


def write_numbers(path, n_samples=50, fmt="numpy"):
    """Write a store of one shard and open it."""
    samples = [sample_of(number) for number in range(n_samples)]
    write_store(path, find_format(fmt), SPEC, samples, shard_n_samples=n_samples)
    return open_store(path)


def expected_batch(numbers):
    """Return the batch of these samples."""
    samples = [sample_of(number) for number in numbers]
    return {name: np.stack([sample[name] for sample in samples]) for name in SPEC.names}


def ring_threads():
    """Return the reader threads there are in this process."""
    return [thread.name for thread in threading.enumerate() if "iobench-ring" in thread.name]


@contextmanager
def nothing_left():
    """Yield the set of all buffers made inside; check that nothing of a ring is left afterwards."""
    shared = Path("/dev/shm")
    before = set(shared.glob("*iobench-ring*"))
    alive: WeakSet[BatchMemory] = WeakSet()

    class CountedMemory(BatchMemory):
        __slots__ = ()

        def __init__(self, *given):
            super().__init__(*given)
            alive.add(self)

    with patch.object(buffers, "BatchMemory", CountedMemory):
        yield alive
    if alive:
        gc.collect()  # what a caught exception had in its frames
    assert not list(alive)
    assert ring_threads() == []
    assert set(shared.glob("*iobench-ring*")) <= before
