"""Who reads counters while a run goes on: lines in a file, and nothing that is in a run's way."""

import errno
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading

import pytest

import iobench
from iobench.recording import energy_counters, energy_reader, host_reader
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.recording.energy_counters import (
    CounterError,
    CounterRoots,
    EnergySource,
    FoundCounters,
    UsageGauge,
)
from iobench.recording.energy_file import read_energy
from iobench.recording.energy_reader import EnergyReader, open_energy_reader
from iobench.recording.host_reader import HostReader
from iobench.testing import FakeClock

MS = 1_000_000


class Meter:
    """A counter that a test moves; what is not a number is raised."""

    def __init__(self, name="cpu:0", kind="cpu"):
        self.source = EnergySource(name, kind, name, "RAPL", MS)
        self.value = 0
        self.closed = 0
        self.asked = threading.Semaphore(0)
        self.goes_on = threading.Event()
        self.goes_on.set()

    def read_uj(self):
        self.asked.release()
        self.goes_on.wait(30)
        if not isinstance(self.value, int):
            raise CounterError(self.value)
        return self.value

    def close(self):
        self.closed += 1


def start_energy_reader(runs, *, clock=SYSTEM_CLOCK, **options):
    reading = open_energy_reader(runs, clock=clock, **options)
    return None if reading is None else HostReader([reading], clock).start()


@pytest.fixture
def machine(monkeypatch):
    """Let this machine have the counters that a test makes."""

    def have(*meters, unreadable=()):
        found = FoundCounters(tuple(meters), tuple(unreadable))
        monkeypatch.setattr(energy_reader, "find_counters", lambda *_, **__: found)
        return meters[0] if len(meters) == 1 else meters

    return have


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Let this machine have the counter of a processor in a file, and nothing else."""
    folder = tmp_path / "powercap" / "intel-rapl:0"
    folder.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "9"), ("energy_uj", "5")):
        (folder / name).write_text(f"{text}\n")
    roots = CounterRoots(tmp_path / "powercap", *[tmp_path / "no"] * 3)
    monkeypatch.setattr(energy_counters, "SYSTEM_ROOTS", roots)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return folder


def lines(run):
    (path,) = (run / "energy").iterdir()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_drivers_tell_of_gpus_is_written_as_far_as_it_is_known(tmp_path, monkeypatch):
    def refused():
        raise CounterError("not now")

    clock = FakeClock(1000)
    meters = Meter("cpu:0"), Meter("gpu:a", "gpu"), Meter("gpu:b", "gpu")
    busy = iter([30, "N/A", 40, 50])
    gauges = (
        UsageGauge("gpu:b", lambda: next(busy), lambda: 1 << 30),
        UsageGauge("gpu:a", refused, lambda: {}.used),
    )
    found = FoundCounters(meters, gauges=gauges)
    monkeypatch.setattr(energy_reader, "find_counters", lambda *_, **__: found)
    reader = start_energy_reader([tmp_path], clock=clock, period_ns=3600 * 10**9)
    clock.advance(1000)
    reader.close()
    told = [line for line in lines(tmp_path) if "usage" in line]
    assert told == [
        {"time_ns": 1000, "usage": [[2, 30, 1 << 30]]},
        {"time_ns": 2000, "usage": [[2, None, 1 << 30]]},
    ]
    (host,) = read_energy(tmp_path)
    assert [(each.source.name, each.time_ns, each.busy_percent) for each in host.usage] == [
        ("gpu:b", 1000, 30), ("gpu:b", 2000, None),
    ]  # fmt: skip
    assert host.n_damaged == 0


def test_readings_are_lines_with_the_time_of_each_counter(tmp_path, machine):
    clock = FakeClock(1000)
    slow, quick = machine(Meter("cpu:0"), Meter("cpu:1"))
    quick.value = 7
    slow.read_uj = lambda: clock.advance(40) or 5
    reader = start_energy_reader([tmp_path], clock=clock, period_ns=3600 * 10**9)
    clock.advance(960)
    quick.value = 9
    reader.close()
    assert lines(tmp_path)[1:3] == [[1000, 20, 5, 40, 7], [2000, 20, 5, 40, 9]]


def test_a_counter_that_fails_is_told_once_and_asked_again(tmp_path, machine):
    clock, meter = FakeClock(), machine(Meter())
    values = iter([3, "gpu is lost", "gpu is lost", 8])
    ended = threading.Event()

    def read_uj():
        meter.value = next(values, 9)
        clock.advance(MS)
        if meter.value == 9:
            ended.set()
        return Meter.read_uj(meter)

    meter.read_uj = read_uj
    reader = start_energy_reader([tmp_path], clock=clock, period_ns=MS)
    assert ended.wait(30)
    reader.close()
    told = lines(tmp_path)
    assert told.count({"failed": 0, "reason": "gpu is lost"}) == 1
    assert [each[2] for each in told if isinstance(each, list)][:5] == [3, None, None, 8, 9]


def test_a_run_begins_and_ends_with_a_reading(tmp_path, machine):
    meter = machine(Meter())
    reader = start_energy_reader([tmp_path], period_ns=3600 * 10**9)
    meter.value = 12
    reader.close()
    reader.close()
    head, first, last, end = lines(tmp_path)
    assert (head["version"], head["pid"], head["sources"][0]["kind"]) == (1, os.getpid(), "cpu")
    assert (first[2], last[2]) == (0, 12)
    assert last[0] > first[0]
    assert (end["closed"], end["readings"]) == (True, 2)
    assert meter.closed == 1
    (found,) = read_energy(tmp_path)
    assert (found.closed, found.series[0].energy_uj.tolist()) == (True, [0, 12])
    assert found.n_timed == 2


def test_it_reads_on_its_own_meanwhile(tmp_path, machine):
    meter = machine(Meter())
    reader = start_energy_reader([tmp_path], period_ns=MS)
    for _ in range(5):
        assert meter.asked.acquire(timeout=30)
    reader.close()
    assert len(lines(tmp_path)) >= 5 + 2


def test_readings_come_half_as_often_after_hours(tmp_path, monkeypatch):
    monkeypatch.setattr(energy_reader, "MOST_READINGS", 2)
    waited = []
    file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    found = FoundCounters((Meter(),))
    clock = FakeClock()
    reader = HostReader([EnergyReader([file], found, clock=clock, period_ns=100 * MS)], clock)

    def wait(seconds):
        waited.append(round(seconds * 10))
        return len(waited) == 6

    monkeypatch.setattr(reader._stopped, "wait", wait)
    reader._run()
    assert [now - before for before, now in zip([0, *waited], waited, strict=False)] == [
        1, 1, 2, 2, 4, 4,
    ]  # fmt: skip


def test_a_machine_without_counters_says_so_and_starts_no_thread(tmp_path, package):
    (package / "energy_uj").unlink()
    before = threading.active_count()
    reader = start_energy_reader([tmp_path])
    assert threading.active_count() == before
    reader.close()
    (found,) = read_energy(tmp_path)
    assert (found.series, found.closed) == ((), True)
    assert {each.kind for each in found.unreadable} == {"gpu", "cpu", "memory"}


def test_no_thread_is_one_warning(tmp_path, machine, monkeypatch, caplog):
    def refuses(_):
        raise RuntimeError("can't start new thread")

    meter = machine(Meter())
    monkeypatch.setattr(host_reader.threading.Thread, "start", refuses)
    reader = start_energy_reader([tmp_path])
    reader.close()
    assert caplog.text.count("can't start new thread") == 1
    assert meter.closed == 1


def test_one_reader_reads_for_a_machine(tmp_path, machine):
    meter = machine(Meter())
    first = start_energy_reader([tmp_path])
    assert start_energy_reader([tmp_path]) is None
    first.close()
    assert start_energy_reader([tmp_path]) is None
    assert meter.closed == 1


def test_a_thread_that_reads_gets_no_signal(tmp_path, machine):
    masks = []
    meter = machine(Meter())
    meter.read_uj = lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())) or 0
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    reader = start_energy_reader([tmp_path], period_ns=3600 * 10**9)
    reader.close()
    assert {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM} <= set(masks[-1])
    assert masks[0] == signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_driver_that_hangs_keeps_nobody_from_leaving(tmp_path, machine, monkeypatch, caplog):
    monkeypatch.setattr(host_reader, "PATIENCE_S", 0.01)
    meter = machine(Meter())
    reader = start_energy_reader([tmp_path], period_ns=MS)
    meter.goes_on.clear()
    while meter.asked.acquire(timeout=0):
        pass
    assert meter.asked.acquire(timeout=30)
    reader.close()
    assert "does not answer" in caplog.text
    assert reader._thread.daemon
    meter.goes_on.set()
    reader._thread.join(30)


def _close(reader):
    reader.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.usefixtures("package")
def test_a_fork_ends_nothing(tmp_path):
    reader = start_energy_reader([tmp_path], period_ns=3600 * 10**9)
    child = multiprocessing.get_context("fork").Process(target=_close, args=(reader,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    reader.close()
    assert sum("closed" in line for line in map(dict, lines(tmp_path)[-1:])) == 1
    assert len(lines(tmp_path)) == 4


@pytest.mark.parametrize("short", [True, False])
def test_a_full_disk_is_one_warning(tmp_path, machine, monkeypatch, caplog, short):
    meter = machine(Meter())
    reader = start_energy_reader([tmp_path], period_ns=3600 * 10**9)
    really_write = os.write

    def full(file, data):
        if file not in reader._readings[0]._files:
            return really_write(file, data)
        if short:
            return really_write(file, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(energy_reader.os, "write", full)
    reader.close()
    monkeypatch.undo()
    assert caplog.text.lower().count("no space left") == 1
    assert meter.closed == 1
    (found,) = read_energy(tmp_path)
    assert (found.n_readings, found.n_damaged, found.closed) == (1, 0, False)


@pytest.mark.usefixtures("package")
def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path, caplog):
    (tmp_path / "energy").write_text("")
    with caplog.at_level(logging.WARNING):
        assert start_energy_reader([tmp_path]) is None
    assert "nothing is read for it" in caplog.text


def test_a_script_reads_where_it_asks_for_it(tmp_path, machine, monkeypatch):
    monkeypatch.delenv("IOBENCH_RUN", raising=False)
    meter = machine(Meter())
    with iobench.record(tmp_path / "run", energy=True):
        with iobench.record(energy=True):
            meter.value = 4
        assert meter.closed == 0
    assert meter.closed == 1
    (found,) = read_energy(tmp_path / "run")
    assert found.series[0].energy_uj[-1] == 4
    with iobench.record(tmp_path / "other"):
        pass
    assert read_energy(tmp_path / "other") == ()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("local_rank", "reads"), [("0", True), ("1", False)])
def test_of_a_machines_ranks_the_first_one_reads(tmp_path, monkeypatch, local_rank, reads):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", local_rank)):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IOBENCH_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("IOBENCH_RUN_ENERGY", "1")
    monkeypatch.setattr("iobench.recording.session._refused", False)
    iobench.recording.session.current_recording().close()
    assert bool(read_energy(tmp_path / "run")) == reads
