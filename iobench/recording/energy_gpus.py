"""Energy of NVIDIA's GPUs, as their driver counts it (NVML), of those that this job may use.

``nvmlDeviceGetTotalEnergyConsumption`` is in millijoules since the driver was loaded, of GPUs from
Volta on. Where a GPU has none, its power is read and summed up, which is an estimate: a reading is
what it took on average lately. What counts for a whole GPU counts for none of its MIG instances.

``CUDA_VISIBLE_DEVICES`` names GPUs by their number or their UUID's beginning; what stands behind a
name that is none does not count. Numbers are those of the bus, as NVML counts them: CUDA counts the
fastest first unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, the same where all are alike.
"""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import MissingExtraError
from iobench.recording.energy_counters import (
    GPU,
    MS,
    CounterError,
    EnergyCounter,
    EnergySource,
    FoundCounters,
    UnreadableEnergy,
    UsageGauge,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from iobench.recording.clocks import Clock

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
COUNTER_PERIOD_NS: Final = 100 * MS
"""How old a driver's count may be: untold, ``tests/benchmarks/energy_gpu.py`` measures it."""
POWER_PERIOD_NS: Final = 1000 * MS
"""What a reading of power may be the mean of."""
MICROJOULES_OF_MJ: Final = 1000
PICOJOULES: Final = 1_000_000
"""In a microjoule; a milliwatt for a nanosecond is one."""


def load_pynvml() -> Any:
    """Return the module that asks NVIDIA's driver.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise MissingExtraError(
            "the energy of GPUs needs nvidia-ml-py: pip install 'iobench[gpu]'"
        ) from error


class DriverSession:
    """A library of a driver's in use by some counters; shut down with the last of them.

    Parameters
    ----------
    module : module
        The library.
    refusal : type
        What it raises.
    end : str
        Its function that ends its use.
    """

    def __init__(self, module: Any, refusal: type[Exception], end: str) -> None:
        self.module = module
        self._refusal, self._end = refusal, end
        self._users: set[int] = set()

    def enter(self, user: object) -> None:
        """Have one more user."""
        self._users.add(id(user))

    def leave(self, user: object) -> None:
        """Have one user less."""
        if id(user) in self._users:
            self._users.remove(id(user))
            if not self._users:
                self.shut_down()

    def shut_down(self) -> None:
        """End its use; where the driver is gone there is nothing left to end."""
        with contextlib.suppress(self._refusal):
            getattr(self.module, self._end)()

    def reason(self, refusal: Exception) -> str:
        """Return what a report says of a refusal."""
        return str(refusal).lower()

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the library's.

        Raises
        ------
        CounterError
            If the driver refuses.
        """
        try:
            return getattr(self.module, name)(*arguments)
        except self._refusal as error:
            raise CounterError(self.reason(error)) from error


class NvmlSession(DriverSession):
    """NVML in use by some counters."""

    def __init__(self, nvml: Any) -> None:
        super().__init__(nvml, nvml.NVMLError, "nvmlShutdown")

    def supports(self, name: str, handle: Any) -> bool:
        """Tell whether a GPU answers this; False where it has no such thing.

        Raises
        ------
        CounterError
            If it cannot be asked at all.
        """
        try:
            self.call(name, handle)
        except CounterError as error:
            if getattr(error.__cause__, "value", None) == self.module.NVML_ERROR_NOT_SUPPORTED:
                return False
            raise
        return True


class GpuCounter:
    """A driver's count of one GPU.

    Parameters
    ----------
    session : DriverSession
        In use until this is closed.
    read_uj : callable
        What asks the driver; None is none at the moment.
    """

    def __init__(
        self, source: EnergySource, session: DriverSession, read_uj: Callable[[], int | None]
    ) -> None:
        self.source = source
        self._session, self._read_uj = session, read_uj
        session.enter(self)

    def read_uj(self) -> int:
        """Return the energy since the driver was loaded."""
        return _told(self._read_uj())

    def close(self) -> None:
        """Let go of the driver."""
        self._session.leave(self)


class PowerCounter:
    """Readings of one GPU's power (``read_mw``), summed from one to the next; an estimate."""

    def __init__(
        self,
        source: EnergySource,
        session: DriverSession,
        read_mw: Callable[[], int | None],
        now_ns: Callable[[], int],
    ) -> None:
        self.source = source
        self._session, self._read_mw, self._now_ns = session, read_mw, now_ns
        self._last: tuple[int, int] | None = None
        self._picojoules = 0
        session.enter(self)

    def read_uj(self) -> int:
        """Return the energy since the first reading."""
        milliwatts = _told(self._read_mw())
        now_ns = self._now_ns()
        if self._last is not None:
            then_ns, before = self._last
            self._picojoules += (now_ns - then_ns) * (milliwatts + before) // 2
        self._last = now_ns, milliwatts
        return self._picojoules // PICOJOULES

    def close(self) -> None:
        """Let go of the driver."""
        self._session.leave(self)


def _told(value: int | None) -> int:
    if value is None:
        raise CounterError("reports none at the moment")
    return value


def find_gpu_counters(environment: Mapping[str, str], clock: Clock, driver: Path) -> FoundCounters:
    """Open the counters of the GPUs that this job may use.

    Parameters
    ----------
    environment : mapping
        Of the job.
    clock : Clock
        For readings of power.
    driver : Path
        There where NVIDIA's driver is loaded; decides what is said where nothing can ask it.
    """
    try:
        session = NvmlSession(load_pynvml())
        session.call("nvmlInit")
    except (MissingExtraError, CounterError) as error:
        return unreadable_gpus(str(error) if driver.exists() else "no NVIDIA driver")
    found = _visible(session, environment, clock)
    if not found.counters:
        session.shut_down()
    return found


def unreadable_gpus(*reasons: str) -> FoundCounters:
    """Return that no GPU can be asked, and why, or why not these."""
    return FoundCounters(unreadable=tuple(UnreadableEnergy(GPU, reason) for reason in reasons))


def _visible(session: NvmlSession, environment: Mapping[str, str], clock: Clock) -> FoundCounters:
    try:
        handles = _handles(session)
    except CounterError as error:
        return unreadable_gpus(str(error))
    if not handles:
        return unreadable_gpus("no GPU")
    uuids = list(handles)
    wanted, whole = chosen_gpus(environment.get(VISIBLE), uuids)
    if not wanted and whole:
        return unreadable_gpus(f"the job sees no GPU ({VISIBLE}={environment.get(VISIBLE)})")
    found = FoundCounters() if whole else unreadable_gpus(SHARED)
    for uuid in wanted:
        found += _counter(session, uuid, handles[uuid], clock)
    return found


SHARED: Final = "a MIG instance has no counter of its own: the card's is of all its instances"


def _handles(session: NvmlSession) -> dict[str, Any]:
    """Return the GPUs by UUID, in NVML's order; those that are not for this job are left out."""
    handles = {}
    for index in range(session.call("nvmlDeviceGetCount")):
        try:
            handle = session.call("nvmlDeviceGetHandleByIndex", index)
        except CounterError as error:
            if getattr(error.__cause__, "value", None) == session.module.NVML_ERROR_NO_PERMISSION:
                continue
            raise
        handles[str(session.call("nvmlDeviceGetUUID", handle))] = handle
    return handles


def chosen_gpus(visible: str | None, uuids: Sequence[str]) -> tuple[list[str], bool]:
    """Return the GPUs that a list shows, and whether it shows no MIG instance."""
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


def _counter(session: NvmlSession, uuid: str, handle: Any, clock: Clock) -> FoundCounters:
    try:
        name = str(session.call("nvmlDeviceGetName", handle))
        if _is_divided(session, handle):
            return unreadable_gpus(f"{name}: {SHARED}")
        source = EnergySource(f"{GPU}:{uuid}", GPU, name, "NVML", COUNTER_PERIOD_NS)
        counter: EnergyCounter
        if session.supports("nvmlDeviceGetTotalEnergyConsumption", handle):
            counter = GpuCounter(source, session, lambda: _energy_uj(session, handle))
        elif session.supports("nvmlDeviceGetPowerUsage", handle):
            source = replace(source, by="NVML power", period_ns=POWER_PERIOD_NS, estimated=True)
            counter = PowerCounter(
                source,
                session,
                lambda: int(session.call("nvmlDeviceGetPowerUsage", handle)),
                clock.now_ns,
            )
        else:
            return unreadable_gpus(f"{name}: reports neither energy nor power")
    except CounterError as error:
        return unreadable_gpus(f"{uuid}: {error}")
    gauge = UsageGauge(
        source.name,
        lambda: session.call("nvmlDeviceGetUtilizationRates", handle).gpu,
        lambda: session.call("nvmlDeviceGetMemoryInfo", handle).used,
    )
    return FoundCounters((counter,), gauges=(gauge,))


def _energy_uj(session: NvmlSession, handle: Any) -> int:
    told = session.call("nvmlDeviceGetTotalEnergyConsumption", handle)
    return int(told) * MICROJOULES_OF_MJ


def _is_divided(session: NvmlSession, handle: Any) -> bool:
    """Tell whether a GPU is divided into MIG instances."""
    if not session.supports("nvmlDeviceGetMigMode", handle):
        return False
    current, _ = session.call("nvmlDeviceGetMigMode", handle)
    return bool(current == session.module.NVML_DEVICE_MIG_ENABLE)
