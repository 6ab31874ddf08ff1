"""Batches recorded as a whole, one in so many in full, with a clock that only readings move."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("torch", reason="batches of torch's DataLoader need torch")
import torch
from torch.utils.data import TensorDataset

import iobench
from iobench.analysis.run import exposure
from iobench.recording import rotation
from iobench.recording.kinds import WHOLE, Kind
from iobench.recording.session import Recording
from iobench.testing import FakeClock
from iobench.torch import DataLoader

SAMPLE_NS = 1000
STEP_NS = 7000


def n_batches_before(run):
    """Return how many of the batches that have details came before those that have none."""
    waits = run.spans[(run.spans["kind"] == Kind.WAIT) & (run.spans["batch"] >= 0)]
    return int((waits["end_ns"] <= run.summed.from_ns).sum())


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


def recorded(folder, clock, *loaders, n_batches=0):
    """Return what a loop over the loaders records; it leaves each after so many batches."""
    with Recording(folder / "run", detail="auto", clock=clock):
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
    spans = profile.spans
    marks = (spans["kind"] == Kind.FUSED) & (spans["label"] == profile.string_number(WHOLE))
    return sorted(spans["batch"][marks].tolist())


def test_waits_of_batches_recorded_as_a_whole_are_exact(tmp_path):
    clock = CountingClock()
    loader = DataLoader(Tiny(clock, 20_000), batch_size=32)
    profile = recorded(tmp_path, clock, loader, loader)
    assert clock.n_reads < 6 * 2 * 625, "four a batch, and some thirty of each recorded in full"
    waits = rows_of(profile, Kind.WAIT)
    assert len(waits) == len(set(waits["batch"].tolist())) == 2 * 625
    lengths = waits["end_ns"] - waits["start_ns"]
    marks = np.isin(waits["batch"], whole_batches(profile))
    assert marks.sum() > 1000
    assert set(lengths[marks].tolist()) == {32 * SAMPLE_NS + 100}, "the clock's own reading"
    assert (waits["start_ns"][1:] > waits["end_ns"][:-1]).all()
    found = exposure(profile)
    assert found.whole.n_batches == 2 * 625
    assert found.whole.n_samples == 2 * 20_000
    assert sum(row.exposed_ns for row in found.whole.stages) == found.whole.wait_ns
    assert found.whole.overhead_fraction is not None
    assert found.whole.overhead_fraction < 0.02


class Reading(Tiny):
    """Every seventh sample is in a stage of the user's own."""

    def __getitem__(self, number):
        if number % 7 == 0:
            with iobench.stage("read", nbytes=8):
                self.clock.advance(SAMPLE_NS)
        return super().__getitem__(number)


def test_stages_in_batches_recorded_as_a_whole_are_in_their_batch(tmp_path):
    clock = CountingClock()
    profile = recorded(tmp_path, clock, DataLoader(Reading(clock, 3_200), batch_size=32))
    reads = rows_of(profile, Kind.READ)
    assert reads["nbytes"].sum() == 8 * 458
    assert reads["batch"].tolist() == [number // 32 for number in range(0, 3_200, 7)]
    assert len(whole_batches(profile)) > 50


@pytest.mark.parametrize("n_batches", [1, 3, 4, 50, 99])
def test_a_pass_that_is_left_has_what_was_delivered(tmp_path, n_batches):
    clock = CountingClock()
    loader = DataLoader(Tiny(clock, 3_200), batch_size=32)
    profile = recorded(tmp_path, clock, loader, loader, n_batches=n_batches)
    assert len(rows_of(profile, Kind.WAIT)) == 2 * n_batches
    assert exposure(profile).n_rounds == 2


def test_other_loaders_asked_meanwhile_keep_their_batches_and_order(tmp_path):
    clock = CountingClock()
    within = DataLoader(Tiny(clock, 64), batch_size=32)
    beside = DataLoader(Tiny(clock, 96), batch_size=32)
    loader = DataLoader(Tiny(clock, 6_400, {3200: lambda: list(within)}), batch_size=32)
    with Recording(tmp_path / "run", detail="auto", clock=clock):
        for number, _ in enumerate(loader):
            if number == 150:
                assert len(list(beside)) == 3
    profile = iobench.open_profile(tmp_path / "run")
    waits = rows_of(profile, Kind.WAIT)
    assert len(waits) == 203, "what a sample asks for is no wait of the loop"
    assert waits["batch"].tolist() == sorted(waits["batch"].tolist())
    found = {each.number: each.n_batches for each in exposure(profile).loaders}
    assert sorted(found.values())[-2:] == [3, 200]


def test_a_pass_goes_on_after_a_sample_that_failed(tmp_path):
    clock = CountingClock()

    def fail():
        raise ValueError("no such sample")

    loader = DataLoader(Tiny(clock, 3_210, {1600: fail}), batch_size=32)
    with Recording(tmp_path / "run", detail="auto", clock=clock):
        batches = iter(loader)
        for _ in range(50):
            next(batches)
        with pytest.raises(ValueError, match="no such sample"):
            next(batches)
        assert len(list(batches)) == 50
    whole = iobench.exposure(iobench.open_profile(tmp_path / "run")).whole
    assert (whole.n_batches, whole.n_samples) == (100, 3_210 - 32)


def test_a_fork_in_the_middle_of_a_pass_goes_on_and_takes_nothing_away(tmp_path):
    clock = CountingClock()
    loader = DataLoader(Tiny(clock, 3_200), batch_size=32)
    with Recording(tmp_path / "run", detail="auto", clock=clock):
        batches = iter(loader)
        for _ in range(50):
            next(batches)
        child = os.fork()
        if not child:
            os._exit(0 if len(list(batches)) == 50 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(batches)) == 50
    assert len(rows_of(iobench.open_profile(tmp_path / "run"), Kind.WAIT)) == 100


def test_a_long_run_keeps_the_first_and_latest_short_batches_and_sums(tmp_path, monkeypatch):
    monkeypatch.setattr(rotation, "LEAST_NBYTES", 0)
    monkeypatch.setenv("IOBENCH_KEEP", "1MB")
    clock = CountingClock()
    profile = recorded(tmp_path, clock, DataLoader(Tiny(clock, 20_000), batch_size=1))
    summed = profile.summed
    assert summed is not None
    n_batches = exposure(profile).whole.n_batches
    assert n_batches > n_batches_before(profile) > 1000
    assert n_batches + summed.n_batches == 20_000
    assert summed.busy_ns["fused:whole batch"] > summed.wait_ns / 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize("persistent", [True, False])
def test_the_loop_and_its_workers_keep_the_same_batches(tmp_path, monkeypatch, persistent):
    monkeypatch.setenv("IOBENCH_KEEP", "8MB")
    loader = DataLoader(
        TensorDataset(torch.arange(20_000)), batch_size=16, num_workers=2,
        persistent_workers=persistent,
    )  # fmt: skip
    with Recording(tmp_path / "run", detail="sample"):
        for _ in range(8):
            for _ in loader:
                pass
    folder = tmp_path / "run" / "spans"
    assert sum(each.stat().st_size for each in folder.iterdir()) < 8_000_000
    profile = iobench.open_profile(tmp_path / "run")
    assert profile.summed is not None
    whole = exposure(profile).whole
    assert whole.n_batches + profile.summed.n_batches == 10_000
    n_before = n_batches_before(profile)
    assert min(n_before, whole.n_batches - n_before) > 500
    spans = profile.spans
    waits = spans["batch"][(spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0)]
    made = np.unique(spans["batch"][spans["kind"] == Kind.COLLATE])
    assert set(waits.tolist()) <= set(made.tolist())
