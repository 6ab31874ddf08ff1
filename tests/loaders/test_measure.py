"""The measured loop, with a loader and a clock that take known times."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from span_rows import rows_by_kind, rows_of

from iobench.errors import WorkerError
from iobench.loaders.contract import Batch
from iobench.loaders.measure import ROUND_BATCHES, Compute, MeasuredPipeline, measure
from iobench.loaders.ring.order import BatchPlan, plan_batches
from iobench.recording.kinds import Kind
from iobench.recording.process_io import ProcessIo
from iobench.recording.recorder import Recorder
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import Flag
from iobench.testing import FakeClock

LOAD_NS, STEP_NS = 70, 30


class Loader:
    """Takes a fixed time for every batch; notes in what order several are asked."""

    def __init__(self, name, clock, order, *, workers=0, prefetch=0, failing=-1):
        self.name, self.clock, self.order = name, clock, order
        self.workers, self.prefetch, self.failing = workers, prefetch, failing

    def batches(self, plan):
        for planned in plan:
            self.clock.advance(LOAD_NS)
            if planned.batch == self.failing:
                raise WorkerError("worker-0 died")
            self.order.append(self.name)
            worker = planned.batch % self.workers if self.workers else -1
            yield Batch(planned, {"x": np.zeros(3, "<f4")}, worker)


@pytest.fixture
def bench(tmp_path):
    clock, order = FakeClock(start_ns=1000), []

    def make(name="tiny", *, limit=None, steady_limit_ns=None, **loader):
        directory = RunDirectory.create(tmp_path / name, {})
        recorder = Recorder(directory.spans_path, role="consumer", clock=clock)
        run = MeasuredPipeline(
            name, Loader(name, clock, order, **loader), BatchPlan(plan_batches(12, 3), limit=limit),
            recorder, Compute(10, 20, "test"), steady_limit_ns=steady_limit_ns,
        )  # fmt: skip
        return run, directory

    make.order = order
    return make


def test_waits_and_compute_tile_the_round(bench):
    run, directory = bench(limit=5)
    measure([run])
    rows = rows_by_kind(directory)
    (whole,) = rows[Kind.OTHER]
    tiles = rows[Kind.WAIT] + rows[Kind.FORWARD] + rows[Kind.BACKWARD]
    tiles.sort(key=lambda row: (row.start_ns, row.end_ns))
    assert (whole.label, whole.sample) == ("round", 0)
    assert tiles[0].start_ns == whole.start_ns
    assert tiles[-1].end_ns == whole.end_ns
    assert all(a.end_ns == b.start_ns for a, b in pairwise(tiles))


def test_each_wait_says_batch_bytes_and_maker(bench):
    run, directory = bench(limit=3, workers=2, prefetch=2)
    measure([run])
    *waits, last = rows_by_kind(directory)[Kind.WAIT]
    assert [(w.batch, w.nbytes, w.detail) for w in waits] == [
        (0, 12, "worker-0"), (1, 12, "worker-1"), (2, 12, "worker-0"),
    ]  # fmt: skip
    assert {w.end_ns - w.start_ns for w in waits} == {LOAD_NS}
    assert (last.batch, last.label, last.nbytes) == (-1, "shutdown", -1)


def test_several_runs_take_turns(bench):
    (a, of_a), (b, _) = bench("a", limit=60), bench("b", limit=30)
    measure([a, b])
    n = ROUND_BATCHES
    assert bench.order == ["a"] * n + ["b"] * n + ["a"] * n + ["b"] * (30 - n) + ["a"] * (
        60 - 2 * n
    )
    assert (a.n_batches, b.n_batches, a.n_rounds, b.n_rounds) == (60, 30, 3, 2)
    assert [row.sample for row in rows_by_kind(of_a)[Kind.OTHER]] == [0, 1, 2]


def test_what_another_run_reads_is_not_counted(bench, monkeypatch):
    """Both load in this process, whose reads are counted; each batch of theirs reads 100 bytes."""
    monkeypatch.setattr(ProcessIo, "read", lambda self: (100 * len(bench.order), 0))
    runs = dict(zip("ab", (bench("a", limit=60), bench("b", limit=30)), strict=True))
    for run, _ in runs.values():
        run.process_io = ProcessIo()
    measure([run for run, _ in runs.values()])
    for name, (_, directory) in runs.items():
        counted = [
            row.nbytes
            for row in rows_of(directory)
            if (row.flags, row.kind) == (Flag.IO, Kind.READ)
        ]
        assert counted == [100] * bench.order.count(name)


def test_rounds_of_many_workers_are_long_enough_to_be_steady(bench):
    (a, _), (b, _) = bench("a", limit=90, workers=20, prefetch=2), bench("b", limit=1)
    measure([a, b])
    assert bench.order == ["a"] * 80 + ["b"] + ["a"] * 10


def test_a_time_limit_counts_the_steady_state_alone(bench):
    run, _ = bench(steady_limit_ns=10 * (LOAD_NS + STEP_NS), workers=2, prefetch=2)
    measure([run])
    assert run.n_batches == 4 + 10


def test_what_was_recorded_before_an_error_stays(bench):
    run, directory = bench(limit=9, failing=2)
    with pytest.raises(WorkerError):
        measure([run])
    assert [row.batch for row in rows_by_kind(directory)[Kind.WAIT]] == [0, 1]
