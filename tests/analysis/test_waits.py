"""Statistics of the wait per step, and the few long waits that a median hides."""

import itertools

import pytest

from iobench.analysis.run import exposure
from iobench.recording.kinds import Kind
from tests.support.sketched_runs import CONSUMER, SketchedRun


def serial_run(waits, rounds=None):
    sketch = SketchedRun({"workers": 0, "prefetch": 1})
    clock, starts = 0, []
    for batch, wait in enumerate(waits):
        starts.append(clock)
        sketch.add(CONSUMER, Kind.READ, clock, clock + wait, batch=batch)
        sketch.wait(batch, clock, clock + wait, "consumer", epoch=0)
        clock += wait + 100
    edges = [starts[first] for first in rounds or [0]] + [clock]
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        sketch.round(start, end, number)
    return exposure(sketch.data())


def long_at(n_steps, *steps):
    return [5000 if step in steps else 10 for step in range(n_steps)]


@pytest.mark.parametrize("waits", [[50] * 20, [10] * 99 + [200]], ids=["equal", "too short"])
def test_there_are_no_long_waits(waits):
    assert serial_run(waits).long_waits is None


def test_long_waits_at_every_tenth_step():
    found = serial_run(long_at(100, *range(0, 100, 10))).long_waits
    assert found.n_waits == 10
    assert (found.wait_ns, found.typical_ns) == (50_000, 5000)
