"""Counters of energy that a machine has: of GPUs by their driver, RAPL's, and HPE Cray's.

- NVIDIA: ``nvmlDeviceGetTotalEnergyConsumption``, from Volta on, by nvidia-ml-py.
- AMD: ``amdsmi_get_energy_count``, where amdsmi of ROCm 6.2 or later can be imported.
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

from iobench.extras import install_command
from iobench.recording.machine_head import EnergySource, UnreadableEnergy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CPU, MEMORY, GPU, MACHINE = "cpu", "memory", "gpu", "machine"
CRAY_KINDS: Final = {
    "energy": (MACHINE, "the whole machine"),
    "cpu_energy": (CPU, "processors"),
    "memory_energy": (MEMORY, "memory"),
}
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
MIG: Final = "a MIG instance has no counter of its own: the card's is of all its instances"
PARTITION: Final = "a partition has no counter of its own: the card's is of all its partitions"


class EnergyCounter(msgspec.Struct, frozen=True):
    """A counter, and by how many percent its driver says that a GPU is busy."""

    source: EnergySource
    read_uj: Callable[[], float]
    busy_percent: Callable[[], Any] | None = None


@dataclass
class EnergyCounters:
    """All counters that can be read, and what cannot; `close` ends the use of drivers."""

    counters: list[EnergyCounter] = field(default_factory=list)
    unreadable: list[UnreadableEnergy] = field(default_factory=list)
    refusals: tuple[type[Exception], ...] = (ValueError,)
    ends: list[Callable[[], object]] = field(default_factory=list)

    @property
    def kinds(self) -> set[str]:
        """Return the kinds of energy that can be read."""
        return {each.source.kind for each in self.counters}

    def refuse(self, kind: str, reason: str) -> None:
        """Note that energy of a kind cannot be read."""
        self.unreadable.append(UnreadableEnergy(kind, reason))

    def close(self) -> None:
        """End the use of the drivers; where one is gone there is nothing left to end."""
        while self.ends:
            with contextlib.suppress(*self.refusals):
                self.ends.pop()()


def open_counters(environment: Mapping[str, str], root: Path = Path("/")) -> EnergyCounters:
    """Return the counters that a job may read; each joule is in one, but for whole machines'."""
    result = EnergyCounters()
    is_amd = (root / "sys/module/amdgpu").exists()
    if is_amd:
        _add_amd(result, environment)
    has_driver = (root / "proc/driver/nvidia").exists()
    if has_driver or not is_amd:
        _add_nvidia(result, environment, has_driver=has_driver)
    _add_rapl(result, root / "sys/class/powercap")
    _add_cray(result, root / "sys/cray/pm_counters")
    known = result.kinds | {each.kind for each in result.unreadable}
    for kind in (each for each in (CPU, MEMORY) if each not in known):
        result.refuse(kind, "no counter")
    return result


def _number(path: Path, unit: str = "") -> int:
    """Return the number in a file of one line, which a unit follows."""
    words = path.read_text("ascii", "replace").split()
    if not words or not words[0].isdecimal() or (unit and words[1:2] != [unit]):
        raise ValueError(f"holds {' '.join(words)[:40]!r}, expected a number")
    return int(words[0])


def text_of(path: Path) -> str:
    """Return what a file of the kernel's holds; ``""`` where it cannot be read."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _add_file(
    result: EnergyCounters, source: EnergySource, path: Path, unit_uj: int = 1, unit: str = ""
) -> None:
    """Add a counter that is a file, if it can be read now."""
    try:
        _number(path, unit)
    except (OSError, ValueError) as error:
        result.refuse(source.kind, f"{getattr(error, 'strerror', None) or error} ({path})")
    else:
        result.counters.append(EnergyCounter(source, lambda: _number(path, unit) * unit_uj))


def _add_rapl(result: EnergyCounters, root: Path) -> None:
    for folder in sorted(root.glob("intel-rapl:*")):
        title = text_of(folder / "name")
        if folder.name.count(":") == 1 and title.startswith("package"):
            kind = CPU
        elif folder.name.count(":") == 2 and title == "dram":
            kind, title = (
                MEMORY,
                f"dram of {text_of(root / folder.name.rpartition(':')[0] / 'name')}",
            )
        else:
            continue
        wraps = text_of(folder / "max_energy_range_uj")
        wraps_uj = int(wraps) if wraps.isdecimal() else None
        name = f"{kind}:{folder.name}"
        source = EnergySource(name, kind, title, wraps_uj)
        _add_file(result, source, folder / "energy_uj")


def _add_cray(result: EnergyCounters, root: Path) -> None:
    better = result.kinds
    for path in sorted(root.glob("*energy")):
        kind, title = CRAY_KINDS.get(path.name, ("", ""))
        if re.fullmatch(r"accel\d+_energy", path.name) and not text_of(path).startswith("0 "):
            kind, title = GPU, path.name.split("_")[0]  # 0: there is no such accelerator
        if kind and kind not in better:
            result.unreadable = [each for each in result.unreadable if each.kind != kind]
            source = EnergySource(f"{kind}:{path.name}", kind, title)
            _add_file(result, source, path, 1_000_000, "J")


def chosen_gpus(visible: str | None, uuids: Sequence[str]) -> list[str]:
    """Return the whole GPUs that a list shows."""
    if visible is None:
        return list(uuids)
    chosen: list[str] = []
    for word in (part.strip() for part in visible.split(",")):
        if word.isdecimal():
            fitting = uuids[int(word) : int(word) + 1]
        else:
            fitting = [uuid for uuid in uuids if word.startswith("GPU-") and uuid.startswith(word)]
        if len(fitting) != 1:
            break
        chosen += [uuid for uuid in fitting if uuid not in chosen]
    return chosen


def _add_gpus(
    result: EnergyCounters,
    environment: Mapping[str, str],
    variables: Sequence[str],
    handles: Mapping[str, Any],
    counter_of: Callable[[str, Any], EnergyCounter],
) -> None:
    """Add those of a driver's GPUs that the job sees by these variables."""
    chosen = [*handles]
    for name in variables:
        chosen = chosen_gpus(environment.get(name), chosen)
    if not handles:
        result.refuse(GPU, "no GPU")
    elif any("MIG-" in environment.get(each, "") for each in variables):
        result.refuse(GPU, MIG)
    elif not chosen:
        result.refuse(GPU, f"the job sees no GPU by {' and '.join(variables)}")
    for name in chosen:
        try:
            result.counters.append(counter_of(name, handles[name]))
        except result.refusals as error:
            result.refuse(GPU, f"{name}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Return a driver's words; AMD's have them beside a number."""
    return str(getattr(error, "err_info", error))


def _add_nvidia(
    result: EnergyCounters, environment: Mapping[str, str], *, has_driver: bool
) -> None:
    none = "no NVIDIA driver"
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        needs = f"the energy of GPUs needs nvidia-ml-py (extra gpu): {install_command('gpu')}"
        return result.refuse(GPU, needs if has_driver else none)
    result.refusals += (nvml.NVMLError,)
    handles = {}
    try:
        nvml.nvmlInit()
        result.ends.append(nvml.nvmlShutdown)
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(nvml.NVMLError):  # of one that is not for this job
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                handles[str(nvml.nvmlDeviceGetUUID(handle))] = handle
    except nvml.NVMLError as error:
        return result.refuse(GPU, _reason(error) if has_driver or result.ends else none)
    return _add_gpus(
        result, environment, (VISIBLE,), handles, lambda *which: _nvidia_counter(nvml, *which)
    )


def _nvidia_counter(nvml: Any, uuid: str, handle: Any) -> EnergyCounter:
    with contextlib.suppress(nvml.NVMLError):  # of one that has no such mode
        if nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            raise ValueError(MIG)
    nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    title = str(nvml.nvmlDeviceGetName(handle))
    return EnergyCounter(
        EnergySource(f"{GPU}:{uuid}", GPU, title),
        lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1000,
        lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    )


def _add_amd(result: EnergyCounters, environment: Mapping[str, str]) -> None:
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints where ROCm's library is not
            smi: Any = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError, AttributeError) as error:
        return result.refuse(GPU, f"the energy of AMD's GPUs needs ROCm's amdsmi ({error})")
    result.refusals += (smi.AmdSmiException,)
    try:
        smi.amdsmi_init()
        result.ends.append(smi.amdsmi_shut_down)
        handles = _amd_handles(smi)
    except smi.AmdSmiException as error:
        return result.refuse(GPU, _reason(error))
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environment else VISIBLE
    variables = ("ROCR_VISIBLE_DEVICES", hip)
    return _add_gpus(
        result, environment, variables, handles, lambda *which: _amd_counter(smi, *which)
    )


def _amd_handles(smi: Any) -> dict[str, Any]:
    """Return the GPUs by identity, in HIP's order where it is known (from ROCm 6.4 on)."""
    handles = []
    for place, handle in enumerate(smi.amdsmi_get_processor_handles()):
        number: Any = place
        with contextlib.suppress(AttributeError, KeyError, smi.AmdSmiException):
            number = smi.amdsmi_get_gpu_enumeration_info(handle)["hip_id"]
        serial = str(smi.amdsmi_get_gpu_asic_info(handle)["asic_serial"])
        name = f"GPU-{serial.removeprefix('0x').lower()}"
        handles.append((number if isinstance(number, int) else place, name, handle))
    return {name: handle for _, name, handle in sorted(handles, key=lambda each: each[0])}


def _amd_counter(smi: Any, name: str, handle: Any) -> EnergyCounter:
    def energy_uj() -> float:
        answer = smi.amdsmi_get_energy_count(handle)
        count = answer.get("energy_accumulator")
        if not isinstance(count, int) or count in (0, 2**64 - 1):
            raise ValueError("reports no energy")
        return float(count * answer["counter_resolution"])

    with contextlib.suppress(AttributeError, smi.AmdSmiException):  # of one that has none
        if smi.amdsmi_get_gpu_compute_partition(handle) not in ("", "N/A", "SPX"):
            raise ValueError(PARTITION)
    energy_uj()
    title = str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"])
    return EnergyCounter(
        EnergySource(f"{GPU}:{name}", GPU, title),
        energy_uj,
        lambda: smi.amdsmi_get_gpu_activity(handle).get("gfx_activity"),
    )
