"""Batches of a ring are those of the order, whoever holds them, closes it or fails meanwhile."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import warnings
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ring_sources import NumberReader, NumberSource

from iobench.errors import OptionError, SampleError
from iobench.loaders.ring import buffers
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.order import BatchOrder

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.timeout(60)  # what these find are hangs


@dataclass(frozen=True)
class GuardedSource(NumberSource):
    """Calls something before each batch, and before each filler."""

    before_fill: Callable[[], Any] = int
    before_filler: Callable[[], Any] = int

    def filler(self):
        self.before_filler()
        return GuardedFiller(self)


class GuardedFiller(NumberReader):
    def fill(self, samples, rows, log):
        self.source.before_fill()  # type: ignore[attr-defined]
        super().fill(samples, rows, log)


def make(source=None, **options):
    source = source or NumberSource()
    order = BatchOrder(len(source), 4, shuffle=options.pop("shuffle", False))
    return RingLoader(source, order, **{"threads": 2, **options})


def numbers(batches):
    return [number for batch in batches for number in batch["number"].tolist()]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    left = [thread.name for thread in threading.enumerate() if "iobench-ring" in thread.name]
    assert not left


def test_more_than_fits_into_memory_is_an_error_and_no_deadlock(monkeypatch):
    free = SimpleNamespace(available=10 * 8192)
    monkeypatch.setattr(buffers.psutil, "virtual_memory", lambda: free)
    with pytest.raises(OptionError, match=r"11 buffers of 8192 bytes, 4 samples of 68 each"):
        make(depth=11)
    loader = make(depth=3)
    held = []
    with (
        pytest.warns(UserWarning, match="held at once") as warned,
        pytest.raises(OptionError, match=r"5 batches of 8192 bytes are held.*more than 40960"),
    ):
        held.extend(iter(loader))
    assert len(warned) == 1
    held = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert numbers(loader) == list(range(50))


def test_a_buffer_of_an_iteration_that_is_closed_while_it_is_filled_comes_back():
    filling, go = threading.Semaphore(0), threading.Semaphore(0)

    def before_fill():
        filling.release()
        go.acquire()

    loader = make(GuardedSource(before_fill=before_fill), depth=3, threads=1)
    for _ in range(8):
        iterator = iter(loader)
        go.release()
        next(iterator)
        filling.acquire()
        filling.acquire()  # the second batch is being filled
        closing = threading.Thread(target=iterator.close)
        closing.start()
        while not iterator_is_stopping(closing):
            pass
        go.release()
        closing.join()
    for _ in range(13):
        go.release()
    assert numbers(loader) == list(range(50))


def iterator_is_stopping(closing):
    """Tell whether a thread that closes an iteration waits for its readers."""
    frame = sys._current_frames().get(closing.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "join":
            return True
        frame = frame.f_back
    return False


@pytest.mark.filterwarnings("ignore:.*batches are held:UserWarning")
def test_batches_go_to_one_of_several_threads_each():
    loader = make(NumberSource(2000))
    iterator = iter(loader)
    found: list[int] = []

    def consume():
        found.extend(numbers(iterator))

    next(iterator)
    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(4, 2000))


def test_closing_wakes_who_waits_for_a_batch():
    filling, go = threading.Event(), threading.Event()

    def before_fill():
        filling.set()
        go.wait()

    loader = make(GuardedSource(before_fill=before_fill), threads=1)
    found: list[list[int]] = []
    consumer = threading.Thread(target=lambda: found.append(numbers(iter(loader))))
    consumer.start()
    filling.wait()
    closing = threading.Thread(target=loader.close)
    closing.start()
    consumer.join()  # before the thread that fills has ended
    assert found == [[]]
    go.set()
    closing.join()


def test_garbage_may_be_collected_in_a_reader_thread():
    loader = make(NumberSource(4000), threads=4)
    go, collected = threading.Event(), threading.Event()
    samples = loader.order.samples

    def collecting(epoch, batch):
        if batch > 6:
            go.wait()
            gc.collect()
            collected.set()
        return samples(epoch, batch)

    loader.order.samples = collecting  # type: ignore[method-assign]
    before = set(threading.enumerate())
    iterator = iter(loader)
    cycle: list[Any] = [iterator]
    cycle.append(cycle)
    for _ in range(5):
        next(iterator)
    alive = weakref.ref(iterator)
    threads = set(threading.enumerate()) - before
    gc.disable()
    try:
        del iterator, cycle
        go.set()
        collected.wait()
    finally:
        gc.enable()
    assert alive() is None
    for thread in threads:
        thread.join()


def test_an_interrupt_does_not_wait_for_a_batch_that_is_stuck(monkeypatch):
    monkeypatch.setattr("iobench.loaders.ring.loader.PATIENCE_S", 0.05)
    go = threading.Event()

    def before_fill():
        if not go.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        go.wait()

    loader = make(GuardedSource(before_fill=before_fill), threads=1)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        numbers(loader)
    (reader,) = set(threading.enumerate()) - before
    go.set()
    reader.join()
    assert numbers(loader) == list(range(50))


@pytest.mark.filterwarnings("ignore:.*batches are held:UserWarning")
def test_errors_and_arrays_that_are_kept_do_not_use_the_buffers_up():
    loader, kept = make(NumberSource(broken=1)), []
    for _ in range(12):
        with pytest.raises(SampleError, match="sample 1") as caught:
            next(iter(loader))
        kept.append(caught.value)
    arrays = []

    def present(given):
        arrays.append((given["number"], given["number"].copy()))
        return {"number": given["number"].copy()}

    loader = make(present=present)
    for _ in range(6):
        iterator = iter(loader)
        next(iterator)
        iterator.close()
    assert numbers(loader) == list(range(50))
    assert all(np.array_equal(array, copy) for array, copy in arrays)


def test_states_at_the_end_of_an_epoch_and_after_an_error():
    loader, other, last = make(shuffle=True), make(shuffle=True), make(shuffle=True)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    assert loader.state_dict()["batches"] == 13
    last.load_state_dict(loader.state_dict())
    assert numbers(last) == []  # the loop that goes on has nothing left to do
    assert next(iterator, None) is None
    other.load_state_dict(state := loader.state_dict())
    assert (state["epoch"], state["batches"]) == (1, 0)
    assert numbers(other) == numbers(last) == numbers(loader)
    failing = make(NumberSource(broken=9))
    with pytest.raises(SampleError):
        numbers(failing)
    state = failing.state_dict()
    assert (state["epoch"], state["batches"]) == (0, 2)
    other = make()
    other.load_state_dict(state)
    assert numbers(other) == list(range(8, 50))
    del state["epoch"]
    with pytest.raises(OptionError, match="load_state_dict"):
        other.load_state_dict(state)
