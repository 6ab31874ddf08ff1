"""Energy of AMD's GPUs, as their driver counts it (AMD SMI), of those that this job may use.

``amdsmi_get_energy_count`` is a count and what one of it is in microjoules, since the driver was
loaded, of Instinct GPUs. Others tell their power, which is summed up. What counts for a whole GPU
counts for none of its partitions.

``ROCR_VISIBLE_DEVICES`` names GPUs by number or identity, ``HIP_VISIBLE_DEVICES`` (or, where that
is not set, ``CUDA_VISIBLE_DEVICES``) some of these. Numbers are HIP's where AMD SMI tells them,
from ROCm 6.4 on, else its own.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import MissingExtraError
from iobench.recording.energy_counters import (
    GPU,
    CounterError,
    EnergyCounter,
    EnergySource,
    FoundCounters,
    UsageGauge,
)
from iobench.recording.energy_gpus import (
    COUNTER_PERIOD_NS,
    POWER_PERIOD_NS,
    VISIBLE,
    DriverSession,
    GpuCounter,
    PowerCounter,
    chosen_gpus,
    unreadable_gpus,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.recording.clocks import Clock

LIBRARY: Final = "libamd_smi.so"
WHOLE: Final = "SPX"
"""The one way of dividing a GPU that divides nothing."""
SHARED: Final = "a partition has no counter of its own: the card's is of all its partitions"
NO_COUNT: Final = (0, 2**64 - 1)
NOT_SUPPORTED: Final = (2, 3)
"""``AMDSMI_STATUS_NOT_SUPPORTED`` and ``AMDSMI_STATUS_NOT_YET_IMPLEMENTED``."""


def load_amdsmi(environment: Mapping[str, str]) -> Any:
    """Return the module that asks AMD's driver.

    Raises
    ------
    MissingExtraError
        If it is not installed, or finds no library of the driver's.
    """
    found = importlib.util.find_spec("amdsmi")
    if found is None:
        raise MissingExtraError(
            "the energy of AMD's GPUs needs amdsmi, of the version that ROCm has: "
            "pip install /opt/rocm/share/amd_smi"
        )
    # It prints where there is no library: so that is looked for first, as it does.
    rocm = Path(environment.get("ROCM_HOME") or environment.get("ROCM_PATH") or "/opt/rocm")
    beside = [Path(folder) for folder in found.submodule_search_locations or ()]
    places = [str(rocm / "lib" / LIBRARY), LIBRARY, *(str(each / LIBRARY) for each in beside)]
    if not any(_loads(place) for place in places):
        raise MissingExtraError(f"the energy of AMD's GPUs needs ROCm's {LIBRARY}")
    try:
        return importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError, AttributeError) as error:  # of another version
        raise MissingExtraError(
            f"the energy of AMD's GPUs: amdsmi does not fit {LIBRARY} ({error})"
        ) from error


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


class AmdSession(DriverSession):
    """AMD SMI in use by some counters."""

    def __init__(self, amdsmi: Any) -> None:
        super().__init__(amdsmi, amdsmi.AmdSmiException, "amdsmi_shut_down")

    def reason(self, refusal: Exception) -> str:
        """Return its words without its number and name."""
        told = str(getattr(refusal, "err_info", refusal)).rpartition(" - ")[2]
        return told.strip().lower()

    def told(self, name: str, handle: Any) -> Any:
        """Return what a GPU answers; None where it, or this version, has no such thing.

        Raises
        ------
        CounterError
            If it cannot be asked at all.
        """
        try:
            return self.call(name, handle)
        except AttributeError:
            return None
        except CounterError as error:
            if getattr(error.__cause__, "err_code", None) in NOT_SUPPORTED:
                return None
            raise

    def energy_uj(self, handle: Any) -> int | None:
        """Return a GPU's count; None where it has none."""
        told = self.told("amdsmi_get_energy_count", handle) or {}
        count = told.get("energy_accumulator", told.get("power"))  # before ROCm 6.2
        if not isinstance(count, int) or count in NO_COUNT:
            return None
        return int(count * told["counter_resolution"] + 0.5)

    def power_mw(self, handle: Any) -> int | None:
        """Return a GPU's power; None where it tells none."""
        told = self.told("amdsmi_get_power_info", handle) or {}
        for name in ("current_socket_power", "average_socket_power", "socket_power"):
            if isinstance(told.get(name), int) and told[name] > 0:
                return int(told[name]) * 1000
        return None


def find_amd_counters(environment: Mapping[str, str], clock: Clock, driver: Path) -> FoundCounters:
    """Open the counters of the GPUs of AMD's that this job may use.

    Parameters
    ----------
    environment : mapping
        Of the job.
    clock : Clock
        For readings of power.
    driver : Path
        There where AMD's driver is loaded; else nothing is asked, and nothing said.
    """
    if not driver.exists():
        return FoundCounters()
    try:
        session = AmdSession(load_amdsmi(environment))
        session.call("amdsmi_init")
    except (MissingExtraError, CounterError) as error:
        return unreadable_gpus(str(error))
    found = _visible(session, environment, clock)
    if not found.counters:
        session.shut_down()
    return found


def _visible(session: AmdSession, environment: Mapping[str, str], clock: Clock) -> FoundCounters:
    try:
        known = _known(session)
    except CounterError as error:
        return unreadable_gpus(str(error))
    if not known:
        return unreadable_gpus("no GPU")
    rocr, hip = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
    hip = hip if hip in environment else VISIBLE
    chosen, _ = chosen_gpus(environment.get(rocr), [name for name, _ in known])
    chosen, _ = chosen_gpus(environment.get(hip), chosen)
    if not chosen:
        told = [f"{each}={environment[each]}" for each in (rocr, hip) if each in environment]
        return unreadable_gpus(f"the job sees no GPU ({', '.join(told)})")
    found, handles = FoundCounters(), dict(known)
    for name in chosen:
        found += _counter(session, name, handles[name], clock)
    return found


def _known(session: AmdSession) -> list[tuple[str, Any]]:
    """Return identity and handle of all GPUs, in HIP's order where that is told."""
    known = []
    for place, handle in enumerate(session.call("amdsmi_get_processor_handles")):
        told = session.told("amdsmi_get_gpu_enumeration_info", handle) or {}
        number = told.get("hip_id")
        serial = str(session.call("amdsmi_get_gpu_asic_info", handle)["asic_serial"])
        name = f"GPU-{serial.removeprefix('0x').lower()}"
        known.append((number if isinstance(number, int) else place, name, handle))
    known.sort(key=lambda each: each[0])
    return [(name, handle) for _, name, handle in known]


def _counter(session: AmdSession, name: str, handle: Any, clock: Clock) -> FoundCounters:
    try:
        title = str(session.call("amdsmi_get_gpu_asic_info", handle)["market_name"])
        if session.told("amdsmi_get_gpu_compute_partition", handle) not in (None, "", "N/A", WHOLE):
            return unreadable_gpus(f"{title}: {SHARED}")
        counter: EnergyCounter
        source = EnergySource(f"{GPU}:{name}", GPU, title, "AMD SMI", COUNTER_PERIOD_NS)
        if session.energy_uj(handle) is not None:
            counter = GpuCounter(source, session, lambda: session.energy_uj(handle))
        elif session.power_mw(handle) is not None:
            source = EnergySource(
                source.name, GPU, title, "AMD SMI power", POWER_PERIOD_NS, estimated=True
            )
            counter = PowerCounter(source, session, lambda: session.power_mw(handle), clock.now_ns)
        else:
            return unreadable_gpus(f"{title}: reports neither energy nor power")
    except CounterError as error:
        return unreadable_gpus(f"{name}: {error}")
    return FoundCounters((counter,), gauges=(_gauge(session, source.name, handle),))


def _gauge(session: AmdSession, name: str, handle: Any) -> UsageGauge:
    def used_nbytes() -> int | None:
        memory = session.module.AmdSmiMemoryType.VRAM
        told: int | None = session.call("amdsmi_get_gpu_memory_usage", handle, memory)
        return told

    return UsageGauge(
        name,
        lambda: session.call("amdsmi_get_gpu_activity", handle).get("gfx_activity"),
        used_nbytes,
    )
