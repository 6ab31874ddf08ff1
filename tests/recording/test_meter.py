"""What a machine does, and its counters of energy: small, whole after a kill, by one thread."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from iobench.errors import OptionError
from iobench.extras import install_command
from iobench.recording import meter
from iobench.recording.energy_counters import EnergyCounter, EnergyCounters, open_counters
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


NVML_WORDS = {3: "Not Supported", 4: "Insufficient Permissions", 15: "GPU is lost", 12: "Not Found"}
AMD_WORDS = {
    2: "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported",
    10: "AMDSMI_STATUS_NO_PERM - Permission Denied",
    31: "AMDSMI_STATUS_NOT_FOUND - Device Not found",
}


class NvmlError(Exception):
    def __init__(self, value):
        super().__init__(NVML_WORDS[value])
        self.value = value


class AmdError(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.err_code, self.err_info = code, AMD_WORDS[code]


class Driver(types.ModuleType):
    """GPUs by name, each with what it answers: a value, or what is raised."""

    def __init__(self, name, error, gpus, starts):
        super().__init__(name)
        self.error, self.gpus, self.starts, self.in_use = error, gpus, starts, 0

    def begin(self):
        if self.starts:
            raise self.error(self.starts)
        self.in_use += 1

    def end(self):
        self.in_use -= 1

    def answer(self, handle, what):
        value = self.gpus[handle].get(what)
        if value is None:
            raise self.error(min(AMD_WORDS) if self.error is AmdError else 3)
        if isinstance(value, Exception):
            raise value
        return value


def nvidia_module(gpus, starts):
    driver = Driver("pynvml", NvmlError, gpus, starts)

    def handle(index):
        uuid = list(gpus)[index]
        if gpus[uuid].get("hidden"):
            raise NvmlError(4)
        return uuid

    vars(driver).update(
        NVMLError=NvmlError,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlInit=driver.begin,
        nvmlShutdown=driver.end,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetUUID=str,
        nvmlDeviceGetName=lambda gpu: "NVIDIA A100",
        nvmlDeviceGetTotalEnergyConsumption=lambda gpu: driver.answer(gpu, "mj"),
        nvmlDeviceGetUtilizationRates=lambda gpu: types.SimpleNamespace(
            gpu=driver.answer(gpu, "busy"), memory=99
        ),
        nvmlDeviceGetMigMode=lambda gpu: driver.answer(gpu, "mig"),
    )
    return driver


def amd_module(gpus, starts):
    driver = Driver("amdsmi", AmdError, gpus, starts)
    vars(driver).update(
        AmdSmiException=AmdError,
        amdsmi_init=driver.begin,
        amdsmi_shut_down=driver.end,
        amdsmi_get_processor_handles=lambda: list(gpus),
        amdsmi_get_gpu_asic_info=lambda gpu: {
            "market_name": "AMD Instinct MI300X", "asic_serial": f"0x{gpu.upper() * 16}"
        },
        amdsmi_get_gpu_enumeration_info=lambda gpu: {"hip_id": driver.answer(gpu, "hip")},
        amdsmi_get_gpu_compute_partition=lambda gpu: driver.answer(gpu, "partition"),
        amdsmi_get_energy_count=lambda gpu: {
            "energy_accumulator": driver.answer(gpu, "count"), "counter_resolution": 15.5
        },
        amdsmi_get_gpu_activity=lambda gpu: {"gfx_activity": driver.answer(gpu, "busy")},
    )  # fmt: skip
    return driver


@pytest.fixture
def nvidia(monkeypatch):
    def install(gpus, starts=None):
        module = nvidia_module({f"GPU-{name}0000": gpus[name] for name in gpus}, starts)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module

    monkeypatch.setitem(sys.modules, "pynvml", None)
    return install


@pytest.fixture
def amd(monkeypatch, tmp_path):
    def install(gpus, starts=None):
        module = amd_module(gpus, starts)
        monkeypatch.setitem(sys.modules, "amdsmi", module)
        (tmp_path / "sys/module/amdgpu").mkdir(parents=True, exist_ok=True)
        return module

    monkeypatch.setitem(sys.modules, "pynvml", None)
    return install


@pytest.fixture
def opened(tmp_path):
    """Return the readings of the counters there are, and why others are not, but for ``but``."""

    def read(environment=None, *, but=("cpu", "memory")):
        found = open_counters(environment or {}, tmp_path)
        readings = {each.source.name: each.read_uj() for each in found.counters}
        found.close()
        found.close()
        return readings, [each.reason for each in found.unreadable if each.kind not in but]

    return read


def test_counts_of_gpus_are_in_microjoules_and_drivers_are_ended(nvidia, amd, opened, tmp_path):
    module = nvidia({"a": {"mj": 12, "mig": (0, 0)}, "b": {"mj": 5}})
    assert opened() == ({"gpu:GPU-a0000": 12_000, "gpu:GPU-b0000": 5_000}, [])
    assert module.in_use == 0
    module = amd({"a": {"count": 100}, "b": {"count": 2, "partition": "SPX"}})
    assert opened() == ({f"gpu:GPU-{'a' * 16}": 1550, f"gpu:GPU-{'b' * 16}": 31}, [])
    assert module.in_use == 0
    for install, gpu in ((nvidia, {"mj": 1}), (amd, {"count": 1})):
        (tmp_path / "sys/module/amdgpu").rmdir() if install is nvidia else None
        install({"a": {**gpu, "busy": 37}})
        (counter,) = open_counters({}, tmp_path).counters
        assert counter.busy_percent() == 37


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, "abc"), ("1", "b"), ("2, 0", "ca"), ("GPU-b", "b"), ("GPU-c0000,GPU-a0000", "ca"),
        ("0,0", "a"), ("0,7,1", "a"), ("1,-1,0", "b"), ("GPU-", ""), ("", ""),
    ],
)  # fmt: skip
def test_only_gpus_that_the_job_sees_count(nvidia, opened, visible, names):
    nvidia({"a": {"mj": 1}, "b": {"mj": 2}, "c": {"mj": 3}})
    readings, reasons = opened({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert [*readings] == [f"gpu:GPU-{name}0000" for name in names]
    if not names:
        assert reasons == ["the job sees no GPU by CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(
    ("environment", "letters"),
    [
        ({}, "abc"), ({"CUDA_VISIBLE_DEVICES": "2,0"}, "ca"),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "2"}, "a"),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, "c"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-cccccccccccccccc"}, "c"),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, ""),
    ],
)  # fmt: skip
def test_only_gpus_of_amds_that_the_job_sees_count(amd, opened, environment, letters):
    # AMD SMI has them in another order than HIP, which environments go by.
    amd({"c": {"count": 3, "hip": 2}, "a": {"count": 1, "hip": 0}, "b": {"count": 2, "hip": 1}})
    readings, reasons = opened(environment)
    assert [*readings] == [f"gpu:GPU-{each * 16}" for each in letters]
    assert len(reasons) == (not letters)


MIG = "a MIG instance has no counter of its own"
NVIDIA_CASES = [
    ({"a": {"hidden": True}, "b": {"mj": 2}}, "0", "b", []),
    ({"a": {"mj": 1, "mig": (1, 1)}}, None, "", [MIG]),
    ({"a": {"mj": 1}}, "MIG-GPU-a0000/1/0", "", [MIG]),
    ({"a": {"mj": NvmlError(15)}, "b": {"mj": 4}, "c": {}}, None, "b",
     ["GPU-a0000: GPU is lost", "GPU-c0000: Not Supported"]),
    ({}, None, "", ["no GPU"]),
]  # fmt: skip


@pytest.mark.parametrize(("gpus", "visible", "names", "reasons"), NVIDIA_CASES, ids=range(5))
def test_what_a_driver_refuses_is_said_and_leaves_the_others(
    nvidia, opened, gpus, visible, names, reasons
):
    nvidia(gpus)
    readings, problems = opened({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert [*readings] == [f"gpu:GPU-{name}0000" for name in names]
    assert len(problems) == len(reasons)
    assert all(reason in text for reason, text in zip(reasons, problems, strict=True))


def test_drivers_that_are_not_there_are_named(nvidia, amd, opened, tmp_path):
    assert opened() == ({}, ["no NVIDIA driver"])
    nvidia({}, starts=12)
    assert opened() == ({}, ["no NVIDIA driver"])
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    assert opened() == ({}, ["Not Found"])
    amd({"a": {}, "b": {"count": AmdError(10)}, "c": {"count": 1, "partition": "CPX"}})
    sys.modules["pynvml"] = None
    readings, problems = opened()
    assert readings == {}
    assert problems[:2] == [
        f"GPU-{'a' * 16}: {AMD_WORDS[2]}", f"GPU-{'b' * 16}: {AMD_WORDS[10]}",
    ]  # fmt: skip
    assert "a partition has no counter of its own" in problems[2]
    assert problems[3].endswith(install_command("gpu"))


def powercap(root, **folders):
    """Write a tree: the name of each folder, with ``_`` for ``:``, and what it counts."""
    for folder, (name, value) in folders.items():
        path = root / "sys/class/powercap" / folder.replace("_", ":").replace("l:r", "l-r")
        path.mkdir(parents=True)
        for file, text in (("name", name), ("energy_uj", value), ("max_energy_range_uj", 99)):
            (path / file).write_text(f"{text}\n")
    return root / "sys/class/powercap"


def test_packages_and_their_memory_are_read_and_nothing_twice(tmp_path, opened):
    tree = powercap(
        tmp_path, intel_rapl_0=("package-0", 100), intel_rapl_0_0=("core", 60),
        intel_rapl_0_2=("dram", 7), intel_rapl_1=("package-1-die-0", 200),
        intel_rapl_2=("psys", 900),
    )  # fmt: skip
    (tree / "intel-rapl-mmio:0").mkdir()
    (tree / "intel-rapl-mmio:0" / "name").write_text("package-0\n")
    assert opened(but=("gpu",)) == (
        {"cpu:intel-rapl:0": 100, "cpu:intel-rapl:1": 200, "memory:intel-rapl:0:2": 7}, [],
    )  # fmt: skip
    (tree / "intel-rapl:0" / "energy_uj").write_text("1234567\n")
    found = open_counters({}, tmp_path)
    assert [each.source.title for each in found.counters] == [
        "package-0", "dram of package-0", "package-1-die-0",
    ]  # fmt: skip
    assert {each.source.wraps_uj for each in found.counters} == {99}
    (tree / "intel-rapl:0" / "energy_uj").write_text("1234569\n")
    assert found.counters[0].read_uj() == 1234569


def test_what_cannot_be_read_has_its_reason_and_is_not_zero(tmp_path, opened, monkeypatch):
    assert opened(but=("gpu",)) == ({}, ["no counter", "no counter"])
    tree = powercap(tmp_path, intel_rapl_0=("package-0", "1.5"), intel_rapl_0_0=("dram", ""))
    path = tree / "intel-rapl:0" / "energy_uj"
    readings, reasons = opened(but=("gpu",))
    assert (readings, reasons[0]) == ({}, f"holds '1.5', expected a number ({path})")
    really_open = open

    def refuse(path, *arguments, **more):
        if str(path).endswith("energy_uj"):
            raise PermissionError(13, "Permission denied", str(path))
        return really_open(path, *arguments, **more)

    monkeypatch.setattr("io.open", refuse)
    assert opened(but=("gpu", "memory")) == ({}, [f"Permission denied ({path})"])


def test_hpe_crays_joules_come_after_the_counters_of_the_parts_themselves(tmp_path, opened, nvidia):
    folder = tmp_path / "sys/cray/pm_counters"
    folder.mkdir(parents=True)
    for name, value in (
        ("energy", 500), ("cpu_energy", 100), ("memory_energy", 30), ("accel0_energy", 90),
        ("accel1_energy", 0), ("freshness", 7), ("power", 300),
    ):  # fmt: skip
        (folder / name).write_text(f"{value} J 1384300011234567 us\n")
    assert opened(but=()) == (
        {
            "gpu:accel0_energy": 90e6, "cpu:cpu_energy": 100e6, "machine:energy": 500e6,
            "memory:memory_energy": 30e6,
        },
        [],
    )  # fmt: skip
    powercap(tmp_path, intel_rapl_0=("package-0", 5))
    nvidia({"a": {"mj": 12}})
    assert {*opened()[0]} == {
        "gpu:GPU-a0000", "cpu:intel-rapl:0", "machine:energy", "memory:memory_energy",
    }  # fmt: skip
    (folder / "memory_energy").write_text("100 W\n")
    assert "holds '100 W'" in opened(but=())[1][0]
