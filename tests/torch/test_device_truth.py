"""What a run says of a device, held against what that device did, as it wrote it down itself.

Waking up late on a busy machine is part of what happened, not an error of what is said of it; what
was meant to happen is a lower bound.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="the training loop is PyTorch's")
import torch
from fake_accelerator import FakeAccelerator, Kernel, Piece
from number_stores import write_numbers

import iobench
from iobench.analysis.run import Run
from iobench.cli import main
from iobench.findings.devices import device_exposure, device_sums
from iobench.profiling import profile_run
from iobench.recording.clocks import now_ns, wait_until_ns
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.torch import DataLoader, StoreLoader, store_loader
from iobench.torch.device_time import DeviceTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from iobench.findings.devices import DeviceExposure
    from iobench.runs.contents import RunData

MS = 1_000_000
WITHIN = 0.05
N_BATCHES = 12


@pytest.fixture(autouse=True)
def no_run_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IOBENCH_RUN", "IOBENCH_RUN_STEPS", "IOBENCH_RUN_DETAIL", "IOBENCH_RUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def device() -> Iterator[FakeAccelerator]:
    with FakeAccelerator(pinned_bytes_per_s=20e6, pageable_bytes_per_s=10e6) as opened:
        yield opened


class Loading(torch.utils.data.Dataset[torch.Tensor]):
    """Samples of 200 kB that take known times, pinned where a way to is given."""

    def __init__(
        self,
        times_ns: list[int],
        pin: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    ) -> None:
        self.times_ns, self.pin = times_ns, pin

    def __len__(self) -> int:
        return len(self.times_ns)

    def __getitem__(self, number: int) -> torch.Tensor:
        wait_until_ns(now_ns() + self.times_ns[number])
        return self.pin(torch.full((50_000,), float(number)))


@dataclass
class Loop:
    """What the loop itself knows: when it asked, and its kernels."""

    asked_ns: list[int] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)

    @property
    def idle_ns(self) -> list[int]:
        """How long the device had been given nothing while the loop was after each batch.

        By the clock and what the device wrote down: nothing of iobench's is asked.
        """
        idle, worked_until = [], 0
        for asked_ns, kernel in zip(self.asked_ns, self.kernels, strict=False):
            idle.append(max(kernel.piece.start_ns - max(asked_ns, worked_until), 0))
            worked_until = kernel.piece.end_ns
        return idle

    @property
    def wall_ns(self) -> int:
        return self.kernels[-1].piece.end_ns - self.asked_ns[0]


def train(
    device: FakeAccelerator,
    loader: Iterable[torch.Tensor],
    kernel_ns: Iterable[int],
    move: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Loop:
    timer = DeviceTimer(clock=device, regions_per_flush=8)
    batches, loop = iter(loader), Loop()
    for duration_ns in kernel_ns:
        loop.asked_ns.append(now_ns())
        batch = next(batches)
        if move is not None:
            with timer("h2d"):
                batch = move(batch)
        with timer("forward"):
            loop.kernels.append(device.launch(duration_ns, [batch]))
    loop.asked_ns.append(now_ns())
    assert next(batches, None) is None
    device.synchronize()
    return loop


def recorded(path: Path, run: Callable[[], Loop]) -> tuple[Loop, RunData, DeviceExposure]:
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
def test_a_device_is_idle_as_long_as_is_said(
    tmp_path: Path, device: FakeAccelerator, schedule: str
) -> None:
    loads, kernels = SCHEDULES[schedule]
    loader = DataLoader(Loading(loads), batch_size=None)
    loop, _, found = recorded(tmp_path, lambda: train(device, loader, kernels))
    held_against(loop, found)
    assert found.sums.host_wait_ns >= sum(loads)
    assert found.busy_ns["forward"] >= sum(kernels)


def held_against(loop: Loop, found: DeviceExposure) -> None:
    """Hold what is said of the device's idle time, and of its kernels, against what was."""
    first, *later = loop.idle_ns
    said = found.exposed_ns[found.batch > 0].sum()
    assert said == pytest.approx(sum(later), rel=WITHIN, abs=WITHIN * loop.wall_ns)
    # What recording itself begins with, as the loop first asks, is no wait for a batch.
    assert said <= found.sums.exposed_ns <= said + first + WITHIN * loop.wall_ns
    kernels = [kernel.piece for kernel in loop.kernels]
    assert found.busy_ns["forward"] == pytest.approx(between_marks_ns(kernels), rel=WITHIN)


def between_marks_ns(pieces: Iterable[Piece]) -> int:
    """Return how long the marks around each of them lay apart, which is what can be told."""
    return sum(piece.until_ns - piece.since_ns for piece in pieces)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("moving", ["blocking", "non_blocking", "pinned", "pinned, non_blocking"])
@pytest.mark.parametrize("kernel_ns", [5 * MS, 40 * MS])
def test_copies_in_the_loop_keep_the_device_from_its_work(
    tmp_path: Path, device: FakeAccelerator, moving: str, kernel_ns: int
) -> None:
    more = [device.pinned_copy] if "pinned" in moving else []
    loader = DataLoader(Loading([1 * MS] * N_BATCHES, *more), batch_size=None)

    def move(batch: torch.Tensor) -> torch.Tensor:
        return device.to(batch, non_blocking="non_blocking" in moving)

    loop, _, found = recorded(
        tmp_path, lambda: train(device, loader, [kernel_ns] * N_BATCHES, move)
    )
    held_against(loop, found)
    copies = [piece for piece in device.pieces if piece.name == "copy"]
    assert found.busy_ns["h2d"] == pytest.approx(between_marks_ns(copies), rel=WITHIN)
    # Each copy is in the way of the kernel behind it, and so is the device's to have waited for.
    assert found.sums.exposed_ns >= (1 - WITHIN) * sum(piece.least_ns for piece in copies)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kernel_ns", [5 * MS, 40 * MS])
def test_copies_ahead_are_hidden_as_far_as_the_link_is_fast_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel_ns: int
) -> None:
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
    assert told.copies.bytes_per_s <= nbytes * N_BATCHES * 1e9 / took
    exposed = exposed_copies_ns(loop, [(piece.since_ns, piece.until_ns) for piece in first])
    least = WITHIN * loop.wall_ns
    assert told.copies.device_exposed_ns == pytest.approx(exposed, rel=WITHIN, abs=least)
    later_ns = int(found.exposed_ns[found.batch > 0].sum())
    if kernel_ns < 20 * MS:  # the last kernel comes after the last copy
        kernels = [kernel.piece for kernel in loop.kernels]
        worked_ns = sum(kernel.end_ns - kernel.start_ns for kernel in kernels[:-1])
        least_ns = copies[-1].end_ns - kernels[0].start_ns - worked_ns
        assert later_ns >= least_ns - WITHIN * loop.wall_ns
        assert later_ns > 0.3 * took
    else:
        assert later_ns < 0.3 * took


OWN = """
import numpy as np

class Numbered:
    def __len__(self):
        return 64
    def __getitem__(self, number):
        return {"field": np.full((32, 32), number, "f4")}
"""


@pytest.mark.quick_cases(0, thorough=1)
@pytest.mark.parametrize(
    ("framework", "step_ms"), [("native", 2), ("native", 40), ("torch", 2)], ids=str
)
def test_a_profile_says_what_copies_took_and_what_of_it_was_hidden(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    framework: str,
    step_ms: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("numbers_on_a_device.py").write_text(OWN)
    monkeypatch.setattr(profile_run, "measure_link", lambda *_: None)
    n_batches, nbytes = 16, 4 * 32 * 32 * 4
    words = [
        "profile", "numbers_on_a_device:Numbered", "--out", "run", "--batches", str(n_batches),
        "--batch-size", "4", "--workers", "2", "--device", "cuda",
        "--framework", framework, "--compute", f"{step_ms}ms", "--json",
    ]  # fmt: skip
    with FakeAccelerator(latency_ns=15 * MS) as device:
        monkeypatch.setattr("iobench.torch.device.find_accelerator", lambda *_, **__: device)
        assert main(words) == 0
    (told,) = json.loads(capsys.readouterr().out)["runs"]
    pieces = device.pieces
    took_s = sum(piece.end_ns - piece.start_ns for piece in pieces) * 1e-9
    wall_s = (pieces[-1].end_ns - pieces[0].start_ns) * 1e-9
    copies = told["device"]["copies"]
    assert copies["nbytes"] == nbytes * n_batches == sum(piece.nbytes for piece in pieces)
    between_s = between_marks_ns(pieces) * 1e-9
    assert copies["device_s"] == pytest.approx(between_s, rel=WITHIN)
    assert copies["bytes_per_s"] == pytest.approx(nbytes * n_batches / between_s, rel=WITHIN)
    # The host sees a copy end as late as it wakes up.
    assert copies["hidden_s"] + copies["waited_s"] >= (1 - WITHIN) * took_s
    if framework == "torch":
        assert copies["hidden_s"] == 0
    elif step_ms > 15:
        assert copies["hidden_s"] > 0.5 * took_s
    else:  # the link is never idle: the loop waits for it, but for its steps
        assert copies["waited_s"] >= 0.5 * (wall_s - n_batches * step_ms * 1e-3)
    assert told["device"]["exposed_ns"] is None  # what else the device did was not timed


def exposed_copies_ns(loop: Loop, copies: list[tuple[int, int]]) -> int:
    """Return how much of the copies of each batch lay where the device was idle for want of it."""
    total, worked_until = 0, 0
    for (begun, ended), asked_ns, kernel in zip(copies, loop.asked_ns, loop.kernels, strict=False):
        idle_since = max(asked_ns, worked_until)
        total += max(min(ended, kernel.piece.start_ns) - max(begun, idle_since), 0)
        worked_until = kernel.piece.end_ns
    return total


class Dozing(FakeAccelerator):
    """Who waits for it wakes up late, every other time."""

    def wait(self, mark: Any) -> None:
        super().wait(mark)
        if self.n_waits % 2:
            wait_until_ns(now_ns() + 25 * MS)


@pytest.mark.thorough
def test_who_wakes_up_late_does_not_make_the_device_late(tmp_path: Path) -> None:
    with Dozing() as device:
        loader = DataLoader(Loading([10 * MS] * 3 * N_BATCHES), batch_size=None)
        loop, profile, found = recorded(
            tmp_path, lambda: train(device, loader, [15 * MS] * 3 * N_BATCHES)
        )
    held_against(loop, found)
    assert device.n_waits > 6
    spans = profile.spans[(profile.spans["flags"] & Flag.DEVICE) != 0]
    told = spans[spans["kind"] == Kind.FORWARD]
    for number, kernel in enumerate(loop.kernels):
        (span,) = told[told["batch"] == number]
        assert abs(int(span["end_ns"]) - kernel.piece.end_ns) < 5 * MS
