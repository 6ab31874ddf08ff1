"""Streams, replayed by the shape that their spans tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import stream

from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.errors import OptionError
from iobench.findings.replay.figures import payoffs

MS = 1_000_000
SPENT = st.integers(1, 1000)


def run_of(durations, steps, **how):
    (run,) = recorded_runs(Run(stream(durations, steps, **how)).of_rank())
    assert run.rule is LoaderRule.STREAM
    return run


@given(
    st.lists(st.tuples(SPENT, SPENT, SPENT), min_size=1, max_size=25),
    st.integers(0, 1000),
    st.tuples(*[st.integers(1, 3)] * 3),
    st.integers(1, 3),
)
def test_a_stream_is_replayed_as_it_was(durations, step, ahead, batches_ahead):
    run = run_of(durations, [step] * len(durations), ahead=ahead, batches_ahead=batches_ahead)
    # Which of two goes first within a nanosecond is not recorded.
    assert replay(run).wall_ns == pytest.approx(run.wall_ns, rel=0.02, abs=2)


@pytest.mark.parametrize("slow", [0, 1, 2])
@pytest.mark.parametrize("items", [1, 4])
def test_only_the_slowest_stage_gains(slow, items):
    item = [4 * MS] * 3
    item[slow] = 10 * MS
    run = run_of([item] * 40 * items, [5 * MS * items] * 40, batch_size=items)
    assert replay(run).wall_ns == run.wall_ns
    found = payoffs(run, 0.8)
    stage = ("read", "decode", "preprocess")[slow]
    assert found.stages[0].stage == stage
    assert found.stages[0].saved_ns == pytest.approx(40 * items * 2 * MS, rel=0.05)
    # The others are in the way of the first batch only.
    assert all(each.saved_ns <= 2 * MS for each in found.stages[1:])


def test_two_stages_as_slow_as_each_other_gain_only_together():
    run = run_of([[10 * MS, 10 * MS, 1 * MS]] * 60, [5 * MS] * 60)
    assert payoffs(run, 0.5).no_single_stage_helps


def test_what_changes_is_as_in_a_stream_that_is_so():
    durations, steps = [(30, 20, 10)] * 50, [20] * 50
    run = run_of(durations, steps, collate_ns=5)
    slower = run_of([(30, 60, 10)] * 50, steps, collate_ns=5)
    assert replay(run, Change(stage_factors={"decode": 3})).wall_ns == slower.wall_ns
    assert replay(run, Change(work_of=slower)).wall_ns == slower.wall_ns
    longer = run_of(durations, [90] * 50, collate_ns=5)
    assert replay(run, Change(step_ns=90)).wall_ns == longer.wall_ns


def test_a_stream_has_no_workers_to_change():
    run = run_of([(30, 20, 10)] * 5, [20] * 5)
    with pytest.raises(OptionError, match="no workers"):
        replay(run, Change(workers=2))
    assert replay(run, Change(prefetch=4)).wall_ns <= run.wall_ns
