"""What a device waited for, and copies to it: made-up runs of a host and the device behind it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.findings.devices import device_exposure, device_sums
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import CONSUMER, SketchedRun

ON_DEVICE = {"flags": Flag.DEVICE | Flag.DETAIL, "thread": 1}
MS = 1_000_000
NBYTES = 1_000_000
TIMES = st.integers(0, 60)
STEPS = st.lists(st.tuples(*[TIMES] * 5), min_size=1, max_size=12)
"""Wait, host before, host after, copy, work."""


def host(memory=None, *, closed=True):
    """Return a run without a span, of a host with a device and further threads."""
    of_device = {"name": "cuda:0", "facts": {"title": "GPU"}, "memory": memory}
    sketch = SketchedRun(device=of_device, threads=2)
    names = ("MainThread", "cuda:0", "reader-0", "pin-0")
    sketch.process = {"threads": names, "closed": closed}
    return sketch


def run(steps, *, with_batches=True, closed=True, ahead=False):
    """Return a loop: wait, give the device a copy and work, go on at once.

    Batches may be copied ``ahead`` of their delivery.
    """
    sketch, now, free = host(closed=closed), 0, 0
    for batch, (wait, before, after, copy, work) in enumerate(steps):
        sketch.wait(batch, now, now + wait)
        copied_from, now = now, now + wait + before
        number = batch if with_batches else -1
        for kind, duration in ((Kind.H2D, copy), (Kind.FORWARD, work), (Kind.BACKWARD, work)):
            if duration:
                start = max(copied_from if ahead and kind is Kind.H2D else now, free)
                free = start + duration
                sketch.add(CONSUMER, kind, start, free, batch=number, nbytes=NBYTES, **ON_DEVICE)
        now += after
    sketch.add(CONSUMER, Kind.OTHER, 0, 3, label="anchor", **ON_DEVICE)
    return sketch


def waits_of(sketch):
    return device_exposure(sketch.data())


def sums_of(sketch):
    return device_sums(sketch.open().of_rank())


def idle(of):
    """Return the device's idle time, and what of the loop's wait lay under its work."""
    return int(of.exposed_ns.sum()), of.covered_ns, of.busy_ns


@given(STEPS, st.booleans())
def test_exposure_is_within_its_bounds_and_never_counted_twice(steps, ahead):
    sketch = run(steps, ahead=ahead)
    of = waits_of(sketch)
    exposed = of.exposed_ns
    assert ((exposed >= 0) & (exposed <= of.use_ns - of.requested_ns)).all()
    starts = np.maximum(of.drained_ns, of.requested_ns)
    between = [(start, use) for start, use in zip(starts, of.use_ns, strict=True) if use > start]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(between))
    # What a batch costs the device beyond the host's wait is what lies after its delivery.
    waits = of.delivered_ns - of.requested_ns
    assert (exposed <= waits + np.maximum(of.use_ns - of.delivered_ns, 0)).all()
    assert 0 <= of.covered_ns <= waits.sum()
    copies = sums_of(sketch).copies
    if copies is not None and copies.exposed_ns is not None and any(each[-1] for each in steps):
        assert 0 <= copies.exposed_ns <= min(of.busy_ns["h2d"], exposed.sum())


@given(STEPS)
def test_no_device_work_lies_inside_what_it_waited(steps):
    sketch = run([(wait, 0, after, 0, work) for wait, _, after, _, work in steps])
    of = waits_of(sketch)
    work = [span for span in sketch.spans if span["kind"] in (Kind.FORWARD, Kind.BACKWARD)]
    for start, use in zip(of.drained_ns.tolist(), of.use_ns.tolist(), strict=True):
        assert not any(
            span["start_ns"] < use and span["end_ns"] > start for span in work if use > start
        )


@given(STEPS)
def test_a_device_waits_as_long_as_the_host_or_for_the_first_batch_alone(steps):
    # The host asks for the next batch when the device is done: nothing covers its waits.
    works = [(wait, max(work, 1)) for wait, _, _, _, work in steps]
    of = waits_of(run([(wait, 0, 2 * work, 0, work) for wait, work in works]))
    waits = of.delivered_ns - of.requested_ns
    assert (of.exposed_ns.sum(), of.covered_ns) == (waits.sum(), 0)
    of = waits_of(run([(wait, 0, after, 0, 100_000) for wait, _, after, _, _ in steps]))
    waits = of.delivered_ns - of.requested_ns
    assert (of.exposed_ns[1:].sum(), of.covered_ns) == (0, waits[1:].sum())


def test_a_wait_partly_under_device_work_is_exposed_in_the_rest():
    sketch = host()
    sketch.wait(0, 0, 10)
    sketch.add(CONSUMER, Kind.FORWARD, 12, 50, batch=0, **ON_DEVICE)
    sketch.wait(1, 20, 70)
    sketch.work(CONSUMER, 71, {Kind.H2D: 4, Kind.FORWARD: 15}, batch=1, **ON_DEVICE)
    sketch.add(CONSUMER, Kind.OTHER, 0, 3, label="anchor", **ON_DEVICE)
    of = waits_of(sketch)
    assert of.uncertainty_ns == 3
    assert of.exposed_ns.tolist() == [12, 25]  # until first use, the copy included
    assert of.drained_ns.tolist() == [0, 50]
    assert (of.covered_ns, of.busy_ns) == (30, {"forward": 53, "h2d": 4})


BOTH = [(10, 0, 50, 0, 20), (10, 0, 50, 0, 20)]


def test_work_is_of_its_batch_else_of_the_delivery_before_it():
    exposed = idle(waits_of(run(BOTH)))
    assert idle(waits_of(run(BOTH, with_batches=False))) == exposed
    sketch = run(BOTH)  # a region may hold the wait itself
    sketch.add(CONSUMER, Kind.OTHER, 0, 55, label="BATCH", batch=0, **ON_DEVICE)
    assert waits_of(sketch).exposed_ns.sum() == exposed[0]
    several = host()  # the batches of a step but the last are used as they are delivered
    several.wait(0, 0, 10)
    several.wait(1, 12, 20)
    several.add(CONSUMER, Kind.FORWARD, 23, 50, batch=1, **ON_DEVICE)
    assert waits_of(several).exposed_ns.tolist() == [10, 11]


def test_what_a_killed_process_did_not_tell_is_not_counted():
    for closed, n_waits in ((True, 3), (False, 2)):
        sketch = run(BOTH, closed=closed)
        sketch.wait(2, 130, 190)
        assert len(waits_of(sketch)) == n_waits


def test_nothing_is_said_of_what_no_device_timed():
    sketch = host("pinned")
    sketch.wait(0, 0, 10)
    assert [device_exposure(sketch.data(), rank) for rank in (0, 1)] == [None, None]
    assert sums_of(sketch) is None
    sketch.add(CONSUMER, Kind.H2D, 10, 30, batch=0, nbytes=NBYTES)
    sums = sums_of(sketch)
    assert sums.exposed_ns is sums.copies.exposed_ns is sums.copies.bytes_per_s is None
    assert sums.copies.nbytes == NBYTES


def test_copies_alone_do_not_say_that_a_device_had_no_work():
    sketch = host()
    sketch.wait(0, 0, 10)
    sketch.add(CONSUMER, Kind.H2D, 11, 30, batch=0, **ON_DEVICE)
    assert waits_of(sketch).use_ns.tolist() == [30]
    sums = sums_of(sketch)
    assert sums.exposed_ns is sums.covered_ns is None
    sketch.add(CONSUMER, Kind.FORWARD, 30, 40, batch=0, **ON_DEVICE)
    assert sums_of(sketch).exposed_ns == 30


def in_the_loop(memory=None, *, copy_ms=2, work_ms=5, n=10):
    """A loop that waits for a batch, copies it, works on it and waits for both."""
    sketch, now = host(memory), 0
    for batch in range(n):
        sketch.wait(batch, now, now + MS)
        for where in ({}, ON_DEVICE):
            stages = {Kind.H2D: copy_ms * MS, Kind.FORWARD: work_ms * MS}
            end = sketch.work(CONSUMER, now + MS, stages, batch=batch, nbytes=NBYTES, **where)
        now = end
    return sketch


def ahead(*, copy_ms, work_ms, n=10):
    """A thread copies each batch while the one before it is worked on; none waits but the first."""
    sketch, now = host("pinned"), copy_ms * MS
    sketch.wait(0, 0, now)
    for batch in range(n):
        if batch:
            sketch.wait(batch, now, now)
        copied = now - copy_ms * MS if not batch else now - work_ms * MS
        for where in ({"thread": 2}, ON_DEVICE):
            of = {"batch": batch, "nbytes": NBYTES, **where}
            sketch.add(CONSUMER, Kind.H2D, copied, copied + copy_ms * MS, **of)
        for where in ({}, ON_DEVICE):
            sketch.add(CONSUMER, Kind.FORWARD, now, now + work_ms * MS, batch=batch, **where)
        now += work_ms * MS
    return sketch


@given(st.integers(1, 30), st.integers(1, 30))
def test_what_the_loop_copies_itself_keeps_the_device_from_its_work(copy_ms, work_ms):
    sums = sums_of(in_the_loop("pinned", copy_ms=copy_ms, work_ms=work_ms))
    assert (sums.copies.nbytes, sums.copies.memory) == (10 * NBYTES, "pinned")
    assert sums.busy_ns["h2d"] == sums.copies.exposed_ns == 10 * copy_ms * MS
    assert sums.copies.bytes_per_s == pytest.approx(NBYTES / (copy_ms * 1e-3))


@given(st.integers(1, 10), st.integers(10, 30))
def test_copies_ahead_cost_the_device_the_first_one(copy_ms, work_ms):
    sums = sums_of(ahead(copy_ms=copy_ms, work_ms=work_ms))
    assert sums.busy_ns["h2d"] == 10 * copy_ms * MS
    assert sums.copies.exposed_ns == copy_ms * MS == sums.exposed_ns


@pytest.mark.parametrize(
    ("more", "nbytes"),
    [
        ({"batch": -1, "label": "other", "nbytes": 10**9}, 10 * NBYTES),  # a model
        ({"batch": 3, "nbytes": -1, **ON_DEVICE}, None),
    ],
)
def test_bytes_are_those_of_batches_or_unknown(more, nbytes):
    sketch = in_the_loop()
    sketch.add(CONSUMER, Kind.H2D, 3 * MS, 3 * MS + 1, **more)
    assert sums_of(sketch).copies.nbytes == nbytes


def test_pinned_by_a_thread_of_the_loader_is_pinned():
    sketch = in_the_loop("pageable")
    sketch.add(CONSUMER, Kind.PIN, 0, MS, batch=0, nbytes=NBYTES, thread=3)
    assert sums_of(sketch).copies.memory == "pinned"
