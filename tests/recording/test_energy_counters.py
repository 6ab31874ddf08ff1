"""Counters of energy: files as Linux and HPE Cray have them, modules that answer as drivers do."""

import sys
import types

import pytest

from iobench.extras import install_command
from iobench.recording.energy_counters import open_counters

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
