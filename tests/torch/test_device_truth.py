"""What a run says of a device, held against what that device did, as it wrote it down itself.

Waking up late on a busy machine is part of what happened, not an error of what is said of it; what
was meant to happen is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

pytest.importorskip("torch", reason="the training loop is PyTorch's")
import torch
from fake_accelerator import FakeAccelerator, Kernel
from number_stores import write_numbers

import iobench
from iobench.analysis.run import Run
from iobench.findings.devices import device_exposure, device_sums
from iobench.recording.clocks import now_ns, wait_until_ns
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.torch import DataLoader, StoreLoader, store_loader
from iobench.torch.device_time import DeviceTimer

MS = 1_000_000
WITHIN = 0.05
N_BATCHES = 12


@pytest.fixture(autouse=True)
def no_run_around(monkeypatch):
    for name in ("IOBENCH_RUN", "IOBENCH_RUN_DETAIL", "IOBENCH_RUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def device():
    with FakeAccelerator(pinned_bytes_per_s=20e6, pageable_bytes_per_s=10e6) as opened:
        yield opened


class Loading(torch.utils.data.Dataset[torch.Tensor]):
    """Samples of 200 kB that take known times, pinned where a way to is given."""

    def __init__(self, times_ns, pin=lambda tensor: tensor):
        self.times_ns, self.pin = times_ns, pin

    def __len__(self):
        return len(self.times_ns)

    def __getitem__(self, number):
        wait_until_ns(now_ns() + self.times_ns[number])
        return self.pin(torch.full((50_000,), float(number)))


@dataclass
class Loop:
    """What the loop itself knows: when it asked, and its kernels."""

    requested_ns: list[int] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)

    @property
    def idle_ns(self):
        """How long the device had been given nothing while the loop was after each batch.

        By the clock and what the device wrote down: nothing of iobench's is asked.
        """
        idle, worked_until = [], 0
        for requested_ns, kernel in zip(self.requested_ns, self.kernels, strict=False):
            idle.append(max(kernel.piece.start_ns - max(requested_ns, worked_until), 0))
            worked_until = kernel.piece.end_ns
        return idle

    @property
    def wall_ns(self):
        return self.kernels[-1].piece.end_ns - self.requested_ns[0]


def train(device, loader, kernel_ns, move=None):
    timer = DeviceTimer(clock=device, regions_per_flush=8)
    batches, loop = iter(loader), Loop()
    for duration_ns in kernel_ns:
        loop.requested_ns.append(now_ns())
        batch = next(batches)
        if move is not None:
            with timer("h2d"):
                batch = move(batch)
        with timer("forward"):
            loop.kernels.append(device.launch(duration_ns, [batch]))
    loop.requested_ns.append(now_ns())
    assert next(batches, None) is None
    device.synchronize()
    return loop


def recorded(path, run):
    # What the first loader of a process imports is no wait of this run's.
    with iobench.record(path / "before"):
        list(DataLoader(Loading([0]), batch_size=None))
    with iobench.record(path / "run"):
        loop = run()
    profile = iobench.open_profile(path / "run")
    found = device_exposure(profile)
    assert found is not None
    return loop, profile, found


SCHEDULES = {
    "loader": ([30 * MS] * N_BATCHES, [10 * MS] * N_BATCHES),
    "compute": ([5 * MS] * N_BATCHES, [25 * MS] * N_BATCHES),
    "alternating": ([5 * MS, 55 * MS] * (N_BATCHES // 2), [20 * MS] * N_BATCHES),
    "kernels alternate": ([20 * MS] * N_BATCHES, [5 * MS, 35 * MS] * (N_BATCHES // 2)),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_device_is_idle_as_long_as_is_said(tmp_path, device, schedule):
    loads, kernels = SCHEDULES[schedule]
    loader = DataLoader(Loading(loads), batch_size=None)
    loop, _, found = recorded(tmp_path, lambda: train(device, loader, kernels))
    held_against(loop, found)
    assert (found.delivered_ns - found.requested_ns).sum() >= sum(loads)
    assert found.busy_ns["forward"] >= sum(kernels)


def held_against(loop, found):
    """Hold what is said of the device's idle time, and of its kernels, against what was."""
    first, *later = loop.idle_ns
    said = found.exposed_ns[found.batch > 0].sum()
    assert said == pytest.approx(sum(later), rel=WITHIN, abs=WITHIN * loop.wall_ns)
    # What recording itself begins with, as the loop first asks, is no wait for a batch.
    assert said <= found.exposed_ns.sum() <= said + first + WITHIN * loop.wall_ns
    kernels = [kernel.piece for kernel in loop.kernels]
    assert found.busy_ns["forward"] == pytest.approx(between_marks_ns(kernels), rel=WITHIN)


def between_marks_ns(pieces):
    """Return how long the marks around each of them lay apart, which is what can be told."""
    return sum(piece.until_ns - piece.since_ns for piece in pieces)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kernel_ns", [5 * MS, 40 * MS])
def test_copies_ahead_are_hidden_as_far_as_the_link_is_fast_enough(
    tmp_path, monkeypatch, kernel_ns
):
    store = write_numbers(tmp_path / "numbers", n_samples=4 * N_BATCHES)
    nbytes = 4 * store.manifest.spec.nbytes
    with FakeAccelerator(latency_ns=4 * MS) as device:
        monkeypatch.setattr(store_loader, "find_accelerator", lambda _: device)
        loader = StoreLoader(store, 4, device="cuda", depth=3)
        batches = (batch["x"] for batch in loader)
        loop, profile, found = recorded(
            tmp_path, lambda: train(device, batches, [kernel_ns] * N_BATCHES)
        )
        loader.close()
    held_against(loop, found)
    copies = [piece for piece in device.pieces if piece.name == "copy"]
    assert all(piece.pinned and piece.queue == "copies" for piece in copies)
    took = sum(piece.end_ns - piece.start_ns for piece in copies)
    spans = profile.spans[profile.spans["kind"] == Kind.H2D]
    there = spans[(spans["flags"] & Flag.DEVICE) != 0]
    assert there["nbytes"].tolist() == [nbytes] * N_BATCHES
    assert nbytes * N_BATCHES == sum(piece.nbytes for piece in copies)
    # Between the marks around a batch its copies follow each other, and nothing else comes.
    busy_ns = int((there["end_ns"] - there["start_ns"]).sum())
    assert found.busy_ns["h2d"] == busy_ns
    assert took <= busy_ns
    first = [copies[at] for at in range(0, len(copies), len(copies) // N_BATCHES)]
    assert busy_ns == pytest.approx(between_marks_ns(first), rel=WITHIN)
    told = device_sums(Run(profile).of_rank())
    assert told is not None
    assert told.copies is not None
    assert told.copies.nbytes == nbytes * N_BATCHES
    rate = nbytes * N_BATCHES * 1e9 / between_marks_ns(first)
    assert told.copies.bytes_per_s == pytest.approx(rate, rel=WITHIN)
    later_ns = int(found.exposed_ns[found.batch > 0].sum())
    if kernel_ns < 20 * MS:  # the last kernel comes after the last copy
        kernels = [kernel.piece for kernel in loop.kernels]
        worked_ns = sum(kernel.end_ns - kernel.start_ns for kernel in kernels[:-1])
        least_ns = copies[-1].end_ns - kernels[0].start_ns - worked_ns
        assert later_ns >= least_ns - WITHIN * loop.wall_ns
        assert later_ns > 0.3 * took
    else:
        assert later_ns < 0.3 * took
