"""The 20 invariants of the definition on random schedules; a test's number is the invariant's.

Those that are not here:

6, 11   for threads of one stage each: test_stream_paths.py
12      test_device.py, test_exposure_is_within_its_bounds_and_never_counted_twice
13      pieces of a thread never overlap: test_partition.py; no negative durations:
        tests/recording/test_span_reader.py; losses: test_damaged_runs.py
14      the ring itself: tests/recording/test_full_disk.py
15      of torch's DataLoader: tests/torch/test_known_times.py
16      replay/test_replay_rules.py
17      tests/torch/test_data_loader_same.py
18      test_utilisation.py, test_it_equals_dlio_on_the_same_steps
"""

import msgspec
import numpy as np
from chain_rule import chain_rule
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import reference
from schedules import epochs, exposed, pool
from streams import stream

from iobench.analysis.run import exposure
from iobench.recording.kinds import WORKER_KINDS, Kind
from tests.support.sketched_runs import SketchedRun

# A third of what other tests try, for there are many of these.
few = settings(max_examples=max(settings().max_examples // 3, 12), deadline=None)
times = st.one_of(st.just(0), st.integers(0, 1000))
durations = st.lists(st.tuples(times, times, times), min_size=1, max_size=16)
loaders = st.fixed_dictionaries(
    {
        "workers": st.integers(0, 8),
        "step_ns": st.one_of(st.just(0), st.integers(0, 3000)),
        "prefetch": st.integers(1, 4),
        "handover_ns": st.integers(0, 50),
        "in_order": st.booleans(),
        "drain_ns": st.integers(0, 100),
    }
)
single = st.builds(lambda durations, loader: pool(durations, **loader), durations, loaders)
several = st.builds(
    lambda rounds, loader, pause_ns, persistent: epochs(
        [pool(each, **loader) for each in rounds], pause_ns=pause_ns, persistent=persistent
    ),
    st.lists(
        st.lists(st.tuples(times, times, times), min_size=1, max_size=9), min_size=2, max_size=4
    ),
    loaders,
    st.integers(0, 50),
    st.booleans(),
)
schedules = single | several
pools = schedules.filter(lambda sketch: sketch.config["workers"] > 0)
streams = st.builds(
    lambda batch_size, items, how: stream(
        [items[place % len(items)] for place in range(len(how["steps_ns"]) * batch_size)],
        batch_size=batch_size,
        **how,
    ),
    st.integers(1, 3),
    st.lists(st.tuples(times, times, times), min_size=1, max_size=20),
    st.fixed_dictionaries(
        {
            "steps_ns": st.lists(st.integers(0, 3000), min_size=1, max_size=8),
            "collate_ns": st.integers(0, 50),
            "ahead": st.tuples(*[st.integers(1, 4)] * 3),
            "batches_ahead": st.integers(1, 3),
        }
    ),
)
profiles = schedules.map(SketchedRun.data) | streams


def waits_of(sketch):
    return [span for span in sketch.spans if span["kind"] == Kind.WAIT]


def shares(profile):
    figures = exposure(profile)
    return [figures.whole] + ([figures.steady] if figures.steady else [])


def apart(left, right):
    """Return by how much two sets of exposed times differ, stage by stage."""
    return [abs(left.get(stage, 0) - right.get(stage, 0)) for stage in left | right]


@few
@given(profiles)
def test_1_exposed_times_add_up_to_the_wait(profile):
    waits = profile.spans[profile.spans["kind"] == Kind.WAIT]
    waited = int((waits["end_ns"] - waits["start_ns"]).sum())
    assert exposure(profile).whole.wait_ns == waited
    for window in shares(profile):
        assert sum(window.exposed_ns.values()) == window.wait_ns


@few
@given(profiles)
def test_2_and_3_exposed_and_hidden_make_up_busy(profile):
    for window in shares(profile):
        for row in window.stages:
            assert 0 <= row.exposed_ns <= row.busy_ns
            assert row.hidden_ns + row.exposed_ns == row.busy_ns


@few
@given(schedules)
def test_2_busy_is_all_work_of_the_run(sketch):
    rows = exposure(sketch.data()).whole.stages
    busy = sum(row.busy_ns for row in rows if row.kind in WORKER_KINDS)
    work = sum(s["end_ns"] - s["start_ns"] for s in sketch.spans if s["kind"] in WORKER_KINDS)
    assert busy == work


@few
@given(schedules)
def test_4_wait_and_compute_make_up_the_wall(sketch):
    figures = exposure(sketch.data())
    rounds = [s for s in sketch.spans if s["kind"] == Kind.OTHER]
    assert figures.whole.wall_ns == sum(s["end_ns"] - s["start_ns"] for s in rounds)
    for window in shares(sketch.data()):
        assert window.wait_ns + window.own_ns + window.compute_ns == window.wall_ns
        assert window.compute_ns >= 0
    assert sum(phase.wall_ns for phase in figures.phases) == figures.whole.wall_ns


@few
@given(durations, st.integers(0, 3000))
def test_5_a_serial_loader_hides_nothing(durations, step_ns):
    sketch = pool(durations, workers=0, step_ns=step_ns)
    assert all(row.hidden_ns == 0 for row in exposure(sketch.data()).whole.stages)


@few
@given(st.lists(st.tuples(times, times, times), min_size=10, max_size=16), st.integers(1, 4))
def test_6_what_is_ready_before_it_is_asked_for_is_only_handed_over(durations, workers):
    sketch = pool(durations, workers=workers, step_ns=3001, handover_ns=5)
    steady = exposure(sketch.data()).steady
    assert steady is None or not any(steady.exposed_ns.values())


@few
@given(schedules, st.integers(-(10**15), 10**15))
def test_7_a_shift_of_all_clocks_changes_nothing(sketch, shift):
    moved = sketch.moved(lambda time: time + shift)
    assert exposure(moved.data()) == exposure(sketch.data())


@few
@given(schedules, st.integers(2, 8))
def test_7_longer_durations_lengthen_all_figures_alike(sketch, scale):
    before, after = exposed(sketch.data()), exposed(sketch.moved(scale.__mul__).data())
    n_waits = sum(s["kind"] == Kind.WAIT for s in sketch.spans)
    for stage in before | after:
        apart = abs(after.get(stage, 0) - scale * before.get(stage, 0))
        assert apart <= scale * n_waits


@few
@given(schedules)
def test_8_two_spans_of_a_stage_count_as_one(sketch):
    halves = []
    for span in sketch.spans:
        middle = (span["start_ns"] + span["end_ns"]) // 2
        whole = span["kind"] not in WORKER_KINDS
        halves += [span] if whole else [{**span, "end_ns": middle}, {**span, "start_ns": middle}]
    assert exposed(sketch.with_spans(halves).data()) == exposed(sketch.data())


@few
@given(schedules)
def test_8_two_stages_merged_have_the_sum_of_their_exposures(sketch):
    merged = [
        {**span, "kind": Kind.READ} if span["kind"] == Kind.DECODE else span
        for span in sketch.spans
    ]
    before, after = exposed(sketch.data()), exposed(sketch.with_spans(merged).data())
    before["read"] = before.get("read", 0) + before.pop("decode", 0)
    assert max(apart(before, after), default=0) <= 2 * len(waits_of(sketch))


@few
@given(schedules, st.randoms(use_true_random=False))
def test_9_order_and_numbering_of_files_are_irrelevant(sketch, random):
    data = sketch.data()
    order = [*range(len(data.processes))]
    random.shuffle(order)
    spans = data.spans.copy()
    spans["process"] = np.argsort(order)[spans["process"]]
    spans = spans[np.argsort(spans["process"], kind="stable")]
    processes = tuple(data.processes[place] for place in order)
    shuffled = msgspec.structs.replace(data, processes=processes, spans=spans)
    assert exposure(shuffled) == exposure(data)


@few
@given(st.lists(st.tuples(times, times), min_size=1, max_size=16), loaders)
def test_10_stages_that_last_as_long_in_every_batch_are_exposed_alike(durations, loader):
    sketch = pool([(same, same, other) for same, other in durations], **loader)
    found = exposed(sketch.data())
    assert abs(found.get("read", 0) - found.get("decode", 0)) <= len(waits_of(sketch))


@few
@given(durations, st.integers(1, 8), st.integers(1, 4))
def test_11_with_endless_compute_nothing_is_exposed_after_the_fill(durations, workers, prefetch):
    sketch = pool(durations, workers=workers, prefetch=prefetch, step_ns=10**6, handover_ns=7)
    steady = exposure(sketch.data()).steady
    assert steady is None or not any(steady.exposed_ns.values())


@few
@given(durations, st.integers(1, 4), st.integers(0, 50))
def test_11_without_compute_all_of_one_worker_is_exposed_but_for_the_hand_over(
    durations, prefetch, handover_ns
):
    sketch = pool(
        durations, workers=1, prefetch=prefetch, step_ns=0, handover_ns=handover_ns, drain_ns=0
    )
    whole = exposure(sketch.data()).whole
    hidden = sum(row.hidden_ns for row in whole.stages)
    assert 0 <= hidden <= handover_ns * len(durations)
    assert hidden + whole.wait_ns - whole.exposed_ns.get("handover", 0) - whole.exposed_ns.get(
        "starved_submit", 0
    ) == sum(sum(each) for each in durations)


@few
@given(
    pools.filter(lambda sketch: not any("lane" in s and len(s["lane"]) > 2 for s in sketch.spans))
)
def test_13_a_missing_worker_makes_its_waits_unknown(sketch):
    figures = exposure(sketch.without(("worker", 0)).data())
    waits = [s for s in sketch.spans if s["kind"] == Kind.WAIT and s.get("detail") == "worker-0"]
    assert figures.missing_workers[:1] == ("worker-0",)
    unknown = figures.whole.exposed_ns.get("unknown", 0)
    assert unknown == sum(s["end_ns"] - s["start_ns"] for s in waits)


def test_14_lost_spans_are_counted_and_gaps_beside_them_unknown():
    sketch = SketchedRun(workers=1)
    sketch.processes["worker", 0] = {"lost": 7}
    sketch.submit(0, 0, 0, 0)
    sketch.add(("worker", 0), Kind.READ, 0, 40, batch=0)
    sketch.add(("worker", 0), Kind.DECODE, 60, 100, batch=0)
    sketch.wait(0, 0, 100, "worker-0")
    figures = exposure(sketch.data())
    assert figures.lost_spans == 7
    assert exposed(sketch.data()) == {"read": 40, "decode": 40, "unknown": 20}


@few
@given(pools, st.integers(1, 5))
def test_19_figures_follow_the_ready_instant_without_jumps(sketch, earlier):
    last_batch = max(s["batch"] for s in sketch.spans if s["kind"] == Kind.COLLATE)
    spans = [
        {**s, "end_ns": max(s["start_ns"], s["end_ns"] - earlier)}
        if s["kind"] == Kind.COLLATE and s["batch"] == last_batch
        else s
        for s in sketch.spans
    ]
    before, after = exposed(sketch.data()), exposed(sketch.with_spans(spans).data())
    apart = sum(abs(after.get(stage, 0) - before.get(stage, 0)) for stage in before | after)
    assert apart <= 4 * earlier + 2 * len(before | after)


@given(pools)
def test_20_the_path_rule_equals_the_chain_rule_for_worker_pools(sketch):
    profile = sketch.data()
    chain, path, found = chain_rule(sketch), reference(profile), exposed(profile)
    path.pop("shutdown", None)
    found.pop("shutdown", None)
    assert path == chain
    assert max(apart(found, chain), default=0) <= len(waits_of(sketch))


@given(profiles)
def test_any_run_is_attributed_as_the_definition_says(profile):
    n_waits = int((profile.spans["kind"] == Kind.WAIT).sum())
    assert max(apart(exposed(profile), reference(profile)), default=0) <= n_waits
