"""The 20 invariants of the definition on random runs; a test's number is the invariant's.

Those that are not here: 12 (test_devices.py), 13 and 14 (recording/test_span_reader.py,
recording/test_full_disk.py, test_damaged_runs.py), 15 and 17 (torch/test_data_loader_spans.py,
torch/test_data_loader_same.py), 16 (test_replay.py), 18 (test_utilisation.py), and 20,
which is that of a second implementation by the definition (support/reference.py).
"""

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from drawn_runs import (
    WORKER,
    batches,
    graphs,
    loaders,
    looked,
    pools,
    scripts,
    single,
    streams,
    times,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check
from reference import reference
from schedules import exposed, pool

from iobench.analysis.ledger import TABLES, apportion
from iobench.analysis.partition import leaf_pieces
from iobench.analysis.run import exposure
from iobench.recording.kinds import TASK, WORKER_KINDS, Kind
from tests.support.sketched_runs import SketchedRun

MS = 1_000_000
# A third of what other tests try, for there are many of these.
few = settings(max_examples=max(settings().max_examples // 3, 12), deadline=None)


def n_waits(sketch):
    return sum(span["kind"] == Kind.WAIT for span in sketch.spans)


def spent(sketch, kinds):
    return sum(s["end_ns"] - s["start_ns"] for s in sketch.spans if s["kind"] in kinds)


def apart(left, right):
    """Return by how much two sets of exposed times differ, at most."""
    return max((abs(left.get(each, 0) - right.get(each, 0)) for each in left | right), default=0)


@given(st.one_of(pools, streams, scripts, graphs(), looked))
def test_1_to_4_whatever_the_run_its_parts_add_up(sketch):
    data = sketch.data()
    check(data)
    assert exposure(data).whole.wait_ns == spent(sketch, {Kind.WAIT})


@given(pools | streams)
def test_20_any_run_is_attributed_as_the_definition_says(sketch):
    data = sketch.data()
    assert apart(exposed(data), reference(data)) <= n_waits(sketch)


@few
@given(pools)
def test_2_and_4_busy_is_all_work_and_wall_all_rounds(sketch):
    figures = exposure(sketch.data())
    busy = sum(row.busy_ns for row in figures.whole.stages if row.kind in WORKER_KINDS)
    assert busy == spent(sketch, WORKER_KINDS)
    assert figures.whole.wall_ns == spent(sketch, {Kind.OTHER})
    if not sketch.config["workers"]:  # 5
        assert all(row.hidden_ns == 0 for row in figures.whole.stages)


@given(streams)
def test_every_nanosecond_of_a_stream_goes_to_work(sketch):
    """Threads of the model never idle but for slack: none of it is on a path."""
    assert not exposed(sketch.data()).keys() - {"read", "decode", "preprocess", "collate"}


@given(graphs())
def test_tasks_that_are_waited_for_stand_for_the_thread_that_waits(sketch):
    worked = sum(s["end_ns"] - s["start_ns"] for s in sketch.spans if s.get("detail") == TASK)
    whole = exposure(sketch.data()).whole
    assert worked <= sum(row.busy_ns for row in whole.stages) <= worked + whole.wait_ns


@given(scripts)
def test_rounds_that_overlap_are_one_stretch_of_wall_time(script):
    asked = {span["sample"] for span in script.spans if span["kind"] == Kind.WAIT}
    rounds = [s for s in script.spans if s["kind"] == Kind.OTHER and s["sample"] in asked]
    covered = {instant for span in rounds for instant in range(span["start_ns"], span["end_ns"])}
    figures = exposure(script.data())
    assert (figures.whole.wall_ns, figures.n_rounds) == (len(covered), len(rounds))


@few
@given(st.lists(st.tuples(times, times, times), min_size=10, max_size=16), st.integers(1, 4),
       st.integers(1, 4))  # fmt: skip
def test_6_and_11_what_is_ready_before_it_is_asked_for_is_only_handed_over(
    durations, workers, prefetch
):
    sketch = pool(durations, workers=workers, prefetch=prefetch, step_ns=3001 * 16, handover_ns=5)
    steady = exposure(sketch.data()).steady
    assert steady is None or not any(steady.exposed_ns.values())


@few
@given(batches, st.integers(1, 4), st.integers(0, 50))
def test_11_without_compute_all_of_one_worker_is_exposed_but_for_the_hand_over(
    durations, prefetch, handover_ns
):
    how = {"workers": 1, "prefetch": prefetch, "step_ns": 0, "handover_ns": handover_ns}
    whole = exposure(pool(durations, **how).data()).whole
    hidden = sum(row.hidden_ns for row in whole.stages)
    handed = sum(whole.exposed_ns.get(name, 0) for name in ("handover", "starved_submit"))
    assert 0 <= hidden <= handover_ns * len(durations)
    assert hidden + whole.wait_ns - handed == sum(sum(each) for each in durations)


def shifted(sketch, by):
    return exposure(sketch.moved(lambda time: time + (by - 5) * 10**14).data())


def halved(sketch, by):
    """Each span of work in two."""
    halves = []
    for span in sketch.spans:
        middle = (span["start_ns"] + span["end_ns"]) // 2
        halves += [{**span, "end_ns": middle}, {**span, "start_ns": middle}]
    whole = [span for span in sketch.spans if span["kind"] not in WORKER_KINDS]
    halves = [span for span in halves if span["kind"] in WORKER_KINDS]
    return exposed(sketch.with_spans([*whole, *halves]).data())


def renumbered(sketch, by):
    data = sketch.data()
    order = np.random.default_rng(by).permutation(len(data.processes))
    spans = data.spans.copy()
    spans["process"] = np.argsort(order)[spans["process"]]
    spans = spans[np.argsort(spans["process"], kind="stable")]
    processes = tuple(data.processes[place] for place in order.tolist())
    return exposure(msgspec.structs.replace(data, processes=processes, spans=spans))


@pytest.mark.parametrize("change", [shifted, halved, renumbered], ids=lambda each: each.__name__)
@few
@given(sketch=pools, by=st.integers(0, 9))
def test_7_to_9_what_changes_no_figure(change, sketch, by):
    figures = exposed if change is halved else exposure
    assert change(sketch, by) == figures(sketch.data())


@few
@given(pools, st.integers(2, 8))
def test_7_longer_durations_lengthen_all_figures_alike(sketch, scale):
    before, after = exposed(sketch.data()), exposed(sketch.moved(scale.__mul__).data())
    before = {stage: scale * ns for stage, ns in before.items()}
    assert apart(before, after) <= scale * n_waits(sketch)


@few
@given(pools)
def test_8_two_stages_merged_have_the_sum_of_their_exposures(sketch):
    merged = [
        {**span, "kind": Kind.READ} if span["kind"] == Kind.DECODE else span
        for span in sketch.spans
    ]
    before, after = exposed(sketch.data()), exposed(sketch.with_spans(merged).data())
    before["read"] = before.get("read", 0) + before.pop("decode", 0)
    assert apart(before, after) <= 2 * n_waits(sketch)


@few
@given(batches, loaders)
def test_10_stages_that_last_as_long_in_every_batch_are_exposed_alike(durations, loader):
    made = [(same, same, other) for same, other, _ in durations]
    sketch = pool(made, **{**loader, "in_order": True})  # else some batches are half made
    figures = exposed(sketch.data())
    assert abs(figures.get("read", 0) - figures.get("decode", 0)) <= n_waits(sketch)


@few
@given(single.filter(lambda sketch: sketch.config["workers"] > 0))
def test_13_a_missing_worker_makes_its_waits_unknown(sketch):
    figures = exposure(sketch.without(WORKER).data())
    waits = [s for s in sketch.spans if s["kind"] == Kind.WAIT and s.get("detail") == "worker-0"]
    assert figures.missing_workers[:1] == ("worker-0",)
    unknown = figures.whole.exposed_ns.get("unknown", 0)
    assert unknown == sum(s["end_ns"] - s["start_ns"] for s in waits)


@few
@given(pools.filter(lambda sketch: sketch.config["workers"] > 0), st.integers(1, 5))
def test_19_figures_follow_the_ready_instant_without_jumps(sketch, earlier):
    last_batch = max(s["batch"] for s in sketch.spans if s["kind"] == Kind.COLLATE)
    spans = [
        {**s, "end_ns": max(s["start_ns"], s["end_ns"] - earlier)}
        if s["kind"] == Kind.COLLATE and s["batch"] == last_batch
        else s
        for s in sketch.spans
    ]
    before, after = exposed(sketch.data()), exposed(sketch.with_spans(spans).data())
    total = sum(abs(after.get(stage, 0) - before.get(stage, 0)) for stage in before | after)
    assert total <= 4 * earlier + 2 * len(before | after)


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=8), st.data())
def test_split_waits_add_up_stay_within_a_nanosecond_and_below_their_weight(weights, data):
    amount = data.draw(st.integers(0, sum(weights)))
    parts = apportion(amount, weights)
    assert sum(parts) == amount
    for part, weight in zip(parts, weights, strict=True):
        assert 0 <= part <= weight
        assert abs(part - Fraction(amount * weight, max(sum(weights), 1))) < 1
    assert apportion(10, [6, 5, 6]) == [4, 3, 3]  # the largest remainders are rounded up
    assert apportion(2, [1, 5, 4]) == [0, 1, 1]


@few
@given(pools, st.data())
def test_sums_over_groups_are_those_of_their_deliveries(sketch, data):
    run = sketch.open().of_rank()
    n = len(run.deliveries)
    group = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n)))
    for table in TABLES:
        rows, sums = getattr(run.ledger, table), run.ledger.sum(group, table, 5)
        assert sums.shape == (5, len(run.ledger.stages))
        for number in range(5):
            assert (sums[number] == rows[:-1][group == number].sum(axis=0)).all()
            assert (sums[number] == run.ledger.sum(group == number, table)).all()


@given(
    st.lists(
        st.tuples(
            st.sampled_from([Kind.READ, Kind.DECODE, Kind.OPEN]), st.integers(0, 60),
            st.integers(0, 30), st.integers(0, 2),
        ),
        min_size=1, max_size=25,
    )
)  # fmt: skip
def test_each_instant_of_a_thread_belongs_to_the_span_begun_last(drawn):
    sketch = SketchedRun()
    for kind, start, length, _ in drawn:
        sketch.add(WORKER, kind, start, start + length)
    table, lanes = sketch.data().spans, np.array([each[-1] for each in drawn])
    pieces = leaf_pieces(table, lanes)
    assert (pieces.end_ns >= pieces.start_ns).all()
    assert {*pieces.span.tolist()} == {*range(len(table))}
    assert int(pieces.first.sum()) == len(table)
    for lane in range(3):
        for instant in range(91):
            covering = (table["start_ns"] <= instant) & (instant < table["end_ns"])
            covering &= lanes == lane
            there = (pieces.start_ns <= instant) & (instant < pieces.end_ns) & (pieces.lane == lane)
            assert there.sum() == bool(covering.any())
            if covering.any():
                latest = table["start_ns"][covering].max()
                assert table["start_ns"][pieces.span[there][0]] == latest
