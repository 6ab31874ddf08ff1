"""A profile in lanes: nothing left out, nothing overlapping, exposed time as `exposure` has it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from drawn_runs import pools, scripts, streams
from hypothesis import given
from schedules import pool

from iobench.analysis.run import Run, exposure
from iobench.recording.kinds import QUEUED_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag
from iobench.report.timeline.model import Timeline, timeline_of
from tests.support.sketched_runs import CONSUMER, SketchedRun

sys.path.append(str(Path(__file__).parents[1] / "support"))

from many_spans import two_ranks

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

WORKER = ("worker", 0)


def checked(data: RunData) -> Timeline:
    """Return a timeline that was held against its profile and the exposure of its ranks."""
    run = Run(data)
    timeline = timeline_of(run)
    assert np.array_equal(data.spans[timeline.row], timeline.spans)
    assert len(np.unique(timeline.row)) == len(timeline)
    place = np.lexsort((timeline.spans["start_ns"], timeline.lane))
    assert np.array_equal(place, np.arange(len(timeline)))
    assert len({lane.name for lane in timeline.lanes}) == len(timeline.lanes)
    # What adds up to stages: `invariants.check_spans`.
    assert np.array_equal(timeline.exposed_ns, run.sums.exposed_ns[timeline.row])
    waits = (timeline.spans["kind"] == Kind.WAIT) & (timeline.exposed_ns >= 0)
    wait_ns = sum(rank.exposure.whole.wait_ns for rank in run)
    assert int(timeline.exposed_ns[waits].sum()) == wait_ns
    start, end = timeline.spans["start_ns"], timeline.spans["end_ns"]
    for lane in range(len(timeline.lanes)):
        for depth in np.unique(timeline.depth[timeline.lane == lane]):
            rows = np.flatnonzero((timeline.lane == lane) & (timeline.depth == depth))
            assert (start[rows[1:]] >= end[rows[:-1]]).all(), "no two of a depth overlap"
            queued = is_one_of(timeline.spans["kind"][rows], QUEUED_KINDS)
            assert queued.all() or not queued.any(), "queues have rows of their own"
    return timeline


@given(pools | streams | scripts)
def test_any_run(sketch: SketchedRun) -> None:
    timeline = checked(sketch.data())
    if timeline.lanes:
        assert "consumer" in timeline.lanes[0].name


def test_inner_spans_lie_above() -> None:
    sketch = SketchedRun(workers=0)
    for start, end, kind in (
        (0, 100, Kind.FUSED),
        (0, 40, Kind.READ),
        (10, 20, Kind.OPEN),
        (40, 100, Kind.DECODE),
        (100, 110, Kind.COLLATE),
        (100, 100, Kind.VERIFY),
    ):
        sketch.add(CONSUMER, kind, start, end, batch=0)
    timeline = checked(sketch.data())
    kinds = map(Kind, timeline.spans["kind"].tolist())
    assert dict(zip(kinds, timeline.depth.tolist(), strict=True)) == {
        Kind.FUSED: 0, Kind.READ: 1, Kind.OPEN: 2, Kind.DECODE: 1, Kind.COLLATE: 0, Kind.VERIFY: 1,
    }  # fmt: skip


def test_spans_that_overlap_make_no_staircase() -> None:
    sketch = SketchedRun(workers=0)
    for number in range(9):
        sketch.add(CONSUMER, Kind.FORWARD, 10 * number, 10 * number + 15, thread=1)
        sketch.submit(0, number, 10 * number, 10 * number + 25)
        sketch.add(WORKER, Kind.READ, 10 * number, 10 * number + 5, batch=number)
    timeline = checked(sketch.data())
    kinds = (Kind.FORWARD, Kind.READ, Kind.SUBMIT_QUEUE)
    depths = [timeline.depth[timeline.spans["kind"] == kind] for kind in kinds]
    assert [{*each.tolist()} for each in depths] == [{0, 1}, {0}, {1, 2, 3}]


def test_several_ranks_stand_one_below_the_other() -> None:
    assert [lane.name for lane in checked(two_ranks()).lanes] == [
        f"rank {rank} {name}" for rank in (0, 1) for name in ("consumer", "worker-0", "worker-1")
    ]


def test_the_thread_that_waits_comes_first() -> None:
    sketch = SketchedRun(workers=0)
    sketch.add(CONSUMER, Kind.READ, 0, 10, thread=0, batch=0)
    sketch.add(CONSUMER, Kind.WAIT, 0, 12, thread=3, batch=0, detail="threads")
    sketch.add(CONSUMER, Kind.FORWARD, 14, 30, thread=3, flags=Flag.DEVICE | Flag.DETAIL)
    timeline = checked(sketch.data())
    assert [lane.thread for lane in timeline.lanes] == [3, 3, 0]
    assert [lane.is_device for lane in timeline.lanes] == [False, True, False]
    assert timeline.lanes[1].name == f"{timeline.lanes[0].name} device"
    assert timeline.exposed_ns[timeline.spans["kind"] == Kind.FORWARD] == [-1]


def test_sums_are_shown_where_nothing_else_is() -> None:
    """The first batch has spans of samples beside a sum, the second a sum."""
    sketch = SketchedRun(workers=1, prefetch=2, expected_workers=["worker-0"])
    sketch.add(WORKER, Kind.READ, 0, 60, batch=0, flags=Flag.SUMMED, pieces=2)
    for sample in (0, 1):
        start, of = 100 * sample, {"batch": 0, "sample": sample, "flags": Flag.DETAIL}
        sketch.add(WORKER, Kind.READ, start, start + 30, **of)
    sketch.add(WORKER, Kind.READ, 200, 280, batch=1, flags=Flag.SUMMED, pieces=2)
    sketch.add(CONSUMER, Kind.READ, 5, 5, nbytes=9, flags=Flag.IO)
    sketch.wait(0, 0, 130, "worker-0")
    sketch.wait(1, 140, 300, "worker-0")
    timeline = timeline_of(sketch.open())
    flags = timeline.spans["flags"][timeline.spans["kind"] == Kind.READ]
    assert sorted(flags.tolist()) == [Flag.SUMMED, Flag.DETAIL, Flag.DETAIL]
    single = (timeline.spans["flags"] == Flag.DETAIL) & (timeline.spans["batch"] == 0)
    assert timeline.exposed_ns[single].sum() == 60


def test_waits_of_other_threads_are_in_no_figure() -> None:
    sketch = pool([(40, 30, 20)] * 6, workers=1, step_ns=10)
    sketch.config["kind"] = "script"
    sketch.process = {"threads": ("loop", "other")}
    before = exposure(sketch.data()).whole.wait_ns
    sketch.add(CONSUMER, Kind.WAIT, 0, 25, thread=1, batch=0, detail="elsewhere")
    timeline = checked(sketch.data())
    other = (timeline.spans["kind"] == Kind.WAIT) & (timeline.spans["thread"] == 1)
    assert timeline.exposed_ns[other].tolist() == [-1]
    assert exposure(sketch.data()).whole.wait_ns == before


def test_a_run_without_spans() -> None:
    timeline = timeline_of(SketchedRun(workers=0).open())
    assert (len(timeline), timeline.lanes, timeline.stages) == (0, (), ())
    assert (timeline.start_ns, timeline.end_ns) == (0, 0)
