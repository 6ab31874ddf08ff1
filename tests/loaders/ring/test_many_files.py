"""More files than a process may have open: nothing fails, whatever the way they are read."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import iobench
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from iobench.stores.contract import Store

N_FILES = 150


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Leave room for fewer descriptors than any way to read would like."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n_open = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(n_open + 100, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("n_values", [8, 40_000])  # taken from mappings, read with preadv
@pytest.mark.filterwarnings("ignore:.* batches are held at once:UserWarning")
@pytest.mark.usefixtures("few_descriptors")
def test_a_store_of_many_files(make_store: Callable[..., Store], n_values: int) -> None:
    spec = SampleSpec((Variable("x", (n_values,), "<f4", ("x",)),))
    per_file = 4 if n_values == 8 else 1
    made: list[dict[str, Any]] = [
        {"x": np.full(n_values, number, "f4")} for number in range(N_FILES * per_file)
    ]
    store = make_store(spec, made, shards=[per_file] * N_FILES)
    loader = iobench.loader(store, 16, shuffle=True, threads=3)
    for _epoch in range(2):
        first = np.concatenate([batch["x"][:, 0].copy() for batch in loader])
        assert sorted(first.tolist()) == list(range(len(made)))
    loader.close()
