"""Paths through threads that hand single items on: who is waited for in a stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedules import exposed
from streams import NAMES, stream, stream_sketch

from iobench.analysis.run import exposure
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from tests.support.sketched_runs import CONSUMER

MS = 1_000_000


def steady(durations, step, **how):
    """Return the exposed ms per step of the second half, where the fill is long over."""
    n = len(durations) // how.get("batch_size", 1)
    profile = stream([[ms * MS for ms in item] for item in durations], [step * MS] * n, **how)
    figures = exposure(profile)
    assert sum(figures.whole.exposed_ns.values()) == figures.whole.wait_ns
    window = figures.steady
    return {
        stage: round(ns / MS / window.n_batches, 2)
        for stage, ns in window.exposed_ns.items()
        if ns / MS / window.n_batches >= 0.005
    }


@pytest.mark.parametrize("slow", [0, 1, 2])
@pytest.mark.parametrize("others", [4, 9])
def test_the_slowest_stage_of_three_is_waited_for(slow, others):
    # 5 ms a step: the stage's 10 ms less the 5 ms of computing.
    item = [others] * 3
    item[slow] = 10
    stage = ("read", "decode", "preprocess")[slow]
    assert steady([item] * 200, 5) == {stage: 5.0}


def test_nothing_is_waited_for_where_computing_takes_longer():
    assert steady([[10, 4, 4]] * 200, 11) == {}


def test_a_rare_slow_item_answers_for_its_own_wait():
    # Reading is 2 ms and always held back by decoding; once it takes 100.
    items = [[2, 10, 1] for _ in range(100)]
    items[60] = [100, 10, 1]
    ms = [[MS * part for part in item] for item in items]
    figures = exposure(stream(ms, [12 * MS] * 100))
    spike = max(figures.waits_ns)
    assert spike > 60 * MS
    assert figures.steady.exposed_ns["read"] > 0.85 * spike
    assert figures.steady.exposed_ns.get("worker_gap", 0) == 0


def test_a_stage_held_back_by_the_next_is_late_because_of_it():
    """Reading item 2 waits for room that decoding item 0 makes: what it hangs on is decoding."""
    sketch = stream_sketch(workers=0, prefetch=1)
    for item, start in enumerate((0, 10, 100)):
        sketch.add(CONSUMER, Kind.READ, start, start + 10, batch=item, sample=item, thread=1)
    sketch.add(CONSUMER, Kind.DECODE, 10, 100, batch=0, sample=0, thread=2)
    sketch.add(CONSUMER, Kind.DECODE, 100, 105, batch=1, sample=1, thread=2)
    sketch.add(CONSUMER, Kind.DECODE, 110, 115, batch=2, sample=2, thread=2)
    sketch.add(CONSUMER, Kind.SUBMIT_QUEUE, 100, 100, batch=2, detail="1-stage-0", thread=1)
    sketch.wait(0, 100, 100, "threads")
    sketch.wait(1, 105, 105, "threads")
    sketch.wait(2, 105, 115, "threads")
    # Before decoding 2: reading 2 (10), then decoding 0 (90) and reading 0 (10); 10 of 115 waited.
    assert exposed(sketch.data()) == {"decode": 8, "read": 2}


def test_a_stage_held_back_by_the_training_loop_was_idle_for_lack_of_need():
    sketch = stream_sketch(workers=0, prefetch=1)
    for item, start in enumerate((0, 1000)):
        sketch.add(CONSUMER, Kind.READ, start, start + 10, batch=item, sample=item, thread=1)
    sketch.add(CONSUMER, Kind.SUBMIT_QUEUE, 1000, 1000, batch=1, detail="consumer", thread=1)
    sketch.wait(0, 1000, 1000, "threads")
    sketch.wait(1, 1005, 1010, "threads")
    assert exposed(sketch.data()) == {"read": 5}


def test_a_batch_of_threads_that_left_no_spans_is_unknown():
    sketch = stream_sketch(workers=0, prefetch=1)
    sketch.wait(0, 0, 50, "threads")
    assert exposed(sketch.data()) == {"unknown": 50}


def test_batches_kept_ready_and_one_more_are_the_fill():
    figures = exposure(stream([[3, 1, 1]] * 20, [1] * 20, batches_ahead=4))
    assert [phase.n_deliveries for phase in figures.phases] == [1, 4, 15, 1]
    assert figures.prefetch == 4


times = st.integers(0, 30)


@st.composite
def runs(draw):
    batch_size = draw(st.integers(1, 3))
    n_batches = draw(st.integers(1, 12))
    n_items = n_batches * batch_size
    return {
        "durations": draw(
            st.lists(st.tuples(times, times, times), min_size=n_items, max_size=n_items)
        ),
        "steps_ns": draw(
            st.lists(st.sampled_from([0, 5, 20, 300]), min_size=n_batches, max_size=n_batches)
        ),
        "collate_ns": draw(st.integers(0, 10)),
        "batch_size": batch_size,
        "ahead": draw(st.tuples(*[st.integers(1, 3)] * 3)),
        "batches_ahead": draw(st.integers(1, 3)),
    }


@given(runs())
def test_every_nanosecond_goes_to_work(run):
    """Threads of the model never idle but for slack: none of it is on a path."""
    profile = stream(**run)
    figures = exposure(profile).whole
    assert sum(figures.exposed_ns.values()) == figures.wait_ns
    for row in figures.stages:
        assert 0 <= row.exposed_ns <= row.busy_ns
        assert row.hidden_ns + row.exposed_ns == row.busy_ns
    idle = {stage: ns for stage, ns in figures.exposed_ns.items() if ns}
    assert not idle.keys() - {"read", "decode", "preprocess", "collate"}


def test_a_thread_is_waited_for_up_to_where_it_let_another_one_go_on():
    """Two threads take turns at a costly source; each then decodes while the other one pulls."""
    sketch = stream_sketch(workers=0, prefetch=1)
    for item in range(6):
        mine, other = (item % 2 + 1, 2 - item % 2)
        where = {"batch": item, "sample": item, "thread": mine}
        cause = {"detail": NAMES[other] if item else "consumer"}
        sketch.add(CONSUMER, Kind.SUBMIT_QUEUE, 10 * item, 10 * item, **cause, **where)
        sketch.add(CONSUMER, Kind.READ, 10 * item, 10 * item + 10, **where)
        sketch.add(CONSUMER, Kind.DECODE, 10 * item + 10, 10 * item + 14, **where)
    for item in range(5):
        sketch.wait(item, 10 * item + 14, 10 * item + 14, "threads")
    sketch.wait(5, 55, 64, "threads")
    # Six times reading and the last decoding, one after another: 9 of 64 were waited for.
    assert exposed(sketch.data()) == {"read": 8, "decode": 1}


def test_the_end_of_one_item_is_not_the_begin_of_the_next():
    """Finding that a file has no further part is work of its own, long before the next file."""
    sketch = stream_sketch(workers=0, prefetch=1)
    sketch.add(CONSUMER, Kind.READ, 0, 50, batch=0, sample=0, thread=1)
    sketch.add(CONSUMER, Kind.DECODE, 50, 55, batch=0, sample=0, thread=2)
    nothing = {"flags": Flag.SUMMED, "pieces": 0}
    sketch.add(CONSUMER, Kind.DECODE, 55, 56, batch=1, sample=1, thread=2, **nothing)
    sketch.add(CONSUMER, Kind.READ, 50, 100, batch=1, sample=1, thread=1)
    sketch.add(CONSUMER, Kind.DECODE, 100, 110, batch=1, sample=1, thread=2)
    sketch.wait(0, 0, 55, "threads")
    sketch.wait(1, 60, 110, "threads")
    # All of the first 55; then reading 50 and decoding 10, less the 5 that the first batch's path
    # had beside this reading, share a wait of 50.
    assert exposed(sketch.data()) == {"read": 50 + 45, "decode": 5 + 5}
