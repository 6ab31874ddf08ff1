"""How finely batches are recorded, in full or as a whole, with clocks that only readings move."""

from __future__ import annotations

import os
from contextlib import nullcontext

import numpy as np
import pytest

pytest.importorskip("torch", reason="batches of torch's DataLoader need torch")
import torch
from torch.utils.data import TensorDataset

import iobench
from iobench.analysis.run import exposure
from iobench.loaders.stage_timer import Detail
from iobench.recording import rotation
from iobench.recording.activation import activate
from iobench.recording.kinds import WHOLE, Kind
from iobench.recording.outside import OutsideSpan, outside_lane
from iobench.recording.recorder import Recorder
from iobench.recording.session import Recording
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_span_file
from iobench.recording.stages import stage
from iobench.testing import FakeClock
from iobench.torch import DataLoader
from iobench.torch.batch_recorder import BatchRecorder, BatchTag

UNIT_COSTS = {"light_ns": 500, "full_ns": 2000}
EACH_DETAIL = pytest.mark.parametrize("detail", [Detail.SAMPLE, Detail.BATCH])


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


class Watched:
    """A dataset without stages; a library is seen to take 5 us of its 10, 3 of them to read."""

    def __init__(self, clock):
        self.clock = clock
        self.recorder: Recorder

    def __getitem__(self, number):
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


def make(folder, kind, *, n_batches, detail, n_samples=100):
    """Return the span file of batches, and whether each batch's calls were timed."""
    clock = FakeClock(1000)
    dataset, plain, timed = kind(clock), Columns.read, []
    with Recorder(folder, role="worker", clock=clock) as recorder:
        dataset.recorder = recorder
        maker = BatchRecorder(recorder, dataset, batches=True, detail=detail, unit_costs=UNIT_COSTS)
        samples = iter(dataset) if kind is Files else None
        with maker.methods:
            for batch in range(n_batches):
                with activate(recorder):
                    tag = BatchTag(batch, 0, clock.now_ns(), True)
                    index = maker.begin(tag, list(range(n_samples)))
                    timed.append(Columns.read is not plain)
                    taken = (dataset[each] if samples is None else next(samples) for each in index)
                    maker.collate(list, list(taken))
                    maker.finish()
                assert maker.lane.quiet == 0, "what the training does is timed as ever"
                clock.advance(5_000_000)  # it trains, or waits for a place
        if samples is not None:
            samples.close()
        path = recorder.path
    assert Columns.read is plain
    return read_span_file(path), timed


def lengths(rows):
    return (rows["end_ns"] - rows["start_ns"]).tolist()


def test_samples_too_short_to_time_are_timed_in_one_batch_of_many(tmp_path):
    file, timed = make(tmp_path, Columns, n_batches=200, detail=Detail.AUTO)
    # A sample takes 10 us; a timed one costs 4 x (1 + 3) light spans, 80 times its 1 %.
    assert [number for number, each in enumerate(timed) if each] == [0, 1, 81, 161]
    per_batch = file.spans[file.spans["kind"] != Kind.COLLATE]
    for batch in range(1, 200):
        rows = per_batch[per_batch["batch"] == batch]
        length = dict(zip(rows["kind"].tolist(), lengths(rows), strict=True))
        assert sum(length.values()) == 1_000_000, "the batch's time is exact"
        estimated = (rows["flags"] & Flag.ESTIMATED) != 0
        assert estimated.any() == estimated.all() == (batch not in (1, 81, 161))
        assert rows["nbytes"][rows["kind"] == Kind.READ].tolist() == [800]
        stages = (length[kind] for kind in (Kind.READ, Kind.DECODE, Kind.PREPROCESS))
        assert [*stages] == [200_000, 500_000, 300_000]


def test_what_libraries_do_in_batches_not_watched_is_as_in_the_others(tmp_path):
    file, _ = make(tmp_path, Watched, n_batches=90, detail=Detail.AUTO)
    spans = file.spans[file.spans["kind"] != Kind.COLLATE]
    watched = {batch for batch in range(90) if (spans["batch"] == batch).sum() > 3}
    assert watched < set(range(90))
    for batch in set(range(1, 90)) - watched:
        rows = spans[spans["batch"] == batch]
        assert ((rows["flags"] & Flag.ESTIMATED) != 0).all()
        labels = [file.strings[label] if label else "" for label in rows["label"].tolist()]
        kinds, nbytes = rows["kind"].tolist(), rows["nbytes"].tolist()
        assert sorted(zip(kinds, labels, lengths(rows), nbytes, strict=True)) == sorted([
            (Kind.READ, "", 300_000, 4000), (Kind.DECODE, "some", 200_000, -1),
            (Kind.FUSED, "", 500_000, -1),
        ])  # fmt: skip
    assert spans["nbytes"][spans["kind"] == Kind.READ].sum() == 90 * 4000


@EACH_DETAIL
def test_what_is_asked_for_is_timed_whatever_it_costs(tmp_path, detail):
    file, timed = make(tmp_path, Columns, n_batches=5, detail=detail)
    assert all(timed)
    assert not (file.spans["flags"] & Flag.ESTIMATED).any()
    read = file.spans[file.spans["kind"] == Kind.READ]
    assert len(read) == (500 if detail is Detail.SAMPLE else 5)
    assert sum(lengths(read)) == 500 * 2000


@EACH_DETAIL
def test_a_stage_left_open_across_yield_has_the_time_of_its_stretches(tmp_path, detail):
    file, _ = make(tmp_path, Files, n_batches=4, detail=detail, n_samples=4)
    for kind in (Kind.READ, Kind.PREPROCESS):
        read = file.spans[file.spans["kind"] == kind]
        assert set(read["batch"].tolist()) == {0, 1, 2, 3}
        for batch in range(4):
            assert sum(lengths(read[read["batch"] == batch])) == 4_000_000
    assert file.spans["nbytes"][file.spans["kind"] == Kind.READ].sum() == 3 * 600


# ---- batches recorded as a whole, one in so many in full

SAMPLE_NS = 1000
STEP_NS = 7000


class CountingClock(FakeClock):
    """Takes 100 ns to read; counts how often it was."""

    __slots__ = ("n_reads",)

    def __init__(self):
        super().__init__(10**9, step_ns=100)
        self.n_reads = 0

    def now_ns(self):
        self.n_reads += 1
        return super().now_ns()


class Tiny:
    """Samples of a microsecond; of some numbers something else happens."""

    def __init__(self, clock, n_samples, at=None):
        self.clock, self.n_samples, self.at = clock, n_samples, at or {}

    def __len__(self):
        return self.n_samples

    def __getitem__(self, number):
        if number in self.at:
            self.at[number]()
        self.clock.advance(SAMPLE_NS)
        return number


class Reading(Tiny):
    """Every seventh sample is in a stage of the user's own."""

    def __getitem__(self, number):
        if number % 7 == 0:
            with iobench.stage("read", nbytes=8):
                self.clock.advance(SAMPLE_NS)
        return super().__getitem__(number)


@pytest.fixture
def clock():
    return CountingClock()


def recording(folder, clock):
    return Recording(folder / "run", detail="auto", clock=clock)


def recorded(folder, clock, *loaders, n_batches=0):
    """Return what a loop over the loaders records; it leaves each after so many batches."""
    with recording(folder, clock):
        clock.n_reads = 0  # a start measures what spans cost
        for loader in loaders:
            for number, _ in enumerate(loader, 1):
                clock.advance(STEP_NS)
                if number == n_batches:
                    break
    return iobench.open_profile(folder / "run")


def rows_of(profile, kind):
    """Return the spans of a kind that have a batch, in order of time."""
    spans = profile.spans
    rows = spans[(spans["kind"] == kind) & (spans["batch"] >= 0)]
    return rows[np.argsort(rows["start_ns"])]


def whole_batches(profile):
    """Return the batches that were recorded as a whole."""
    fused = rows_of(profile, Kind.FUSED)
    return sorted(fused["batch"][fused["label"] == profile.string_number(WHOLE)].tolist())


def test_waits_of_batches_recorded_as_a_whole_are_exact(tmp_path, clock):
    loader = DataLoader(Tiny(clock, 20_000), batch_size=32)
    profile = recorded(tmp_path, clock, loader, loader)
    assert clock.n_reads < 7 * 2 * 625, "five a batch, and some thirty of each recorded in full"
    waits = rows_of(profile, Kind.WAIT)
    assert len(waits) == len(set(waits["batch"].tolist())) == 2 * 625
    marks = np.isin(waits["batch"], whole_batches(profile))
    assert marks.sum() > 1000
    assert set(lengths(waits[marks])) == {32 * SAMPLE_NS + 100}, "the clock's own reading"
    assert (waits["start_ns"][1:] > waits["end_ns"][:-1]).all()
    whole = exposure(profile).whole
    assert (whole.n_batches, whole.n_samples) == (2 * 625, 2 * 20_000)
    assert sum(row.exposed_ns for row in whole.stages) == whole.wait_ns
    assert whole.overhead_fraction < 0.02


def test_stages_in_batches_recorded_as_a_whole_are_in_their_batch(tmp_path, clock):
    profile = recorded(tmp_path, clock, DataLoader(Reading(clock, 3_200), batch_size=32))
    reads = rows_of(profile, Kind.READ)
    assert reads["nbytes"].sum() == 8 * 458
    assert reads["batch"].tolist() == [number // 32 for number in range(0, 3_200, 7)]
    assert len(whole_batches(profile)) > 50


@pytest.mark.parametrize("n_batches", [1, 3, 4, 50, 99])
def test_a_pass_that_is_left_has_what_was_delivered(tmp_path, clock, n_batches):
    loader = DataLoader(Tiny(clock, 3_200), batch_size=32)
    profile = recorded(tmp_path, clock, loader, loader, n_batches=n_batches)
    assert len(rows_of(profile, Kind.WAIT)) == 2 * n_batches
    assert exposure(profile).n_rounds == 2


def test_other_loaders_asked_meanwhile_keep_their_batches_and_order(tmp_path, clock):
    within = DataLoader(Tiny(clock, 64), batch_size=32)
    beside = DataLoader(Tiny(clock, 96), batch_size=32)
    loader = DataLoader(Tiny(clock, 6_400, {3200: lambda: list(within)}), batch_size=32)
    with recording(tmp_path, clock):
        for number, _ in enumerate(loader):
            if number == 150:
                assert len(list(beside)) == 3
    profile = iobench.open_profile(tmp_path / "run")
    waits = rows_of(profile, Kind.WAIT)
    assert len(waits) == 203, "what a sample asks for is no wait of the loop"
    assert waits["batch"].tolist() == sorted(waits["batch"].tolist())
    assert sorted(each.n_batches for each in exposure(profile).loaders)[-2:] == [3, 200]


def test_a_pass_goes_on_after_a_sample_that_failed_and_in_a_fork(tmp_path, clock):
    def fail():
        raise ValueError("no such sample")

    loader = DataLoader(Tiny(clock, 3_210, {1600: fail}), batch_size=32)
    with recording(tmp_path, clock):
        batches = iter(loader)
        for _ in range(50):
            next(batches)
        with pytest.raises(ValueError, match="no such sample"):
            next(batches)
        child = os.fork()
        if not child:
            os._exit(0 if len(list(batches)) == 50 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(batches)) == 50
    profile = iobench.open_profile(tmp_path / "run")
    whole = iobench.exposure(profile).whole
    assert (whole.n_batches, whole.n_samples) == (100, 3_210 - 32)
    assert len(rows_of(profile, Kind.WAIT)) == 100


@pytest.mark.long
def test_a_long_run_keeps_the_first_and_latest_short_batches_and_sums(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(rotation, "LEAST_NBYTES", 0)
    monkeypatch.setenv("IOBENCH_KEEP", "1MB")
    profile = recorded(tmp_path, clock, DataLoader(Tiny(clock, 20_000), batch_size=1))
    n_batches = exposure(profile).whole.n_batches
    assert n_batches > n_batches_before(profile) > 1000
    assert n_batches + profile.summed.n_batches == 20_000
    assert profile.summed.busy_ns["fused:whole batch"] > profile.summed.wait_ns / 2


def n_batches_before(run):
    """Return how many of the batches that have details came before those that have none."""
    return int((rows_of(run, Kind.WAIT)["end_ns"] <= run.summed.from_ns).sum())


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("persistent", [False, True])
def test_the_loop_and_its_workers_keep_the_same_batches(tmp_path, monkeypatch, persistent):
    monkeypatch.setattr(rotation, "LEAST_NBYTES", 0)
    monkeypatch.setenv("IOBENCH_KEEP", "2MB")
    loader = DataLoader(
        TensorDataset(torch.arange(4_800)), batch_size=16, num_workers=2,
        persistent_workers=persistent,
    )  # fmt: skip
    with Recording(tmp_path / "run", detail="sample"):
        for _ in range(8):
            for _ in loader:
                pass
    folder = tmp_path / "run" / "spans"
    assert sum(each.stat().st_size for each in folder.iterdir()) < 2_500_000  # and heads of files
    profile = iobench.open_profile(tmp_path / "run")
    n_batches = exposure(profile).whole.n_batches
    assert n_batches + profile.summed.n_batches == 2400
    assert min(n_batches_before(profile), n_batches - n_batches_before(profile)) > 50
    made = rows_of(profile, Kind.COLLATE)["batch"].tolist()
    assert {*rows_of(profile, Kind.WAIT)["batch"].tolist()} <= {*made}
