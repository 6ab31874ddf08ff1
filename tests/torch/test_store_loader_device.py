"""The way to a GPU, over one that is threads: no CUDA is needed, and none is used."""

from __future__ import annotations

import pickle
import re
from contextlib import ExitStack

import numpy as np
import pytest

pytest.importorskip("torch", reason="batches of tensors need torch")
from fake_accelerator import FakeAccelerator
from number_stores import expected_batch, nothing_left, write_numbers

import iobench
from iobench.errors import DeviceError
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.torch import StoreLoader, store_loader


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("stores") / "numbers", n_samples=200)


@pytest.fixture(autouse=True)
def buffers():
    with nothing_left() as alive:
        yield alive


@pytest.fixture
def use(monkeypatch):
    with ExitStack() as opened:

        def used(device):
            monkeypatch.setattr(store_loader, "find_accelerator", lambda _: device)
            return opened.enter_context(device)

        yield used


@pytest.fixture
def device(use):
    return use(FakeAccelerator())


def is_right(batch, first):
    expected = expected_batch(list(range(first, min(first + 4, 200))))
    return all(np.array_equal(batch[name], expected[name]) for name in expected)


def test_a_pickled_loader_finds_its_device_again(store, device):
    loader = pickle.loads(pickle.dumps(StoreLoader(store, 4, device="cuda")))
    assert all(is_right(batch, 4 * number) for number, batch in enumerate(loader))
    assert {piece.queue for piece in device.pieces} == {"copies"}


def test_batches_are_copied_before_their_buffer_is_used_again(store, device):
    loader = StoreLoader(store, 4, device="cuda", depth=3)
    assert loader.threads >= 2
    held = list(loader)  # held are copies: the ring needs no further buffer
    assert all(is_right(batch, 4 * number) for number, batch in enumerate(held))
    assert [piece.queue for piece in device.pieces] == ["copies"] * 50 * 5
    assert all(piece.pinned for piece in device.pieces)
    assert len(device.pinned) == 3


def test_a_batch_that_is_let_go_of_keeps_its_memory_until_its_kernels_are_done(store, device):
    kernels = []
    for batch in StoreLoader(store, 4, device="cuda", depth=3):
        kernels.append(device.launch(2_000_000, [batch["x"], batch["y"]]))
        del batch
    device.synchronize()
    for number, kernel in enumerate(kernels):
        expected = expected_batch(list(range(4 * number, min(4 * number + 4, 200))))
        for seen in (kernel.first, kernel.last):
            assert np.array_equal(seen[0], expected["x"])
            assert np.array_equal(seen[1], expected["y"])


def test_a_device_that_falls_away_is_one_error_of_the_loop_and_the_run_stays(
    store, device, tmp_path
):
    taken = 0

    def train():
        nonlocal taken
        for _batch in StoreLoader(store, 4, device="cuda"):
            taken += 1
            if taken == 20:
                device.fall_away()

    with iobench.record(tmp_path / "run"), pytest.raises(DeviceError) as raised:
        train()
    assert re.fullmatch(r"fake:0: .* failed: CUDA error: device-side.*", str(raised.value))
    raised.value.__cause__ = None
    assert 20 <= taken < 50
    profile = iobench.open_profile(tmp_path / "run")
    spans = profile.spans
    waits = spans[(spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0)]
    assert waits["batch"].tolist() == list(range(taken))
    copied = spans[(spans["kind"] == Kind.H2D) & ((spans["flags"] & Flag.DEVICE) != 0)]
    assert set(range(20)) <= set(copied["batch"].tolist())
