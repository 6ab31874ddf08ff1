"""Batches of a store as JAX has them: on a CPU it uses their memory, and keeps it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "loaders" / "support"))
pytest.importorskip("jax", reason="it is given batches of a store")
import jax
from number_stores import expected_batch, write_numbers

import iobench

HELD = pytest.mark.filterwarnings("ignore:.*batches are held:UserWarning")


@HELD
@pytest.mark.parametrize("compiled", [False, True])
def test_no_buffer_is_used_again_under_an_array_of_jax(tmp_path: Path, compiled: bool) -> None:
    store = write_numbers(tmp_path / "numbers")
    total = jax.jit(lambda array: array.sum(axis=tuple(range(1, array.ndim))))
    kept, n_shared = [], 0
    for batch in iobench.loader(store, 4, shuffle=False):
        moved = jax.device_put(batch["x"])
        n_shared += moved.unsafe_buffer_pointer() == batch["x"].ctypes.data
        kept.append(total(moved) if compiled else moved)
        del batch, moved
    assert n_shared > 0  # else this test would show nothing
    for place, array in enumerate(kept):
        x = expected_batch([*range(4 * place, min(4 * place + 4, 50))])["x"]
        expected = x.sum(axis=tuple(range(1, x.ndim))) if compiled else x
        np.testing.assert_allclose(np.asarray(array), expected, rtol=1e-5)
