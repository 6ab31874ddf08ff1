"""Batches made in processes: the same ones, errors with their type, nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import warnings
from pathlib import Path

import pytest
from ring_sources import (
    Locked,
    NumberSource,
    endless,
    failing,
    failing_oddly,
    forgetful,
    in_place,
    summed,
)

from iobench.errors import OptionError, SampleError, WorkerError
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.order import BatchOrder
from iobench.loaders.ring.process_source import ProcessSource

MEMORY = "iobench-ring"


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    gc.collect()
    assert not [child.name for child in multiprocessing.active_children()]
    # Unnamed memory: no name in /dev/shm to be left, and no descriptor either.
    assert not [link for _, link in _open_files() if MEMORY in link]


def _open_files():
    folder = Path("/proc/self/fd")
    links = []
    for descriptor in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # that of the listing itself
            links.append((int(descriptor.name), str(descriptor.readlink())))
    return links


def make(source=None, transform=None, **options):
    source = source or NumberSource()
    order = BatchOrder(len(source), 4, shuffle=options.pop("shuffle", False))
    processes = ProcessSource(source, 4, transform=transform)
    return RingLoader(processes, order, **{"threads": 2, **options})


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("source", "transform", "error", "message"),
    [
        (NumberSource(broken=9), None, SampleError, "sample 9 is broken"),
        (None, failing, ZeroDivisionError, "nine"),
        (None, forgetful, SampleError, r"returned field float32 .*number int64"),
        (None, failing_oddly, WorkerError, "OwnError: number 3: cannot be pickled"),
        (NumberSource(deadly=9), None, WorkerError, "was killed by SIGKILL"),
    ],
)
def test_what_fails_is_raised_in_its_place(source, transform, error, message):
    loader = make(source, transform)
    iterator = iter(loader)
    if transform is not forgetful:
        assert [next(iterator)["field"].shape for _ in range(2)] == [(4, 3, 5)] * 2
    with pytest.raises(error, match=message) as caught:
        for _ in iterator:
            pass
    notes = "".join(caught.value.__notes__)
    assert "while batch 2 of epoch 0 was made" in notes or transform is forgetful
    if transform is failing:
        assert "ring_sources.py" in notes  # where it was raised, in the process
    loader.close()


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        (lambda batch: batch, OptionError, "cannot be sent to a process.*top level of a module"),
        (Locked(), OptionError, "cannot be sent to a process"),
        (summed, SampleError, r"'field' of shape \(3, 5\) for 4 samples"),
        (len, SampleError, "the transform returned int"),
    ],
)
def test_a_transform_that_cannot_be_is_told_at_the_start(transform, error, message):
    with pytest.raises(error, match=message):
        make(transform=transform)


def test_closing_does_not_wait_for_a_transform_that_never_ends():
    loader = make(transform=endless)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    loader.close()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*batches are held:UserWarning")
def test_shared_memory_does_not_grow_with_epochs():
    loader = make(transform=in_place)
    sizes = []
    for _ in range(4):
        held = list(loader)
        pairs = list(zip(loader, loader, strict=True))
        assert [int(batch["number"][0]) for batch in held] == list(range(0, 50, 4))
        assert [int(batch["number"][0]) for batch, _ in pairs] == list(range(0, 50, 4))
        del held, pairs
        gc.collect()
        sizes.append(
            max(os.fstat(number).st_size for number, link in _open_files() if MEMORY in link)
        )
    assert sizes[-1] == sizes[0]
    loader.close()


def test_a_forked_child_is_refused():
    loader = make(transform=in_place)
    for _ in loader:
        pass
    results = multiprocessing.get_context("fork").SimpleQueue()

    def child():
        try:
            next(iter(loader))
        except WorkerError as error:
            results.put(str(error))
        loader.close()

    process = multiprocessing.get_context("fork").Process(target=child)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: threads at a fork
        process.start()
    assert "of the process that was forked: make a new one" in results.get()
    process.join(60)
    assert process.exitcode == 0
    assert [int(batch["number"][0]) for batch in loader] == list(range(0, 50, 4))
    loader.close()
    with pytest.raises(WorkerError, match="the loader is closed"):
        next(iter(loader))


def test_a_process_that_cannot_be_started_is_one_line(monkeypatch):
    def refuse(_):
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
    with pytest.raises(WorkerError, match=r"cannot be started \(AF_UNIX.*TMPDIR a shorter path"):
        list(make())
