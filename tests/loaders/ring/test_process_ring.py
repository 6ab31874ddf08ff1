"""Batches made in processes: the same ones, errors with their type, nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ring_sources import (
    Locked,
    NumberSource,
    doubled,
    endless,
    failing,
    failing_oddly,
    forgetful,
    in_place,
    summed,
)

from iobench.errors import OptionError, SampleError, WorkerError
from iobench.loaders.ring import BatchOrder, ProcessSource, RingLoader
from iobench.profiles import open_profile
from iobench.recording import Kind, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    assert not [child.name for child in multiprocessing.active_children()]
    # Unnamed memory: no name in /dev/shm to be left, and no descriptor either.
    assert not [link for link in _open_files() if "iobench-ring" in link]


def _open_files() -> list[str]:
    folder = Path("/proc/self/fd")
    links = []
    for descriptor in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # that of the listing itself
            links.append(str(descriptor.readlink()))
    return links


def make(source: NumberSource | None = None, transform: Any = None, **options: Any) -> RingLoader:
    source = source or NumberSource()
    order = BatchOrder(len(source), 4, shuffle=options.pop("shuffle", False))
    processes = ProcessSource(source, 4, transform=transform)
    return RingLoader(processes, order, **{"threads": 2, **options})


def test_batches_are_those_of_the_source() -> None:
    loader = make(shuffle=True, transform=doubled)
    pids = set()
    for _ in range(2):
        numbers = []
        for batch in loader:
            numbers += (batch["number"] // 2).tolist()
            assert batch["field"].shape == (len(batch["number"]), 5)
            means = batch["number"][:, None] / 2 + (5 + np.arange(5)) / 16
            assert np.allclose(batch["field"], means)
            pids |= set(batch["pid"].tolist())
        order = loader.order
        expected = [order.samples(loader.epoch, batch) for batch in range(len(order))]
        assert numbers == np.concatenate(expected).tolist()
    assert os.getpid() not in pids
    assert len(pids) <= 2  # the processes of the first epoch made the second one too
    assert [v.dims for v in loader.spec] == [("dim_0",), (), ()]
    assert loader.spec["number"].role == "target"
    loader.close()


@pytest.mark.filterwarnings("ignore:.*batches are held:UserWarning")
def test_held_batches_are_never_written_again() -> None:
    loader = make(transform=in_place)
    held = list(loader)
    assert np.concatenate([batch["number"] for batch in held]).tolist() == list(range(50))
    for batch in held:
        assert (batch["field"][:, 0, 0] == batch["number"] + 1).all()
    loader.close()
    del loader
    gc.collect()
    assert held[7]["number"].tolist() == [28, 29, 30, 31]


def test_without_a_transform_the_source_fills_shared_memory_itself() -> None:
    loader = make()
    assert [batch["number"][0] for batch in loader] == list(range(0, 50, 4))
    loader.close()


@pytest.mark.parametrize(
    ("source", "transform", "error", "message"),
    [
        (NumberSource(broken=9), None, SampleError, "sample 9 is broken"),
        (None, failing, ZeroDivisionError, "nine"),
        (None, forgetful, SampleError, r"returned \['field'\], of the first batch"),
        (NumberSource(deadly=9), None, WorkerError, "was killed by signal 9"),
    ],
)
def test_what_fails_is_raised_in_its_place(
    source: NumberSource | None, transform: Any, error: type[Exception], message: str
) -> None:
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


@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        (lambda batch: batch, OptionError, "cannot be sent to a process.*top level of a module"),
        (Locked(), OptionError, "cannot be sent to a process"),
        (summed, SampleError, r"'field' of shape \(3, 5\) for 4 samples"),
        (len, SampleError, "the transform returned int"),
        (failing_oddly, WorkerError, "OwnError: number 3: cannot be pickled"),
    ],
)
def test_a_transform_that_cannot_be_is_told_at_the_start(
    transform: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(transform=transform)


def test_a_transform_that_cannot_be_imported_there_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("only_here")
    exec("def identity(batch):\n    return batch\n", module.__dict__)
    module.identity.__module__ = "only_here"
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(WorkerError, match=r"cannot be imported.*No module named 'only_here'"):
        make(transform=module.identity)


def test_closing_does_not_wait_for_a_transform_that_never_ends() -> None:
    loader = make(transform=endless)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    loader.close()


def test_memory_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="no shared memory for a batch of 8192 bytes"):
        make()


def test_processes_record_what_they_do(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", {})
    source = NumberSource(12)
    processes = ProcessSource(source, 4, transform=doubled, run_directory=directory.path)
    loader = RingLoader(processes, BatchOrder(12, 4), threads=1)
    for _ in loader:
        pass
    loader.close()
    profile = open_profile(directory.path)
    assert [process.role for process in profile.processes] == ["worker"]
    assert set(profile.spans["kind"].tolist()) == {Kind.READ, Kind.TRANSFORM, Kind.COLLATE}
