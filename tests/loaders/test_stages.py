"""How stages are recorded, with a clock that only the steps move."""

from __future__ import annotations

import numpy as np
import pytest
from span_rows import rows_of
from tiny_pipeline import SPEC

from iobench.chunks.decoded_chunks import count_used
from iobench.loaders.pipeline import Pipeline, Step
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.stage_timer import Detail
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.span_file import Flag
from iobench.testing import FakeClock

READ_NS, DECODE_NS, PLACE_NS = 600, 300, 100


class Bench:
    """A reader over two steps and a place that take a known time each."""

    def __init__(self, run, detail, costs=None):
        self.clock = FakeClock(start_ns=10_000)
        recorder = Recorder(run.spans_path, role="worker", worker=0, clock=self.clock)
        steps = (
            Step(Kind.READ, "", self.step(READ_NS, 7)),
            Step(Kind.DECODE, "tiny", self.step(DECODE_NS, 9)),
        )
        self.failing = -1
        source = PipelineSource(
            Pipeline(SPEC, range(1000), steps), detail=detail,
            unit_costs=costs or {"light_ns": 1, "full_ns": 2},
        )  # fmt: skip
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
    bench = Bench(run, Detail.SAMPLE)
    bench.make(2, 40, 41)
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


def test_what_was_decoded_before_a_batch_is_not_counted_in_it(run):
    bench = Bench(run, Detail.SAMPLE)
    count_used(8, 1)  # by a script that looks at a sample itself
    bench.make(0, 40)
    assert [r.kind for r in rows_of(run)] == [Kind.READ, Kind.DECODE, Kind.COLLATE]


def test_batch_detail_is_one_summed_span_per_stage(run):
    bench = Bench(run, Detail.BATCH)
    bench.make(0, 40, 41)
    shown = [row for row in rows_of(run) if row.flags == Flag.DETAIL]  # one sample in two
    assert {row.sample for row in shown} == {40}
    assert [row.end_ns - row.start_ns for row in shown] == [READ_NS, DECODE_NS, PLACE_NS]
    summed = [row for row in rows_of(run) if row.flags != Flag.DETAIL]
    assert [(r.kind, r.start_ns, r.end_ns, r.nbytes, r.pieces) for r in summed] == [
        (Kind.READ, 10_000, 11_200, 14, 2),
        (Kind.DECODE, 11_200, 11_800, 18, 2),
        (Kind.COLLATE, 11_800, 12_000, 10, 2),
    ]
    assert {(r.flags, r.sample, r.cpu_ns) for r in summed} == {(Flag.SUMMED, -1, -1)}


@pytest.mark.parametrize(
    ("light_ns", "full_ns", "summed", "with_cpu"),
    [(1, 2, False, True), (3, 4, False, False), (4, 9, True, False), (0, 0, False, True)],
)
def test_costs_decide_on_auto(run, light_ns, full_ns, summed, with_cpu):
    # A sample takes 1000 ns: 10 ns may go to its three spans.
    bench = Bench(run, Detail.AUTO, {"light_ns": light_ns, "full_ns": full_ns})
    bench.make(0, 40)
    bench.make(1, 41)
    second = [r for r in rows_of(run) if r.batch == 1 and r.flags != Flag.DETAIL]
    assert {bool(r.flags & Flag.SUMMED) for r in second} == {summed}
    assert {r.cpu_ns >= 0 for r in second} == {with_cpu}


@pytest.mark.parametrize("detail", [Detail.SAMPLE, Detail.BATCH])
def test_the_failed_sample_is_named(run, detail):
    bench = Bench(run, detail)
    bench.failing = 41
    with pytest.raises(ValueError, match="41"):
        bench.make(0, 40, 41, 42)
    assert bench.reader.failed_sample == 41
