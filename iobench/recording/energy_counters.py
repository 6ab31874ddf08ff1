"""Counters of energy that a machine has: of GPUs by their driver, RAPL's, and HPE Cray's.

- NVIDIA: ``nvmlDeviceGetTotalEnergyConsumption``, from Volta on, by nvidia-ml-py.
- AMD: ``amdsmi_get_energy_count``, where ROCm's amdsmi can be imported.
- RAPL: ``powercap``'s ``intel-rapl:<package>``, also on AMD; of its parts the memory (``dram``)
  alone is not in the package's own count. Since CVE-2020-8694 only root may read them.
- HPE Cray: ``/sys/cray/pm_counters``, files of ``<value> J <time> us``, renewed ten times a second.

What counts for a whole GPU counts for none of its parts (MIG instances, partitions). GPUs are those
of ``CUDA_VISIBLE_DEVICES``, of AMD's those of ``ROCR_VISIBLE_DEVICES`` and ``HIP_VISIBLE_DEVICES``.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.recording.machine_head import EnergySource, UnreadableEnergy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CPU, MEMORY, GPU, MACHINE = "cpu", "memory", "gpu", "machine"
NO_COUNTER: Final = "no counter"
MS: Final = 1_000_000
RAPL_PERIOD_NS: Final = 1 * MS
COUNTER_PERIOD_NS: Final = 100 * MS
"""How old the count of a GPU's driver, or of HPE Cray's, may be."""
CRAY_KINDS: Final = {
    "energy": (MACHINE, "the whole machine"),
    "cpu_energy": (CPU, "processors"),
    "memory_energy": (MEMORY, "memory"),
}
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
MIG: Final = "a MIG instance has no counter of its own: the card's is of all its instances"


class EnergyCounter(msgspec.Struct, frozen=True):
    """A counter, and what its driver tells of the use of a GPU: percent busy, bytes taken."""

    source: EnergySource
    read_uj: Callable[[], float]
    busy_percent: Callable[[], Any] | None = None
    used_nbytes: Callable[[], Any] | None = None


@dataclass
class EnergyCounters:
    """All counters that can be read, and what cannot.

    Attributes
    ----------
    refusals : tuple of type
        What drivers raise.
    ends : list of callable
        End the use of the drivers.
    """

    counters: list[EnergyCounter] = field(default_factory=list)
    unreadable: list[UnreadableEnergy] = field(default_factory=list)
    refusals: tuple[type[Exception], ...] = ()
    ends: list[Callable[[], object]] = field(default_factory=list)

    def of(self, kind: str) -> list[EnergyCounter]:
        """Return the counters of a kind."""
        return [each for each in self.counters if each.source.kind == kind]

    def refuse(self, kind: str, reason: str) -> None:
        """Note that energy of a kind cannot be read; the same once."""
        if (energy := UnreadableEnergy(kind, reason)) not in self.unreadable:
            self.unreadable.append(energy)

    def close(self) -> None:
        """End the use of the drivers; where one is gone there is nothing left to end."""
        while self.ends:
            with contextlib.suppress(*self.refusals):
                self.ends.pop()()


def open_counters(environment: Mapping[str, str], root: Path = Path("/")) -> EnergyCounters:
    """Return the counters that a job may read; each joule is in one, but for whole machines'.

    RAPL's go before those of HPE Cray, which are renewed a hundred times less often.
    """
    machine = EnergyCounters()
    if (root / "sys/module/amdgpu").exists():
        _add_amd(machine, environment)
    has_driver = (root / "proc/driver/nvidia").exists()
    if has_driver or not (machine.counters or machine.unreadable):
        _add_nvidia(machine, environment, has_driver=has_driver)
    _add_rapl(machine, root / "sys/class/powercap")
    _add_cray(machine, root / "sys/cray/pm_counters")
    for kind in (CPU, MEMORY):
        if not machine.of(kind) and all(each.kind != kind for each in machine.unreadable):
            machine.refuse(kind, NO_COUNTER)
    return machine


def _number(path: Path, unit: str = "") -> int:
    """Return the number in a file of one line, which a unit follows."""
    words = path.read_text("ascii", "replace").split()
    if not words or not words[0].isdecimal() or words[1:2] != [unit][: bool(unit)]:
        raise ValueError(f"holds {' '.join(words)[:40]!r}, expected a number")
    return int(words[0])


def _line(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _names(folder: Path) -> list[str]:
    try:
        return sorted(each.name for each in folder.iterdir())
    except OSError:
        return []


def _add_file(
    machine: EnergyCounters, source: EnergySource, path: Path, unit_uj: int = 1, unit: str = ""
) -> None:
    """Add a counter that is a file, if it can be read now."""
    try:
        _number(path, unit)
    except PermissionError:
        machine.refuse(source.kind, f"permission denied ({path})")
    except OSError as error:
        machine.refuse(source.kind, f"{(error.strerror or str(error)).lower()} ({path})")
    except ValueError as error:
        machine.refuse(source.kind, f"{error} ({path})")
    else:
        machine.counters.append(EnergyCounter(source, lambda: _number(path, unit) * unit_uj))


def _add_rapl(machine: EnergyCounters, root: Path) -> None:
    for name in _names(root):
        title = _line(root / name / "name")
        if re.fullmatch(r"intel-rapl:\d+", name) and title.startswith("package"):
            kind = CPU
        elif re.fullmatch(r"intel-rapl:\d+:\d+", name) and title == "dram":
            kind, title = MEMORY, f"dram of {_line(root / name.rpartition(':')[0] / 'name')}"
        else:
            continue
        wraps = _line(root / name / "max_energy_range_uj")
        wraps_uj = int(wraps) if wraps.isdecimal() else None
        source = EnergySource(f"{kind}:{name}", kind, title, "RAPL", RAPL_PERIOD_NS, wraps_uj)
        _add_file(machine, source, root / name / "energy_uj")


def _add_cray(machine: EnergyCounters, root: Path) -> None:
    names = _names(root)
    kinds = CRAY_KINDS | {
        name: (GPU, name.split("_")[0]) for name in names if re.fullmatch(r"accel\d+_energy", name)
    }
    better = {each.source.kind for each in machine.counters}
    for name in names:
        kind, title = kinds.get(name, ("", ""))
        if not kind or kind in better:
            continue
        if kind == GPU and _line(root / name).split()[:1] == ["0"]:  # there is no accelerator
            continue
        machine.unreadable = [each for each in machine.unreadable if each.kind != kind]
        source = EnergySource(f"{kind}:{name}", kind, title, "HPE Cray", COUNTER_PERIOD_NS)
        _add_file(machine, source, root / name, 1_000_000, "J")


def chosen_gpus(visible: str | None, uuids: Sequence[str]) -> tuple[list[str], bool]:
    """Return the GPUs that a list shows, and whether it shows no MIG instance.

    Numbers are those of the bus; what stands behind a name that is none does not count.
    """
    if visible is None:
        return list(uuids), True
    chosen: list[str] = []
    whole = True
    for word in (part.strip() for part in visible.split(",")):
        if word.startswith("MIG-"):
            whole = False
            continue
        if word.isdecimal():
            fitting = uuids[int(word) : int(word) + 1]
        else:
            fitting = [uuid for uuid in uuids if word.startswith("GPU-") and uuid.startswith(word)]
        if len(fitting) != 1:
            break
        chosen += [uuid for uuid in fitting if uuid not in chosen]
    return chosen, whole


def _add_nvidia(
    machine: EnergyCounters, environment: Mapping[str, str], *, has_driver: bool
) -> None:
    none = "no NVIDIA driver"
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        needs = "the energy of GPUs needs nvidia-ml-py: pip install 'iobench[gpu]'"
        return machine.refuse(GPU, needs if has_driver else none)
    machine.refusals += (nvml.NVMLError,)
    try:
        nvml.nvmlInit()
        machine.ends.append(nvml.nvmlShutdown)
        handles = _nvidia_handles(nvml)
    except nvml.NVMLError as error:
        return machine.refuse(GPU, str(error).lower() if has_driver or machine.ends else none)
    visible = environment.get(VISIBLE)
    chosen, whole = chosen_gpus(visible, [*handles])
    if not handles:
        machine.refuse(GPU, "no GPU")
    elif not whole:
        machine.refuse(GPU, MIG)
    elif not chosen:
        machine.refuse(GPU, f"the job sees no GPU ({VISIBLE}={visible})")
    for uuid in chosen:
        try:
            _add_nvidia_gpu(machine, nvml, uuid, handles[uuid])
        except nvml.NVMLError as error:
            machine.refuse(GPU, f"{uuid}: {str(error).lower()}")
    return None


def _nvidia_handles(nvml: Any) -> dict[str, Any]:
    """Return the GPUs by UUID, in NVML's order; those that are not for this job are left out."""
    handles = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NO_PERMISSION:
                continue
            raise
        handles[str(nvml.nvmlDeviceGetUUID(handle))] = handle
    return handles


def _add_nvidia_gpu(machine: EnergyCounters, nvml: Any, uuid: str, handle: Any) -> None:
    name = str(nvml.nvmlDeviceGetName(handle))
    try:
        is_divided = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        is_divided = False
    if is_divided:
        return machine.refuse(GPU, f"{name}: {MIG}")
    nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    source = EnergySource(f"{GPU}:{uuid}", GPU, name, "NVML", COUNTER_PERIOD_NS)
    counter = EnergyCounter(
        source,
        lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1000,
        lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
    )
    machine.counters.append(counter)
    return None


def _add_amd(machine: EnergyCounters, environment: Mapping[str, str]) -> None:
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints where ROCm's library is not
            smi: Any = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError, AttributeError) as error:
        return machine.refuse(GPU, f"the energy of AMD's GPUs needs ROCm's amdsmi ({error})")
    machine.refusals += (smi.AmdSmiException,)
    try:
        smi.amdsmi_init()
        machine.ends.append(smi.amdsmi_shut_down)
        handles = _amd_handles(smi)
    except smi.AmdSmiException as error:
        return machine.refuse(GPU, _amd_reason(error))
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environment else VISIBLE
    chosen = [*handles]
    for name in ("ROCR_VISIBLE_DEVICES", hip):
        chosen, _ = chosen_gpus(environment.get(name), chosen)
    if not chosen:
        names = [each for each in ("ROCR_VISIBLE_DEVICES", hip) if each in environment]
        visible = ", ".join(f"{each}={environment[each]}" for each in names)
        machine.refuse(GPU, f"the job sees no GPU ({visible})" if handles else "no GPU")
    for name in chosen:
        try:
            _add_amd_gpu(machine, smi, name, handles[name])
        except smi.AmdSmiException as error:
            machine.refuse(GPU, f"{name}: {_amd_reason(error)}")
    return None


def _amd_reason(error: Exception) -> str:
    """Return AMD's words without their number and name."""
    return str(getattr(error, "err_info", error)).rpartition(" - ")[2].strip().lower()


def _amd_answer(smi: Any, name: str, handle: Any) -> Any:
    """Return what a GPU answers; None where it, or this version, has no such thing."""
    try:
        return getattr(smi, name)(handle)
    except AttributeError:
        return None
    except smi.AmdSmiException as error:
        if getattr(error, "err_code", None) in (2, 3):  # not supported, not yet implemented
            return None
        raise


def _amd_handles(smi: Any) -> dict[str, Any]:
    """Return the GPUs by identity, in HIP's order where it is known (from ROCm 6.4 on)."""
    known = []
    for place, handle in enumerate(smi.amdsmi_get_processor_handles()):
        answer = _amd_answer(smi, "amdsmi_get_gpu_enumeration_info", handle) or {}
        number = answer.get("hip_id")
        serial = str(smi.amdsmi_get_gpu_asic_info(handle)["asic_serial"])
        name = f"GPU-{serial.removeprefix('0x').lower()}"
        known.append((number if isinstance(number, int) else place, name, handle))
    return {name: handle for _, name, handle in sorted(known, key=lambda each: each[0])}


def _add_amd_gpu(machine: EnergyCounters, smi: Any, name: str, handle: Any) -> None:
    def energy_uj() -> float:
        answer = _amd_answer(smi, "amdsmi_get_energy_count", handle) or {}
        count = answer.get("energy_accumulator", answer.get("power"))  # before ROCm 6.2
        if not isinstance(count, int) or count in (0, 2**64 - 1):
            raise ValueError("reports no energy")
        return float(count * answer["counter_resolution"])

    title = str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"])
    parts = _amd_answer(smi, "amdsmi_get_gpu_compute_partition", handle)
    if parts not in (None, "", "N/A", "SPX"):
        shared = "a partition has no counter of its own: the card's is of all its partitions"
        return machine.refuse(GPU, f"{title}: {shared}")
    try:
        energy_uj()
    except ValueError as error:
        return machine.refuse(GPU, f"{title}: {error}")
    counter = EnergyCounter(
        EnergySource(f"{GPU}:{name}", GPU, title, "AMD SMI", COUNTER_PERIOD_NS),
        energy_uj,
        lambda: smi.amdsmi_get_gpu_activity(handle).get("gfx_activity"),
        lambda: smi.amdsmi_get_gpu_memory_usage(handle, smi.AmdSmiMemoryType.VRAM),
    )
    machine.counters.append(counter)
    return None
