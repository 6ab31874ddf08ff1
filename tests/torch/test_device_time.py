"""Device time over a stand-in device on a clock by hand, and on the CPU. No CUDA is needed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the training loop is PyTorch's")
import torch
from fake_accelerator import FakeAccelerator
from queue_device import QueueDevice

import iobench
from iobench.errors import OptionError
from iobench.findings.devices import device_exposure
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.recording.session import Recording
from iobench.recording.span_file import Flag
from iobench.testing import FakeClock
from iobench.torch import training_hooks
from iobench.torch.device_time import DeviceTimer


@pytest.fixture(autouse=True)
def no_run_around(monkeypatch):
    for name in ("IOBENCH_RUN", "IOBENCH_RUN_DETAIL", "IOBENCH_RUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def clock():
    return FakeClock(start_ns=1000)


@pytest.fixture
def device(clock):
    return QueueDevice(clock)


def recording(path, clock):
    return Recording(path / "run", detail="auto", clock=clock)


def rows_of(session, *, device):
    """Return (kind, label, start, end, batch) of the spans of the host or the device."""
    profile = iobench.open_profile(session.run.path)
    spans = profile.spans
    chosen = spans[((spans["flags"] & Flag.DEVICE) != 0) == device]
    return [
        (
            Kind(row["kind"]).spelled,
            profile.strings[row["label"]],
            int(row["start_ns"]),
            int(row["end_ns"]),
            int(row["batch"]),
        )
        for row in chosen
    ]


def test_a_region_is_a_span_of_the_host_and_one_of_the_device(tmp_path, clock, device):
    with recording(tmp_path, clock) as session:
        timer = DeviceTimer(clock=device)
        session.recorder.position(7, 2)
        device.work(500)  # what was given before, and is not done
        with timer("forward"):
            clock.advance(10)
            device.work(300)
        clock.advance(5)
        timer.flush()
    assert rows_of(session, device=False) == [("forward", "", 1000, 1010, 7)]
    forward, anchor = rows_of(session, device=True)
    assert forward == ("forward", "", 1500, 1800, 7)
    assert anchor[:2] == ("other", "anchor")
    assert anchor[2] <= 1800 == anchor[3]
    assert device.n_waits == 1
    assert len(device.released) == 3


def test_the_device_is_waited_for_once_a_flush(tmp_path, clock, device):
    with recording(tmp_path, clock) as session:
        timer = DeviceTimer(clock=device, regions_per_flush=8)
        for _ in range(20):
            with timer("forward"):
                clock.advance(1)
                device.work(100)
        assert device.n_waits == 2
    assert device.n_waits == 3  # what was left, as the recording ends
    assert len([row for row in rows_of(session, device=True) if row[0] == "forward"]) == 20


def test_what_the_host_waited_under_device_work_is_not_exposed(tmp_path, clock, device):
    with recording(tmp_path, clock) as session:
        timer = DeviceTimer(clock=device)
        log = DeliveryLog(session, session.add_loader("torch", "a", "b"))
        for batch in range(3):
            log.ask()
            clock.advance(100)
            log.deliver(batch)
            with timer("forward"):
                clock.advance(1)
                device.work(80)
        log.leave()
    found = device_exposure(iobench.open_profile(session.run.path))
    assert found is not None
    assert found.exposed_ns.tolist() == [100, 20, 20]
    assert found.uncertainty_ns == 0  # the device was idle as it was given its first work


@pytest.mark.parametrize("at_end", [False, True])
def test_a_device_that_falls_away_ends_device_time_alone(tmp_path, at_end):
    done = []

    def train(device, timer):
        for step in range(6):
            if step == 5:
                device.fall_away()
            with timer("forward"):
                if step < 5 or not at_end:
                    device.launch(1_000_000)  # which raises what the training would have met anyway
            done.append(step)

    with FakeAccelerator() as device, iobench.record(tmp_path / "run") as session:
        timer = DeviceTimer(clock=device, regions_per_flush=2)
        if at_end:
            train(device, timer)
        else:
            with pytest.raises(RuntimeError, match="device-side assert"):
                train(device, timer)
    assert done == list(range(5 + at_end))
    (facts,) = read_process_facts(session.run.processes_path)
    assert facts.unseen == ["device time of fake:0: CUDA error: device-side assert triggered"]
    assert len(rows_of(session, device=False)) == 6
    there = [row for row in rows_of(session, device=True) if row[0] == "forward"]
    assert len(there) == 4  # as far as it was asked before


@pytest.mark.parametrize("device", ["meta", "gpu", "cuda:99", object()])
def test_devices_without_a_clock_are_refused(device):
    with pytest.raises(OptionError, match=r"device="):
        DeviceTimer(device)
    with pytest.raises(OptionError, match="regions_per_flush=0"):
        DeviceTimer(regions_per_flush=0)


def test_torch_save_is_a_checkpoint_with_its_size(tmp_path, clock):
    original = torch.save
    with recording(tmp_path, clock) as session:
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
