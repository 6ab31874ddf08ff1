"""Batches recorded as a whole, one in so many in full, with a clock that only readings move."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

pytest.importorskip("torch", reason="batches of torch's DataLoader need torch")
import torch
from torch.utils.data import BatchSampler, SequentialSampler, TensorDataset

import iobench
from iobench.analysis.run import Run, exposure
from iobench.recording import rotation
from iobench.recording.kinds import WHOLE, Kind
from iobench.recording.session import Recording
from iobench.recording.span_file import Flag
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from iobench.testing import FakeClock
from iobench.torch import DataLoader

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

SAMPLE_NS = 1000
STEP_NS = 7000


class CountingClock(FakeClock):
    """Takes 100 ns to read; counts how often it was."""

    __slots__ = ("n_reads",)

    def __init__(self) -> None:
        super().__init__(10**9, step_ns=100)
        self.n_reads = 0

    def now_ns(self) -> int:
        self.n_reads += 1
        return super().now_ns()


class Tiny:
    """Samples of a microsecond; of some numbers something else happens."""

    def __init__(self, clock: FakeClock, n_samples: int, at: dict[int, Any] | None = None) -> None:
        self.clock, self.n_samples, self.at = clock, n_samples, at or {}

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, number: int) -> int:
        if number in self.at:
            self.at[number]()
        self.clock.advance(SAMPLE_NS)
        return number


def recorded(folder: Path, clock: CountingClock, *loaders: Any, n_batches: int = 0) -> RunData:
    """Return what a loop over the loaders records; it leaves each after so many batches."""
    with Recording(folder / "run", steps=None, detail="auto", spool=None, clock=clock):
        clock.n_reads = 0  # a start measures what spans cost
        for loader in loaders:
            for number, _ in enumerate(loader, 1):
                clock.advance(STEP_NS)
                if number == n_batches:
                    break
    return iobench.open_profile(folder / "run")


def rows_of(profile: RunData, kind: Kind) -> Any:
    """Return the spans of a kind that have a batch, in order of time."""
    spans = profile.spans
    rows = spans[(spans["kind"] == kind) & (spans["batch"] >= 0)]
    return rows[np.argsort(rows["start_ns"])]


def whole_batches(profile: RunData) -> list[int]:
    """Return the batches that were recorded as a whole."""
    spans = profile.spans
    marks = (spans["kind"] == Kind.FUSED) & (spans["label"] == profile.string_number(WHOLE))
    return sorted(spans["batch"][marks].tolist())


def test_waits_of_batches_recorded_as_a_whole_are_exact(tmp_path: Path) -> None:
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
    assert found.whole.whole_batch_fraction == marks.sum() / (2 * 625)
    assert found.whole.overhead_fraction is not None
    assert found.whole.overhead_fraction < 0.02


def test_one_batch_in_so_many_has_its_stages(tmp_path: Path) -> None:
    clock = CountingClock()
    profile = recorded(tmp_path, clock, DataLoader(Tiny(clock, 20_009), batch_size=32))
    whole = set(whole_batches(profile))
    full = set(rows_of(profile, Kind.COLLATE)["batch"].tolist())
    assert not whole & full
    assert len(whole | full) == 626
    assert {0, 1, 2} < full, "the first ones are never usual"
    assert len(full) < 150
    text = " ".join(TerminalRenderer().render(report_document([Run(profile)])).split())
    n = round(626 / len(full))
    assert f"One batch in {n} has details" in text
    assert "making samples (whole batch)" in text


class Reading(Tiny):
    """Every seventh sample is in a stage of the user's own."""

    def __getitem__(self, number: int) -> int:
        if number % 7 == 0:
            with iobench.stage("read", nbytes=8):
                self.clock.advance(SAMPLE_NS)
        return super().__getitem__(number)


def test_stages_in_batches_recorded_as_a_whole_are_in_their_batch(tmp_path: Path) -> None:
    clock = CountingClock()
    profile = recorded(tmp_path, clock, DataLoader(Reading(clock, 3_200), batch_size=32))
    reads = rows_of(profile, Kind.READ)
    assert reads["nbytes"].sum() == 8 * 458
    assert reads["batch"].tolist() == [number // 32 for number in range(0, 3_200, 7)]
    assert len(whole_batches(profile)) > 50


def test_a_long_run_keeps_the_first_and_latest_short_batches_and_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "LEAST_NBYTES", 0)
    monkeypatch.setenv("IOBENCH_KEEP", "1MB")
    clock = CountingClock()
    profile = recorded(tmp_path, clock, DataLoader(Tiny(clock, 20_000), batch_size=1))
    summed = profile.summed
    assert summed is not None
    n_batches = exposure(profile).whole.n_batches
    assert n_batches > summed.n_before > 1000
    assert n_batches + summed.n_batches == 20_000
    assert summed.busy_ns["fused:whole batch"] > summed.wait_ns / 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize("persistent", [True, False])
def test_the_loop_and_its_workers_keep_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, persistent: bool
) -> None:
    monkeypatch.setenv("IOBENCH_KEEP", "8MB")
    loader = DataLoader(
        TensorDataset(torch.arange(20_000)), batch_size=16, num_workers=2,
        persistent_workers=persistent,
    )  # fmt: skip
    with Recording(tmp_path / "run", steps=None, detail="sample", spool=None):
        for _ in range(8):
            for _ in loader:
                pass
    folder = tmp_path / "run" / "spans"
    assert sum(each.stat().st_size for each in folder.iterdir()) < 8_000_000
    profile = iobench.open_profile(tmp_path / "run")
    assert profile.summed is not None
    whole = exposure(profile).whole
    assert whole.n_batches + profile.summed.n_batches == 10_000
    assert min(profile.summed.n_before, whole.n_batches - profile.summed.n_before) > 500
    spans = profile.spans
    waits = spans["batch"][(spans["kind"] == Kind.WAIT) & (spans["batch"] >= 0)]
    made = np.unique(spans["batch"][spans["kind"] == Kind.COLLATE])
    assert set(waits.tolist()) <= set(made.tolist())


def test_a_loop_that_computes_longer_has_every_batch_recorded(tmp_path: Path) -> None:
    clock = CountingClock()
    dataset = Tiny(clock, 640)
    loader = DataLoader(dataset, batch_size=32)
    with Recording(tmp_path / "run", steps=None, detail="auto", spool=None, clock=clock):
        for _ in loader:
            clock.advance(20_000_000)
    assert not whole_batches(iobench.open_profile(tmp_path / "run"))


@pytest.mark.parametrize("n_batches", [1, 3, 4, 50, 99])
def test_a_pass_that_is_left_has_what_was_delivered(tmp_path: Path, n_batches: int) -> None:
    clock = CountingClock()
    loader = DataLoader(Tiny(clock, 3_200), batch_size=32)
    profile = recorded(tmp_path, clock, loader, loader, n_batches=n_batches)
    assert len(rows_of(profile, Kind.WAIT)) == 2 * n_batches
    assert exposure(profile).n_rounds == 2


def test_a_sample_that_fails_ends_the_wait_it_was_in(tmp_path: Path) -> None:
    clock = CountingClock()

    def fail() -> None:
        raise ValueError("no such sample")

    loader = DataLoader(Tiny(clock, 3_200, {1600: fail}), batch_size=32)
    with pytest.raises(ValueError, match="no such sample"):
        recorded(tmp_path, clock, loader)
    found = iobench.exposure(iobench.open_profile(tmp_path / "run"))
    assert found.whole.n_batches == 50
    assert found.n_failed_waits == 1


def test_other_loaders_asked_meanwhile_keep_their_batches_and_order(tmp_path: Path) -> None:
    clock = CountingClock()
    within = DataLoader(Tiny(clock, 64), batch_size=32)
    beside = DataLoader(Tiny(clock, 96), batch_size=32)
    loader = DataLoader(Tiny(clock, 6_400, {3200: lambda: list(within)}), batch_size=32)
    with Recording(tmp_path / "run", steps=None, detail="auto", spool=None, clock=clock):
        for number, _ in enumerate(loader):
            if number == 150:
                assert len(list(beside)) == 3
    profile = iobench.open_profile(tmp_path / "run")
    waits = rows_of(profile, Kind.WAIT)
    assert len(waits) == 203, "what a sample asks for is no wait of the loop"
    assert waits["batch"].tolist() == sorted(waits["batch"].tolist())
    found = {each.number: each.n_batches for each in exposure(profile).loaders}
    assert sorted(found.values())[-2:] == [3, 200]


class Sizes(BatchSampler):
    """Batches of other sizes than it says."""

    def __iter__(self) -> Any:
        for number in range(100):
            yield list(range(1 + number % 5))

    def __len__(self) -> int:
        return 100


def test_batches_of_a_sampler_of_ones_own_are_all_counted(tmp_path: Path) -> None:
    clock = CountingClock()
    dataset = Tiny(clock, 100)
    sizes = Sizes(SequentialSampler(range(100)), 3, drop_last=False)
    profile = recorded(tmp_path, clock, DataLoader(dataset, batch_sampler=sizes))
    assert exposure(profile).whole.n_samples == sum(1 + number % 5 for number in range(100))


class Listed:
    """A sampler of the user's own that yields more than it says."""

    def __iter__(self) -> Any:
        return iter(range(3_205))

    def __len__(self) -> int:
        return 40


def test_batches_of_a_sampler_whose_length_is_wrong_are_all_counted(tmp_path: Path) -> None:
    clock = CountingClock()
    loader = DataLoader(Tiny(clock, 3_205), batch_size=32, sampler=cast("Any", Listed()))
    profile = recorded(tmp_path, clock, loader)
    assert exposure(profile).whole.n_samples == 3_205


@pytest.mark.parametrize("n_samples", range(3_201, 3_233, 3))
def test_the_last_batch_has_the_samples_that_are_left(tmp_path: Path, n_samples: int) -> None:
    clock = CountingClock()
    loader = DataLoader(Tiny(clock, n_samples), batch_size=32)
    assert exposure(recorded(tmp_path, clock, loader)).whole.n_samples == n_samples


def test_two_passes_over_one_loader_at_once_keep_their_batches(tmp_path: Path) -> None:
    clock = CountingClock()
    loader = DataLoader(Tiny(clock, 3_200), batch_size=32)
    with Recording(tmp_path / "run", steps=None, detail="auto", spool=None, clock=clock):
        for _ in loader:
            pass
        ahead = iter(loader)
        for number, _ in enumerate(loader):
            if number < 50:
                next(ahead)
        for _ in ahead:
            pass
    whole = iobench.exposure(iobench.open_profile(tmp_path / "run")).whole
    assert (whole.n_batches, whole.n_samples) == (300, 9_600)


def test_another_thread_that_takes_over_a_pass_is_seen(tmp_path: Path) -> None:
    clock = CountingClock()
    loader = DataLoader(Tiny(clock, 3_200), batch_size=32)
    other = DataLoader(Tiny(clock, 64), batch_size=32)
    with Recording(tmp_path / "run", steps=None, detail="auto", spool=None, clock=clock):
        batches = iter(loader)
        for _ in range(10):
            next(batches)
        taking = threading.Thread(target=list, args=(batches,))
        taking.start()
        taking.join(60)
        assert len(list(other)) == 2
    waits = rows_of(iobench.open_profile(tmp_path / "run"), Kind.WAIT)
    assert len(waits) == 102, "waits of the first thread are seen after it has given the pass away"


def test_a_recording_that_ends_within_a_batch_has_those_before(tmp_path: Path) -> None:
    clock = CountingClock()
    recording = Recording(tmp_path / "run", steps=None, detail="auto", spool=None, clock=clock)
    dataset = Tiny(clock, 3_200, {32 * 50 + 1: recording.close})
    with recording:
        assert len(list(DataLoader(dataset, batch_size=32))) == 100
    profile = iobench.open_profile(tmp_path / "run")
    assert len(rows_of(profile, Kind.WAIT)) == 50
    assert exposure(profile).n_failed_waits == 1


def test_a_pass_goes_on_after_a_sample_that_failed(tmp_path: Path) -> None:
    clock = CountingClock()

    def fail() -> None:
        raise ValueError("no such sample")

    loader = DataLoader(Tiny(clock, 3_210, {1600: fail}), batch_size=32)
    with Recording(tmp_path / "run", steps=None, detail="auto", spool=None, clock=clock):
        batches = iter(loader)
        for _ in range(50):
            next(batches)
        with pytest.raises(ValueError, match="no such sample"):
            next(batches)
        assert len(list(batches)) == 50
    whole = iobench.exposure(iobench.open_profile(tmp_path / "run")).whole
    assert (whole.n_batches, whole.n_samples) == (100, 3_210 - 32)


def test_a_fork_in_the_middle_of_a_pass_goes_on_and_takes_nothing_away(tmp_path: Path) -> None:
    clock = CountingClock()
    loader = DataLoader(Tiny(clock, 3_200), batch_size=32)
    with Recording(tmp_path / "run", steps=None, detail="auto", spool=None, clock=clock):
        batches = iter(loader)
        for _ in range(50):
            next(batches)
        child = os.fork()
        if not child:
            os._exit(0 if len(list(batches)) == 50 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(batches)) == 50
    assert len(rows_of(iobench.open_profile(tmp_path / "run"), Kind.WAIT)) == 100


@pytest.mark.parametrize("detail", ["sample", "batch"])
def test_what_is_to_be_recorded_finely_is_never_left_out(tmp_path: Path, detail: str) -> None:
    clock = CountingClock()
    loader = DataLoader(Tiny(clock, 3_200), batch_size=32)
    with Recording(tmp_path / "run", steps=None, detail=detail, spool=None, clock=clock):
        for _ in loader:
            pass
    spans = iobench.open_profile(tmp_path / "run").spans
    assert not (spans["flags"] & Flag.ESTIMATED).any()
    assert len(spans[spans["kind"] == Kind.COLLATE]) == 100


def test_a_window_of_steps_is_recorded_in_full(tmp_path: Path) -> None:
    clock = CountingClock()
    loader = DataLoader(Tiny(clock, 3_200), batch_size=32)
    with Recording(tmp_path / "run", steps=range(20, 60), detail="auto", spool=None, clock=clock):
        for _ in loader:
            pass
    assert len(rows_of(iobench.open_profile(tmp_path / "run"), Kind.WAIT)) == 40
