"""The surface of Deep500's timers: keys, rules, errors, texts, and what is logged."""

from __future__ import annotations

import math
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_device import QueueDevice

from iobench.compat.deep500 import timer
from iobench.compat.deep500.timer_cpugpu import CPUGPUTimerBase, DeviceTimes
from iobench.testing import FakeClock

KEYS = tuple(key for key in timer.TimeType if key is not timer.TimeType.ALL)


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


class Tracker(types.ModuleType):
    """Stands in for wandb or mlflow: keeps what is logged."""

    def __init__(self, name):
        super().__init__(name)
        self.logged = []
        self.log = self.log_metrics = self.logged.append


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


@given(st.lists(st.tuples(st.sampled_from(["start", "end", "complete"]), st.sampled_from(KEYS))))
def test_any_order_of_calls_keeps_to_the_rules(calls):
    """Against the rules said once more: a key is open or not, and counts its ends."""
    tmr, is_open, ended = timer.Timer(), set(), dict.fromkeys(KEYS, 0)
    for call, key in calls:
        if call == "complete":
            tmr.complete_all()
        elif (call == "start") == (key in is_open):
            with pytest.raises(RuntimeError):
                getattr(tmr, call)(key)
        else:
            getattr(tmr, call)(key)
            is_open ^= {key}
            ended[key] += call == "end"
    for key in KEYS:
        if key in is_open:
            with pytest.raises(RuntimeError, match="Unbalanced start/end"):
                tmr.get_time(key)
            tmr.end(key)
            ended[key] += 1
        assert len(tmr.get_time(key)) == ended[key]
        assert all(time >= 0 for time in tmr.get_time(key))


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("", ["IO", "FORWARD"]),
        ("train", ["train/IO", "train/FORWARD"]),
        ("train/", ["train/IO", "train/FORWARD"]),
    ],
)
def test_means_alone_are_logged(clock, monkeypatch, capsys, prefix, names):
    wandb, mlflow = Tracker("wandb"), Tracker("mlflow")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    tmr = timer.Timer()
    timed(tmr, clock, timer.TimeType.IO, 1, 2, 6)
    timed(tmr, clock, timer.TimeType.FORWARD, 4)
    tmr.log_mlflow_all(prefix)
    assert capsys.readouterr().out == ""
    tmr.log_wb_all(prefix=prefix)
    means = dict(zip(names, [3.0, 4.0], strict=True))
    assert wandb.logged == mlflow.logged == [means]
    assert capsys.readouterr().out == f"{means}\n"
    tmr.start(timer.TimeType.IO)
    for log in (tmr.log_mlflow_all, tmr.log_wb_all):
        with pytest.raises(RuntimeError, match="Unbalanced start/end"):
            log()


@pytest.fixture
def device(clock):
    return QueueDevice(clock)


@pytest.fixture
def both(device):
    return CPUGPUTimerBase(timer.HostTimes, lambda: DeviceTimes(device, 8))


def test_events_run_out_unless_regions_are_completed(both, clock, device):
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
