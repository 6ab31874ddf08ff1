"""Arrays that are moved to devices with the batch they belong to, and batches of a store."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "loaders" / "support"))
pytest.importorskip("jax", reason="its transfers are what is recorded")
pytest.importorskip("grain", reason="its batches are what is moved")
import grain
import jax
from number_stores import expected_batch, write_numbers

import iobench
from iobench.jax import device_puts
from iobench.recording.kinds import Kind
from iobench.recording.session import record
from iobench.runs.reading import open_profile


@pytest.fixture(autouse=True)
def moves():
    before = jax.device_put
    device_puts.install()
    yield
    device_puts.uninstall()
    assert jax.device_put is before


def test_bytes_are_those_of_the_hosts_arrays(tmp_path):
    on_device = jax.numpy.ones(1000)
    tree = {"x": np.ones((3, 5), np.float32), "more": [np.ones(7, np.int8), on_device, 2.0, None]}
    with record(tmp_path / "run"):
        moved = jax.device_put(tree)
        jax.device_put(x=np.ones(11, np.int16))
        jax.device_put(on_device)
        jax.device_put(3.0)
    profile = open_profile(tmp_path / "run")
    spans = profile.spans[profile.spans["kind"] == Kind.H2D]
    assert spans["nbytes"].tolist() == [3 * 5 * 4 + 7, 22]
    assert spans["batch"].tolist() == [-1, -1]
    np.testing.assert_array_equal(moved["x"], tree["x"])


def test_a_transfer_is_of_the_batch_that_was_delivered_last(tmp_path, hooks, fields):
    with record(tmp_path / "run"):
        jax.device_put(np.ones(9))  # parameters, before the first batch
        for batch in grain.MapDataset.source(fields(8)).batch(2):
            jax.device_put(batch)
    profile = open_profile(tmp_path / "run")
    spans, waits = (profile.spans[profile.spans["kind"] == kind] for kind in (Kind.H2D, Kind.WAIT))
    waits = waits[waits["batch"] >= 0]
    assert spans["batch"].tolist() == [-1, *waits["batch"].tolist()]
    assert [profile.strings[label] for label in spans["label"]] == ["other", *[""] * len(waits)]
    assert {profile.strings[detail] for detail in spans["detail"]} == {"device_put"}
    assert spans["nbytes"].tolist() == [72, *waits["nbytes"].tolist()]


def test_without_a_recording_nothing_is_timed():
    assert jax.device_put(np.ones(3)).tolist() == [1, 1, 1]
    with pytest.raises(TypeError):
        jax.device_put()


@pytest.mark.filterwarnings("ignore:.*batches are held:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_no_buffer_is_used_again_under_an_array_of_jax(tmp_path, compiled):
    """On a CPU it uses the memory of a batch, and keeps it."""
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
