"""Counters of energy that a machine has: the processors' (RAPL), and those of HPE Cray machines.

RAPL is what Intel's and AMD's processors count, as ``powercap`` of Linux shows it: a folder
``intel-rapl:<package>`` for each package, also on AMD, with ``energy_uj`` in microjoules that
begins again after ``max_energy_range_uj``; ``intel-rapl:<package>:<n>`` are parts of a package, of
which the memory (``dram``) alone is not in the package's own count. ``intel-rapl-mmio`` is the
same packages once more, ``psys`` all of the board. Since CVE-2020-8694 only root may read them.

HPE Cray machines have ``/sys/cray/pm_counters``: files of one line, ``<value> J <time> us``,
renewed ten times a second, of the whole machine (``energy``), its processors, memory and
accelerators.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from iobench.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CPU, MEMORY, GPU, MACHINE = "cpu", "memory", "gpu", "machine"
MS: Final = 1_000_000
MICROJOULES: Final = 1_000_000
"""In a joule."""
RAPL_PERIOD_NS: Final = 1 * MS
CRAY_PERIOD_NS: Final = 100 * MS
PACKAGE: Final = re.compile(r"intel-rapl:\d+")
PART: Final = re.compile(r"intel-rapl:\d+:\d+")
ACCELERATOR: Final = re.compile(r"accel(\d+)_energy")
NO_COUNTER: Final = "no counter"
LINE_NBYTES: Final = 256


@frozen
class CounterRoots:
    """Where a machine's counters are; others than the system's are for tests.

    Parameters
    ----------
    powercap, cray : Path
        Folders of RAPL and of HPE Cray's counters.
    nvidia, amd : Path
        There where NVIDIA's driver is loaded, and AMD's.
    """

    powercap: Path = Path("/sys/class/powercap")
    cray: Path = Path("/sys/cray/pm_counters")
    nvidia: Path = Path("/proc/driver/nvidia")
    amd: Path = Path("/sys/module/amdgpu")


SYSTEM_ROOTS: Final = CounterRoots()


@frozen
class EnergySource:
    """One counter of energy, as it describes itself.

    Parameters
    ----------
    name : str
        Unique on its machine: ``"cpu:intel-rapl:0"``, ``"gpu:GPU-5c6f..."``.
    kind : str
        ``"cpu"``, ``"memory"``, ``"gpu"``, or ``"machine"``, which has the others in it.
    title : str
        As people know it: ``"package-0"``, ``"NVIDIA A100-SXM4-40GB"``.
    by : str
        Who counts: ``"RAPL"``, ``"NVML"``, ``"NVML power"``, ``"AMD SMI"``, ``"HPE Cray"``.
    period_ns : int
        How old its value may be: the time between two renewals.
    wraps_uj : int or None
        The value after which it begins again at 0.
    estimated : bool
        Whether it is the sum of readings of power, and no count.
    """

    name: str
    kind: str
    title: str
    by: str
    period_ns: int
    wraps_uj: int | None = None
    estimated: bool = False


@frozen
class UnreadableEnergy:
    """Energy that cannot be told.

    Parameters
    ----------
    kind : str
        As of `EnergySource`.
    reason : str
        Why, in words.
    """

    kind: str
    reason: str


@frozen
class EnergyHead:
    """What is read of one machine's counters.

    Parameters
    ----------
    period_ns : int
        Time between two readings.
    unreadable : tuple of UnreadableEnergy
        What could not be read, and why.
    pid : int
        Of who reads; -1 where it is not told.
    """

    host: str
    boot_id: str
    period_ns: int
    sources: tuple[EnergySource, ...]
    unreadable: tuple[UnreadableEnergy, ...]
    pid: int = -1


class CounterError(Exception):
    """A counter cannot be read now; the message says why."""


class EnergyCounter(Protocol):
    """A counter that is open."""

    @property
    def source(self) -> EnergySource:
        """What it counts."""
        ...

    def read_uj(self) -> int:
        """Return its value in microjoules.

        Raises
        ------
        CounterError
        """
        ...

    def close(self) -> None:
        """Let go of it; idempotent."""
        ...


@frozen
class UsageGauge:
    """What a driver tells of the use of a GPU whose counter is open.

    Parameters
    ----------
    name : str
        Of its counter's source.
    busy_percent, used_nbytes : callable
        Return for how much of the time it was busy lately, and how much of its memory is taken;
        None is unknown.
    """

    name: str
    busy_percent: Callable[[], int | None]
    used_nbytes: Callable[[], int | None]

    def read(self) -> tuple[int | None, int | None]:
        """Return both."""
        return _known(self.busy_percent), _known(self.used_nbytes)


def _known(ask: Callable[[], int | None]) -> int | None:
    try:
        value = ask()
    except (CounterError, AttributeError):  # the driver refuses, or its library has no such thing
        return None
    return value if type(value) is int else None  # AMD's tells "N/A"


@frozen
class FoundCounters:
    """Counters that can be read, and what cannot."""

    counters: tuple[EnergyCounter, ...] = ()
    unreadable: tuple[UnreadableEnergy, ...] = ()
    gauges: tuple[UsageGauge, ...] = ()

    def __add__(self, other: FoundCounters) -> FoundCounters:
        return FoundCounters(
            self.counters + other.counters,
            self.unreadable + other.unreadable,
            self.gauges + other.gauges,
        )

    def of(self, kind: str) -> FoundCounters:
        """Return what is of one kind."""
        return FoundCounters(
            tuple(each for each in self.counters if each.source.kind == kind),
            tuple(each for each in self.unreadable if each.kind == kind),
        )

    def close(self) -> None:
        """Let go of all counters."""
        for each in self.counters:
            each.close()


class FileCounter:
    """A counter that is a file of the kernel's, kept open and read again from its start.

    Parameters
    ----------
    unit_uj : int
        What its number counts, in microjoules.
    unit : str
        The word that follows the number; ``""`` for none.

    Raises
    ------
    CounterError
        If it cannot be opened, or holds no number.
    """

    def __init__(self, source: EnergySource, path: Path, *, unit_uj: int, unit: str = "") -> None:
        self.source = source
        self._unit_uj, self._unit = unit_uj, unit
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.read_uj()
        except (OSError, CounterError) as error:
            self.close()
            raise CounterError(_why(error)) from error

    def read_uj(self) -> int:
        """Return its value in microjoules."""
        try:
            words = os.pread(self._fd, LINE_NBYTES, 0).decode("ascii", "replace").split()
        except OSError as error:
            raise CounterError(_why(error)) from error
        if not words or not words[0].isdecimal() or words[1:2] != [self._unit][: bool(self._unit)]:
            raise CounterError(f"holds {' '.join(words)[:40]!r}, expected a number")
        return int(words[0]) * self._unit_uj

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _why(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, FileNotFoundError):
        return NO_COUNTER
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)


def find_host_counters(roots: CounterRoots) -> FoundCounters:
    """Open the counters of processors, memory and the whole machine, each kind by one counter.

    RAPL's go before those of HPE Cray, which are renewed a hundred times less often. Accelerators
    of HPE Cray's counters come too: who can ask the accelerators themselves drops them.
    """
    rapl, cray = _rapl(roots.powercap), _cray(roots.cray)
    found = FoundCounters()
    for kind in (CPU, MEMORY):
        ours, theirs = rapl.of(kind), cray.of(kind)
        if ours.counters or not theirs.counters:
            theirs.close()
            found += ours if ours.counters or ours.unreadable else _nothing(kind)
        else:
            found += theirs
    return found + cray.of(GPU) + cray.of(MACHINE)


def _nothing(kind: str) -> FoundCounters:
    return FoundCounters(unreadable=(UnreadableEnergy(kind, NO_COUNTER),))


def _rapl(root: Path) -> FoundCounters:
    counters: list[EnergyCounter] = []
    unreadable: dict[UnreadableEnergy, None] = {}
    for path in _folders(root):
        title = _line(path / "name")
        if PACKAGE.fullmatch(path.name) and title.startswith("package"):
            kind = CPU
        elif PART.fullmatch(path.name) and title == "dram":
            kind, title = MEMORY, f"dram of {_line(root / path.name.rpartition(':')[0] / 'name')}"
        else:
            continue
        wraps = _line(path / "max_energy_range_uj")
        source = EnergySource(
            name=f"{kind}:{path.name}",
            kind=kind,
            title=title,
            by="RAPL",
            period_ns=RAPL_PERIOD_NS,
            wraps_uj=int(wraps) if wraps.isdecimal() else None,
        )
        try:
            counters.append(FileCounter(source, path / "energy_uj", unit_uj=1))
        except CounterError as error:
            unreadable[UnreadableEnergy(kind, f"{error} ({path / 'energy_uj'})")] = None
    return FoundCounters(tuple(counters), tuple(unreadable))


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.name.startswith("intel-rapl:"))
    except OSError:
        return []


def _line(path: Path) -> str:
    """Return the one line of a small file; ``""`` where it cannot be read."""
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _cray(root: Path) -> FoundCounters:
    try:
        names = sorted(path.name for path in root.iterdir())
    except OSError:
        return FoundCounters()
    wanted = {"energy": MACHINE, "cpu_energy": CPU, "memory_energy": MEMORY}
    accelerators = [name for name in names if ACCELERATOR.fullmatch(name)] or ["accel_energy"]
    wanted |= dict.fromkeys(accelerators, GPU)
    counters: list[EnergyCounter] = []
    unreadable = []
    for name in names:
        if name not in wanted:
            continue
        kind = wanted[name]
        title = {MACHINE: "the whole machine", CPU: "processors"}.get(kind, name.split("_")[0])
        source = EnergySource(f"{kind}:{name}", kind, title, "HPE Cray", CRAY_PERIOD_NS)
        try:
            counter = FileCounter(source, root / name, unit_uj=MICROJOULES, unit="J")
        except CounterError as error:
            unreadable.append(UnreadableEnergy(kind, f"{error} ({root / name})"))
            continue
        if kind == GPU and not counter.read_uj():  # 0 where there is no accelerator
            counter.close()
            continue
        counters.append(counter)
    return FoundCounters(tuple(counters), tuple(unreadable))


def without(found: FoundCounters, kinds: Iterable[str]) -> FoundCounters:
    """Return what is of none of these kinds; counters that are left out are closed."""
    left = set(kinds)
    for each in found.counters:
        if each.source.kind in left:
            each.close()
    return FoundCounters(
        tuple(each for each in found.counters if each.source.kind not in left),
        tuple(each for each in found.unreadable if each.kind not in left),
    )
