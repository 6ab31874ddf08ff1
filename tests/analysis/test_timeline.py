"""A profile in lanes: nothing left out, nothing overlapping, exposed time as `exposure` has it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from schedules import pool
from streams import stream

from iobench.analysis.run import Run, exposure
from iobench.recording.kinds import QUEUED_KINDS, WAITING_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag
from iobench.report.timeline.model import Timeline, timeline_of
from tests.support.sketched_runs import CONSUMER, SketchedRun

sys.path.append(str(Path(__file__).parents[1] / "support"))

from many_spans import two_ranks

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

times = st.integers(0, 1000)
pools = st.builds(
    pool,
    st.lists(st.tuples(times, times, times), min_size=1, max_size=20),
    workers=st.integers(0, 4),
    step_ns=st.integers(0, 3000),
    prefetch=st.integers(1, 3),
    handover_ns=st.integers(0, 50),
    in_order=st.booleans(),
)


def exposed_by_stage(timeline: Timeline) -> dict[str, tuple[int, int]]:
    """Return the sum over the spans of each stage with known times, and how many these are."""
    known = timeline.exposed_ns >= 0
    return {
        name: (
            int(timeline.exposed_ns[known & (timeline.stage == number)].sum()),
            int((known & (timeline.stage == number)).sum()),
        )
        for number, name in enumerate(timeline.stages)
    }


def check(profile: RunData, ranks: tuple[int, ...] = (0,)) -> Timeline:
    """Hold a timeline against the profile and its exposure."""
    timeline = timeline_of(Run(profile))
    assert np.array_equal(profile.spans[timeline.row], timeline.spans)
    assert len(np.unique(timeline.row)) == len(timeline)
    place = np.lexsort((timeline.spans["start_ns"], timeline.lane))
    assert np.array_equal(place, np.arange(len(timeline)))
    check_depths(timeline)
    found = exposed_by_stage(timeline)
    expected: dict[str, int] = {}
    wait_ns = 0
    for rank in ranks:
        known = exposure(profile, rank=rank)
        whole = known.whole
        for row in whole.stages:
            if row.kind not in WAITING_KINDS and row.kind != Kind.OPAQUE:
                expected[row.stage] = expected.get(row.stage, 0) + row.exposed_ns
        expected["wait"] = expected.get("wait", 0) + sum(known.waits_ns)
        wait_ns += whole.wait_ns
    for stage, expected_ns in expected.items():
        total, n_spans = found.get(stage, (0, 0))
        assert total == expected_ns or not n_spans, stage
    waits = (timeline.spans["kind"] == Kind.WAIT) & (timeline.exposed_ns >= 0)
    assert timeline.exposed_ns[waits].sum() == wait_ns
    return timeline


def check_depths(timeline: Timeline) -> None:
    start, end = timeline.spans["start_ns"], timeline.spans["end_ns"]
    for lane in range(len(timeline.lanes)):
        for depth in np.unique(timeline.depth[timeline.lane == lane]):
            rows = np.flatnonzero((timeline.lane == lane) & (timeline.depth == depth))
            assert (start[rows[1:]] >= end[rows[:-1]]).all(), "no two of a depth overlap"
            queued = is_one_of(timeline.spans["kind"][rows], QUEUED_KINDS)
            assert queued.all() or not queued.any(), "queues have rows of their own"


@given(pools)
def test_worker_pools(sketch: SketchedRun) -> None:
    timeline = check(sketch.data())
    assert timeline.lanes[0].name == "consumer"


@given(
    st.lists(st.tuples(times, times, times), min_size=1, max_size=20),
    st.integers(1, 3),
    st.lists(st.integers(0, 3000), min_size=1, max_size=8),
)
def test_streams_and_their_threads(
    items: list[tuple[int, int, int]], batch_size: int, steps_ns: list[int]
) -> None:
    items = [items[place % len(items)] for place in range(len(steps_ns) * batch_size)]
    profile = stream(
        items,
        batch_size=batch_size,
        steps_ns=steps_ns,
        collate_ns=7,
        ahead=(2, 2, 2),
        batches_ahead=2,
    )
    timeline = check(profile)
    loop = timeline.lanes[0]
    assert (timeline.spans["kind"][timeline.lane == 0] == Kind.WAIT).any()
    assert {lane.process for lane in timeline.lanes} == {loop.process}
    assert len({lane.name for lane in timeline.lanes}) == len(timeline.lanes)


def test_inner_spans_lie_above() -> None:
    sketch = SketchedRun({"workers": 0})
    for start, end, kind in (
        (0, 100, Kind.FUSED),
        (0, 40, Kind.READ),
        (10, 20, Kind.OPEN),
        (40, 100, Kind.DECODE),
        (100, 110, Kind.COLLATE),
        (100, 100, Kind.VERIFY),
    ):
        sketch.add(CONSUMER, kind, start, end, batch=0)
    timeline = timeline_of(Run(sketch.data()))
    kinds = map(Kind, timeline.spans["kind"].tolist())
    depths = dict(zip(kinds, timeline.depth.tolist(), strict=True))
    assert depths == {
        Kind.FUSED: 0, Kind.READ: 1, Kind.OPEN: 2, Kind.DECODE: 1, Kind.COLLATE: 0, Kind.VERIFY: 1,
    }  # fmt: skip


def test_spans_that_overlap_make_no_staircase() -> None:
    sketch = SketchedRun({"workers": 0})
    for number in range(9):
        sketch.add(CONSUMER, Kind.FORWARD, 10 * number, 10 * number + 15, thread=1)
        sketch.submit(0, number, 10 * number, 10 * number + 25)
        sketch.add(("worker", 0), Kind.READ, 10 * number, 10 * number + 5, batch=number)
    timeline = timeline_of(Run(sketch.data()))
    check_depths(timeline)
    depths = [timeline.depth[timeline.spans["kind"] == kind] for kind in (Kind.FORWARD, Kind.READ)]
    assert [set(each.tolist()) for each in depths] == [{0, 1}, {0}]
    queued = timeline.depth[timeline.spans["kind"] == Kind.SUBMIT_QUEUE]
    assert set(queued.tolist()) == {1, 2, 3}


def test_several_ranks_stand_one_below_the_other() -> None:
    timeline = check(two_ranks(), (0, 1))
    assert [lane.name for lane in timeline.lanes] == [
        "rank 0 consumer",
        "rank 0 worker-0",
        "rank 0 worker-1",
        "rank 1 consumer",
        "rank 1 worker-0",
        "rank 1 worker-1",
    ]


def test_the_thread_that_waits_comes_first() -> None:
    sketch = SketchedRun({"workers": 0})
    sketch.add(CONSUMER, Kind.READ, 0, 10, thread=0, batch=0)
    sketch.add(CONSUMER, Kind.WAIT, 0, 12, thread=3, batch=0, detail="threads")
    sketch.add(CONSUMER, Kind.FORWARD, 14, 30, thread=3, flags=Flag.DEVICE | Flag.DETAIL)
    profile = sketch.data()
    timeline = timeline_of(Run(profile))
    assert [lane.thread for lane in timeline.lanes] == [3, 3, 0]
    assert [lane.is_device for lane in timeline.lanes] == [False, True, False]
    assert timeline.lanes[1].name == f"{timeline.lanes[0].name} device"
    assert timeline.exposed_ns[timeline.spans["kind"] == Kind.WAIT] == [12]
    assert timeline.exposed_ns[timeline.spans["kind"] == Kind.FORWARD] == [-1]


def summed_and_single() -> SketchedRun:
    """Return a worker whose first batch has spans of samples beside a sum, the second a sum."""
    sketch = SketchedRun({"workers": 1, "prefetch": 2, "expected_workers": ["worker-0"]})
    worker = ("worker", 0)
    sketch.add(worker, Kind.READ, 0, 60, batch=0, flags=Flag.SUMMED, pieces=2)
    for sample in (0, 1):
        start = 100 * sample
        sketch.add(worker, Kind.READ, start, start + 30, batch=0, sample=sample, flags=Flag.DETAIL)
    sketch.add(worker, Kind.READ, 200, 280, batch=1, flags=Flag.SUMMED, pieces=2)
    sketch.add(CONSUMER, Kind.READ, 5, 5, nbytes=9, flags=Flag.IO)
    sketch.wait(0, 0, 130, "worker-0")
    sketch.wait(1, 140, 300, "worker-0")
    return sketch


def test_sums_are_shown_where_nothing_else_is() -> None:
    timeline = timeline_of(Run(summed_and_single().data()))
    spans = timeline.spans[timeline.spans["kind"] == Kind.READ]
    assert sorted(spans["flags"].tolist()) == [Flag.SUMMED, Flag.DETAIL, Flag.DETAIL]
    single = (timeline.spans["flags"] == Flag.DETAIL) & (timeline.spans["batch"] == 0)
    assert timeline.exposed_ns[single].sum() == 60


def test_waits_of_other_threads_are_in_no_figure() -> None:
    sketch = pool([(40, 30, 20)] * 6, workers=1, step_ns=10)
    sketch.add(CONSUMER, Kind.WAIT, 0, 25, thread=1, batch=0, detail="elsewhere")
    profile = sketch.data()
    profile = replace(
        profile,
        config={**profile.config, "kind": "script"},
        processes=tuple(replace(each, threads=("loop", "other")) for each in profile.processes),
    )
    timeline = timeline_of(Run(profile))
    other = (timeline.spans["kind"] == Kind.WAIT) & (timeline.spans["thread"] == 1)
    assert timeline.exposed_ns[other].tolist() == [-1]
    mine = timeline.exposed_ns[(timeline.spans["kind"] == Kind.WAIT) & ~other]
    assert mine.sum() == exposure(profile).whole.wait_ns
    assert np.array_equal(timeline.exposed_ns, Run(profile).sums.exposed_ns[timeline.row])


def test_a_run_without_spans() -> None:
    profile = SketchedRun({"workers": 0}).data()
    timeline = timeline_of(Run(profile))
    assert (len(timeline), timeline.lanes, timeline.stages) == (0, (), ())
    assert (timeline.start_ns, timeline.end_ns) == (0, 0)
