"""Deep500's timers: keys, rules, errors, texts, what is logged; old scripts get a timeline."""

from __future__ import annotations

import io
import math
import sys
import types
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "support"))

from queue_device import QueueDevice

import iobench
from iobench.compat.deep500 import timer, timer_tf
from iobench.compat.deep500.timer_cpugpu import CPUGPUTimerBase, DeviceTimes
from iobench.findings.devices import device_exposure
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.facts import read_process_facts
from iobench.recording.kinds import Kind
from iobench.recording.session import Recording, current_recording
from iobench.recording.span_file import Flag
from iobench.testing import FakeClock


@pytest.fixture(autouse=True)
def no_run_around(monkeypatch):
    for name in ("IOBENCH_RUN", "IOBENCH_RUN_DETAIL", "IOBENCH_RUN_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(timer, "now_ns", clock.now_ns)
    return clock


def timed(tmr, clock, key, *seconds, **more):
    for duration in seconds:
        tmr.start(key, **more)
        clock.advance(round(duration * 1e9))
        tmr.end(key, **more)


@pytest.fixture
def trackers(monkeypatch):
    """Stand-ins for wandb and mlflow, which keep what is logged."""
    logged = {"wandb": [], "mlflow": []}
    for name, kept in logged.items():
        module = types.ModuleType(name)
        module.log = module.log_metrics = kept.append
        monkeypatch.setitem(sys.modules, name, module)
    return logged


def test_the_statistics(clock):
    tmr = timer.Timer()
    timed(tmr, clock, timer.TimeType.IO, 1, 2, 6)
    stats = tmr.get_time_stats(timer.TimeType.IO)
    assert stats._asdict() == {
        "min": 1, "mean": 3, "median": 2, "max": 6, "stdev": pytest.approx(7**0.5),
    }  # fmt: skip
    timed(tmr, clock, timer.TimeType.COMM, 1)
    assert math.isnan(tmr.get_time_stats(timer.TimeType.COMM).stdev)
    with pytest.raises(ValueError, match=r"TimeType.OTHER: no region was timed"):
        tmr.get_time_stats(timer.TimeType.OTHER)


def test_the_text_of_the_statistics(clock, capsys, tmp_path):
    tmr = timer.Timer()
    timed(tmr, clock, timer.TimeType.FORWARD, 0.25)
    timed(tmr, clock, timer.TimeType.IO, 1, 2, 6)
    expected = (
        "FORWARD\n"
        "min: 0.25000 mean: 0.25000 median: 0.25000 max: 0.25000 stdev: nan\n"
        "IO\n"
        "min: 1.00000 mean: 3.00000 median: 2.00000 max: 6.00000 stdev: 2.64575\n"
        "---\n"
    )
    tmr.print_all_time_stats()
    assert capsys.readouterr().out == expected
    tmr.save_all_time_stats(str(tmp_path / "stats.txt"))
    assert (tmp_path / "stats.txt").read_text() == expected
    with pytest.raises(FileExistsError):
        tmr.save_all_time_stats(str(tmp_path / "stats.txt"))


def test_the_rules(tmp_path):
    tmr, key = timer.Timer(), timer.TimeType.IO
    with pytest.raises(RuntimeError, match=r"^Unbalanced end for timing region type TimeType.IO$"):
        tmr.end(key)
    tmr.start(key)
    nested = r"^Detected nesting for timing region type TimeType.IO$"
    with pytest.raises(RuntimeError, match=nested):
        tmr.start(key)
    tmr.complete_all()
    unbalanced = r"^Unbalanced start/end for region type TimeType.IO$"
    for ask in (
        lambda: tmr.get_time(key),
        lambda: tmr.get_time_stats(key),
        tmr.print_all_time_stats,
        lambda: tmr.save_all_time_stats(tmp_path / "stats.txt"),
    ):
        with pytest.raises(RuntimeError, match=unbalanced):
            ask()
    assert not (tmp_path / "stats.txt").exists()
    for ask in (tmr.start, tmr.end):
        with pytest.raises(ValueError, match=r"^Cannot use TimeType.ALL here$"):
            ask(timer.TimeType.ALL)
    tmr.end(key)
    assert len(tmr.get_time(key)) == 1


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("", ["IO", "FORWARD"]),
        ("train", ["train/IO", "train/FORWARD"]),
        ("train/", ["train/IO", "train/FORWARD"]),
    ],
)
def test_means_alone_are_logged(clock, trackers, capsys, prefix, names):
    tmr = timer.Timer()
    timed(tmr, clock, timer.TimeType.IO, 1, 2, 6)
    timed(tmr, clock, timer.TimeType.FORWARD, 4)
    tmr.log_mlflow_all(prefix)
    assert capsys.readouterr().out == ""
    tmr.log_wb_all(prefix=prefix)
    means = dict(zip(names, [3.0, 4.0], strict=True))
    assert trackers == {"wandb": [means], "mlflow": [means]}
    assert capsys.readouterr().out == f"{means}\n"
    tmr.start(timer.TimeType.IO)
    for log in (tmr.log_mlflow_all, tmr.log_wb_all):
        with pytest.raises(RuntimeError, match="Unbalanced start/end"):
            log()


def test_events_run_out_unless_regions_are_completed(clock):
    device = QueueDevice(clock)
    both = CPUGPUTimerBase(timer.HostTimes, lambda: DeviceTimes(device, 8))
    device.work(10**12)  # which it is still at
    timed(both, clock, timer.TimeType.BATCH, 1, 1, 1, 1, gpu=True)
    with pytest.raises(RuntimeError, match=r"^No more CUDA events, try completing some$"):
        both.start(timer.TimeType.FORWARD, gpu=True)
    both.complete_all()
    assert device.n_waits == 1  # one for all of them
    assert len(device.released) == 8
    timed(both, clock, timer.TimeType.BATCH, 1, 1, 1, gpu=True)
    both.start(timer.TimeType.IO, gpu=True)
    both.complete_all()  # what has only begun keeps its event
    both.end(timer.TimeType.IO, gpu=True)
    assert len(both.get_time(timer.TimeType.IO, gpu=True)) == 1
    assert len(both.get_time(timer.TimeType.BATCH, gpu=True)) == 7


# -- as spans of a recording ----------------------------------------------------------------

# The loop of the timer's guide and of the project's report, less its comments: BATCH and IO begin
# before the loop and at the end of each step but the last one.
SCRIPT = """
from deep500.utils import timer_torch as timer


def train_epoch(loader, step, tmr):
    tmr.start(timer.TimeType.BATCH, gpu=True)
    tmr.start(timer.TimeType.IO)
    for idx, batch in enumerate(loader):
        tmr.end(timer.TimeType.IO)
        tmr.start(timer.TimeType.FORWARD, gpu=True)
        loss = step.forward(batch)
        tmr.end(timer.TimeType.FORWARD, gpu=True)
        tmr.start(timer.TimeType.BACKWARD, gpu=True)
        step.backward(loss)
        tmr.end(timer.TimeType.BACKWARD, gpu=True)
        tmr.end(timer.TimeType.BATCH, gpu=True)
        if idx % 10 == 0:
            tmr.complete_all()
        if idx != len(loader) - 1:
            tmr.start(timer.TimeType.BATCH, gpu=True)
            tmr.start(timer.TimeType.IO)


def train(loader, step, file):
    tmr = timer.CPUGPUTimer()
    for _ in range(2):
        tmr.start(timer.TimeType.EPOCH)
        train_epoch(loader, step, tmr)
        tmr.end(timer.TimeType.EPOCH)
    tmr.print_all_time_stats(file)
    tmr.log_mlflow_all("train")
"""


N_BATCHES = 12
STEP = types.SimpleNamespace(forward=lambda batch: batch, backward=lambda loss: None)


class SeenLoader(list):
    """A loader that a hook of iobench tells of; a plain list is one of which nobody knows."""

    facts = None

    def __iter__(self):
        recording = current_recording()
        self.facts = self.facts or recording.add_loader("torch", "a.Loader", "Numbers")
        log = DeliveryLog(recording, self.facts)
        log.ask()
        log.started()
        for _ in range(len(self)):
            log.ask()
            log.deliver(recording.next_batch())
            yield 1
        log.ask()
        log.end()


def run_script(loader):
    """Run the script, of which only the import is another."""
    code = SCRIPT.replace("from deep500.utils import", "from iobench.compat.deep500 import")
    names, text = {}, io.StringIO()
    exec(code, names)
    names["train"](loader, STEP, text)
    return text.getvalue()


def rows(profile):
    spans = profile.spans
    return [
        (Kind(row["kind"]).spelled, profile.strings[row["label"]], int(row["batch"]))
        for row in spans
    ]


def count(profile, kind, label=""):
    return sum(row[:2] == (kind, label) for row in rows(profile))


def test_an_old_script_gets_waits_rounds_and_stages(tmp_path, trackers):
    pytest.importorskip("torch", reason="timer_torch asks it for a GPU")
    with iobench.record(tmp_path / "run") as session:
        text = run_script([*range(N_BATCHES)])
        assert session.step == 24
    assert [line for line in text.splitlines() if ":" not in line].count("---") == 2
    assert {key for logged in trackers["mlflow"] for key in logged} >= {"train/CPU/IO"}
    profile = iobench.open_profile(tmp_path / "run")
    assert count(profile, "wait") == count(profile, "forward") == count(profile, "backward") == 24
    assert count(profile, "other", "round") == count(profile, "other", "EPOCH") == 2
    assert count(profile, "other", "BATCH") == 24
    assert [row[2] for row in rows(profile) if row[0] == "forward"] == list(range(24))
    assert sorted(set(profile.spans["epoch"].tolist())) == [0, 1]
    held = profile.spans[[row[1] in {"EPOCH", "BATCH"} for row in rows(profile)]]
    assert (held["flags"] == Flag.DETAIL).all()
    (facts,) = read_process_facts(session.run.processes_path)
    (loader,) = facts.loaders
    assert (loader.framework, loader.name) == ("deep500", "IO")
    assert "the script times them" in loader.unseen[0]
    exposure = iobench.exposure(profile)
    assert exposure.n_rounds == 2
    assert exposure.whole.n_batches == 24
    assert exposure.whole.wait_ns == sum(exposure.waits_ns)


def test_a_loader_that_is_seen_tells_its_own_waits(tmp_path, trackers):
    pytest.importorskip("torch", reason="timer_torch asks it for a GPU")
    with iobench.record(tmp_path / "run") as session:
        run_script(SeenLoader(range(N_BATCHES)))
        assert session.step == 24
    profile = iobench.open_profile(tmp_path / "run")
    waits = [row for row in rows(profile) if row[0] == "wait"]
    assert [row[2] for row in waits if not row[1]] == list(range(24))
    assert [row[1] for row in waits if row[1]] == ["startup", "shutdown"] * 2
    assert count(profile, "other", "round") == 2
    (facts,) = read_process_facts(session.run.processes_path)
    assert [loader.framework for loader in facts.loaders] == ["torch"]


def recording(tmp_path, clock):
    return Recording(tmp_path / "run", detail="auto", clock=clock)


def region(tmr, clock, key, duration_ns, **more):
    tmr.start(key, **more)
    clock.advance(duration_ns)
    tmr.end(key, **more)


def test_keys_become_kinds_and_labels(tmp_path, clock):
    with recording(tmp_path, clock):
        tmr = timer.Timer()
        for key in (*timer.TimeType, "regrid", "round"):
            if key is not timer.TimeType.ALL and key is not timer.TimeType.IO:
                region(tmr, clock, key, 10)
    assert [row[:2] for row in rows(iobench.open_profile(tmp_path / "run"))] == [
        ("other", "EPOCH"), ("other", "BATCH"), ("forward", ""), ("backward", ""), ("comm", ""),
        ("other", "OTHER"), ("other", "regrid"), ("other", "round (timer)"),
    ]  # fmt: skip


def test_device_regions_lie_on_the_device_lane(tmp_path, clock):
    device = QueueDevice(clock, "cuda:0")
    both = CPUGPUTimerBase(timer.HostTimes, lambda: DeviceTimes(device, 200))
    with recording(tmp_path, clock):
        for _ in range(3):
            both.start(timer.TimeType.BATCH, gpu=True)
            region(both, clock, timer.TimeType.IO, 100)
            both.start(timer.TimeType.FORWARD, gpu=True)
            device.work(80)
            clock.advance(1)
            both.end(timer.TimeType.FORWARD, gpu=True)
            both.end(timer.TimeType.BATCH, gpu=True)
        both.complete_all()
        assert device.n_waits == 1
    assert both.get_time(timer.TimeType.FORWARD, gpu=True) == pytest.approx([80e-9] * 3)
    profile = iobench.open_profile(tmp_path / "run")
    found = device_exposure(profile)
    assert found is not None
    assert found.exposed_ns.tolist() == [100, 21, 21]
    assert found.busy_ns["forward"] == 240
    assert count(profile, "other", "BATCH") == 6  # of the host, and of the device


@pytest.mark.long
@pytest.mark.parametrize("gpu", [False, True])
def test_the_callback_times_epochs_and_batches_of_keras(gpu):
    tensorflow = pytest.importorskip("tensorflow", reason="model.fit is Keras's")
    import numpy as np

    from iobench.compat.deep500.timer_tf import TimerCallback

    assert issubclass(TimerCallback, tensorflow.keras.callbacks.Callback)
    assert TimerCallback is timer_tf.TimerCallback
    model = tensorflow.keras.Sequential([tensorflow.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    tmr = timer_tf.CPUGPUTimer()
    data = np.ones((12, 3), "f4"), np.ones((12, 1), "f4")
    model.fit(*data, batch_size=4, epochs=2, verbose=0, callbacks=[TimerCallback(tmr, gpu=gpu)])
    assert len(tmr.get_time(timer_tf.TimeType.EPOCH)) == 2
    assert len(tmr.get_time(timer_tf.TimeType.BATCH)) == 6
    assert len(tmr.get_time(timer_tf.TimeType.BATCH, gpu=True)) == 6 * gpu
