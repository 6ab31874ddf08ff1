"""Energy of GPUs, with a module in place of NVIDIA's that answers as its driver does."""

import sys
import types
from pathlib import Path

import pytest

from iobench.recording.energy_counters import CounterError, CounterRoots
from iobench.recording.energy_gpus import find_gpu_counters
from iobench.recording.energy_reader import find_counters
from iobench.testing import FakeClock

NOT_SUPPORTED, NO_PERMISSION, LOST, NOT_FOUND = 3, 4, 15, 12
WORDS = {
    NOT_SUPPORTED: "Not Supported", NO_PERMISSION: "Insufficient Permissions",
    LOST: "GPU is lost", NOT_FOUND: "NVML Shared Library Not Found",
}  # fmt: skip


class Refusal(Exception):
    def __init__(self, value):
        super().__init__(WORDS[value])
        self.value = value


class Driver(types.ModuleType):
    """GPUs by UUID, each with what it answers: a number, or what is raised."""

    NVMLError = Refusal
    NVML_ERROR_NOT_SUPPORTED = NOT_SUPPORTED
    NVML_ERROR_NO_PERMISSION = NO_PERMISSION
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, gpus, starts=None):
        super().__init__("pynvml")
        self.gpus, self.starts = gpus, starts
        self.in_use = 0

    def nvmlInit(self):
        if self.starts:
            raise Refusal(self.starts)
        self.in_use += 1

    def nvmlShutdown(self):
        self.in_use -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        uuid = list(self.gpus)[index]
        if self.gpus[uuid].get("hidden"):
            raise Refusal(NO_PERMISSION)
        return uuid

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA A100"

    def answer(self, handle, what):
        value = self.gpus[handle].get(what)
        if value is None:
            raise Refusal(NOT_SUPPORTED)
        if isinstance(value, Refusal):
            raise value
        return value

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return self.answer(handle, "mj")

    def nvmlDeviceGetPowerUsage(self, handle):
        return self.answer(handle, "mw")

    def nvmlDeviceGetUtilizationRates(self, handle):
        return types.SimpleNamespace(gpu=self.answer(handle, "busy"), memory=99)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return types.SimpleNamespace(used=self.answer(handle, "used"), free=1, total=2)

    def nvmlDeviceGetMigMode(self, handle):
        return self.answer(handle, "mig")


def gpus(**values):
    return {f"GPU-{name}0000": value for name, value in values.items()}


@pytest.fixture
def driver(monkeypatch):
    def install(made, starts=None):
        module = Driver(made, starts)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module

    return install


def found(environment=None, clock=None, driver_file=Path("/nowhere")):
    return find_gpu_counters(environment or {}, clock or FakeClock(), driver_file)


def told(counters):
    readings = {each.source.name: each.read_uj() for each in counters.counters}
    return readings, [each.reason for each in counters.unreadable]


def test_millijoules_since_the_driver_was_loaded_and_all_is_let_go_of(driver):
    module = driver(gpus(a={"mj": 12}, b={"mj": 5}))
    counters = found()
    assert told(counters) == ({"gpu:GPU-a0000": 12_000, "gpu:GPU-b0000": 5_000}, [])
    assert module.in_use == 1
    counters.close()
    counters.close()
    assert module.in_use == 0


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["a", "b", "c"]),
        ("1", ["b"]),
        ("2, 0", ["c", "a"]),
        ("GPU-b", ["b"]),
        ("GPU-c0000,GPU-a0000", ["c", "a"]),
        ("0,0", ["a"]),
        ("0,7,1", ["a"]),
        ("1,-1,0", ["b"]),
        ("GPU-", []),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_only_gpus_that_the_job_sees_count(driver, visible, names):
    module = driver(gpus(a={"mj": 1}, b={"mj": 2}, c={"mj": 3}))
    counters = found({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert [each.source.name for each in counters.counters] == [f"gpu:GPU-{n}0000" for n in names]
    if not names:
        assert told(counters)[1] == [f"the job sees no GPU (CUDA_VISIBLE_DEVICES={visible})"]
        assert module.in_use == 0
    counters.close()


def test_gpus_kept_from_the_job_have_no_number(driver):
    driver(gpus(a={"hidden": True}, b={"mj": 2}))
    counters = found({"CUDA_VISIBLE_DEVICES": "0"})
    assert told(counters)[0] == {"gpu:GPU-b0000": 2000}


@pytest.mark.parametrize(
    ("made", "visible"),
    [(gpus(a={"mj": 1, "mig": (1, 1)}), None), (gpus(a={"mj": 1}), "MIG-GPU-a0000/1/0")],
)
def test_a_part_of_a_gpu_has_no_counter(driver, made, visible):
    module = driver(made)
    readings, reasons = told(found({"CUDA_VISIBLE_DEVICES": visible} if visible else {}))
    assert readings == {}
    assert "a MIG instance has no counter of its own" in reasons[0]
    assert module.in_use == 0


def test_a_whole_gpu_that_could_be_divided_counts(driver):
    driver(gpus(a={"mj": 1, "mig": (0, 0)}))
    assert told(found())[0] == {"gpu:GPU-a0000": 1000}


def test_power_is_summed_where_no_energy_is_counted_and_said_to_be_an_estimate(driver):
    made = gpus(a={"mw": 100_000})
    driver(made)
    clock = FakeClock()
    (counter,) = found(clock=clock).counters
    assert (counter.source.estimated, counter.source.by) == (True, "NVML power")
    readings = [counter.read_uj()]
    clock.advance(1_000_000_000)
    readings.append(counter.read_uj())
    made["GPU-a0000"]["mw"] = 300_000
    clock.advance(500_000_000)
    readings.append(counter.read_uj())
    assert readings == [0, 100_000_000, 200_000_000]  # 100 W for 1 s, then 200 W for 0.5 s
    counter.close()


def test_a_gpu_that_tells_nothing_is_said_so(driver):
    module = driver(gpus(a={}))
    assert told(found()) == ({}, ["NVIDIA A100: reports neither energy nor power"])
    assert module.in_use == 0


def test_a_gpu_that_is_lost_at_the_start_leaves_the_others(driver):
    driver(gpus(a={"mj": Refusal(LOST)}, b={"mj": 4}))
    assert told(found()) == ({"gpu:GPU-b0000": 4000}, ["GPU-a0000: gpu is lost"])


def test_a_gpu_that_is_lost_later_is_an_error_of_that_reading(driver):
    made = gpus(a={"mj": 4})
    driver(made)
    (counter,) = found().counters
    made["GPU-a0000"]["mj"] = Refusal(LOST)
    with pytest.raises(CounterError, match="gpu is lost"):
        counter.read_uj()
    made["GPU-a0000"]["mj"] = 9
    assert counter.read_uj() == 9000


def test_without_a_driver_or_the_module_the_reason_is_the_one_that_helps(
    driver, monkeypatch, tmp_path
):
    driver({}, starts=NOT_FOUND)
    assert told(found()) == ({}, ["no NVIDIA driver"])
    assert told(found(driver_file=tmp_path)) == ({}, ["nvml shared library not found"])
    driver({})
    assert told(found()) == ({}, ["no GPU"])
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert told(found()) == ({}, ["no NVIDIA driver"])
    ((), (reason,)) = (
        told(found(driver_file=tmp_path))[0].items(),
        told(found(driver_file=tmp_path))[1],
    )
    assert "pip install 'iobench[gpu]'" in reason


def test_gpus_are_asked_themselves_before_the_machine_is(driver, tmp_path):
    (tmp_path / "accel0_energy").write_text("7 J 1 us\n")
    roots = CounterRoots(tmp_path / "none", tmp_path, *[tmp_path / "none"] * 2)
    driver(gpus(a={"mj": 12}))
    counters = find_counters({}, roots=roots, clock=FakeClock())
    assert told(counters)[0] == {"gpu:GPU-a0000": 12_000}
    counters.close()
    driver({})
    counters = find_counters({}, roots=roots, clock=FakeClock())
    assert told(counters)[0] == {"gpu:accel0_energy": 7_000_000}
    assert {each.kind for each in counters.unreadable} == {"cpu", "memory"}
    counters.close()


def test_how_busy_gpus_are_is_asked_of_those_whose_energy_is(driver):
    driver(gpus(a={"mj": 12, "busy": 37, "used": 5}, b={"mw": 5}, c={"busy": 1}))
    counters = found()
    assert {each.name: each.read() for each in counters.gauges} == {
        "gpu:GPU-a0000": (37, 5), "gpu:GPU-b0000": (None, None),
    }  # fmt: skip
    counters.close()
