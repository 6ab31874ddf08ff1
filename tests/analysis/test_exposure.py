"""The invariants of the definition (section 8) on random schedules; numbers are theirs."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from path_rule import path_rule
from schedules import CONSUMER, Sketch, exposed, pool

from iobench.recording import WORKER_KINDS, Kind

times = st.integers(0, 1000)
schedules = st.builds(
    pool,
    st.lists(st.tuples(times, times, times), min_size=1, max_size=30),
    workers=st.integers(0, 8),
    step_ns=st.integers(0, 3000),
    prefetch=st.integers(1, 4),
    handover_ns=st.integers(0, 50),
    in_order=st.booleans(),
    drain_ns=st.integers(0, 100),
)
pools = schedules.filter(lambda sketch: sketch.config["workers"] > 0)


def windows(sketch):
    figures = sketch.profile().exposure()
    return [figures.whole] + ([figures.steady] if figures.steady else [])


@given(schedules)
def test_1_exposed_times_add_up_to_the_wait(sketch):
    waited = sum(s["end_ns"] - s["start_ns"] for s in sketch.spans if s["kind"] == Kind.WAIT)
    assert sketch.profile().exposure().whole.wait_ns == waited
    for window in windows(sketch):
        assert sum(window.exposed_ns.values()) == window.wait_ns


@given(schedules)
def test_2_and_3_exposed_and_hidden_make_up_busy(sketch):
    for window in windows(sketch):
        for row in window.stages:
            assert 0 <= row.exposed_ns <= row.busy_ns
            assert row.hidden_ns + row.exposed_ns == row.busy_ns


@given(schedules)
def test_busy_is_all_work_of_the_run(sketch):
    rows = sketch.profile().exposure().whole.stages
    busy = sum(row.busy_ns for row in rows if row.kind in WORKER_KINDS)
    work = sum(s["end_ns"] - s["start_ns"] for s in sketch.spans if s["kind"] in WORKER_KINDS)
    assert busy == work


@given(schedules)
def test_4_wait_and_compute_make_up_the_wall(sketch):
    figures = sketch.profile().exposure()
    rounds = [s for s in sketch.spans if s["kind"] == Kind.OTHER]
    assert figures.whole.wall_ns == sum(s["end_ns"] - s["start_ns"] for s in rounds)
    for window in windows(sketch):
        assert window.wait_ns + window.compute_ns == window.wall_ns
        assert window.compute_ns >= 0
    assert sum(phase.wall_ns for phase in figures.phases) == figures.whole.wall_ns


@given(schedules.filter(lambda sketch: not sketch.config["workers"]))
def test_5_a_serial_loader_hides_nothing(sketch):
    assert all(row.hidden_ns == 0 for row in sketch.profile().exposure().whole.stages)


@given(st.lists(st.tuples(times, times, times), min_size=10, max_size=30), st.integers(1, 4))
def test_6_what_is_ready_before_it_is_asked_for_is_only_handed_over(durations, workers):
    sketch = pool(durations, workers=workers, step_ns=3001, handover_ns=5)
    steady = sketch.profile().exposure().steady
    assert steady is None or not any(steady.exposed_ns.values())


@given(schedules, st.integers(-(10**15), 10**15))
def test_7_a_shift_of_all_clocks_changes_nothing(sketch, shift):
    moved = sketch.moved(lambda time: time + shift)
    assert moved.profile().exposure() == sketch.profile().exposure()


@given(schedules, st.integers(2, 8))
def test_7_longer_durations_lengthen_all_figures_alike(sketch, scale):
    before, after = exposed(sketch.profile()), exposed(sketch.moved(scale.__mul__).profile())
    n_waits = sum(s["kind"] == Kind.WAIT for s in sketch.spans)
    for stage in before | after:
        apart = abs(after.get(stage, 0) - scale * before.get(stage, 0))
        assert apart <= scale * n_waits


@given(schedules)
def test_8_two_spans_of_a_stage_count_as_one(sketch):
    halves = []
    for span in sketch.spans:
        middle = (span["start_ns"] + span["end_ns"]) // 2
        whole = span["kind"] not in WORKER_KINDS
        halves += [span] if whole else [{**span, "end_ns": middle}, {**span, "start_ns": middle}]
    assert exposed(replace(sketch, spans=halves).profile()) == exposed(sketch.profile())


@given(schedules, st.randoms(use_true_random=False))
def test_9_order_and_numbering_of_files_are_irrelevant(sketch, random):
    lanes = sorted({span["lane"] for span in sketch.spans})
    random.shuffle(lanes)
    assert sketch.profile(lanes).exposure() == sketch.profile().exposure()


@given(pools)
def test_13_a_missing_worker_makes_its_waits_unknown(sketch):
    figures = sketch.without(("worker", 0)).profile().exposure()
    waits = [s for s in sketch.spans if s["kind"] == Kind.WAIT and s.get("detail") == "worker-0"]
    assert figures.missing_workers[:1] == ("worker-0",)
    unknown = figures.whole.exposed_ns.get("unknown", 0)
    assert unknown == sum(s["end_ns"] - s["start_ns"] for s in waits)


def test_14_lost_spans_are_counted_and_gaps_beside_them_unknown():
    sketch = Sketch({"workers": 1}, lost={("worker", 0): 7})
    sketch.submit(0, 0, 0, 0)
    sketch.add(("worker", 0), Kind.READ, 0, 40, batch=0)
    sketch.add(("worker", 0), Kind.DECODE, 60, 100, batch=0)
    sketch.wait(0, 0, 100, "worker-0")
    figures = sketch.profile().exposure()
    assert figures.lost_spans == 7
    assert exposed(sketch.profile()) == {"read": 40, "decode": 40, "unknown": 20}


@given(pools, st.integers(1, 5))
def test_19_figures_follow_the_ready_instant_without_jumps(sketch, earlier):
    last_batch = max(s["batch"] for s in sketch.spans if s["kind"] == Kind.COLLATE)
    spans = [
        {**s, "end_ns": max(s["start_ns"], s["end_ns"] - earlier)}
        if s["kind"] == Kind.COLLATE and s["batch"] == last_batch
        else s
        for s in sketch.spans
    ]
    before, after = exposed(sketch.profile()), exposed(replace(sketch, spans=spans).profile())
    apart = sum(abs(after.get(stage, 0) - before.get(stage, 0)) for stage in before | after)
    assert apart <= 4 * earlier + 2 * len(before | after)


@settings(max_examples=200)
@given(pools)
def test_20_the_chain_of_batches_is_the_path_of_spans(sketch):
    expected, found = path_rule(sketch), exposed(sketch.profile())
    found.pop("shutdown", None)
    n_waits = sum(s["kind"] == Kind.WAIT for s in sketch.spans)
    for stage in expected | found:
        assert abs(found.get(stage, 0) - expected.get(stage, 0)) <= n_waits


def test_an_instant_more_of_readiness_moves_an_instant_of_blame():
    def blamed(ready):
        sketch = Sketch({"workers": 1})
        sketch.submit(0, 0, 0, 0)
        sketch.add(("worker", 0), Kind.READ, 0, ready, batch=0)
        sketch.wait(0, 1000, 1100, "worker-0")
        return exposed(sketch.profile()).get("read", 0)

    assert [blamed(ready) for ready in (998, 1000, 1001, 1002, 1100)] == [0, 0, 1, 2, 100]


@pytest.mark.parametrize("workers", [0, 2])
def test_no_compute_is_all_wait(workers):
    whole = pool([[5, 3, 1]] * 10, workers=workers, step_ns=0).profile().exposure().whole
    assert (whole.compute_ns, whole.accelerator_utilisation) == (0, 0.0)


def test_nothing_delivered():
    figures = Sketch({"workers": 2, "expected_workers": ["worker-0"]}).profile().exposure()
    assert (figures.whole.wall_ns, figures.whole.wait, figures.steady) == (0, None, None)
    assert figures.missing_workers == ("worker-0",)


def test_one_batch_has_no_steady_state():
    figures = pool([[5, 3, 1]], workers=1, step_ns=4).profile().exposure()
    assert figures.steady is None
    assert figures.whole.exposed_ns == {"read": 5, "decode": 3, "collate": 1}
    assert [phase.n_deliveries for phase in figures.phases] == [1, 0, 0, 1]


def test_several_rounds_each_with_their_own_fill_and_nothing_between():
    sketch = Sketch({"workers": 0, "prefetch": 0})
    for number, start in enumerate((0, 10_000)):
        sketch.round(start, start + 100, number)
        for step in range(3):
            begin = start + 30 * step
            sketch.add(CONSUMER, Kind.READ, begin, begin + 20, batch=3 * number + step)
            sketch.wait(3 * number + step, begin, begin + 20, "consumer")
    figures = sketch.profile().exposure()
    assert (figures.n_rounds, figures.whole.wall_ns, figures.whole.wait_ns) == (2, 200, 120)
    assert (figures.steady.n_batches, figures.steady.wall_ns) == (4, 140)


def test_a_killed_round_ends_with_its_last_span():
    sketch = pool([[5, 3, 1]] * 4, workers=1, step_ns=50)
    spans = [s for s in sketch.spans if s["kind"] != Kind.OTHER and s.get("label") != "shutdown"]
    killed = replace(sketch, spans=spans)
    killed.add(CONSUMER, Kind.FORWARD, 159, 180)
    figures = killed.profile().exposure()
    assert (figures.n_unfinished_rounds, figures.whole.wall_ns) == (1, 180)
