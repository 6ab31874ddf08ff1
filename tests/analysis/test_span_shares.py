"""The exposed share of single spans: whatever the schedule, they add up to the stages'."""

import numpy as np

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import SketchedRun


def test_what_is_on_no_path_was_not_waited_for():
    sketch = SketchedRun()
    sketch.round(0, 100)
    sketch.add(("worker", 0), Kind.READ, 0, 40, batch=0)
    sketch.wait(0, 20, 50, "worker-0")
    sketch.add(("worker", 0), Kind.READ, 50, 90, batch=1)
    share = Run(sketch.data()).sums.share
    reads = np.flatnonzero(sketch.data().spans["kind"] == Kind.READ)
    assert share[reads].tolist() == [0.5, 0.0]
    assert np.isnan(np.delete(share, reads)).all()


def test_a_sample_beside_a_sum_has_its_share():
    sketch = SketchedRun()
    worker = ("worker", 0)
    sketch.round(0, 100)
    sketch.add(worker, Kind.READ, 30, 40, batch=0, flags=Flag.DETAIL, sample=3)
    sketch.add(worker, Kind.READ, 0, 40, batch=0, flags=Flag.SUMMED, pieces=4)
    sketch.add(worker, Kind.READ, 70, 80, batch=1, flags=Flag.DETAIL, sample=9)
    sketch.wait(0, 10, 50, "worker-0")
    profile = sketch.data()
    share = Run(profile).sums.share
    reads = profile.spans["kind"] == Kind.READ
    assert share[reads][:2].tolist() == [0.75, 0.75]
    assert np.isnan(share[reads][2])
