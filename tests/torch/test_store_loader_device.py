"""The way to a GPU, over a stand-in that copies as late as a real one may.

No CUDA is needed, and none is used: what stands in for the device is `LateStream`, on the CPU.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import pytest

pytest.importorskip("torch", reason="batches of tensors need torch")
import torch
from number_stores import expected_batch, nothing_left, write_numbers
from span_rows import rows_by_kind

from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.torch import StoreLoader, store_loader
from iobench.torch.device import DeviceCopies

if TYPE_CHECKING:
    from iobench.loaders.ring.buffers import BatchMemory
    from iobench.stores.contract import Store


class LateStream:
    """Makes copies only when somebody waits for them; knows which memory is pinned.

    With ``careless`` nobody waits, and copies are made when three further batches were handed out:
    what a wrong order of things would do.
    """

    def __init__(self, *, careless: bool = False) -> None:
        self.careless = careless
        self.pinned: dict[int, int] = {}
        self.ordered: list[int] = []
        self.from_pinned = self.n_copies = 0
        self._marks = itertools.count()
        self._pending: dict[int, list[tuple[Any, int]]] = {}
        self._lock = threading.Lock()

    def register(self, start: ctypes.c_ubyte, nbytes: int) -> object:
        address = ctypes.addressof(start)
        self.pinned[address] = nbytes
        return Registration(self, start)

    def copy(self, tensors: list[Any]) -> tuple[list[Any], int]:
        copies = [torch.full_like(tensor, 77) for tensor in tensors]
        with self._lock:
            mark = next(self._marks)
            self._pending[mark] = []
            for copy, tensor in zip(copies, tensors, strict=True):
                # Addresses, as a device has them: they keep no memory.
                self._pending[mark].append((copy, tensor.data_ptr()))
                self.n_copies += 1
                self.from_pinned += any(
                    begin <= tensor.data_ptr() < begin + nbytes
                    for begin, nbytes in self.pinned.items()
                )
        return copies, mark

    def wait(self, mark: int) -> None:
        if not self.careless:
            self.finish(mark)

    def finish(self, mark: int) -> None:
        for copy, address in self._pending.pop(mark):
            ctypes.memmove(copy.data_ptr(), address, copy.nbytes)

    def order(self, mark: int, tensors: list[Any]) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.ordered.append(mark)
        if self.careless and len(self.ordered) > 3:
            self.finish(self.ordered[-4])


class Registration:
    """Unpins when it goes, and only then lets go of the memory."""

    def __init__(self, stream: LateStream, start: ctypes.c_ubyte) -> None:
        self.stream, self.start = stream, start

    def __del__(self) -> None:
        del self.stream.pinned[ctypes.addressof(self.start)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_numbers(tmp_path_factory.mktemp("stores") / "numbers", n_samples=200)


@pytest.fixture(autouse=True)
def buffers() -> Iterator[WeakSet[BatchMemory]]:
    with nothing_left() as alive:
        yield alive


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> LateStream:
    stream = LateStream()
    monkeypatch.setattr(store_loader, "find_device", lambda device: DeviceCopies(stream))
    return stream


def is_right(batch: dict[str, Any], first: int) -> bool:
    expected = expected_batch(list(range(first, min(first + 4, 200))))
    return all(np.array_equal(batch[name], expected[name]) for name in expected)


def test_batches_are_copied_before_their_buffer_is_used_again(
    store: Store, stream: LateStream
) -> None:
    loader = StoreLoader(store, 4, device="cuda", depth=3)
    assert loader.threads >= 2
    held = list(loader)  # held are copies: the ring needs no further buffer
    assert all(is_right(batch, 4 * number) for number, batch in enumerate(held))
    assert sorted(stream.ordered) == list(range(50))
    assert stream.from_pinned == stream.n_copies == 50 * 5
    assert len(stream.pinned) == 3


def test_the_stand_in_sees_what_comes_back_too_early(store: Store, stream: LateStream) -> None:
    stream.careless = True
    held = list(StoreLoader(store, 4, device="cuda", depth=3))
    wrong = [not is_right(batch, 4 * number) for number, batch in enumerate(held)]
    assert sum(wrong) > 40


def test_memory_is_pinned_once_and_unpinned_with_the_loader(
    store: Store, stream: LateStream
) -> None:
    loader = StoreLoader(store, 4, device="cuda", depth=3)
    for _ in range(3):
        for _batch in loader:
            assert len(stream.pinned) == 3
    del loader, _batch
    assert stream.pinned == {}


def test_transforms_and_casts_come_before_the_copy(store: Store, stream: LateStream) -> None:
    def transform(batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        batch["x"] += 1
        return batch["x"], {"y": batch["y"], "name": "kept"}

    loader = StoreLoader(store, 4, device="cuda", dtype="bfloat16", transform=transform)
    for number, (x, rest) in enumerate(loader):
        expected = expected_batch(list(range(4 * number, 4 * number + 4)))
        assert torch.equal(x, torch.from_numpy(expected["x"] + 1).to(torch.bfloat16))
        assert torch.equal(rest["y"], torch.from_numpy(expected["y"]).to(torch.bfloat16))
        assert rest["name"] == "kept"


def test_copies_are_spans_of_their_own(store: Store, stream: LateStream, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    with run.recorder(role="consumer") as recorder:
        for _batch in StoreLoader(store, 4, device="cuda", recorder=recorder):
            pass
    copies = rows_by_kind(run)[Kind.H2D]
    assert len(copies) == 50
