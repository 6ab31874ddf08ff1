"""Replay against schedules whose truth is known: as they were, and with something changed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from schedules import pool

from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.replay.replay import Machine, replay, replay_error
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.errors import ProfileError
from iobench.recording.kinds import Kind
from tests.support.sketched_runs import CONSUMER, SketchedRun

TIMES = st.integers(0, 1000)
SPENT = st.integers(1, 1000)
BATCHES = st.lists(st.tuples(SPENT, SPENT, SPENT), min_size=1, max_size=20)
SCHEDULES = st.fixed_dictionaries(
    {
        "durations": BATCHES,
        "workers": st.integers(0, 8),
        "prefetch": st.integers(1, 4),
        "step_ns": TIMES,
        "handover_ns": st.integers(0, 50),
        "drain_ns": st.integers(0, 50),
    }
)
SCHEDULE = {"durations": [(60, 30, 10)] * 9, "workers": 3, "prefetch": 2, "step_ns": 20}


def run_of(schedule):
    (run,) = recorded_runs(Run(pool(**schedule).data()).of_rank())
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
    run = run_of(schedule)
    replayed = replay(run)
    assert figures(replayed) == (run.wall_ns, run.wait_ns) == truth(schedule)
    assert replay_error(run) == 0 or not run.wall_ns
    waits_ns = exposure(pool(**schedule).data()).waits_ns
    assert tuple(replayed.waits_ns.tolist()) == waits_ns


@given(SCHEDULES, st.sampled_from(["read", "decode", "collate"]), st.sampled_from([2, 3, 10]))
@settings(max_examples=20, deadline=None)
def test_a_stage_that_takes_other_times_is_a_schedule_with_those(schedule, stage, factor):
    column = ("read", "decode", "collate").index(stage)
    changed = [
        tuple(time * factor if place == column else time for place, time in enumerate(times))
        for times in schedule["durations"]
    ]
    schedule["handover_ns"] = 0  # of batches that nobody waited for it was not seen
    run = run_of(schedule)
    replayed = replay(run, Change(stage_factors={stage: factor}))
    assert figures(replayed) == truth({**schedule, "durations": changed})


@given(SCHEDULES, st.integers(1, 8), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_other_workers_and_prefetch_are_a_schedule_with_those(schedule, workers, prefetch):
    schedule |= {"workers": max(schedule["workers"], 1), "handover_ns": 0}
    replayed = replay(run_of(schedule), Change(workers=workers, prefetch=prefetch))
    assert figures(replayed) == truth({**schedule, "workers": workers, "prefetch": prefetch})


def test_batches_that_a_pool_handed_over_out_of_order_are_not_replayed():
    durations = [(10 + 90 * (number % 7 == 0), 20, 0) for number in range(40)]
    run = run_of({"durations": durations, "workers": 3, "step_ns": 15, "in_order": False})
    assert run.rule is LoaderRule.OPAQUE
    assert "taken as they came" in run.reason


def threads(durations, *, n_threads, ahead, step_ns):
    """Return the run of threads that take the next batch while fewer than ``ahead`` are ready."""
    sketch = SketchedRun(
        {"workers": 0, "threads": n_threads, "prefetch": ahead, "framework": "native"}
    )
    free = [0] * n_threads
    held: list[int] = []
    clock = 0
    for batch, spent in enumerate(durations):
        thread = free.index(min(free))
        room = held[batch - ahead] if batch >= ahead else 0
        where = {"thread": thread + 1, "batch": batch}
        begin = max(room, free[thread])
        if room >= free[thread]:
            sketch.add(CONSUMER, Kind.SUBMIT_QUEUE, room, begin, detail="consumer", **where)
        sketch.add(CONSUMER, Kind.READ, begin, begin + spent, nbytes=spent, **where)
        free[thread] = begin + spent
        delivered = max(clock, begin + spent)
        sketch.wait(batch, clock, delivered, "threads", epoch=0)
        held.append(delivered)
        clock = delivered + step_ns
    sketch.shutdown(clock, clock)
    sketch.round(0, clock)
    return sketch


def threads_run(durations, **how):
    profile = threads(durations, **how).data()
    who = profile.processes[0]
    names = ("MainThread", *(f"iobench-ring-{number}" for number in range(how["n_threads"])))
    msgspec.structs.force_setattr(who, "threads", names)
    (run,) = recorded_runs(Run(profile).of_rank())
    return run


@given(
    st.lists(SPENT, min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(0, 3),
    TIMES,
    st.integers(1, 4),
)
@settings(max_examples=20, deadline=None)
@example([1, 1, 1, 2, 1], 2, 0, 0, 1)
def test_threads_take_the_next_batch(durations, n_threads, more, step_ns, other):
    how = {"n_threads": n_threads, "ahead": n_threads + more, "step_ns": step_ns}
    run = threads_run(durations, **how)
    assert run.rule is LoaderRule.THREADS
    assert figures(replay(run)) == (run.wall_ns, run.wait_ns)
    doubled = threads_run([2 * spent for spent in durations], **how)
    if run.prefetch == how["ahead"]:
        assert replay(run, Change(stage_factors={"read": 2})).wall_ns == doubled.wall_ns


def test_how_far_threads_were_ahead_is_seen_where_they_waited_for_room():
    assert threads_run([10] * 30, n_threads=2, ahead=5, step_ns=50).prefetch == 5
    # Where several are taken at one instant, none of them is known to have made the room.
    run = threads_run([1, 1, 1, 2, 1], n_threads=2, ahead=2, step_ns=0)
    assert run.prefetch == 2
    assert figures(replay(run)) == (run.wall_ns, run.wait_ns) == (3, 3)


def test_a_run_that_nobody_saw_being_made_cannot_be_replayed():
    sketch = SketchedRun({"workers": 0})
    for batch in range(5):
        sketch.wait(batch, 20 * batch, 20 * batch + 5)
    sketch.round(0, 100)
    (run,) = recorded_runs(Run(sketch.data()).of_rank())
    assert (run.rule, run.wait_ns) == (LoaderRule.OPAQUE, 25)
    with pytest.raises(ProfileError, match="does not report which workers make"):
        replay(run)


def test_a_worker_without_spans_is_no_worker_that_takes_no_time():
    durations = [(60, 30, 10)] * 30
    sketch = pool(durations, workers=2, step_ns=15)
    (run,) = recorded_runs(Run(sketch.without(("worker", 1)).data()).of_rank())
    assert run.rule is LoaderRule.OPAQUE
    assert run.reason == "15 of 30 batches were not seen being made"


def test_only_the_first_batches_are_taken_where_so_many_are_enough():
    profile = pool([(60, 30, 10)] * 30, workers=2, step_ns=15).data()
    (run,) = recorded_runs(Run(profile).of_rank(), max_batches=12)
    (whole,) = recorded_runs(Run(profile).of_rank(), max_batches=30)
    assert (len(run), run.is_part, len(whole), whole.is_part) == (12, True, 30, False)
    assert run.wall_ns == replay(run).wall_ns < whole.wall_ns
    assert np.array_equal(run.work_ns, whole.work_ns[:12])


def test_cpus_and_storage_are_caps():
    # Four workers need 100 ns of a CPU for each batch, and read 60 bytes.
    run = run_of({"durations": [(60, 30, 10)] * 100, "workers": 4, "step_ns": 5})
    free = replay(run).judged_ns.sum()
    n = int(run.judged.sum())
    assert replay(run, None, Machine(cores=100.0)).judged_ns.sum() == free
    least = (run.work_ns.sum(axis=1) + run.gap_ns + run.pickup_ns)[run.judged].sum()
    one_cpu = replay(run, Change(workers=8), Machine(cores=1.0)).judged_ns.sum()
    assert one_cpu == pytest.approx(least, abs=n)
    storage = Machine(read_nbytes_per_s=1e9)
    assert replay(run, None, storage).judged_ns.sum() == pytest.approx(60 * n, abs=n)
