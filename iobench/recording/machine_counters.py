"""What Linux counts of a machine: CPUs, memory, pressure, disks, network; read from open files.

All are counts since the machine started, but for memory, so that a reading left out makes others
coarser and not wrong. CPUs are those that this process may run on. A quota of CPUs and a limit of
memory are those of its cgroup (v2) or one above it, the tightest. Disks are those with a device of
their own, so that none is counted twice through LVM or RAID; network interfaces likewise where
there are such, else, as in a container, all but the loopback. InfiniBand is counted by its ports.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.cpus import cgroup_folders
from iobench.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SYSTEM_ROOT = Path("/")
"""Where ``proc`` and ``sys`` are; another one is for tests."""
MOST_DEVICES: Final = 32
SECTOR_NBYTES: Final = 512
"""Of the kernel's counts, whatever a disk's own sector is."""
IB_WORD_NBYTES: Final = 4
MBIT_NBYTES: Final = 125_000
BUSY_FIELDS: Final = (1, 2, 3, 6, 7, 8)
"""Of a line of ``/proc/stat``: user, nice, system, irq, softirq, steal; not idle, nor iowait."""
UNKNOWN: Final = -1
MONITOR_VERSION: Final = 1
MONITOR_FOLDER: Final = "machine"
OWN_COLUMN: Final = "own_cpu_ns"


def reading_dtype(n_cpus: int, columns: Sequence[str]) -> np.dtype[np.void]:
    """Return what a reading looks like in a file."""
    values = [(name, "<i8") for name in columns]
    return np.dtype([("time_ns", "<i8"), ("ticks", "<u4", (n_cpus,)), *values])


@frozen
class MachineHead:
    """What is read of one machine.

    Parameters
    ----------
    pid : int
        Of who reads.
    period_ns : int
        Time from a reading to the next, as asked for.
    cpus : tuple of int
        Numbers of the CPUs that may be used.
    ticks_per_s : int
        Of a CPU that is busy.
    quota_cpus : float or None
        How many of them the cgroup allows; None is no limit.
    memory_nbytes : int or None
        Of the machine.
    memory_limit_nbytes : int or None
        Of the cgroup; None is no limit.
    columns : tuple of str
        What each value of a reading is, after its time and the CPUs' ticks.
    links : dict of str to int
        What a network interface carries at most, in bytes a second, where it is known.
    spinning : tuple of str
        Disks that rotate: they serve one request at a time.
    """

    host: str
    boot_id: str
    pid: int
    period_ns: int
    cpus: tuple[int, ...]
    ticks_per_s: int
    quota_cpus: float | None
    memory_nbytes: int | None
    memory_limit_nbytes: int | None
    columns: tuple[str, ...]
    links: dict[str, int]
    spinning: tuple[str, ...]


@dataclass(slots=True)
class _Source:
    """A file that stays open, and how its text becomes the values of some columns."""

    file: int
    columns: tuple[str, ...]
    parse: Callable[[bytes], Sequence[int]]

    def values(self) -> Sequence[int]:
        try:
            return self.parse(_text(self.file))
        except (OSError, ValueError, IndexError):
            return (UNKNOWN,) * len(self.columns)


@dataclass(slots=True)
class MachineCounters:
    """Counters that are open; close them.

    Attributes
    ----------
    quota_cpus, memory_nbytes, memory_limit_nbytes, links, spinning
        As of `MachineHead`.
    """

    cpus: tuple[int, ...] = ()
    quota_cpus: float | None = None
    memory_nbytes: int | None = None
    memory_limit_nbytes: int | None = None
    links: dict[str, int] = field(default_factory=dict)
    spinning: list[str] = field(default_factory=list)
    _sources: list[_Source] = field(default_factory=list)
    _stat: int = -1
    _ticks: list[int] = field(default_factory=list)
    _place_of_cpu: dict[bytes, int] = field(default_factory=dict)

    @classmethod
    def open(cls, root: Path | None = None) -> MachineCounters:
        """Open all there are; on a system without ``/proc`` none."""
        found = cls()
        root = SYSTEM_ROOT if root is None else root
        found._open_cpus(root)
        found._open_cgroup(root)
        found._open_memory(root)
        for what in ("cpu", "memory", "io"):
            found._open(root / "proc/pressure" / what, (f"pressure.{what}_us",), _pressure)
        for disk in _devices(root / "sys/block"):
            names = tuple(f"disk:{disk.name}.{each}" for each in ("busy_ms", "read", "written"))
            found._open(disk / "stat", names, _disk)
            if _line(disk / "queue/rotational") == "1":
                found.spinning.append(disk.name)
        found._open_network(root / "sys/class")
        return found

    @property
    def columns(self) -> tuple[str, ...]:
        """What each of ``values`` is."""
        return tuple(name for each in self._sources for name in each.columns)

    def ticks(self) -> Sequence[int]:
        """Return for how many ticks each CPU was busy; one that is off keeps what it had."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = _text(self._stat)
            for line in text[: text.find(b"\nintr")].split(b"\n"):
                place = self._place_of_cpu.get(line[: line.find(b" ")])
                if place is not None:
                    words = line.split(None, 9)
                    self._ticks[place] = sum(int(words[each]) for each in BUSY_FIELDS)
        return self._ticks

    def values(self) -> Iterator[int]:
        """Yield the value of each column, `UNKNOWN` where it cannot be read."""
        for each in self._sources:
            yield from each.values()

    def close(self) -> None:
        """Close all files."""
        files = [each.file for each in self._sources]
        for file in {self._stat, *files} - {-1}:
            os.close(file)
        self._sources, self._stat = [], -1

    def _open(
        self, path: Path, columns: tuple[str, ...], parse: Callable[[bytes], Sequence[int]]
    ) -> None:
        """Have one more source, if it can be read now."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        source = _Source(file, columns, parse)
        if all(value == UNKNOWN for value in source.values()):
            os.close(file)
        else:
            self._sources.append(source)

    def _open_cpus(self, root: Path) -> None:
        with contextlib.suppress(OSError):
            self._stat = os.open(root / "proc/stat", os.O_RDONLY | os.O_CLOEXEC)
            there = re.findall(rb"^cpu(\d+) ", _text(self._stat), re.MULTILINE)
            allowed = os.sched_getaffinity(0) if root == Path("/") else set(map(int, there))
            self.cpus = tuple(number for number in map(int, there) if number in allowed)
            self._place_of_cpu = {b"cpu%d" % cpu: n for n, cpu in enumerate(self.cpus)}
            self._ticks = [0] * len(self.cpus)

    def _open_cgroup(self, root: Path) -> None:
        """Find the tightest quota and limit, from the process's cgroup up to the root."""
        quota_of: Path | None = None
        limit_of: Path | None = None
        for folder in cgroup_folders(root / "sys/fs/cgroup", root / "proc/self/cgroup"):
            quota, _, period = _line(folder / "cpu.max").partition(" ")
            if quota.isdecimal() and period.isdecimal():
                cpus = int(quota) / int(period)
                if self.quota_cpus is None or cpus < self.quota_cpus:
                    self.quota_cpus, quota_of = cpus, folder
            limit = _line(folder / "memory.max")
            if limit.isdecimal() and int(limit) < (self.memory_limit_nbytes or 1 << 62):
                self.memory_limit_nbytes, limit_of = int(limit), folder
        if quota_of is not None:
            names = ("usage_usec", "nr_periods", "nr_throttled")
            told = ("cgroup.cpu_us", "cgroup.periods", "cgroup.throttled")
            self._open(quota_of / "cpu.stat", told, lambda text: _named(text, names))
        if limit_of is not None:
            used = limit_of / "memory.current"

            def without_cache(text: bytes) -> Sequence[int]:
                (cached,) = _named(text, ("inactive_file",))
                return (max(0, int(_line(used)) - cached),)

            self._open(limit_of / "memory.stat", ("cgroup.used_nbytes",), without_cache)

    def _open_memory(self, root: Path) -> None:
        names = ("MemTotal:", "MemAvailable:", "Cached:", "Dirty:", "SwapTotal:")
        swap = 0

        def taken(text: bytes) -> Sequence[int]:
            nonlocal swap
            total, available, cached, dirty, swap = (each << 10 for each in _named(text, names))
            self.memory_nbytes = total
            return total - available, cached, dirty

        columns = ("memory.used_nbytes", "memory.cached_nbytes", "memory.dirty_nbytes")
        self._open(root / "proc/meminfo", columns, taken)
        if swap:
            pages, moved = ("pswpin", "pswpout"), ("swap.in_pages", "swap.out_pages")
            self._open(root / "proc/vmstat", moved, lambda text: _named(text, pages))

    def _open_network(self, classes: Path) -> None:
        links = _devices(classes / "net") or [
            each for each in _folders(classes / "net") if each.name != "lo"
        ]
        for link in links[:MOST_DEVICES]:
            for way, name in (("received", "rx_bytes"), ("sent", "tx_bytes")):
                column = (f"net:{link.name}.{way}",)
                self._open(link / "statistics" / name, column, lambda text: (int(text),))
            speed = _line(link / "speed")  # in Mbit/s; -1, or refused, where there is none
            if speed.isdecimal():
                self.links[link.name] = int(speed) * MBIT_NBYTES
        for device in _folders(classes / "infiniband")[:MOST_DEVICES]:
            for port in _folders(device / "ports"):
                link_name = f"{device.name}/{port.name}"
                for way, name in (("received", "port_rcv_data"), ("sent", "port_xmit_data")):
                    column = (f"net:{link_name}.{way}",)
                    self._open(
                        port / "counters" / name, column, lambda text: (int(text) * IB_WORD_NBYTES,)
                    )
                rate = _line(port / "rate").partition(" ")[0]  # "100 Gb/sec (4X EDR)"
                if rate.isdecimal():
                    self.links[link_name] = int(rate) * 1000 * MBIT_NBYTES


def _text(file: int) -> bytes:
    """Return all that a file of the kernel's holds; some give a page at a time."""
    text = os.pread(file, 1 << 20, 0)
    while more := os.pread(file, 1 << 20, len(text)):
        text += more
    return text


def _line(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except (OSError, ValueError):
        return ""


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _devices(path: Path) -> list[Path]:
    """Return what is made of hardware, also virtual one."""
    return [each for each in _folders(path) if (each / "device").exists()][:MOST_DEVICES]


def _named(text: bytes, names: Sequence[str]) -> list[int]:
    """Return the numbers that follow these names at the beginning of lines."""
    found, text = [], b"\n" + text
    for name in names:
        at = text.index(b"\n%s " % name.encode()) + len(name) + 2
        found.append(int(text[at : text.index(b"\n", at)].split()[0]))
    return found


def _pressure(text: bytes) -> Sequence[int]:
    """Return for how many microseconds some task was held up; the second line is of all tasks."""
    return (int(text.partition(b"\n")[0].rpartition(b"total=")[2]),)


def _disk(text: bytes) -> Sequence[int]:
    words = text.split()
    return int(words[9]), int(words[2]) * SECTOR_NBYTES, int(words[6]) * SECTOR_NBYTES
