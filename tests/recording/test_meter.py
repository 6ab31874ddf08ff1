"""What a machine does, written beside a run: small, whole after a kill, and by one thread."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from iobench.errors import OptionError
from iobench.recording import meter
from iobench.recording.energy_counters import EnergyCounter, EnergyCounters
from iobench.recording.machine_head import EnergySource, UnreadableEnergy, is_on
from iobench.recording.meter import start_meter
from iobench.runs.machine_samples import read_machines
from iobench.testing import FakeClock

sys.path.append(str(Path(__file__).parents[1] / "support"))

from stand_in_machine import StandInMachine

MS = 1_000_000


class Counter:
    """A counter that a test moves; what is not a number is raised."""

    def __init__(self):
        self.value, self.ends, self.masks = 0, 0, []
        self.asked = threading.Semaphore(0)
        self.goes_on = threading.Event()
        self.goes_on.set()

    def read_uj(self):
        self.masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        self.asked.release()
        self.goes_on.wait(30)
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def end(self):
        self.ends += 1


@pytest.fixture
def counter(monkeypatch):
    """The only counter of energy that this machine has."""
    result = Counter()
    source = EnergySource("gpu:a", "gpu", "A GPU")
    busy = iter([30, "N/A", 40, *range(99)])
    counters = [EnergyCounter(source, result.read_uj, lambda: next(busy))]
    unreadable = [UnreadableEnergy("cpu", "no counter")]
    monkeypatch.setattr(
        meter, "open_counters",
        lambda *_: EnergyCounters(counters, unreadable, (), [result.end]),
    )  # fmt: skip
    monkeypatch.setattr(meter, "PERIOD_NS", 3600 * 10**9)
    return result


def start(run, *, energy=True, machine=False, **options):
    return start_meter([run], energy=energy, machine=machine, **options)


def only(run):
    (machine,), _ = read_machines(run)
    return machine


def test_counts_are_read_back_as_what_was_busy(tmp_path, monkeypatch):
    machine = StandInMachine(tmp_path, n_cpus=2, quota="150000 100000")
    reader = machine.reader(tmp_path / "run", monkeypatch)
    reader.read()
    machine.advance(
        500, cpus=[1.0, 0.2], disk=0.5, disk_nbytes=1 << 20, net_nbytes=1000, memory=0.1, quota=0.4,
    )  # fmt: skip
    reader.read()
    machine.advance(1000, cpus=[0, 0.5], io=1.0)
    reader.read(everything=True)
    machine = only(tmp_path / "run")
    assert (machine.head.host, machine.head.cpus, machine.head.quota_cpus) == ("here", (0, 1), 1.5)
    assert machine.busy().tolist() == [[1.0, 0.2], [0.0, 0.5]]
    assert machine.cpu_limits()["quota"].tolist() == [0.4, 0.0]
    for column, rates in (
        ("disk:sda.busy_ms", [500, 0]), ("disk:sda.read", [2 << 20, 0]),
        ("net:eth0.received", [2000, 0]), ("pressure.memory_us", [1e5, 0]),
        ("pressure.io_us", [0, 1e6]),
    ):  # fmt: skip
        assert machine.per_second(column).tolist() == rates, column
    assert machine.names("disk") == ("sda",)  # and no loop0
    assert machine.names("net") == ("eth0",)  # and no lo
    assert machine.head.links == {"eth0": 1_250_000_000}


def test_what_a_system_does_not_have_is_in_no_column(tmp_path, monkeypatch):
    machine = StandInMachine(
        tmp_path, disks={}, links={"eth0": 0}, has_devices=False, pressure=False
    )
    reader = machine.reader(tmp_path / "run", monkeypatch)
    reader.read()
    machine.advance(500)
    (tmp_path / "proc/meminfo").write_text("nothing that is known\n")
    reader.read(everything=True)
    machine = only(tmp_path / "run")
    words = {each.partition(".")[0].partition(":")[0] for each in machine.head.columns}
    assert words == {"memory", "net", "own_cpu_ns"}
    assert machine.names("net") == ("eth0",)  # as in containers, without a device
    assert np.isnan(machine.values["memory.used_nbytes"]).tolist() == [False, True]
    assert machine.per_second("pressure.io_us") is None


def test_the_tightest_quota_above_bounds(tmp_path, monkeypatch):
    machine = StandInMachine(tmp_path, quota="800000 100000")
    above = tmp_path / "sys/fs/cgroup"
    (above / "cpu.max").write_text("200000 100000\n")
    (above / "cpu.stat").write_text("usage_usec 5\nnr_periods 1\n")
    machine.reader(tmp_path / "run", monkeypatch).read()
    machine = only(tmp_path / "run")
    assert machine.head.quota_cpus == 2.0
    assert machine.values["cgroup.cpu_us"].tolist() == [5]


def test_a_long_run_is_read_half_as_often_and_counts_stay_whole(tmp_path, monkeypatch):
    machine = StandInMachine(tmp_path, n_cpus=1)
    monkeypatch.setattr(meter, "LARGE_NBYTES", 4000)
    reader = machine.reader(tmp_path / "run", monkeypatch)
    for number in range(400):
        if machine.ns % reader.period_ns == 0:
            reader.read()
        machine.advance(100, cpus=[number % 2])
    reader.read()
    machine = only(tmp_path / "run")
    assert sorted(set((machine.step_ns // (100 * MS)).tolist())) == [1, 2, 4, 8]
    assert (machine.time_ns[0], machine.time_ns[-1]) == (0, 40_000 * MS)
    assert machine.busy()[:, 0] @ machine.step_ns == 20_000 * MS


def test_reading_takes_a_bounded_part_of_a_cpu(tmp_path, monkeypatch):
    class Slow(FakeClock):
        def cpu_ns(self):
            return next(cpu_ns)

    machine, cpu_ns = StandInMachine(tmp_path), iter(range(0, 10**9, 2 * MS))
    machine.clock = Slow(0)
    reader = machine.reader(tmp_path / "run", monkeypatch)
    assert reader.period_ns == 100 * MS
    reader.read()
    assert reader.period_ns == 1_000 * MS  # 0.2 % of a CPU


def test_a_reading_that_was_cut_off_is_the_only_one_lost(tmp_path, monkeypatch):
    machine = StandInMachine(tmp_path)
    reader = machine.reader(tmp_path / "run", monkeypatch)
    for _ in range(4):
        reader.read()
        machine.advance(100)
    (path,) = (tmp_path / "run" / "machine").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert len(only(tmp_path / "run").time_ns) == 3
    newer = whole.replace(b'"version":1', b'"version":2')
    for damaged in (b"", b"{", b"[]\n", b'{"version":1}\n', b"\xff\n", whole[20:], newer):
        path.write_bytes(damaged)
        assert read_machines(tmp_path / "run") == ((), (f"machine/{path.name}",))


def test_options_are_auto_or_off():
    assert (is_on("M", {}), is_on("M", {"M": "auto"}), is_on("E", {"E": "off"})) == (1, 1, 0)
    with pytest.raises(OptionError, match=r"energy 10: expected auto or off"):
        is_on("energy", {"energy": "10"})


def test_energy_is_read_first_and_last_and_drivers_are_let_go_of(tmp_path, counter):
    counter.value = 7
    reader = start(tmp_path)
    counter.value = ValueError("not now")
    reader.read()
    counter.value = 12
    reader.close()
    reader.close()
    assert counter.ends == 1
    machine = only(tmp_path)
    (series,) = machine.energy
    assert series.source.title == "A GPU"
    assert series.energy_j.tolist() == [0, 5e-6]
    assert machine.head.unreadable == (UnreadableEnergy("cpu", "no counter"),)
    assert machine.gpu_busy("0").tolist() == [0.4, 0.0]


def test_without_counters_threads_or_a_folder_the_run_goes_on(
    tmp_path, counter, monkeypatch, caplog
):
    def refuses(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(meter.threading.Thread, "start", refuses)
        start(tmp_path).close()
    assert caplog.text.count("can't start new thread") == 1
    assert counter.ends == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "machine").write_text("")
    start(tmp_path / "other").close()
    assert "nothing is read for it" in caplog.text
    monkeypatch.undo()
    monkeypatch.setattr(meter, "SYSTEM_ROOT", tmp_path / "nothing")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    before = threading.active_count()
    (tmp_path / "third").mkdir()
    start(tmp_path / "third").close()
    assert threading.active_count() == before
    unreadable = only(tmp_path / "third").head.unreadable
    assert [each.kind for each in unreadable] == ["gpu", "cpu", "memory"]


def test_one_process_reads_for_a_machine(tmp_path):
    first = start(tmp_path, machine=True)
    second = start(tmp_path, machine=True)
    second.close()
    first.close()
    machine = only(tmp_path)
    assert len(machine.time_ns) == len(set(machine.time_ns))
    assert len(machine.time_ns) >= 2
    assert set(machine.head.cpus) == os.sched_getaffinity(0)


def test_a_thread_that_reads_gets_no_signal(tmp_path, counter):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    start(tmp_path).close()
    assert {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM} <= set(counter.masks[-1])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_driver_that_hangs_keeps_nobody_from_leaving(tmp_path, counter, monkeypatch, caplog):
    monkeypatch.setattr(meter, "PATIENCE_S", 0.01)
    monkeypatch.setattr(meter, "PERIOD_NS", MS)
    monkeypatch.setattr(meter, "MOST_OF_A_CPU", 1)
    reader = start(tmp_path)
    counter.goes_on.clear()
    while counter.asked.acquire(timeout=0):
        pass
    assert counter.asked.acquire(timeout=30)
    reader.close()
    assert "does not answer" in caplog.text
    assert reader._thread.daemon
    counter.goes_on.set()
    reader._thread.join(30)


def test_a_full_disk_is_one_warning(tmp_path, counter, monkeypatch, caplog):
    really_write = os.write
    for short in (True, False):
        run = tmp_path / str(short)
        run.mkdir()
        reader = start(run)
        files = [*reader._files.values()]

        def full(file, data, short=short, files=files):
            if file not in files:
                return really_write(file, data)
            if short:
                return really_write(file, data[:5])
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(meter.os, "write", full)
            reader.close()
        assert caplog.text.lower().count("no space left") == 1
        caplog.clear()
        assert len(only(run).time_ns) == 1
    assert counter.ends == 2


def test_a_process_that_is_killed_leaves_its_readings(tmp_path):
    program = (
        "import os, pathlib, signal, sys, time\n"
        "from iobench.recording import meter\n"
        "meter.PERIOD_NS = 10**7\n"
        "run = pathlib.Path(sys.argv[1])\n"
        "meter.start_meter([run], energy=False, machine=True)\n"
        "(file,) = (run / 'machine').iterdir()\n"
        "before = file.stat().st_size\n"
        "while file.stat().st_size == before: time.sleep(0.01)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=False)
    assert ended.returncode == -9
    assert len(only(tmp_path).time_ns) >= 2
