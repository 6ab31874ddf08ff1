"""What a machine does, written beside a run: small, whole after a kill, and by one reader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import iobench
from iobench.errors import OptionError, ProfileError
from iobench.profiles.machine_samples import read_machines
from iobench.recording import monitor
from iobench.recording.monitor import monitor_period_ns, start_monitor
from iobench.testing import FakeClock

sys.path.append(str(Path(__file__).parents[1] / "support"))

from stand_in_machine import GIB, StandInMachine


def test_counts_are_read_back_as_what_was_busy(tmp_path, monkeypatch):
    machine = StandInMachine(tmp_path, n_cpus=2, quota="150000 100000", swap=True)
    reader = machine.reader(tmp_path / "run", monkeypatch)
    reader.read()
    machine.advance(
        500, cpus=[1.0, 0.2], disk=0.5, disk_nbytes=1 << 20, net_nbytes=1000, memory=0.1, quota=0.4,
    )  # fmt: skip
    reader.read()
    machine.advance(1000, cpus=[0, 0.5], io=1.0, swap_pages=3)
    reader.read()
    reader.finish()
    (found,), _ = read_machines(tmp_path / "run")
    assert (found.host, found.head.cpus, found.head.quota_cpus) == ("here", (0, 1), 1.5)
    assert found.busy().tolist() == [[1.0, 0.2], [0.0, 0.5]]
    assert found.cpu_limits()["quota"].tolist() == [0.4, 0.0]
    for column, wanted in (
        ("disk:sda.busy_ms", [500, 0]), ("disk:sda.read", [2 << 20, 0]),
        ("net:eth0.received", [2000, 0]), ("pressure.memory_us", [1e5, 0]),
        ("pressure.io_us", [0, 1e6]), ("swap.in_pages", [0, 3]),
    ):  # fmt: skip
        assert found.per_second(column).tolist() == wanted
    assert found.names("disk") == ("sda",)  # and no loop0
    assert found.names("net") == ("eth0",)  # and no lo
    assert found.head.links == {"eth0": 1_250_000_000}
    assert found.head.spinning == ("sda",)


def test_what_a_system_does_not_tell_is_in_no_column(tmp_path, monkeypatch):
    machine = StandInMachine(tmp_path, disks={}, links={}, pressure=False)
    reader = machine.reader(tmp_path / "run", monkeypatch)
    reader.read()
    machine.advance(500)
    (tmp_path / "proc/meminfo").write_text("nothing that is known\n")
    reader.read()
    reader.finish()
    (found,), _ = read_machines(tmp_path / "run")
    words = {each.partition(".")[0].partition(":")[0] for each in found.head.columns}
    assert words == {"memory", "own_cpu_ns"}
    assert np.isnan(found.values["memory.used_nbytes"]).tolist() == [False, True]
    assert found.per_second("pressure.io_us") is None


def test_the_tightest_cgroup_above_bounds(tmp_path, monkeypatch):
    machine = StandInMachine(tmp_path, quota="800000 100000", memory_limit=8 * GIB)
    above = tmp_path / "sys/fs/cgroup"
    (above / "cpu.max").write_text("200000 100000\n")
    (above / "cpu.stat").write_text("usage_usec 5\nnr_periods 1\nnr_throttled 0\n")
    reader = machine.reader(tmp_path / "run", monkeypatch)
    machine.group_nbytes = 3 * GIB
    machine.write()
    reader.read()
    reader.finish()
    (found,), _ = read_machines(tmp_path / "run")
    assert (found.head.quota_cpus, found.head.memory_limit_nbytes) == (2.0, 8 * GIB)
    # Cached files are no memory that is missing.
    assert found.values["cgroup.used_nbytes"].tolist() == [3 * GIB]


def test_a_large_file_is_added_to_half_as_often_and_counts_stay_whole(tmp_path, monkeypatch):
    machine = StandInMachine(tmp_path, n_cpus=1)
    monkeypatch.setattr(monitor, "LARGE_NBYTES", 4000)
    reader = machine.reader(tmp_path / "run", monkeypatch)
    asked_ns = reader.period_ns
    for number in range(400):
        if machine.ns % reader.period_ns == 0:
            reader.read()
        machine.advance(100, cpus=[number % 2])
    reader.read()
    reader.finish()
    (found,), _ = read_machines(tmp_path / "run")
    assert sorted(set((found.step_ns // asked_ns).tolist())) == [1, 2, 4, 8]
    assert (found.time_ns[0], found.time_ns[-1]) == (0, 40_000 * 1_000_000)
    assert found.busy()[:, 0] @ found.step_ns == 20_000 * 1_000_000


def test_a_reading_that_was_cut_off_is_the_only_one_lost(tmp_path, monkeypatch):
    machine = StandInMachine(tmp_path)
    reader = machine.reader(tmp_path / "run", monkeypatch)
    for _ in range(4):
        reader.read()
        machine.advance(100)
    (path,) = (tmp_path / "run" / "machine").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    (found,), _ = read_machines(tmp_path / "run")
    assert len(found.time_ns) == 3
    for damaged in (b"", b"{", b"[]\n", b'{"version":1}\n', b"\xff\n", whole[20:]):
        path.write_bytes(damaged)
        assert read_machines(tmp_path / "run") == ((), (f"machine/{path.name}",))
    path.write_bytes(whole.replace(b'"version":1', b'"version":2'))
    with pytest.raises(ProfileError, match="version 2"):
        read_machines(tmp_path / "run")


def test_rates_are_auto_off_or_a_number():
    assert [monitor_period_ns(each) for each in ("auto", "off", "1", "10")] == [
        500_000_000, None, 10**9, 10**8,
    ]  # fmt: skip
    for wrong in ("0", "11", "often", "-1", "2.5", ""):
        with pytest.raises(OptionError, match=r"--monitor.*expected auto, off or 1 to 10"):
            monitor_period_ns(wrong)
    with pytest.raises(OptionError, match="--monitor"):
        iobench.record(monitor="often")


def test_a_machine_that_is_slow_to_tell_is_asked_less_often(tmp_path, monkeypatch):
    class Slow(FakeClock):
        def cpu_ns(self):
            return next(cpu_ns)

    machine, cpu_ns = StandInMachine(tmp_path), iter(range(0, 10**9, 2_000_000))
    machine.clock = Slow(0)
    reader = machine.reader(tmp_path / "run", monkeypatch)
    reader.read()
    assert reader.period_ns == 100_000_000  # as it was asked for
    reader._frugal = True
    assert reader.period_ns == 2_000_000_000
    reader.finish()


def test_one_process_reads_for_a_machine(tmp_path):
    first = start_monitor([tmp_path], energy=False, monitor="10")
    second = start_monitor([tmp_path], energy=False, monitor="10")
    second.close()
    first.close()
    (found,), _ = read_machines(tmp_path)
    assert (found.head.pid, len(found.time_ns)) == (os.getpid(), len(set(found.time_ns)))
    assert len(found.time_ns) >= 2
    assert set(found.head.cpus) == os.sched_getaffinity(0)


def test_a_process_that_is_killed_leaves_its_readings(tmp_path):
    program = (
        "import os, pathlib, signal, sys, time\n"
        "from iobench.recording.monitor import start_monitor\n"
        "run = pathlib.Path(sys.argv[1])\n"
        "start_monitor([run], energy=False, monitor='10')\n"
        "(file,) = (run / 'machine').iterdir()\n"
        "before = file.stat().st_size\n"
        "while file.stat().st_size == before: time.sleep(0.01)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=False)
    assert ended.returncode == -9
    (found,), _ = read_machines(tmp_path)
    assert len(found.time_ns) >= 2


def test_a_script_looks_where_it_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.delenv("IOBENCH_RUN", raising=False)
    with iobench.record(tmp_path / "run", monitor="auto"), iobench.record(monitor="auto"):
        pass
    assert len(read_machines(tmp_path / "run")[0]) == 1
    with iobench.record(tmp_path / "other"):
        pass
    assert read_machines(tmp_path / "other") == ((), ())


@pytest.mark.parametrize(("local_rank", "looks"), [("0", True), ("1", False)])
def test_of_a_machines_ranks_the_first_one_looks(tmp_path, monkeypatch, local_rank, looks):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", local_rank)):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IOBENCH_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("IOBENCH_RUN_MONITOR", "2")
    monkeypatch.setattr("iobench.recording.session._refused", False)
    iobench.recording.session.current_recording().close()
    assert bool(read_machines(tmp_path / "run")[0]) == looks


def test_a_full_disk_is_one_warning(tmp_path, monkeypatch, caplog):
    machine = StandInMachine(tmp_path)
    reader = machine.reader(tmp_path / "run", monkeypatch)
    reader.read()
    really_write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: really_write(file, data[:5]))
    for _ in range(2):
        machine.advance(100)
        reader.read()
    monkeypatch.undo()
    assert caplog.text.count("no space left") == 1
    assert reader.period_ns == 0  # nothing to read any more
    reader.finish()
    (found,), _ = read_machines(tmp_path / "run")
    assert len(found.time_ns) == 1


def test_infiniband_is_counted_by_its_ports(tmp_path, monkeypatch):
    machine = StandInMachine(tmp_path, links={})
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    for name in ("port_rcv_data", "port_xmit_data"):
        (port / "counters" / name).write_text("0\n")
    reader = machine.reader(tmp_path / "run", monkeypatch)
    reader.read()
    (port / "counters/port_rcv_data").write_text("1000\n")
    machine.advance(1000)
    reader.read()
    reader.finish()
    (found,), _ = read_machines(tmp_path / "run")
    assert found.per_second("net:mlx5_0/1.received").tolist() == [4000]
    assert found.head.links == {"mlx5_0/1": 12_500_000_000}


def test_containers_have_interfaces_without_a_device(tmp_path, monkeypatch):
    machine = StandInMachine(tmp_path, links={})
    for name in ("eth0", "lo"):
        folder = tmp_path / "sys/class/net" / name / "statistics"
        folder.mkdir(parents=True, exist_ok=True)
        for way in ("rx_bytes", "tx_bytes"):
            (folder / way).write_text("7\n")
    reader = machine.reader(Path(tmp_path / "run"), monkeypatch)
    reader.read()
    reader.finish()
    (found,), _ = read_machines(tmp_path / "run")
    assert found.names("net") == ("eth0",)
