"""Copies to a device and its own time, over stand-ins of one; no CUDA is needed, and none is used.

What no CPU can tell, that the drivers do as torch says, is left to a machine that has them. Waking
up late on a busy machine is part of what happened, not an error of what is said of it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the devices are torch's")
import torch
from fake_accelerator import FakeAccelerator, Faults, Kernel
from number_stores import expected_batch, nothing_left, write_numbers
from queue_device import QueueDevice

import iobench
from iobench.analysis.run import Run
from iobench.cli import main
from iobench.errors import DeviceError, OptionError
from iobench.findings.devices import device_exposure, device_sums
from iobench.recording.clocks import now_ns, wait_until_ns
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.recording.session import Recording
from iobench.recording.span_file import Flag
from iobench.testing import FakeClock
from iobench.torch import DataLoader, StoreLoader, device_time, store_loader, training_hooks
from iobench.torch.device import TorchAccelerator, current_accelerator, find_accelerator
from iobench.torch.device_time import DeviceTimer

MS = 1_000_000
WITHIN = 0.05
N_BATCHES = 12


@pytest.fixture(autouse=True)
def no_run_around(monkeypatch):
    for name in ("IOBENCH_RUN", "IOBENCH_RUN_DETAIL", "IOBENCH_RUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(device_time, "REGIONS_PER_FLUSH", 8)


@pytest.fixture
def device():
    with FakeAccelerator() as opened:
        yield opened


def of_kind(run, kind, *, device=False):
    """Return the spans of a kind that have a batch, of the host or of the device, by batch."""
    spans = iobench.open_profile(run).spans
    chosen = ((spans["flags"] & Flag.DEVICE) != 0) == device
    spans = spans[chosen & (spans["kind"] == kind) & (spans["batch"] >= 0)]
    return spans[np.argsort(spans["batch"], kind="stable")]


# ---- what torch shows of CUDA and HIP


class Stream:
    def __init__(self, name):
        self.name, self.n_events = name, 0


class Event:
    def __init__(self, **options):
        self.options, self.stream, self.is_waited_for = options, None, False

    def record(self, stream):
        self.stream = stream
        stream.n_events += 1
        self.at_ms = stream.n_events * 0.5

    def query(self):
        return self.is_waited_for

    def synchronize(self):
        self.is_waited_for = True

    def elapsed_time(self, other):
        return other.at_ms - self.at_ms


class Api:
    """``torch.cuda``, of two devices."""

    Event = Event

    def __init__(self, n_devices=2):
        self.current = Stream("current")
        self.n_devices, self.refuses, self.code, self.is_capturing = n_devices, "", 0, False
        self.registered = {}
        self.cudart = lambda: SimpleNamespace(
            cudaHostRegister=self._register, cudaHostUnregister=self.registered.pop
        )
        self.device = lambda _: contextlib.nullcontext()
        self.device_count = lambda: self.n_devices
        self.current_device = lambda: 1
        self.current_stream = lambda _: self.current
        self.is_current_stream_capturing = lambda: self.is_capturing
        self.is_available = self.is_initialized = lambda: self.n_devices > 0 and not self.refuses
        self.Stream = lambda _: Stream("copies")

    def init(self):
        if self.refuses:
            raise RuntimeError(self.refuses)

    def _register(self, address, nbytes, flags):
        assert flags == 0
        if not self.code:
            self.registered[address] = nbytes
        return self.code

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before


class HostTensor(torch.Tensor):
    """Stays where it is, and notes what is asked of it."""

    def to(self, *where, **how):
        self.asked.append((*where, how))
        return self.clone()


@pytest.fixture
def api(monkeypatch):
    api = Api()
    monkeypatch.setattr(torch, "cuda", api)
    monkeypatch.setattr(HostTensor, "asked", [], raising=False)
    return api


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.usefixtures("api")
def test_copies_lie_between_marks_of_their_stream(ahead):
    accelerator = TorchAccelerator(torch.device("cuda", 1))
    leaves = [torch.ones(n).as_subclass(HostTensor) for n in (3, 5)]
    copy = accelerator.copy(leaves, ahead=ahead)
    assert copy.nbytes == 4 * (3 + 5)
    assert copy.first is not copy.last
    assert copy.first.stream is copy.last.stream
    assert copy.last.stream.name == ("copies" if ahead else "current")
    assert copy.first.options == {"enable_timing": True, "blocking": True}  # the host sleeps
    assert HostTensor.asked == [(torch.device("cuda", 1), {"non_blocking": True})] * 2
    assert accelerator.copy(leaves[:1], ahead=ahead).last.stream is copy.last.stream


def test_events_tell_times_and_are_used_again_but_not_in_a_graph(api):
    accelerator = TorchAccelerator(torch.device("cuda", 1))
    assert accelerator.name == "cuda:1"
    first, last = accelerator.mark(), accelerator.mark()
    assert not accelerator.passed(last)
    accelerator.wait(last)
    assert accelerator.passed(last)
    assert accelerator.between_ns(first, last) == 500_000
    accelerator.release(first)
    assert accelerator.mark() is first
    assert accelerator.mark() not in (first, last)
    api.is_capturing = True
    assert accelerator.mark() is None


def test_memory_is_registered_and_a_refusal_is_one_line(api):
    accelerator, pages = TorchAccelerator(torch.device("cuda", 0)), mmap.mmap(-1, 3 * 4096)
    pinned = accelerator.pin(pages)
    assert [*api.registered.values()] == [3 * 4096]
    del pinned
    gc.collect()
    assert api.registered == {}
    api.code = 2
    with pytest.raises(DeviceError, match=r"cuda:0: cannot pin .* 12288 bytes \(CUDA error 2\)"):
        accelerator.pin(pages)


@pytest.mark.usefixtures("api")
def test_a_device_is_found():
    names = {"auto": "cuda:1", "cuda": "cuda:1", "cuda:0": "cuda:0"}
    assert {asked: find_accelerator(asked).name for asked in names} == names
    assert current_accelerator().name == "cuda:1"
    assert find_accelerator("none") is find_accelerator("cpu") is find_accelerator(None) is None


@pytest.mark.parametrize(
    ("n_devices", "refuses", "told"),
    [
        (2, "Found no NVIDIA driver on your system.\nPlease check", "has no CUDA here: Found "),
        (0, "No CUDA GPUs are available", "has no CUDA here: No CUDA GPUs are available"),
        (2, "", "torch sees 2 CUDA devices here"),
    ],
)
def test_one_that_is_not_there_is_one_line(api, n_devices, refuses, told):
    api.n_devices, api.refuses = n_devices, refuses
    with pytest.raises(OptionError) as raised:
        find_accelerator("cuda:7", option="--device")
    assert str(raised.value).startswith("--device cuda:7: ")
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)
    assert find_accelerator("auto") is None or not refuses


# ---- the device's own time, on a clock by hand


@pytest.fixture
def clock():
    return FakeClock(start_ns=1000)


@pytest.fixture
def queue(clock):
    return QueueDevice(clock)


@pytest.fixture
def session(tmp_path, clock):
    return Recording(tmp_path / "run", detail="auto", clock=clock)


def rows_of(session, *, device):
    """Return (kind, label, start, end, batch) of the spans of the host or the device."""
    profile = iobench.open_profile(session.run.path)
    spans = profile.spans
    times = ("start_ns", "end_ns", "batch")
    return [
        (Kind(row["kind"]).spelled, profile.strings[row["label"]], *(int(row[t]) for t in times))
        for row in spans[((spans["flags"] & Flag.DEVICE) != 0) == device]
    ]


def test_a_region_is_a_span_of_the_host_and_one_of_the_device(session, clock, queue):
    with session:
        timer = DeviceTimer(clock=queue)
        session.recorder.position(7, 2)
        queue.work(500)  # what was given before, and is not done
        with timer("forward"):
            clock.advance(10)
            queue.work(300)
        clock.advance(5)
        timer.flush()
    assert rows_of(session, device=False) == [("forward", "", 1000, 1010, 7)]
    forward, anchor = rows_of(session, device=True)
    assert forward == ("forward", "", 1500, 1800, 7)
    assert anchor[:2] == ("other", "anchor")
    assert anchor[2] <= 1800 == anchor[3]
    assert queue.n_waits == 1
    assert len(queue.released) == 3


def test_the_device_is_waited_for_once_a_flush(session, clock, queue):
    with session:
        timer = DeviceTimer(clock=queue)
        for _ in range(20):
            with timer("forward"):
                clock.advance(1)
                queue.work(100)
        assert queue.n_waits == 2
    assert queue.n_waits == 3  # what was left, as the recording ends
    assert len([row for row in rows_of(session, device=True) if row[0] == "forward"]) == 20


@pytest.mark.parametrize("at_end", [False, True])
def test_a_device_that_falls_away_ends_device_time_alone(tmp_path, device, monkeypatch, at_end):
    monkeypatch.setattr(device_time, "REGIONS_PER_FLUSH", 2)
    done = []

    def train(timer):
        for step in range(6):
            if step == 5:
                device.fall_away()
            with timer("forward"):
                if step < 5 or not at_end:
                    device.launch(1_000_000)  # which raises what the training would have met anyway
            done.append(step)

    refusal = pytest.raises(RuntimeError, match="device-side assert")
    with iobench.record(tmp_path / "run") as session:
        timer = DeviceTimer(clock=device)
        with contextlib.nullcontext() if at_end else refusal:
            train(timer)
    assert done == list(range(5 + at_end))
    (facts,) = read_process_facts(session.run.processes_path)
    assert facts.unseen == ["device time of fake:0: CUDA error: device-side assert triggered"]
    assert len(rows_of(session, device=False)) == 6
    there = [row for row in rows_of(session, device=True) if row[0] == "forward"]
    assert len(there) == 4  # as far as it was asked before


@pytest.mark.parametrize("device", ["meta", "gpu", "cuda:99", object()])
def test_devices_without_a_clock_are_refused(device):
    with pytest.raises(OptionError, match="device="):
        DeviceTimer(device)


def test_torch_save_is_a_checkpoint_with_its_size(session, tmp_path):
    original = torch.save
    with session:
        training_hooks.install()
        training_hooks.install()
        try:
            torch.save({"a": torch.ones(10)}, tmp_path / "a.pt")
            with pytest.raises(RuntimeError, match="does not exist"):
                torch.save({}, str(tmp_path / "no" / "c.pt"))
        finally:
            training_hooks.uninstall()
            training_hooks.uninstall()
    assert torch.save is torch.serialization.save is original
    spans = iobench.open_profile(session.run.path).spans
    assert spans["kind"].tolist() == [Kind.CHECKPOINT] * 2
    assert spans["nbytes"].tolist() == [(tmp_path / "a.pt").stat().st_size, -1]
    assert torch.load(tmp_path / "a.pt")["a"].shape == (10,)


# ---- what is said of a device, held against what it wrote down itself


class Loading(torch.utils.data.Dataset[torch.Tensor]):
    """Samples of 200 kB that take known times."""

    def __init__(self, times_ns):
        self.times_ns = times_ns

    def __len__(self):
        return len(self.times_ns)

    def __getitem__(self, number):
        wait_until_ns(now_ns() + self.times_ns[number])
        return torch.full((50_000,), float(number))


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


def trained(path, device, loader, kernel_ns):
    """Return what a loop and its recording say of the kernels of a training."""
    # What the first loader of a process imports is no wait of this run's.
    with iobench.record(path / "before"):
        list(DataLoader(Loading([0]), batch_size=None))
    with iobench.record(path / "run"):
        timer = DeviceTimer(clock=device)
        batches, loop = iter(loader), Loop()
        for duration_ns in kernel_ns:
            loop.requested_ns.append(now_ns())
            batch = next(batches)
            with timer("forward"):
                loop.kernels.append(device.launch(duration_ns, [batch]))
        loop.requested_ns.append(now_ns())
        assert next(batches, None) is None
        device.synchronize()
    found = device_exposure(iobench.open_profile(path / "run"))
    first, *later = loop.idle_ns
    said = found.exposed_ns[found.batch > 0].sum()
    assert said == pytest.approx(sum(later), rel=WITHIN, abs=WITHIN * loop.wall_ns)
    # What recording itself begins with, as the loop first asks, is no wait for a batch.
    assert said <= found.exposed_ns.sum() <= said + first + WITHIN * loop.wall_ns
    kernels = [kernel.piece for kernel in loop.kernels]
    assert found.busy_ns["forward"] == pytest.approx(between_marks_ns(kernels), rel=WITHIN)
    return loop, found


def between_marks_ns(pieces):
    """Return how long the marks around each of them lay apart, which is what can be told."""
    return sum(piece.until_ns - piece.since_ns for piece in pieces)


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
    _, found = trained(tmp_path, device, DataLoader(Loading(loads), batch_size=None), kernels)
    assert (found.delivered_ns - found.requested_ns).sum() >= sum(loads)
    assert found.busy_ns["forward"] >= sum(kernels)


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
        loop, found = trained(tmp_path, device, batches, [kernel_ns] * N_BATCHES)
        loader.close()
    copies = [piece for piece in device.pieces if piece.name == "copy"]
    assert all(piece.pinned and piece.queue == "copies" for piece in copies)
    took = sum(piece.end_ns - piece.start_ns for piece in copies)
    there = of_kind(tmp_path / "run", Kind.H2D, device=True)
    assert there["nbytes"].tolist() == [nbytes] * N_BATCHES
    assert nbytes * N_BATCHES == sum(piece.nbytes for piece in copies)
    # Between the marks around a batch its copies follow each other, and nothing else comes.
    busy_ns = int((there["end_ns"] - there["start_ns"]).sum())
    assert took <= found.busy_ns["h2d"] == busy_ns
    first = [copies[at] for at in range(0, len(copies), len(copies) // N_BATCHES)]
    assert busy_ns == pytest.approx(between_marks_ns(first), rel=WITHIN)
    told = device_sums(Run(tmp_path / "run").of_rank()).copies
    assert told.nbytes == nbytes * N_BATCHES
    rate = nbytes * N_BATCHES * 1e9 / between_marks_ns(first)
    assert told.bytes_per_s == pytest.approx(rate, rel=WITHIN)
    later_ns = int(found.exposed_ns[found.batch > 0].sum())
    if kernel_ns < 20 * MS:  # the last kernel comes after the last copy
        kernels = [kernel.piece for kernel in loop.kernels]
        worked_ns = sum(kernel.end_ns - kernel.start_ns for kernel in kernels[:-1])
        least_ns = copies[-1].end_ns - kernels[0].start_ns - worked_ns
        assert later_ns >= least_ns - WITHIN * loop.wall_ns
        assert later_ns > 0.3 * took
    else:
        assert later_ns < 0.3 * took


# ---- the loader of a store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("stores") / "numbers", n_samples=200)


@pytest.fixture
def ahead(store, device, monkeypatch):
    """A function that opens the store's loader with copies to the device."""
    monkeypatch.setattr(store_loader, "find_accelerator", lambda _: device)
    with nothing_left():
        yield lambda **options: StoreLoader(store, 4, device="cuda", **options)


def is_right(batch, number):
    expected = expected_batch(list(range(4 * number, min(4 * number + 4, 200))))
    return all(np.array_equal(batch[name], expected[name]) for name in batch)


def test_a_pickled_loader_finds_its_device_again(ahead, device):
    loader = pickle.loads(pickle.dumps(ahead()))
    assert all(is_right(batch, number) for number, batch in enumerate(loader))
    assert {piece.queue for piece in device.pieces} == {"copies"}


def test_batches_are_copied_before_their_buffer_is_used_again(ahead, device):
    loader = ahead(depth=3)
    assert loader.threads >= 2
    held = list(loader)  # held are copies: the ring needs no further buffer
    assert all(is_right(batch, number) for number, batch in enumerate(held))
    assert [piece.queue for piece in device.pieces] == ["copies"] * 50 * 5
    assert all(piece.pinned for piece in device.pieces)
    assert len(device.pinned) == 3


def test_a_batch_that_is_let_go_of_keeps_its_memory_until_its_kernels_are_done(ahead, device):
    kernels = []
    for batch in ahead(depth=3):
        kernels.append(device.launch(2 * MS, [batch["x"], batch["y"]]))
        del batch
    device.synchronize()
    for number, kernel in enumerate(kernels):
        for seen in (kernel.first, kernel.last):
            assert is_right(dict(zip("xy", seen, strict=True)), number)


@pytest.mark.long
def test_a_device_that_falls_away_is_one_error_of_the_loop_and_the_run_stays(
    ahead, device, tmp_path
):
    taken = 0

    def train():
        nonlocal taken
        for _batch in ahead():
            taken += 1
            if taken == 20:
                device.fall_away()

    with iobench.record(tmp_path / "run"), pytest.raises(DeviceError) as raised:
        train()
    assert re.fullmatch(r"fake:0: .* failed: CUDA error: device-side.*", str(raised.value))
    raised.value.__cause__ = None
    assert 20 <= taken < 50
    assert of_kind(tmp_path / "run", Kind.WAIT)["batch"].tolist() == list(range(taken))
    copied = of_kind(tmp_path / "run", Kind.H2D, device=True)["batch"]
    assert set(range(20)) <= set(copied.tolist())


# ---- ``iobench profile --device``

MODULE = """
import numpy as np

class Numbered:
    def __len__(self):
        return 64
    def __getitem__(self, number):
        return {"field": np.full((32, 32), number, "f4"), "day": np.int64(number)}
"""
NBYTES = 4 * (32 * 32 * 4 + 8)
NUMBERED = "copied_numbers:Numbered"


@pytest.fixture
def profiled(tmp_path, monkeypatch, device):
    """A function that profiles batches that are copied to the device; it returns the exit code."""
    monkeypatch.chdir(tmp_path)
    Path("copied_numbers.py").write_text(MODULE)

    def profile(*more, on=device):
        monkeypatch.setattr("iobench.torch.device.find_accelerator", lambda *_, **__: on)
        words = ["--batch-size", "4", "--workers", "2", "--compute", "1ms", "--batches", "12"]
        return main(["profile", NUMBERED, "--out", "run", *words, *more])

    return profile


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("framework", ["native", "workers"])
def test_threads_that_fill_batches_copy_them_ahead(profiled, device, framework):
    assert profiled("--device", "cuda", "--framework", framework) == 0
    host, there = (of_kind("run", Kind.H2D, device=each) for each in (False, True))
    assert host["batch"].tolist() == there["batch"].tolist() == list(range(12))
    assert host["nbytes"].tolist() == there["nbytes"].tolist() == [NBYTES] * 12
    assert {piece.queue for piece in device.pieces} == {"copies"}
    assert all(piece.pinned for piece in device.pieces)
    # Each is on the device before the loop is given it.
    assert (there["end_ns"] <= of_kind("run", Kind.WAIT)["end_ns"]).all()
    assert not device.pinned
    told = json.loads(Path("run/run.json").read_text())
    facts = {"title": "threads", "kind": "fake"}
    assert told["device"] == {"name": "fake:0", "facts": facts, "memory": "pinned"}


def test_the_loop_copies_what_torch_loads_and_computes_when_it_is_there(profiled, device, capsys):
    assert profiled("--device", "cuda", "--framework", "torch", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    host, there = (of_kind("run", Kind.H2D, device=each) for each in (False, True))
    assert host["batch"].tolist() == there["batch"].tolist() == list(range(12))
    assert host["nbytes"].tolist() == there["nbytes"].tolist() == [NBYTES] * 12
    assert {piece.queue for piece in device.pieces} == {"compute"}
    ended = [piece.end_ns for piece in device.pieces[1::2]]  # the second array of each batch
    assert (of_kind("run", Kind.FORWARD)["start_ns"] >= np.array(ended)).all()
    (stage,) = (row for row in found["stages"] if row["stage"] == "h2d")
    least_ns = sum(piece.least_ns for piece in device.pieces)
    assert stage["busy_ns"] == stage["exposed_ns"] >= least_ns
    assert "h2d" not in {row["stage"] for row in found["compute_stages"]}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("framework", ["native", "workers", "torch"])
@pytest.mark.parametrize(
    ("faults", "told"),
    [
        (Faults(allocation=17), "fake:0: copying a batch of .* bytes failed: CUDA out of memory"),
        (Faults(copy=17), "fake:0: .* failed: CUDA error: device-side assert"),
    ],
)
def test_a_device_that_fails_in_the_middle_ends_the_profile_in_one_line(
    profiled, capsys, framework, faults, told
):
    with FakeAccelerator(faults=faults) as device:
        words = ("--batches", "40", "--device", "cuda", "--framework", framework)
        assert profiled(*words, on=device) == 1
    said = capsys.readouterr().err
    assert re.search(told, said)
    assert "Traceback" not in said
    assert len(of_kind("run", Kind.WAIT)) >= 1
    assert len(of_kind("run", Kind.H2D)) >= 1


@pytest.mark.long
def test_a_device_that_its_driver_refuses_ends_only_a_profile_that_names_it(
    profiled, device, capsys
):
    device.fall_away()
    assert profiled("--device", "cuda") == 69
    why = "fake:0 cannot be used: CUDA error: device-side assert triggered"
    assert f"--device cuda: {why}" in capsys.readouterr().err
    assert profiled() == main(["report", "run", "--full"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"Host-to-device copies: not measured (--device auto: {why})." in text
