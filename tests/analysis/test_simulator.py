"""The simulated loader by hand-made cases, its frozen schedules, and the rules scored on them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import schedules
import streams
from hypothesis import given
from hypothesis import strategies as st
from simulator import Schedule, simulate, simulated_run
from simulator_classes import FASTER

from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import exposure
from iobench.findings.faster_stages import payoffs
from iobench.recording.kinds import Kind

MS = 1_000_000
STAGES = (Kind.READ, Kind.DECODE, Kind.COLLATE)


def plain(work_ms, step_ms, n_batches=400, stages=STAGES, **how):
    """Return a schedule of batches that are all alike, or of the batches given."""
    work = np.array(work_ms) * MS
    work = np.tile(work, (n_batches, 1)) if work.ndim == 1 else work
    compute = np.full(len(work), step_ms * MS)
    return Schedule(stages=stages, work_ns=work, compute_ns=compute, **how)


def of_kind(profile, kind):
    spans = profile.spans[(profile.spans["kind"] == kind) & (profile.spans["label"] == 0)]
    return spans[np.argsort(spans["start_ns"], kind="stable")]


times = st.integers(0, 40)
pools = {
    "work": st.lists(st.tuples(times, times, times), min_size=1, max_size=25),
    "step": st.sampled_from([0, 5, 20, 200]),
    "workers": st.integers(1, 5),
    "prefetch": st.integers(1, 3),
    "in_order": st.booleans(),
}


@given(**pools)
def test_pools_do_what_the_recurrence_does(work, step, workers, prefetch, in_order):
    """Against the recurrence of `schedules.pool`: only ties at one instant may go otherwise."""
    # Odd prime weights: no two batches are ready at one instant but by design.
    odd = [[7919 * part + 13 * i * i + 1 for part in row] for i, row in enumerate(work)]
    how = {"workers": workers, "prefetch": prefetch, "in_order": in_order}
    one = Schedule(STAGES, np.array(odd), np.full(len(odd), step * 7919), **how)
    ours = of_kind(simulated_run(one).data(), Kind.WAIT)
    sketch = schedules.pool(odd, step_ns=step * 7919, **how)
    theirs = of_kind(sketch.data(), Kind.WAIT)
    for name in ("start_ns", "end_ns") if in_order else ("start_ns", "end_ns", "batch"):
        assert ours[name].tolist() == theirs[name].tolist()


@given(
    st.lists(st.tuples(times, times, times), min_size=1, max_size=15),
    st.sampled_from([0, 5, 20, 200]),
    st.integers(0, 30),
    st.integers(1, 3),
)
def test_streams_do_what_their_recurrence_does(work, step, collate, prefetch):
    stages = (*streams.STAGES, Kind.COLLATE)
    everything = np.array([[*row, collate] for row in work])
    one = Schedule(stages, everything, np.full(len(work), step), 4, prefetch, stream=True)
    ours = simulated_run(one).data()
    theirs = streams.stream(
        work,
        [step] * len(work),
        collate_ns=collate,
        ahead=(prefetch,) * 3,
        batches_ahead=prefetch,
    )
    for kind in (*stages, Kind.WAIT):
        for name in ("start_ns", "end_ns"):
            assert of_kind(ours, kind)[name].tolist() == of_kind(theirs, kind)[name].tolist()


@given(**pools, hand_over=st.integers(0, 9), capacity=st.sampled_from([None, 1.0, 1.5, 3.0]))
def test_no_pool_breaks_its_bounds(work, step, workers, prefetch, in_order, hand_over, capacity):
    one = Schedule(
        STAGES, np.array(work), np.full(len(work), step), workers, prefetch, in_order,
        serialise_ns=hand_over, unpickle_ns=hand_over, disk=capacity, cores=capacity,
    )  # fmt: skip
    profile, (wall, wait) = simulated_run(one).data(), simulate(one)
    waits = of_kind(profile, Kind.WAIT)
    assert sorted(waits["batch"].tolist()) == list(range(len(work)))
    assert not in_order or (np.diff(waits["batch"]) > 0).all()
    assert wall == pytest.approx(wait + step * len(work))
    # Of each batch: at most N x P were submitted and not delivered when it was.
    submitted = of_kind(profile, Kind.SUBMIT_QUEUE)["start_ns"]
    for place, end_ns in enumerate(waits["end_ns"].tolist()):
        assert (submitted < end_ns).sum() <= place + workers * prefetch
    spans = profile.spans[np.isin(profile.spans["kind"], [*STAGES, Kind.SERIALISE])]
    assert len(spans) == 4 * len(work)
    for lane in {(span["process"], span["thread"]) for span in spans}:
        mine = spans[(spans["process"] == lane[0]) & (spans["thread"] == lane[1])]
        mine = mine[np.lexsort((mine["end_ns"], mine["start_ns"]))]
        for before, after in pairwise(mine):
            assert before["end_ns"] <= after["start_ns"]
    if in_order and capacity is None:
        # Only there is less work never slower.
        assert simulate(one, [FASTER, 1.0, 1.0])[0] <= wall + 1e-6
    figures = exposure(profile).whole
    assert sum(figures.exposed_ns.values()) == figures.wait_ns


def test_the_sampler_works_in_the_training_loop():
    stages = (*STAGES, Kind.SAMPLER)
    recorded = (
        simulated_run(plain((1, 1, 1, 5), 10, n_batches=20, stages=stages, workers=1))
        .open()
        .of_rank()
    )
    found = recorded.exposure
    figures = found.whole
    # The first two are drawn in the first wait, the first batch is made beside the second draw.
    exposed = {stage: ns / MS for stage, ns in figures.exposed_ns.items() if ns}
    assert exposed == {"startup": 5, "read": 1, "decode": 1, "collate": 1, "sampler": 7 + 17 * 5}
    waits = [round(ns / MS) for ns in found.waits_ns]
    assert waits == [15, *[5] * 17, 0, 0]
    # Only a faster sampler helps; what it draws before the first batch is start-up to a replay.
    (loader,) = recorded_runs(recorded)
    total_ms = replay(loader).judged_ns.sum() / MS
    gains = payoffs(loader).gains
    saved = {
        stage: each.saved_fraction * total_ms for stage, each in gains.items() if stage != "all"
    }
    assert next(iter(saved)) == "sampler"
    assert saved.pop("sampler") == pytest.approx(16 * 5 * 0.5, abs=5)  # steady
    assert max(saved.values()) <= 1
