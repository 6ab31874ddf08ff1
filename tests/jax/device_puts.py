"""Arrays that are moved to devices, with the batch that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="its transfers are what is recorded")
import jax

from iobench.jax import device_puts
from iobench.recording.kinds import Kind
from iobench.recording.session import record
from iobench.runs.reading import open_profile


@pytest.fixture(autouse=True)
def moves() -> Iterator[None]:
    before = jax.device_put
    device_puts.install()
    yield
    device_puts.uninstall()
    assert jax.device_put is before


def test_bytes_are_those_of_the_hosts_arrays(tmp_path: Path) -> None:
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


def test_a_transfer_is_of_the_batch_that_was_delivered_last(
    tmp_path: Path, hooks: Any, fields: Callable[..., Any]
) -> None:
    grain = pytest.importorskip("grain", reason="its batches are what is moved")
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


def test_without_a_recording_nothing_is_timed() -> None:
    assert jax.device_put(np.ones(3)).tolist() == [1, 1, 1]
    with pytest.raises(TypeError):
        jax.device_put()
