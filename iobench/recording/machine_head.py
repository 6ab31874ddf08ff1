"""What a file of a machine's readings says first: which columns it has, of what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from iobench.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

ENERGY, MONITOR = "IOBENCH_ENERGY", "IOBENCH_MONITOR"
"""Environment: ``off`` reads no counters of energy, or none of CPUs, memory, disks and links."""

METER_VERSION: Final = 1
METER_FOLDER: Final = "machine"
OWN_COLUMN: Final = "own_cpu_ns"
UNKNOWN: Final = -1


class EnergySource(msgspec.Struct, frozen=True):
    """One counter of energy: ``"cpu:intel-rapl:0"``, ``"package-0"`` to people."""

    name: str
    kind: str  # "cpu", "memory", "gpu", or "machine", which has the others in it
    title: str
    wraps_uj: int | None = None  # the value after which it begins again at 0
    estimated: bool = False  # a sum of readings of power, and no count, as earlier versions had


class UnreadableEnergy(msgspec.Struct, frozen=True):
    """A kind of energy that cannot be read, and why."""

    kind: str
    reason: str


class MachineHead(msgspec.Struct, frozen=True):
    """What is read of one machine; None is no limit, or unknown."""

    host: str
    boot_id: str
    cpus: tuple[int, ...] = ()  # numbers of those that may be used; none where they are not read
    ticks_per_s: int = 100
    quota_cpus: float | None = None  # how many of them the cgroup allows
    memory_nbytes: int | None = None
    # What each value of a reading is, after its time and the CPUs' ticks; "energy:<n>.uj" is the
    # counter at this place of the sources.
    columns: tuple[str, ...] = ()
    links: dict[str, int] = {}  # what they carry at most, in bytes a second, where it is known
    sources: tuple[EnergySource, ...] = ()
    unreadable: tuple[UnreadableEnergy, ...] = ()


def is_on(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether one of these variables is not ``off``; else it is ``auto``, or not set."""
    choice = environ.get(name, "auto")
    if choice not in ("auto", "off"):
        raise OptionError(f"{name} {choice}: expected auto or off")
    return choice == "auto"
