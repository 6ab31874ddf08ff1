"""How finely the making of a batch is recorded, with a clock of the test's own."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

pytest.importorskip("torch", reason="batches of torch's DataLoader need torch")
import torch

from iobench.loaders.stage_timer import Detail
from iobench.recording.activation import activate
from iobench.recording.kinds import Kind
from iobench.recording.outside import OutsideSpan, outside_lane
from iobench.recording.recorder import Recorder
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_span_file
from iobench.recording.stages import stage
from iobench.testing import FakeClock
from iobench.torch.batch_recorder import BatchRecorder, BatchTag

UNIT_COSTS = {"light_ns": 500, "full_ns": 2000}


def outside_span(recorder, kind, label="", *, hiding=True):
    lane = outside_lane(recorder, False)
    return None if lane is None else OutsideSpan(lane, kind, label, False, hiding)


class Columns:
    """A dataset whose three stages take 2, 5 and 3 us of the test's clock."""

    def __init__(self, clock):
        self.clock = clock

    def __getitem__(self, number):
        return self.preprocess(self.decode(self.read(number)))

    def read(self, number):
        self.clock.advance(2000)
        return bytes(8)

    def decode(self, raw):
        self.clock.advance(5000)
        return len(raw)

    def preprocess(self, value):
        self.clock.advance(3000)
        return value


def make(folder, *, n_batches, detail):
    """Return the spans of batches of 100 samples, and whether each batch's calls were timed."""
    clock = FakeClock(1000)
    dataset = Columns(clock)
    plain = Columns.read
    timed = []
    with Recorder(folder, role="worker", clock=clock) as recorder:
        maker = BatchRecorder(recorder, dataset, batches=True, detail=detail, unit_costs=UNIT_COSTS)
        with maker.methods:
            for batch in range(n_batches):
                index = maker.begin(BatchTag(batch, 0, clock.now_ns(), True), list(range(100)))
                timed.append(Columns.read is not plain)
                maker.collate(list, [dataset[number] for number in index])
                maker.finish()
        assert recorder.path is not None
        path = recorder.path
    assert Columns.read is plain
    return read_span_file(path).spans, timed


def test_samples_too_short_to_time_are_timed_in_one_batch_of_many(tmp_path):
    spans, timed = make(tmp_path, n_batches=200, detail=Detail.AUTO)
    # A sample takes 10 us; a timed one costs 4 x (1 + 3) light spans, 80 times its 1 %.
    assert [number for number, each in enumerate(timed) if each] == [0, 1, 81, 161]
    per_batch = spans[spans["kind"] != Kind.COLLATE]
    for batch in range(1, 200):
        rows = per_batch[per_batch["batch"] == batch]
        length = dict(
            zip(rows["kind"].tolist(), (rows["end_ns"] - rows["start_ns"]).tolist(), strict=True)
        )
        assert sum(length.values()) == 1_000_000, "the batch's time is exact"
        estimated = (rows["flags"] & Flag.ESTIMATED) != 0
        assert estimated.any() == estimated.all() == (batch not in (1, 81, 161))
        assert rows["nbytes"][rows["kind"] == Kind.READ].tolist() == [800]
        assert length[Kind.READ] == 200_000
        assert length[Kind.DECODE] == 500_000
        assert length[Kind.PREPROCESS] == 300_000


class Watched:
    """A dataset without stages; a library is seen to take 5 us of its 10, 3 of them to read.

    ``every``: of how many samples it is called for one.
    """

    def __init__(self, clock, every=1):
        self.clock = clock
        self.every = every
        self.recorder: Recorder

    def __getitem__(self, number):
        if number % self.every:
            self.clock.advance(10_000)
            return number
        with outside_span(self.recorder, Kind.DECODE, "some", hiding=False) or nullcontext():
            self.clock.advance(2000)
            if (reading := outside_span(self.recorder, Kind.READ)) is not None:
                with reading:
                    self.clock.advance(3000)
                    reading.nbytes = 40
            else:
                self.clock.advance(3000)
        self.clock.advance(5000)
        return number


def make_watched(folder, every, n_batches):
    """Return the span file of batches of 100 samples that a library takes part in."""
    clock = FakeClock(1000)
    dataset = Watched(clock, every)
    with Recorder(folder, role="worker", clock=clock) as recorder:
        dataset.recorder = recorder
        maker = BatchRecorder(
            recorder, dataset, batches=True, detail=Detail.AUTO, unit_costs=UNIT_COSTS
        )
        for batch in range(n_batches):
            index = list(range(100 * batch, 100 * batch + 100))
            with activate(recorder):
                told = maker.begin(BatchTag(batch, 0, clock.now_ns(), True), index)
                maker.collate(list, [dataset[number] for number in told])
                maker.finish()
        assert recorder.path is not None
        path = recorder.path
    return read_span_file(path)


def test_what_libraries_do_in_batches_not_watched_is_as_in_the_others(tmp_path):
    file = make_watched(tmp_path, 1, 90)
    spans = file.spans[file.spans["kind"] != Kind.COLLATE]
    watched = {batch for batch in range(90) if (spans["batch"] == batch).sum() > 3}
    assert watched < set(range(90))
    for batch in set(range(1, 90)) - watched:
        rows = spans[spans["batch"] == batch]
        assert ((rows["flags"] & Flag.ESTIMATED) != 0).all()
        told = {
            (int(row["kind"]), file.strings[row["label"]] if row["label"] else ""): (
                int(row["end_ns"] - row["start_ns"]), int(row["nbytes"])
            )
            for row in rows
        }  # fmt: skip
        assert told == {
            (Kind.READ, ""): (300_000, 4000),
            (Kind.DECODE, "some"): (200_000, -1),
            (Kind.FUSED, ""): (500_000, -1),
        }
    read = spans[spans["kind"] == Kind.READ]
    assert read["nbytes"].sum() == 90 * 4000


@pytest.mark.parametrize("detail", [Detail.SAMPLE, Detail.BATCH])
def test_what_is_asked_for_is_timed_whatever_it_costs(tmp_path, detail):
    spans, timed = make(tmp_path, n_batches=5, detail=detail)
    assert all(timed)
    assert not (spans["flags"] & Flag.ESTIMATED).any()
    read = spans[spans["kind"] == Kind.READ]
    assert len(read) == (500 if detail is Detail.SAMPLE else 5)
    assert (read["end_ns"] - read["start_ns"]).sum() == 500 * 2000


class Files(torch.utils.data.IterableDataset):
    """Files of six samples: each takes 1 ms to read, and the stage goes on over all of a file."""

    def __init__(self, clock):
        self.clock = clock

    def __iter__(self):
        for _file in range(3):
            with stage("read", nbytes=600), stage("part"):
                for _sample in range(6):
                    self.clock.advance(1_000_000)
                    yield 0


@pytest.mark.parametrize("detail", [Detail.SAMPLE, Detail.BATCH])
def test_a_stage_left_open_across_yield_has_the_time_of_its_stretches(tmp_path, detail):
    clock = FakeClock(1000)
    dataset = Files(clock)
    recorder = Recorder(tmp_path, role="worker", clock=clock)
    with recorder, activate(recorder):
        maker = BatchRecorder(recorder, dataset, batches=True, detail=detail, unit_costs=UNIT_COSTS)
        samples = iter(dataset)
        for batch in range(4):
            index = maker.begin(BatchTag(batch, 0, clock.now_ns(), True), [0] * 4)
            maker.collate(list, [next(samples) for _ in index])
            maker.finish()
            assert maker.lane.quiet == 0, "what the training does is timed as ever"
            clock.advance(5_000_000)  # it trains, or waits for room
        samples.close()
        assert recorder.path is not None
        path = recorder.path
    spans = read_span_file(path).spans
    for kind in (Kind.READ, Kind.PREPROCESS):
        read = spans[spans["kind"] == kind]
        for batch in range(4):
            rows = read[read["batch"] == batch]
            assert (rows["end_ns"] - rows["start_ns"]).sum() == 4_000_000
        assert set(read["batch"].tolist()) == {0, 1, 2, 3}
    assert spans["nbytes"][spans["kind"] == Kind.READ].sum() == 3 * 600
