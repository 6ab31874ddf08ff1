"""What a device waited for: properties over made-up runs of a host and the device behind it."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analysis.run import Run
from iobench.findings.devices import device_exposure, device_sums
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import CONSUMER, SketchedRun

ON_DEVICE = {"flags": Flag.DEVICE | Flag.DETAIL, "thread": 1}
STEPS = st.lists(
    st.tuples(*[st.integers(0, 60)] * 5), min_size=1, max_size=12
)  # wait, host before, host after, h2d, work


def simulated(steps, *, with_batches=True):
    """Return the sketch of a loop: wait, give the device a copy and work, go on at once."""
    sketch, now, free = SketchedRun(), 0, 0
    for batch, (wait, before, after, copy, work) in enumerate(steps):
        sketch.wait(batch, now, now + wait)
        now += wait + before
        number = batch if with_batches else -1
        for kind, duration in ((Kind.H2D, copy), (Kind.FORWARD, work), (Kind.BACKWARD, work)):
            if duration:
                start = max(now, free)
                free = start + duration
                sketch.add(CONSUMER, kind, start, free, batch=number, **ON_DEVICE)
        now += after
    sketch.add(CONSUMER, Kind.OTHER, 0, 3, label="anchor", **ON_DEVICE)
    return sketch


def profile_of(sketch, *, closed=True):
    profile = sketch.data()
    processes = tuple(
        msgspec.structs.replace(process, threads=("MainThread", "cuda:0"), closed=closed)
        for process in profile.processes
    )
    return msgspec.structs.replace(profile, processes=processes)


def exposure_of(sketch, **more):
    found = device_exposure(profile_of(sketch, **more))
    assert found is not None
    return found


def sums(found):
    """Return the device's idle time, and what of the loop's wait lay under its work."""
    return int(found.exposed_ns.sum()), found.covered_ns, found.busy_ns


@given(STEPS)
def test_exposure_is_within_its_bounds_and_never_counted_twice(steps):
    found = exposure_of(simulated(steps))
    exposed = found.exposed_ns
    assert (exposed >= 0).all()
    assert (exposed <= found.use_ns - found.requested_ns).all()
    starts = np.maximum(found.drained_ns, found.requested_ns)
    idle = [(start, use) for start, use in zip(starts, found.use_ns, strict=True) if use > start]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(idle))
    # What a batch costs the device beyond the host's wait is what lies after its delivery.
    beyond = np.maximum(found.use_ns - found.delivered_ns, 0)
    waits = found.delivered_ns - found.requested_ns
    assert (exposed <= waits + beyond).all()
    assert 0 <= found.covered_ns <= waits.sum()


@given(STEPS)
def test_no_device_work_lies_inside_what_it_waited(steps):
    sketch = simulated([(wait, 0, after, 0, work) for wait, _, after, _, work in steps])
    found = exposure_of(sketch)
    work = [span for span in sketch.spans if span["kind"] in (Kind.FORWARD, Kind.BACKWARD)]
    for start, use in zip(found.drained_ns.tolist(), found.use_ns.tolist(), strict=True):
        assert not any(
            span["start_ns"] < use and span["end_ns"] > start for span in work if use > start
        )


@given(STEPS)
def test_a_device_waits_as_long_as_the_host_or_for_the_first_batch_alone(steps):
    # The host asks for the next batch when the device is done: nothing covers its waits.
    works = [(wait, max(work, 1)) for wait, _, _, _, work in steps]
    found = exposure_of(simulated([(wait, 0, 2 * work, 0, work) for wait, work in works]))
    waits = found.delivered_ns - found.requested_ns
    assert (found.exposed_ns.sum(), found.covered_ns) == (waits.sum(), 0)
    behind = [(wait, 0, after, 0, 100_000) for wait, _, after, _, _ in steps]
    found = exposure_of(simulated(behind))
    waits = found.delivered_ns - found.requested_ns
    assert (found.exposed_ns[1:].sum(), found.covered_ns) == (0, waits[1:].sum())


def test_a_wait_partly_under_device_work_is_exposed_in_the_rest():
    sketch = SketchedRun()
    sketch.wait(0, 0, 10)
    sketch.add(CONSUMER, Kind.FORWARD, 12, 50, batch=0, **ON_DEVICE)
    sketch.wait(1, 20, 70)
    sketch.add(CONSUMER, Kind.H2D, 71, 75, batch=1, **ON_DEVICE)
    sketch.add(CONSUMER, Kind.FORWARD, 75, 90, batch=1, **ON_DEVICE)
    sketch.add(CONSUMER, Kind.OTHER, 0, 3, label="anchor", **ON_DEVICE)
    found = exposure_of(sketch)
    assert found.uncertainty_ns == 3
    assert found.exposed_ns.tolist() == [12, 25]  # until first use, the copy included
    assert found.drained_ns.tolist() == [0, 50]
    assert found.covered_ns == 30
    assert found.busy_ns == {"forward": 53, "h2d": 4}


BOTH = [(10, 0, 50, 0, 20), (10, 0, 50, 0, 20)]


def test_work_is_of_its_batch_else_of_the_delivery_before_it():
    exposed = sums(exposure_of(simulated(BOTH)))
    assert sums(exposure_of(simulated(BOTH, with_batches=False))) == exposed
    sketch = simulated(BOTH)  # a region may hold the wait itself
    sketch.add(CONSUMER, Kind.OTHER, 0, 55, label="BATCH", batch=0, **ON_DEVICE)
    assert exposure_of(sketch).exposed_ns.sum() == exposed[0]
    several = SketchedRun()  # the batches of a step but the last are used as they are delivered
    several.wait(0, 0, 10)
    several.wait(1, 12, 20)
    several.add(CONSUMER, Kind.FORWARD, 23, 50, batch=1, **ON_DEVICE)
    assert exposure_of(several).exposed_ns.tolist() == [10, 11]
    copied = SketchedRun()
    copied.wait(0, 0, 10)
    copied.add(CONSUMER, Kind.H2D, 11, 30, batch=0, **ON_DEVICE)
    assert exposure_of(copied).use_ns.tolist() == [30]


def test_what_a_killed_process_did_not_tell_is_not_counted():
    sketch = simulated(BOTH)
    sketch.wait(2, 130, 190)
    assert len(exposure_of(sketch)) == 3
    assert len(exposure_of(sketch, closed=False)) == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_nothing_is_said_where_no_device_was_timed(rank):
    sketch = SketchedRun()
    sketch.wait(0, 0, 10)
    assert device_exposure(profile_of(sketch), rank) is None


def test_copies_alone_do_not_say_that_a_device_had_no_work():
    sketch = SketchedRun()
    sketch.wait(0, 0, 10)
    sketch.add(CONSUMER, Kind.H2D, 11, 30, batch=0, **ON_DEVICE)
    found = device_sums(Run(profile_of(sketch)).of_rank())
    assert found is not None
    assert found.exposed_ns is found.covered_ns is None
    sketch.add(CONSUMER, Kind.FORWARD, 30, 40, batch=0, **ON_DEVICE)
    found = device_sums(Run(profile_of(sketch)).of_rank())
    assert found is not None
    assert found.exposed_ns == 30
