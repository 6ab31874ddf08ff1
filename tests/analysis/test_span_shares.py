"""The exposed share of single spans: whatever the schedule, they add up to the stages'."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from schedules import pool
from streams import stream

from iobench.analysis.partition import leaf_pieces
from iobench.analysis.run import Run, exposure
from iobench.recording.kinds import WAITING_KINDS, Kind, stage_name
from iobench.recording.span_file import Flag
from iobench.testing import SketchedRun

times = st.integers(0, 1000)
pools = st.builds(
    pool,
    st.lists(st.tuples(times, times, times), min_size=1, max_size=30),
    workers=st.integers(0, 4),
    step_ns=st.integers(0, 3000),
    prefetch=st.integers(1, 3),
    handover_ns=st.integers(0, 50),
    in_order=st.booleans(),
)


def exposed_by_stage(profile, rank=None):
    """Sum own time times share over the spans of each stage, in ns."""
    share = Run(profile).sums.share
    assert share.shape == profile.spans.shape
    assert ((share >= 0) & (share <= 1 + 1e-12) | np.isnan(share)).all()
    rows = np.flatnonzero((profile.spans["flags"] & Flag.DETAIL == 0) & ~np.isnan(share))
    spans = profile.spans[rows]
    pieces = leaf_pieces(spans, spans["process"].astype(np.int64) << 32 | spans["thread"])
    own_ns = np.bincount(pieces.span, pieces.duration_ns, len(rows))
    total = {}
    for span, waited_for in zip(spans, own_ns * share[rows], strict=True):
        name = stage_name(Kind(span["kind"]), profile.strings[span["label"]])
        total[name] = total.get(name, 0.0) + waited_for
    return total


def check(profile, rank=None):
    total = exposed_by_stage(profile, rank)
    for row in exposure(profile, rank=rank).whole.stages:
        if row.kind in WAITING_KINDS or row.kind == Kind.OPAQUE:
            assert row.stage not in total
        else:
            assert abs(total.get(row.stage, 0) - row.exposed_ns) <= 1e-6 * max(row.exposed_ns, 1)


@given(pools)
def test_shares_add_up_in_worker_pools(sketch):
    check(sketch.data())


@given(
    st.lists(st.tuples(times, times, times), min_size=1, max_size=20),
    st.integers(1, 3),
    st.integers(0, 500),
)
def test_shares_add_up_in_streams(durations, batch_size, step_ns):
    check(stream(durations, [step_ns] * len(durations), collate_ns=7, batch_size=batch_size))


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
