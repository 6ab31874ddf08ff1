"""What faster stages gain: each alone, and all of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import CONSUMER, Sketch, pool

from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.findings.faster_stages import faster_stages, payoffs
from iobench.recording.kinds import Kind

MS = 1_000_000


def run_of(durations, **how):
    (run,) = recorded_runs(Run(pool(durations, **how).profile()).of_rank())
    return run


def many_stages(times, *, n_batches=3):
    """Return a run of a loop that loads for itself, so many of whose batches are judged."""
    sketch = Sketch({"workers": 0})
    now = 0
    for batch in range(n_batches + 1):  # the first is in no steady state
        asked = now
        for number, spent in enumerate(times):
            sketch.add(CONSUMER, Kind.READ, now, now + spent, batch=batch, label=str(number))
            now += spent
        sketch.wait(batch, asked, now, "consumer")
        now += 10
    sketch.round(0, now)
    (run,) = recorded_runs(Run(sketch.profile()).of_rank())
    return run


@given(
    st.lists(st.tuples(*[st.integers(1, 1000)] * 3), min_size=1, max_size=20),
    st.integers(0, 4),
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.5, 0.8]),
)
@settings(max_examples=20, deadline=None)
def test_gains_are_those_of_replays_with_a_stage_faster_and_with_all(
    durations, workers, step_ns, factor
):
    run = run_of(durations, workers=workers, step_ns=step_ns)
    found = payoffs(run, factor)
    stages = [each.stage for each in found.stages]

    def saved(chosen):
        replayed = replay(run, Change(stage_factors=dict.fromkeys(chosen, factor)))
        return found.wall_ns - replayed.judged_ns.sum()

    assert [each.saved_ns for each in found.stages] == sorted(map(saved, zip(stages)), reverse=True)
    assert found.joint_ns == saved(stages)


def test_two_workers_whose_batches_alternate_gain_only_by_both_stages():
    # Section 4 of the definition: all the wait falls on one stage, and neither alone gains.
    even, odd = (100 * MS, 0, 0), (0, 100 * MS, 0)
    sketch = pool([even, odd] * 100, workers=2, step_ns=5 * MS)
    found = payoffs(recorded_runs(Run(sketch.profile()).of_rank())[0], 0.5)
    per_step = [(each.stage, round(each.saved_ns / 200 / MS)) for each in found.stages]
    assert sorted(per_step) == [("decode", 0), ("read", 0)]
    assert found.joint_ns / 200 / MS == pytest.approx(25, rel=0.03)
    assert found.no_single_stage_helps
    judged = faster_stages(Run(sketch.profile()).of_rank())
    assert judged.no_single_stage_helps


def test_one_saturated_worker_gains_what_each_stage_takes_less():
    found = payoffs(run_of([(60, 30, 10)] * 100, workers=1, step_ns=10), 0.5)
    saved = {each.stage: each.saved_ns / 98 for each in found.stages}  # of the steady state
    assert saved == {"read": 30, "decode": 15, "collate": 5}
    assert [each.stage for each in found.stages] == ["read", "decode", "collate"]
    assert not found.no_single_stage_helps


def test_nothing_is_gained_where_all_is_hidden():
    found = payoffs(run_of([(60, 30, 10)] * 50, workers=2, step_ns=80), 0.5)
    assert found.joint_ns == 0  # but of the first batch, which is in no steady state
    assert found.nothing_helps
    assert found.error_fraction == 0


def test_many_stages_are_taken_together_but_the_longest():
    found = payoffs(many_stages([100 * (number + 1) for number in range(12)]), 0.5)
    assert len(found.stages) == 8
    saved = {each.stage: each.saved_ns for each in found.stages}
    assert saved.pop("others") == 3 * (100 + 200 + 300 + 400 + 500) / 2
    assert set(saved) == {f"read:{number}" for number in range(5, 12)}
    assert found.joint_ns == sum(each.saved_ns for each in found.stages) == 3 * 7800 / 2


def test_stages_without_time_gain_nothing_and_are_left_out():
    found = payoffs(many_stages([100, 0, 50]))
    assert [each.stage for each in found.stages] == ["read:0", "read:2"]


def test_a_replay_that_is_far_off_is_withheld():
    # It says that batches were less far ahead than they were, and would have taken longer.
    bursts = ([(MS, MS, MS)] * 8 + [(80 * MS, 20 * MS, 20 * MS)] * 4) * 10
    sketch = pool(bursts, workers=2, step_ns=15 * MS, prefetch=8)
    assert not faster_stages(Run(sketch.profile()).of_rank()).withheld
    sketch.config["prefetch"] = 1
    found = faster_stages(Run(sketch.profile()).of_rank())
    assert found.error_fraction > 0.1
    assert (found.withheld, found.stages, found.joint_ns) == (True, (), None)


def test_batches_of_eight_stages_are_replayed_exactly():
    found = payoffs(many_stages([10 * (number + 1) for number in range(8)], n_batches=1_000))
    assert found.joint_ns == 1_000 * 72


def test_what_nobody_saw_is_judged_unknown():
    sketch = Sketch({"workers": 0})
    for batch in range(5):
        sketch.wait(batch, 20 * batch, 20 * batch + 5)
    sketch.round(0, 100)
    judged = faster_stages(Run(sketch.profile()).of_rank())
    assert (judged.error_fraction, judged.stages, judged.withheld) == (None, (), True)
    assert judged.reason == "the loader does not report which workers make its batches"


def test_a_run_without_batches_is_not_judged():
    sketch = Sketch({"workers": 0})
    sketch.round(0, 100)
    assert faster_stages(Run(sketch.profile()).of_rank()) is None
