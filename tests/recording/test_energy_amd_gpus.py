"""Energy of AMD's GPUs, with a module in place of AMD's that answers as its driver does."""

import _ctypes
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from iobench.recording.energy_amd_gpus import find_amd_counters
from iobench.recording.energy_counters import CounterError, CounterRoots
from iobench.recording.energy_reader import find_counters
from iobench.testing import FakeClock

NOT_SUPPORTED, NO_PERM, NOT_FOUND = 2, 10, 31
WORDS = {
    NOT_SUPPORTED: "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported",
    NO_PERM: "AMDSMI_STATUS_NO_PERM - Permission Denied",
    NOT_FOUND: "AMDSMI_STATUS_NOT_FOUND - Device Not found",
}
RESOLUTION = 15.5


class Refusal(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.err_code, self.err_info = code, WORDS[code]

    def __str__(self):
        return f"Error code:\n\t{self.err_code} | {self.err_info}"


class Driver(types.ModuleType):
    """GPUs by the letter of their serial, each with what it answers, or what is raised."""

    AmdSmiException = Refusal

    def __init__(self, gpus, starts=None):
        super().__init__("amdsmi")
        self.__spec__ = ModuleSpec("amdsmi", None, is_package=True)
        self.gpus, self.starts = gpus, starts
        self.in_use = 0

    def amdsmi_init(self):
        if self.starts:
            raise Refusal(self.starts)
        self.in_use += 1

    def amdsmi_shut_down(self):
        self.in_use -= 1

    def amdsmi_get_processor_handles(self):
        return list(self.gpus)

    def answer(self, handle, what):
        value = self.gpus[handle].get(what)
        if value is None:
            raise Refusal(NOT_SUPPORTED)
        if isinstance(value, Refusal):
            raise value
        return value

    def amdsmi_get_gpu_asic_info(self, handle):
        return {"market_name": "AMD Instinct MI300X", "asic_serial": f"0x{handle.upper() * 16}"}

    def amdsmi_get_gpu_enumeration_info(self, handle):
        return {"hip_id": self.answer(handle, "hip"), "hip_uuid": ""}

    def amdsmi_get_gpu_compute_partition(self, handle):
        return self.answer(handle, "partition")

    def amdsmi_get_energy_count(self, handle):
        count = self.answer(handle, "count")
        return {"energy_accumulator": count, "counter_resolution": RESOLUTION, "timestamp": 1}

    class AmdSmiMemoryType:
        VRAM = "vram"

    def amdsmi_get_gpu_activity(self, handle):
        return {"gfx_activity": self.answer(handle, "busy"), "umc_activity": 99}

    def amdsmi_get_gpu_memory_usage(self, handle, memory):
        return self.answer(handle, memory)

    def amdsmi_get_power_info(self, handle):
        watts = self.answer(handle, "watts")
        return {"current_socket_power": "N/A", "average_socket_power": watts, "power_limit": 9}


@pytest.fixture
def rocm(tmp_path):
    """Return a folder with a library that can be loaded, under the name of the driver's."""
    (tmp_path / "rocm" / "lib").mkdir(parents=True)
    (tmp_path / "rocm" / "lib" / "libamd_smi.so").symlink_to(_ctypes.__file__)
    return tmp_path / "rocm"


@pytest.fixture
def found(rocm, tmp_path):
    def find(environment=None, clock=None, driver=tmp_path):
        environment = {"ROCM_PATH": str(rocm)} | (environment or {})
        return find_amd_counters(environment, clock or FakeClock(), driver)

    return find


@pytest.fixture
def driver(monkeypatch):
    def install(gpus, starts=None):
        module = Driver(gpus, starts)
        monkeypatch.setitem(sys.modules, "amdsmi", module)
        return module

    return install


def name_of(letter):
    return f"gpu:GPU-{letter * 16}"


def told(counters):
    readings = {each.source.name: each.read_uj() for each in counters.counters}
    return readings, [each.reason for each in counters.unreadable]


def test_counts_are_of_so_many_microjoules_each_and_all_is_let_go_of(driver, found):
    module = driver({"a": {"count": 100}, "b": {"count": 2, "partition": "SPX"}})
    counters = found()
    assert told(counters) == ({name_of("a"): 1550, name_of("b"): 31}, [])
    assert {each.source.by for each in counters.counters} == {"AMD SMI"}
    assert module.in_use == 1
    counters.close()
    counters.close()
    assert module.in_use == 0


def test_the_count_has_its_earlier_name_as_well(driver, found):
    module = driver({"a": {"count": 1}})
    module.amdsmi_get_energy_count = lambda handle: {"power": 2, "counter_resolution": 10.0}
    assert told(found())[0] == {name_of("a"): 20}


@pytest.mark.parametrize(
    ("environment", "letters"),
    [
        ({}, "abc"),
        ({"HIP_VISIBLE_DEVICES": "1"}, "b"),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, "ca"),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "2"}, "a"),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, "bc"),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, "c"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-cccccccccccccccc"}, "c"),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, ""),
    ],
)
def test_only_gpus_that_the_job_sees_count(driver, found, environment, letters):
    # AMD SMI has them in another order than HIP, which environments go by.
    gpus = {"c": {"count": 3, "hip": 2}, "a": {"count": 1, "hip": 0}, "b": {"count": 2, "hip": 1}}
    module = driver(gpus)
    counters = found(environment)
    assert [each.source.name for each in counters.counters] == [name_of(each) for each in letters]
    if not letters:
        reason = "the job sees no GPU (ROCR_VISIBLE_DEVICES=1, HIP_VISIBLE_DEVICES=1)"
        assert told(counters)[1] == [reason]
        assert module.in_use == 0
    counters.close()


def test_a_partition_has_no_counter(driver, found):
    driver({"a": {"count": 1, "partition": "CPX"}})
    readings, (reason,) = told(found())
    assert readings == {}
    assert reason.startswith("AMD Instinct MI300X: a partition has no counter of its own")


@pytest.mark.parametrize("count", [None, 0, 2**64 - 1])
def test_power_is_summed_where_nothing_is_counted_and_said_to_be_an_estimate(driver, found, count):
    gpus = {"a": {"count": count, "watts": 100}}
    driver(gpus)
    clock = FakeClock()
    (counter,) = found(clock=clock).counters
    assert (counter.source.estimated, counter.source.by) == (True, "AMD SMI power")
    readings = [counter.read_uj()]
    clock.advance(1_000_000_000)
    readings.append(counter.read_uj())
    assert readings == [0, 100_000_000]
    gpus["a"]["watts"] = None
    with pytest.raises(CounterError, match="reports none at the moment"):
        counter.read_uj()


def test_what_the_driver_refuses_is_said_in_its_words(driver, found):
    module = driver({"a": {}, "b": {"count": Refusal(NO_PERM)}})
    assert told(found()) == (
        {},
        [
            "AMD Instinct MI300X: reports neither energy nor power",
            "GPU-bbbbbbbbbbbbbbbb: permission denied",
        ],
    )
    assert module.in_use == 0
    driver({}, starts=NOT_FOUND)
    assert told(found()) == ({}, ["device not found"])
    driver({})
    assert told(found()) == ({}, ["no GPU"])


def test_a_gpu_that_is_lost_later_is_an_error_of_that_reading(driver, found):
    gpus = {"a": {"count": 1}}
    driver(gpus)
    (counter,) = found().counters
    gpus["a"]["count"] = Refusal(NOT_FOUND)
    with pytest.raises(CounterError, match="device not found"):
        counter.read_uj()
    gpus["a"]["count"] = 2
    assert counter.read_uj() == 31


def test_without_the_module_or_its_library_the_reason_is_the_one_that_helps(
    driver, found, monkeypatch, tmp_path, capfd
):
    driver({"a": {"count": 1}})
    readings, (reason,) = told(found({"ROCM_PATH": str(tmp_path)}))
    assert (readings, reason) == ({}, "the energy of AMD's GPUs needs ROCm's libamd_smi.so")
    assert told(found(driver=Path("/nowhere"))) == ({}, [])  # a machine without such GPUs
    monkeypatch.delitem(sys.modules, "amdsmi")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert "needs amdsmi" in told(found())[1][0]
    (tmp_path / "amdsmi.py").write_text("{}['libamd_smi.so']")
    assert "does not fit libamd_smi.so" in told(found())[1][0]
    assert capfd.readouterr() == ("", "")


def test_a_machine_of_amds_is_not_told_to_lack_nvidias(driver, rocm, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    none = tmp_path / "none"
    roots = CounterRoots(none, none, nvidia=none, amd=tmp_path)
    driver({"a": {"count": 100}})
    counters = find_counters({"ROCM_PATH": str(rocm)}, roots=roots, clock=FakeClock())
    assert told(counters.of("gpu")) == ({name_of("a"): 1550}, [])
    counters.close()
    both = CounterRoots(none, none, nvidia=tmp_path, amd=tmp_path)
    counters = find_counters({"ROCM_PATH": str(rocm)}, roots=both, clock=FakeClock())
    assert "needs nvidia-ml-py" in told(counters.of("gpu"))[1][0]
    counters.close()


def test_how_busy_gpus_are_is_asked_of_those_whose_energy_is(driver, found):
    driver(
        {
            "a": {"count": 100, "busy": 37, "vram": 5},
            "b": {"watts": 20, "busy": "N/A", "vram": 6},
            "c": {"count": 1},
        }
    )
    counters = found()
    assert {each.name: each.read() for each in counters.gauges} == {
        name_of("a"): (37, 5), name_of("b"): (None, 6), name_of("c"): (None, None),
    }  # fmt: skip
    counters.close()
