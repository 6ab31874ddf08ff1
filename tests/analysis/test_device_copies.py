"""What is said of copies to a device, over made-up runs in which all of it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analysis.run import Run
from iobench.findings.devices import DeviceSums, device_sums
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

ON_DEVICE = {"flags": Flag.DEVICE | Flag.DETAIL, "thread": 1}
MS = 1_000_000
NBYTES = 1_000_000


def profile_of(sketch: SketchedRun) -> RunData:
    profile = sketch.data()
    names = ("MainThread", "cuda:0", "reader-0", "pin-0")
    processes = tuple(msgspec.structs.replace(each, threads=names) for each in profile.processes)
    return msgspec.structs.replace(profile, processes=processes)


def with_device(memory: str | None) -> SketchedRun:
    told = {"name": "cuda:0", "facts": {"title": "GPU"}, "memory": memory}
    return SketchedRun(config={"device": told, "threads": 2})


def in_the_loop(sketch: SketchedRun, *, copy_ms: int, work_ms: int, n: int = 10) -> SketchedRun:
    """A loop that waits for a batch, copies it, works on it and waits for both."""
    now = 0
    for batch in range(n):
        sketch.wait(batch, now, now + MS)
        now += MS
        sketch.add(CONSUMER, Kind.H2D, now, now + copy_ms * MS, batch=batch, nbytes=NBYTES)
        copied = now + copy_ms * MS
        there = {"batch": batch, **ON_DEVICE}
        sketch.add(CONSUMER, Kind.H2D, now, copied, nbytes=NBYTES, **there)
        now = copied + work_ms * MS
        sketch.add(CONSUMER, Kind.FORWARD, copied, now, **there)
        sketch.add(CONSUMER, Kind.FORWARD, copied, now, batch=batch)
    return sketch


def ahead(sketch: SketchedRun, *, copy_ms: int, work_ms: int, n: int = 10) -> SketchedRun:
    """A thread copies each batch while the one before it is worked on; none waits but the first."""
    reader = {"thread": 2}
    sketch.add(CONSUMER, Kind.H2D, 0, copy_ms * MS, batch=0, nbytes=NBYTES, **reader)
    sketch.add(CONSUMER, Kind.H2D, 0, copy_ms * MS, batch=0, nbytes=NBYTES, **ON_DEVICE)
    now = copy_ms * MS
    sketch.wait(0, 0, now)
    for batch in range(n):
        if batch:
            sketch.wait(batch, now, now)
        if batch + 1 < n:
            copy = {"batch": batch + 1, "nbytes": NBYTES}
            sketch.add(CONSUMER, Kind.H2D, now, now + copy_ms * MS, **copy, **reader)
            sketch.add(CONSUMER, Kind.H2D, now, now + copy_ms * MS, **copy, **ON_DEVICE)
        sketch.add(CONSUMER, Kind.FORWARD, now, now + work_ms * MS, batch=batch, **ON_DEVICE)
        sketch.add(CONSUMER, Kind.FORWARD, now, now + work_ms * MS, batch=batch)
        now += work_ms * MS
    return sketch


def sums_of(sketch: SketchedRun) -> DeviceSums:
    found = device_sums(Run(profile_of(sketch)).of_rank())
    assert found is not None
    assert found.copies is not None
    return found


@given(st.integers(1, 30), st.integers(1, 30))
def test_what_the_loop_copies_itself_keeps_the_device_from_its_work(copy_ms, work_ms):
    found = sums_of(in_the_loop(with_device("pinned"), copy_ms=copy_ms, work_ms=work_ms))
    assert found.copies.nbytes == 10 * NBYTES
    assert found.busy_ns["h2d"] == found.copies.exposed_ns == 10 * copy_ms * MS
    assert found.copies.bytes_per_s == pytest.approx(NBYTES / (copy_ms * 1e-3))
    assert found.copies.memory == "pinned"


@given(st.integers(1, 10), st.integers(10, 30))
def test_copies_ahead_cost_the_device_the_first_one(copy_ms, work_ms):
    found = sums_of(ahead(with_device("pinned"), copy_ms=copy_ms, work_ms=work_ms))
    assert found.busy_ns["h2d"] == 10 * copy_ms * MS
    assert found.copies.exposed_ns == copy_ms * MS == found.exposed_ns


@given(st.lists(st.tuples(*[st.integers(0, 40)] * 4), min_size=1, max_size=10))
def test_copies_are_no_more_exposed_than_the_device_or_they_are_long(steps):
    sketch, now, free = with_device(None), 0, 0
    for batch, (wait, before, copy, work) in enumerate(steps):
        sketch.wait(batch, now, now + wait)
        copied_from = max(free, now)  # perhaps ahead of its delivery
        sketch.add(
            CONSUMER, Kind.H2D, copied_from, copied_from + copy,
            batch=batch, nbytes=NBYTES, **ON_DEVICE,
        )  # fmt: skip
        now += wait + before
        begun = max(copied_from + copy, now)
        free = begun + work
        sketch.add(CONSUMER, Kind.FORWARD, begun, free, batch=batch, **ON_DEVICE)
    found = sums_of(sketch)
    assert 0 <= found.copies.exposed_ns <= min(found.busy_ns["h2d"], found.exposed_ns)


def test_a_device_without_marks_has_no_rate():
    sketch = with_device("pinned")
    sketch.wait(0, 0, 10)
    assert device_sums(Run(profile_of(sketch)).of_rank()) is None
    sketch.add(CONSUMER, Kind.H2D, 10, 30, batch=0, nbytes=NBYTES)
    sketch.wait(1, 30, 50)
    found = sums_of(sketch)
    assert found.exposed_ns is found.copies.exposed_ns is found.copies.bytes_per_s is None
    assert found.copies.nbytes == NBYTES


@pytest.mark.parametrize(
    ("more", "nbytes"),
    [
        ({"batch": -1, "label": "other", "nbytes": 10**9}, 10 * NBYTES),  # a model
        ({"batch": 3, "nbytes": -1, **ON_DEVICE}, None),
    ],
)
def test_bytes_are_those_of_batches_or_unknown(more, nbytes):
    sketch = in_the_loop(with_device(None), copy_ms=2, work_ms=5)
    sketch.add(CONSUMER, Kind.H2D, 3 * MS, 3 * MS + 1, **more)
    assert sums_of(sketch).copies.nbytes == nbytes


def test_pinned_by_a_thread_of_the_loader_is_pinned():
    sketch = in_the_loop(with_device("pageable"), copy_ms=5, work_ms=10)
    sketch.add(CONSUMER, Kind.PIN, 0, MS, batch=0, nbytes=NBYTES, thread=3)
    assert sums_of(sketch).copies.memory == "pinned"
