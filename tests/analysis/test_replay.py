"""Replay against schedules whose truth is known: as they were, and with something changed."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_schedules import SHAPES, STAGES, drawn
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import pool, threads

from iobench.analysis.diagnosis import diagnosis_of
from iobench.analysis.replay.loader_run import Change, LoaderRule
from iobench.analysis.replay.replay import Machine, replay, replay_error
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.errors import ProfileError
from iobench.findings.faster_stages import FINDING, faster_stages, predicted
from iobench.recording.kinds import Kind
from iobench.report.sentences import verdict_sentence
from tests.support.sketched_runs import CONSUMER, SketchedRun

MS = 1_000_000
TIMES = st.integers(0, 1000)
SPENT = st.integers(1, 1000)
SCHEDULES = st.fixed_dictionaries(
    {
        "durations": st.lists(st.tuples(SPENT, SPENT, SPENT), min_size=1, max_size=20),
        "workers": st.integers(0, 8),
        "prefetch": st.integers(1, 4),
        "step_ns": TIMES,
        "handover_ns": st.integers(0, 50),
        "drain_ns": st.integers(0, 50),
    }
)


def run_of(sketch):
    (run,) = recorded_runs(sketch.open().of_rank())
    return run


def truth(schedule):
    """Return the wall time and the wait of a schedule, as the analysis measures them."""
    whole = exposure(pool(**schedule).data()).whole
    return whole.wall_ns, whole.wait_ns


def figures(replayed):
    return replayed.wall_ns, replayed.wait_ns


@given(SCHEDULES)
@settings(max_examples=15, deadline=None)
def test_a_run_is_replayed_as_it_was(schedule):
    run = run_of(pool(**schedule))
    replayed = replay(run)
    assert figures(replayed) == (run.wall_ns, run.wait_ns) == truth(schedule)
    assert replay_error(run) == 0 or not run.wall_ns
    assert tuple(replayed.waits_ns.tolist()) == exposure(pool(**schedule).data()).waits_ns


@given(SCHEDULES, st.sampled_from(STAGES), st.sampled_from([2, 3, 10]))
@settings(max_examples=20, deadline=None)
def test_a_stage_that_takes_other_times_is_a_schedule_with_those(schedule, stage, factor):
    times = np.array(schedule["durations"])
    times[:, STAGES.index(stage)] *= factor
    schedule["handover_ns"] = 0  # of batches that nobody waited for it was not seen
    replayed = replay(run_of(pool(**schedule)), Change(stage_factors={stage: factor}))
    assert figures(replayed) == truth({**schedule, "durations": times.tolist()})


@pytest.mark.long
@given(SCHEDULES, st.integers(1, 8), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_other_workers_and_prefetch_are_a_schedule_with_those(schedule, workers, prefetch):
    schedule |= {"workers": max(schedule["workers"], 1), "handover_ns": 0}
    other = {"workers": workers, "prefetch": prefetch}
    assert figures(replay(run_of(pool(**schedule)), Change(**other))) == truth(
        {**schedule, **other}
    )
    as_ready = replay(run_of(pool(**schedule)), Change(in_order=False))
    assert figures(as_ready) == truth({**schedule, "in_order": False})


@given(
    st.lists(SPENT, min_size=1, max_size=40), st.integers(1, 4), st.integers(0, 3), TIMES,
)  # fmt: skip
@settings(max_examples=20, deadline=None)
@example([1, 1, 1, 2, 1], 2, 0, 0)  # several taken at one instant: none is known to make room
def test_threads_take_the_next_batch(durations, n_threads, more, step_ns):
    how = {"n_threads": n_threads, "ahead": n_threads + more, "step_ns": step_ns}
    run = run_of(threads(durations, **how))
    assert run.rule is LoaderRule.THREADS
    assert figures(replay(run)) == (run.wall_ns, run.wait_ns)
    doubled = run_of(threads([2 * spent for spent in durations], **how))
    if run.prefetch == how["ahead"]:
        assert replay(run, Change(stage_factors={"read": 2})).wall_ns == doubled.wall_ns


def test_how_far_threads_were_ahead_is_seen_where_they_waited_for_room():
    assert run_of(threads([10] * 30, n_threads=2, ahead=5, step_ns=50)).prefetch == 5


def waits_alone():
    """Return batches that nobody saw being made."""
    sketch = SketchedRun(workers=0)
    for batch in range(5):
        sketch.wait(batch, 20 * batch, 20 * batch + 5)
    sketch.round(0, 100)
    return sketch


ODD = [(10 + 90 * (number % 7 == 0), 20, 0) for number in range(40)]
LOST = pool([(60, 30, 10)] * 30, workers=2, step_ns=15).without(("worker", 1))


@pytest.mark.parametrize(
    ("sketch", "reason"),
    [
        (pool(ODD, workers=3, step_ns=15, in_order=False), "taken as they came, not in order"),
        (LOST, "15 of 30 batches were not seen being made"),
        (waits_alone(), "does not report which workers make its batches"),
    ],
    ids=["out of order", "a worker's spans lost", "unknown makers"],
)
def test_what_cannot_be_replayed_says_why(sketch, reason):
    run = run_of(sketch)
    assert run.rule is LoaderRule.OPAQUE
    assert reason in run.reason
    with pytest.raises(ProfileError):
        replay(run)
    gains = faster_stages(sketch.open().of_rank())
    assert (gains.error_fraction, gains.gains, gains.reason) == (None, {}, run.reason)


def test_only_the_first_batches_are_taken_where_so_many_are_enough():
    rank = pool([(60, 30, 10)] * 30, workers=2, step_ns=15).open().of_rank()
    (run,), (whole,) = (recorded_runs(rank, max_batches=n) for n in (12, 30))
    assert (len(run), run.is_part, len(whole), whole.is_part) == (12, True, 30, False)
    assert run.wall_ns == replay(run).wall_ns < whole.wall_ns
    assert np.array_equal(run.work_ns, whole.work_ns[:12])


@pytest.mark.parametrize(
    ("stage", "delivered"),
    [("serialise", [40, 40, 70, 70, 100, 100]), ("h2d", [40, 70, 100, 130, 160, 190])],
)
def test_other_threads_send_by_worker_or_over_one_link(stage, delivered):
    """Two workers, which make a batch in 10 and send it in 30, the next one made meanwhile."""
    run = run_of(pool([(10, 0, 0)] * 6, workers=2, prefetch=4, step_ns=0))
    sent_ns = np.full((6, 1), 30)
    run = replace(
        run, stages=(*run.stages, stage), work_ns=np.hstack((run.work_ns, sent_ns)),
        cpu_ns=np.hstack((run.cpu_ns, -sent_ns)),
        async_ns=np.hstack((np.zeros_like(run.work_ns), sent_ns)),
    )  # fmt: skip
    assert np.cumsum(replay(run).waits_ns).tolist() == delivered


def test_cpus_and_storage_are_caps():
    # Four workers need 100 ns of a CPU for each batch, and read 60 bytes.
    run = run_of(pool([(60, 30, 10)] * 100, workers=4, step_ns=5))
    free, n = replay(run).judged_ns.sum(), int(run.judged.sum())
    assert replay(run, None, Machine(cores=100.0)).judged_ns.sum() == free
    least = (run.work_ns.sum(axis=1) + run.gap_ns + run.pickup_ns)[run.judged].sum()
    one_cpu = replay(run, Change(workers=8), Machine(cores=1.0)).judged_ns.sum()
    assert one_cpu == pytest.approx(least, abs=n)
    storage = Machine(read_nbytes_per_s=1e9)
    assert replay(run, None, storage).judged_ns.sum() == pytest.approx(60 * n, abs=n)


def saved(gains):
    return {stage: each.saved_fraction for stage, each in gains.gains.items()}


def test_two_workers_whose_batches_alternate_gain_only_by_both_stages():
    # Section 4 of the definition: all the wait falls on one stage, and neither alone gains.
    even, odd = (100 * MS, 0, 0), (0, 100 * MS, 0)
    rank = pool([even, odd] * 100, workers=2, step_ns=5 * MS).open().of_rank()
    gains, diagnosis = faster_stages(rank), diagnosis_of(rank)
    assert saved(gains) == pytest.approx({"decode": 0, "read": 0, "all": 0.5}, abs=0.02)
    assert "No single stage will help" in str(FINDING.section(gains))
    assert (diagnosis.top_stage, diagnosis.top_alone_gains) == (None, False)
    assert "No stage alone is the cause" in verdict_sentence(diagnosis)


def test_what_halving_gains_has_no_upper_bound_where_workers_wait_for_locks_of_each_other():
    free, locked = (pool([(20 * MS, 10 * MS, 0)] * 100, workers=2, step_ns=MS) for _ in range(2))
    for span in [each for each in locked.spans if each["kind"] == Kind.READ]:
        half_ns = (span["end_ns"] - span["start_ns"]) // 2
        locked.spans.append({**span, "kind": Kind.LOCK, "end_ns": span["start_ns"] + half_ns})
        span["start_ns"] += half_ns
    for sketch, bounded in ((free, True), (locked, False)):
        gains = faster_stages(sketch.open().of_rank()).gains.values()
        assert {each.high_fraction is not None for each in gains} == {bounded}
        assert all(each.low_fraction is not None for each in gains)


def test_a_replay_that_is_far_off_is_withheld():
    # It says that batches were less far ahead than they were, and would have taken longer.
    bursts = ([(MS, MS, MS)] * 8 + [(80 * MS, 20 * MS, 20 * MS)] * 4) * 10
    sketch = pool(bursts, workers=2, step_ns=15 * MS, prefetch=8)
    assert faster_stages(sketch.open().of_rank()).gains
    sketch.config["prefetch"] = 1
    gains = faster_stages(sketch.open().of_rank())
    assert gains.error_fraction > 0.1
    assert not gains.gains
    assert faster_stages(SketchedRun(workers=0).open().of_rank()) is None


def batch_ns(data):
    part = exposure(data).judged
    return part.wall_ns / part.n_batches


@pytest.mark.long
def test_the_interval_that_is_printed_holds_what_other_batches_obtain():
    widths, held = [], []
    for seed in range(3 * len(SHAPES)):
        first = drawn(seed, 0, (), 120)
        (run,) = recorded_runs(Run(first).of_rank())
        before, now = replay(run).judged_ns, batch_ns(first)
        for number, stages in enumerate((STAGES[:1], STAGES[1:3], STAGES), start=1):
            after = replay(run, Change(stage_factors=dict.fromkeys(stages, 0.5))).judged_ns
            gain, _ = predicted(before, after)
            obtained = 1 - batch_ns(drawn(seed, number, stages, 120)) / now
            if gain.low_fraction is not None:
                widths.append(gain.high_fraction - gain.low_fraction)
                held.append(gain.low_fraction <= obtained <= gain.high_fraction)
    assert len(held) > 0.9 * 9 * len(SHAPES)
    assert sum(held) >= 0.9 * len(held)
    # Nor is it so large that it says nothing: half of them are within a quarter of the time.
    assert np.median(widths) < 0.25


def test_one_late_submission_is_not_the_usual_one():
    sketch = SketchedRun(workers=0, threads=1, prefetch=2, framework="native")
    sketch.process = {"threads": ("MainThread", "iobench-ring-0")}
    clock, free, taken = 0, 0, [0, 0]
    for batch in range(80):
        lane = {"thread": 1, "batch": batch}
        begin = max(free, taken[batch])
        if taken[batch] >= free > 0:  # after the long step
            begin += 400
            sketch.add(CONSUMER, Kind.SUBMIT_QUEUE, taken[batch], begin, detail="consumer", **lane)
        free = sketch.work(CONSUMER, begin, {Kind.READ: 20}, nbytes=1, **lane)
        delivered = max(clock, free)
        sketch.wait(batch, clock, delivered, "threads", epoch=0)
        taken.append(delivered)
        clock = delivered + (500 if batch == 27 else 10)
    sketch.shutdown(clock, clock)
    sketch.round(0, clock)
    (run,) = recorded_runs(sketch.open().of_rank())
    assert abs(replay_error(run)) < 0.01
