"""What faster stages gain: each alone, and all of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import pool

from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.findings.faster_stages import FINDING, faster_stages, payoffs
from iobench.recording.kinds import Kind
from tests.support.sketched_runs import CONSUMER, SketchedRun

MS = 1_000_000


def rank_of(sketch):
    return Run(sketch.data()).of_rank()


def run_of(sketch):
    (run,) = recorded_runs(rank_of(sketch))
    return run


def many_stages(times, *, n_batches=3):
    """Return a run of a loop that loads for itself, so many of whose batches are judged."""
    sketch = SketchedRun({"workers": 0})
    now = 0
    for batch in range(n_batches + 1):  # the first is in no steady state
        begin = now
        for number, spent in enumerate(times):
            sketch.add(CONSUMER, Kind.READ, now, now + spent, batch=batch, label=str(number))
            now += spent
        sketch.wait(batch, begin, now, "consumer")
        now += 10
    sketch.round(0, now)
    return run_of(sketch)


def saved(gains):
    return {stage: each.saved_fraction for stage, each in gains.gains.items()}


@given(
    st.lists(st.tuples(*[st.integers(1, 1000)] * 3), min_size=1, max_size=20),
    st.integers(0, 4),
    st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_gains_are_those_of_replays_with_a_stage_faster_and_with_all(durations, workers, step_ns):
    run = run_of(pool(durations, workers=workers, step_ns=step_ns))
    gains = payoffs(run)
    before = replay(run).judged_ns.sum()

    def shorter(stages):
        after = replay(run, Change(stage_factors=dict.fromkeys(stages, 0.5))).judged_ns.sum()
        return (before - after) / before if before else 0.0

    *alone, together = gains.gains
    assert together == "all"
    expected = {stage: shorter([stage]) for stage in alone} | {"all": shorter(alone)}
    assert saved(gains) == pytest.approx(expected, abs=1e-12)
    assert alone == sorted(alone, key=lambda each: -saved(gains)[each])


def test_two_workers_whose_batches_alternate_gain_only_by_both_stages():
    # Section 4 of the definition: all the wait falls on one stage, and neither alone gains.
    even, odd = (100 * MS, 0, 0), (0, 100 * MS, 0)
    rank = rank_of(pool([even, odd] * 100, workers=2, step_ns=5 * MS))
    gains = faster_stages(rank)
    assert saved(gains) == pytest.approx({"decode": 0, "read": 0, "all": 0.5}, abs=0.02)
    assert "No single stage will help" in str(FINDING.section(gains))


def test_what_halving_gains_has_no_upper_bound_where_workers_wait_for_locks_of_each_other():
    free, held = (pool([(20 * MS, 10 * MS, 0)] * 100, workers=2, step_ns=MS) for _ in range(2))
    for span in held.spans:
        if span["kind"] == Kind.READ:
            half_ns = (span["end_ns"] - span["start_ns"]) // 2
            held.spans.append({**span, "kind": Kind.LOCK, "end_ns": span["start_ns"] + half_ns})
            span["start_ns"] += half_ns
    for sketch, bounded in ((free, True), (held, False)):
        gains = faster_stages(rank_of(sketch)).gains.values()
        assert {each.high_fraction is not None for each in gains} == {bounded}
        assert all(each.low_fraction is not None for each in gains)


@pytest.mark.parametrize(
    ("times", "names"),
    [
        ([100, 0, 50], ["read:0", "read:2", "all"]),
        (range(10, 90, 10), [*(f"read:{n}" for n in range(7, -1, -1)), "all"]),
    ],
    ids=["one without time", "eight"],
)
def test_stages_that_took_time_are_replayed_exactly(times, names):
    gains = payoffs(many_stages(times))
    assert [*gains.gains] == names
    n_ns = sum(times)
    assert saved(gains)["all"] == pytest.approx(0.5 * n_ns / (n_ns + 10))
    assert sum(saved(gains).values()) == pytest.approx(n_ns / (n_ns + 10))


def test_a_replay_that_is_far_off_is_withheld():
    # It says that batches were less far ahead than they were, and would have taken longer.
    bursts = ([(MS, MS, MS)] * 8 + [(80 * MS, 20 * MS, 20 * MS)] * 4) * 10
    sketch = pool(bursts, workers=2, step_ns=15 * MS, prefetch=8)
    assert faster_stages(rank_of(sketch)).gains
    sketch.config["prefetch"] = 1
    gains = faster_stages(rank_of(sketch))
    assert gains.error_fraction > 0.1
    assert not gains.gains
    assert "no gain is predicted" in str(FINDING.section(gains))


def test_what_was_not_seen_being_made_is_unknown_and_nothing_without_batches():
    sketch = SketchedRun({"workers": 0})
    sketch.round(0, 100)
    assert faster_stages(rank_of(sketch)) is None
    for batch in range(5):
        sketch.wait(batch, 20 * batch, 20 * batch + 5)
    gains = faster_stages(rank_of(sketch))
    assert (gains.error_fraction, gains.gains) == (None, {})
    assert "which workers make its batches" in gains.reason
