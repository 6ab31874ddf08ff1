"""The measured loop, what it takes batches from, and how their stages are recorded."""

from __future__ import annotations

import itertools
from types import MappingProxyType

import numpy as np
import pytest
from span_rows import rows_by_kind, rows_of
from tiny_pipeline import SPEC

from iobench.chunks.decoded_chunks import count_used
from iobench.datasets.contract import PublishedStep, SamplePasses
from iobench.errors import OptionError, SampleError, WorkerError
from iobench.loaders.contract import Batch, PlannedBatch
from iobench.loaders.measure import (
    ROUND_BATCHES,
    Compute,
    MeasuredPipeline,
    measure,
    parse_compute,
)
from iobench.loaders.pipeline import Pipeline, Step
from iobench.loaders.planned_loaders import IterableLoader
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.order import BatchPlan, plan_batches
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.recording.kinds import Kind
from iobench.recording.process_io import ProcessIo
from iobench.recording.recorder import Recorder
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import Flag
from iobench.samples import SampleSpec, SharedBytes, Variable, handed_on_nbytes
from iobench.testing import FakeClock

LOAD_NS, STEP_NS = 70, 30
PUBLISHED = PublishedStep(5_000_000, 15_000_000, batch_size=2, source="D2.3", sample_nbytes=100)


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

    def after_round(self):
        pass


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
    assert (tiles[0].start_ns, tiles[-1].end_ns) == (whole.start_ns, whole.end_ns)
    assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(tiles))


def test_each_wait_says_batch_bytes_and_maker(bench):
    run, directory = bench(limit=3, workers=2, prefetch=2)
    measure([run])
    *waits, last = rows_by_kind(directory)[Kind.WAIT]
    assert [(w.batch, w.nbytes, w.detail) for w in waits] == [
        (0, 12, "worker-0"), (1, 12, "worker-1"), (2, 12, "worker-0"),
    ]  # fmt: skip
    assert {w.end_ns - w.start_ns for w in waits} == {LOAD_NS}
    assert (last.batch, last.label, last.nbytes) == (-1, "shutdown", -1)


def test_several_runs_take_turns_and_count_no_reads_of_each_other(bench, monkeypatch):
    """Both load in this process, whose reads are counted; each batch of theirs reads 100 bytes."""
    monkeypatch.setattr(ProcessIo, "read", lambda self: (100 * len(bench.order), 0))
    (a, of_a), (b, of_b) = bench("a", limit=60), bench("b", limit=30)
    a.process_io, b.process_io = ProcessIo(), ProcessIo()
    measure([a, b])
    n = ROUND_BATCHES
    turns = ["a"] * n + ["b"] * n + ["a"] * n + ["b"] * (30 - n) + ["a"] * (60 - 2 * n)
    assert bench.order == turns
    assert (a.n_batches, b.n_batches, a.n_rounds, b.n_rounds) == (60, 30, 3, 2)
    assert [row.sample for row in rows_by_kind(of_a)[Kind.OTHER]] == [0, 1, 2]
    for directory, n_batches in ((of_a, 60), (of_b, 30)):
        rows = rows_of(directory)
        reads = [r.nbytes for r in rows if (r.flags, r.kind) == (Flag.IO, Kind.READ)]
        assert reads == [100] * n_batches


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


# -- the emulated compute stage --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", Compute(0, 0, "none")),
        ("25ms", Compute(25_000_000, 0, "--compute 25ms")),
        ("1.5ms", Compute(1_500_000, 0, "--compute 1.5ms")),
        ("10us", Compute(10_000, 0, "--compute 10us")),
        ("2s", Compute(2_000_000_000, 0, "--compute 2s")),
        ("cpu:30ms", Compute(30_000_000, 0, "--compute cpu:30ms", burns=True)),
        *((text, None) for text in ("", "25", "ms", "-1ms", "25 ms", "fast", "1e3ms", "9999999s")),
    ],
)
def test_a_time_may_be_given(text, expected):
    if expected is None:
        with pytest.raises(OptionError, match="25ms"):
            parse_compute(text, PUBLISHED, batch_size=2, sample_nbytes=100)
    else:
        assert parse_compute(text, PUBLISHED, batch_size=2, sample_nbytes=100) == expected


def test_published_is_scaled_with_batch_and_bytes_and_spread_over_batches():
    compute = parse_compute("published", PUBLISHED, batch_size=4, sample_nbytes=50)
    assert (compute.forward_ns, compute.backward_ns) == (5_000_000, 15_000_000)
    assert "sample" in compute.source
    assert "batch 2 to 4" in compute.source
    step = PublishedStep(60_000_000, 0, batch_size=2, source="a WGAN", batches_per_step=6)
    spread = parse_compute("published", step, batch_size=2, sample_nbytes=100)
    assert spread == Compute(10_000_000, 0, "a WGAN", 6)


@pytest.mark.parametrize(("spent_ns", "step_ns"), [(3, 30), (15, 30), (40, 40)])
def test_what_the_host_does_meanwhile_makes_only_what_exceeds_the_step_longer(
    run, spent_ns, step_ns
):
    clock = FakeClock(start_ns=1000)
    with Recorder(run.spans_path, role="consumer", clock=clock) as recorder:
        clock.advance(spent_ns)
        batch = Batch(PlannedBatch(0, 0, ()), {}, -1)
        Compute(10, 20, "test").run(recorder, batch, since_ns=1000)
    assert clock.now_ns() == 1000 + step_ns


# -- stages, and the bytes they hand on ------------------------------------------------------------

READ_NS, DECODE_NS, PLACE_NS = 600, 300, 100


class Stages:
    """A reader over two steps and a place that take a known time each."""

    def __init__(self, run, light_ns=1, full_ns=2):
        self.clock = FakeClock(start_ns=10_000)
        recorder = Recorder(run.spans_path, role="worker", worker=0, clock=self.clock)
        steps = (
            Step(Kind.READ, "", self.step(READ_NS, 7)),
            Step(Kind.DECODE, "tiny", self.step(DECODE_NS, 9)),
        )
        self.failing = -1
        costs = {"light_ns": light_ns, "full_ns": full_ns}
        source = PipelineSource(Pipeline(SPEC, range(1000), steps), unit_costs=costs)
        self.reader = source.filler()
        self.reader._place = self.place
        self.log = BatchLog(recorder)

    def step(self, ns, nbytes):
        def run(value, where=None):
            self.clock.advance(ns, cpu_ns=ns // 10)
            if value == self.failing:
                raise ValueError(value)
            return [bytes(nbytes)]

        return run

    def place(self, *_):
        self.clock.advance(PLACE_NS, cpu_ns=PLACE_NS)
        return 5

    def make(self, batch, *samples):
        self.log.begin(batch, 3)
        self.reader.fill(np.array(samples), {}, self.log)


def test_sample_spans_are_exact(run):
    count_used(8, 1)  # by a script that looks at a sample itself, before the batch
    stages = Stages(run)
    stages.make(2, 40, 41)
    rows = [(r.kind, r.start_ns, r.end_ns, r.nbytes, r.cpu_ns, r.sample) for r in rows_of(run)]
    assert rows == [
        (Kind.READ, 10_000, 10_600, 7, 60, 40),
        (Kind.DECODE, 10_600, 10_900, 9, 30, 40),
        (Kind.COLLATE, 10_900, 11_000, 5, 100, 40),
        (Kind.READ, 11_000, 11_600, 7, 60, 41),
        (Kind.DECODE, 11_600, 11_900, 9, 30, 41),
        (Kind.COLLATE, 11_900, 12_000, 5, 100, 41),
    ]
    assert {(r.batch, r.epoch, r.flags, r.pieces) for r in rows_of(run)} == {(2, 3, 0, 1)}
    assert [r.label for r in rows_of(run)] == ["", "tiny", ""] * 2


def test_of_dear_spans_there_is_one_summed_per_stage_of_a_batch(run):
    stages = Stages(run, light_ns=4)
    stages.make(0, 44)
    stages.make(1, 48, 41)
    rows = [row for row in rows_of(run) if row.batch == 1]
    shown = [row for row in rows if row.flags == Flag.DETAIL]  # one sample in two
    assert {row.sample for row in shown} == {48}
    assert [row.end_ns - row.start_ns for row in shown] == [READ_NS, DECODE_NS, PLACE_NS]
    summed = [row for row in rows if row.flags != Flag.DETAIL]
    assert [(r.kind, r.start_ns, r.end_ns, r.nbytes, r.pieces) for r in summed] == [
        (Kind.READ, 11_000, 12_200, 14, 2),
        (Kind.DECODE, 12_200, 12_800, 18, 2),
        (Kind.COLLATE, 12_800, 13_000, 10, 2),
    ]
    assert {(r.flags, r.sample, r.cpu_ns) for r in summed} == {(Flag.SUMMED, -1, -1)}


@pytest.mark.parametrize(
    ("light_ns", "full_ns", "summed", "with_cpu"),
    [(1, 2, False, True), (3, 4, False, False), (4, 9, True, False), (0, 0, False, True)],
)
def test_costs_decide(run, light_ns, full_ns, summed, with_cpu):
    # A sample takes 1000 ns: 10 ns may go to its three spans.
    stages = Stages(run, light_ns, full_ns)
    stages.make(0, 40)
    stages.make(1, 41)
    second = [r for r in rows_of(run) if r.batch == 1 and r.flags != Flag.DETAIL]
    assert {bool(r.flags & Flag.SUMMED) for r in second} == {summed}
    assert {r.cpu_ns >= 0 for r in second} == {with_cpu}


def test_the_failed_sample_is_named(run):
    stages = Stages(run)
    stages.failing = 41
    with pytest.raises(ValueError, match="41"):
        stages.make(0, 40, 41, 42)
    assert stages.reader.failed_sample == 41


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        ([b"abc", memoryview(bytes(5)), bytearray(2)], 10),
        ({"x": np.zeros(3, "<f4")}, 12),
        (MappingProxyType({"x": np.zeros(3, "<f4")}), 12),
        (np.zeros((2, 2), "<f8"), 32),
        ({"x": np.float32(1)}, 4),
        (b"abcd", 4),
        ([], 0),
        ([SharedBytes([memoryview(b"abc")]), {"x": SharedBytes([])}], 3),
        ([b"a", "text"], -1),
        (object(), -1),
    ],
)
def test_bytes_are_counted_or_unknown(value, nbytes):
    assert handed_on_nbytes(value) == nbytes


# -- what can only be iterated over: batches in its order, each one stage --------------------------

X = SampleSpec((Variable("x", (2,), "<f4", ("x",)),))


def sample(number):
    return {"x": np.full(2, number, dtype=np.float32)}


def batch(*numbers):
    return {"x": np.stack([sample(number)["x"] for number in numbers])}


def loaded(run, n_batches, items, *how, **more):
    """Return the first numbers of the samples of each batch of two."""
    with (
        run.recorder(role="consumer") as recorder,
        IterableLoader(SamplePasses(X, items, *how, **more), 2, recorder=recorder) as loader,
    ):
        plan = itertools.islice(plan_batches(5, 2), n_batches)
        return [each.arrays["x"][:, 0].tolist() for each in loader.batches(plan)]


def test_samples_are_stacked_across_passes(run):
    def items(epoch):
        return (sample(10 * epoch + number) for number in range(3))

    assert loaded(run, 4, items, 3) == [[0, 1], [2, 10], [11, 12], [20, 21]]
    rows = rows_by_kind(run)[Kind.FUSED]
    assert [(r.batch, r.epoch, r.nbytes) for r in rows] == [
        (0, 0, 16), (1, 1, 16), (2, 1, 16), (3, 2, 16),
    ]  # fmt: skip
    assert {row.label for row in rows} == {"read+decode+preprocess+collate"}


def test_batches_are_handed_on_as_they_are(run):
    made = loaded(run, 5, lambda epoch: [batch(0, 1), batch(epoch)], 3, batched=True)
    assert made == [[0, 1], [0], [0, 1], [1], [0, 1]]
    assert len(rows_by_kind(run)[Kind.FUSED]) == 5


def raises(epoch):
    yield sample(0)
    raise KeyError("no such field\nand more")


def has_ended(epoch):
    raise SampleError("its own words")


@pytest.mark.parametrize(
    ("items", "how", "error", "message"),
    [
        (raises, (3,), WorkerError, r"batch 0, pass 0: KeyError: 'no such field"),
        (has_ended, (3,), SampleError, "^its own words$"),
        (lambda _: [sample(0)], (3,), WorkerError, r"pass 0 has 1 samples, expected 3"),
        (lambda _: [], (0,), WorkerError, r"pass 0 has 0 samples, expected more"),
        (lambda _: [{"x": np.zeros(3)}] * 3, (3,), SampleError, r"batch 0: .*'x'"),
        (lambda _: [batch(1, 2, 3)], (3, True), SampleError, "expected arrays of 1 to 2 samples"),
    ],
)
def test_what_is_wrong_is_named(run, items, how, error, message):
    with pytest.raises(error, match=message):
        loaded(run, 2, items, *how)


def test_a_pass_that_is_left_is_closed(run):
    closed = []

    def items(epoch):
        try:
            while True:
                yield sample(epoch)
        finally:
            closed.append(epoch)

    assert loaded(run, 2, items) == [[0, 0], [0, 0]]
    assert closed == [0]
