"""One thread that reads what a machine shows while a run goes on: ``machine/<host>.samples``.

A line of JSON (`MachineHead`), then readings of equal length, each appended by one write, so that a
process that is killed loses one at most: the monotonic time (int64), the busy ticks of each CPU
(uint32, beginning again at 0), and a value for each column of the head (int64, -1 where it is
unknown or was not due). All are counts since the machine started, but for memory and GPUs: a
reading left out makes others coarser and not wrong. The last column is the CPU time in ns that
reading took so far.

CPUs are those that this process may run on; a quota of CPUs and a limit of memory are those of its
cgroup (v2) or one above it, the tightest. Disks are those with a device of their own, so that none
is counted twice through LVM or RAID; links likewise where there are such, else, as in a container,
all but the loopback. psutil has no pressure and no cgroups: these are read here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import signal
import struct
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import psutil

from iobench.cpus import cgroup_folders
from iobench.recording.clocks import SYSTEM_CLOCK, Clock
from iobench.recording.energy_counters import EnergyCounters, open_counters
from iobench.recording.machine_head import (
    METER_FOLDER,
    METER_VERSION,
    OWN_COLUMN,
    PAGE_NBYTES,
    UNKNOWN,
    MachineHead,
)
from iobench.recording.this_process import boot_id, host_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

logger = logging.getLogger(__name__)

SYSTEM_ROOT = Path("/")
"""Where ``proc`` and ``sys`` are; another one is for tests, with ``psutil.PROCFS_PATH``."""
PERIOD_NS: Final = 500_000_000
SLOW_EVERY: Final = 10
"""Memory and swap are read once in so many readings."""
MOST_OF_A_CPU: Final = 500
"""Reading takes one part of so many of a CPU at most: else it comes less often."""
LARGE_NBYTES: Final = 8 << 20
"""Readings come half as often for each of these that a file has."""
PATIENCE_S: Final = 2.0
"""A driver that does not answer delays the end of a process by no more."""
MOST_DEVICES: Final = 32
MBIT_NBYTES: Final = 125_000
REFUSALS: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)
"""What reading raises where a system does not have something."""


class _Source(NamedTuple):
    columns: Sequence[str]
    read: Callable[[], Iterable[Any]]
    is_slow: bool = False


class _Cpus:
    """The CPUs that this process may run on, and for how many ticks each was busy."""

    def __init__(self, root: Path) -> None:
        stat = _text(root / "proc/stat")
        there = [int(each) for each in re.findall(r"^cpu(\d+) ", stat, re.MULTILINE)]
        allowed = os.sched_getaffinity(0) if root == Path("/") else there
        self._rows = [row for row, cpu in enumerate(there) if cpu in allowed]
        self._ticks = [0] * len(self._rows)
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self.head = {
            "cpus": tuple(there[row] for row in self._rows), "ticks_per_s": self._ticks_per_s,
        }  # fmt: skip

    def ticks(self) -> list[int]:
        """Return for how many ticks each was busy, as before where that cannot be read."""
        with contextlib.suppress(*REFUSALS):
            times = psutil.cpu_times(percpu=True)
            busy = (
                each.user + each.nice + each.system + each.irq + each.softirq + each.steal
                for each in (times[row] for row in self._rows)
            )
            self._ticks = [round(each * self._ticks_per_s) for each in busy]
        return self._ticks


def _sources(root: Path, head: dict[str, Any]) -> Iterator[_Source]:
    """Yield what is read of cgroup, pressure, memory, disks and links; add constants to a head."""
    yield from _cgroup(root, head)
    for what in ("cpu", "memory", "io"):
        path = root / "proc/pressure" / what
        yield _Source((f"pressure.{what}_us",), _one(functools.partial(_pressure, path)))
    yield _Source(("memory.used_nbytes", "memory.cached_nbytes"), _memory, is_slow=True)
    with contextlib.suppress(*REFUSALS):
        head["memory_nbytes"] = psutil.virtual_memory().total
    if (root / "proc/vmstat").exists():  # else psutil warns
        yield _Source(("swap.in_pages",), _swap, is_slow=True)
    yield _disks(root / "sys/block")
    yield _links(root / "sys/class/net", head)


def _cgroup(root: Path, head: dict[str, Any]) -> Iterator[_Source]:
    """Yield the tightest quota and limit, from the process's cgroup up to the root."""
    quotas, limits = [], []
    for folder in cgroup_folders(root / "sys/fs/cgroup", root / "proc/self/cgroup"):
        quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
        if quota.isdecimal() and period.isdecimal():
            quotas.append((int(quota) / int(period), folder / "cpu.stat"))
        limit = _text(folder / "memory.max").strip()
        if limit.isdecimal():
            limits.append((int(limit), folder))
    if quotas:
        head["quota_cpus"], stat = min(quotas)
        yield _Source(("cgroup.cpu_us",), lambda: _named(stat, ("usage_usec",)))
    if limits:
        head["memory_limit_nbytes"], folder = min(limits)

        def used() -> list[int]:  # files that are cached are no memory that is missing
            (cached,) = _named(folder / "memory.stat", ("inactive_file",))
            return [int(_text(folder / "memory.current")) - cached]

        yield _Source(("cgroup.used_nbytes",), used, is_slow=True)


def _memory() -> tuple[int, int]:
    now = psutil.virtual_memory()
    return now.total - now.available, now.cached


def _swap() -> list[int]:
    now = psutil.swap_memory()
    return [now.sin // PAGE_NBYTES if now.total else UNKNOWN]


def _disks(folder: Path) -> _Source:
    def read() -> Iterator[int]:
        now = psutil.disk_io_counters(perdisk=True, nowrap=False)
        for disk in disks:
            one = now.get(disk)
            yield from (one.busy_time, one.read_bytes, one.write_bytes) if one else (UNKNOWN,) * 3

    names = _known(lambda: psutil.disk_io_counters(perdisk=True, nowrap=False))
    disks = [each for each in names if (folder / each / "device").exists()][:MOST_DEVICES]
    columns = ("busy_ms", "read", "written")
    return _Source([f"disk:{disk}.{each}" for disk in disks for each in columns], read)


def _links(folder: Path, head: dict[str, Any]) -> _Source:
    def read() -> Iterator[int]:
        now = psutil.net_io_counters(pernic=True, nowrap=False)
        for link in links:
            one = now.get(link)
            yield from (one.bytes_recv, one.bytes_sent) if one else (UNKNOWN,) * 2

    counters = _known(lambda: psutil.net_io_counters(pernic=True, nowrap=False))
    names = [each for each in counters if each != "lo"]
    links = [each for each in names if (folder / each / "device").exists()] or names
    links = links[:MOST_DEVICES]
    speeds = _known(psutil.net_if_stats)
    carried = {each: speeds[each].speed * MBIT_NBYTES for each in links if each in speeds}
    head["links"] = {name: speed for name, speed in carried.items() if speed}
    directions = ("received", "sent")
    return _Source([f"net:{link}.{each}" for link in links for each in directions], read)


class Meter:
    """Reads a machine until it is closed; nothing that goes wrong is an error of the run."""

    def __init__(
        self,
        files: Sequence[tuple[Path, int]],
        environment: Mapping[str, str],
        *,
        energy: bool,
        machine: bool,
        clock: Clock = SYSTEM_CLOCK,
        period_ns: int | None = None,
    ) -> None:
        self._files, self._clock = dict(files), clock
        self._period_ns = PERIOD_NS if period_ns is None else period_ns
        self._nbytes = self._n_readings = self._cpu_ns = 0
        self._pid, self._stopped = os.getpid(), threading.Event()
        self._thread: threading.Thread | None = None
        self._energy = open_counters(environment, SYSTEM_ROOT) if energy else EnergyCounters()
        self._refusals = REFUSALS + self._energy.refusals
        self._cpus = _Cpus(SYSTEM_ROOT) if machine else None
        about: dict[str, Any] = {} if self._cpus is None else {**self._cpus.head}
        self._sources = [
            _Source((f"energy:{place}.uj",), _one(each.read_uj))
            for place, each in enumerate(self._energy.counters)
        ]
        possible = [*self._gpu_use(), *(_sources(SYSTEM_ROOT, about) if machine else ())]
        self._sources += [
            each for each in possible if any(value != UNKNOWN for value in self._values(each))
        ]
        columns = tuple(name for each in self._sources for name in each.columns)
        head = MachineHead(
            host_name(), boot_id(), columns=(*columns, OWN_COLUMN),
            **about, sources=tuple(each.source for each in self._energy.counters),
            unreadable=tuple(self._energy.unreadable),
        )  # fmt: skip
        self._has_any = bool(head.cpus or columns)
        self._pack = struct.Struct(f"<q{len(head.cpus)}I{len(head.columns)}q").pack
        document = {"version": METER_VERSION, **msgspec.to_builtins(head)}
        self._write(json.dumps(document, separators=(",", ":")).encode() + b"\n")

    def _gpu_use(self) -> Iterator[_Source]:
        for place, each in enumerate(self._energy.counters):
            for name, query in (("busy", each.busy_percent), ("used", each.used_nbytes)):
                if query is not None:
                    yield _Source((f"gpu:{place}.{name}",), _one(query))

    def _values(self, source: _Source) -> Sequence[int]:
        try:
            return [int(each) for each in source.read()]
        except self._refusals:
            return [UNKNOWN] * len(source.columns)

    @property
    def period_ns(self) -> int:
        """Time to the next reading: longer in a long run, and where reading takes long."""
        cost_ns = self._cpu_ns // max(self._n_readings, 1)
        return max(self._period_ns << (self._nbytes // LARGE_NBYTES), cost_ns * MOST_OF_A_CPU)

    def read(self, *, everything: bool = False) -> None:
        """Read what is due once, and write what it shows."""
        begun_ns, now_ns = self._clock.cpu_ns(), self._clock.now_ns()
        slow = everything or self._n_readings % SLOW_EVERY == 0
        values: list[int] = []
        for each in self._sources:
            due = slow or not each.is_slow
            values += self._values(each) if due else [UNKNOWN] * len(each.columns)
        ticks = [] if self._cpus is None else self._cpus.ticks()
        self._write(
            self._pack(now_ns, *(each & 0xFFFFFFFF for each in ticks), *values, self._cpu_ns)
        )
        self._n_readings += 1
        self._cpu_ns += self._clock.cpu_ns() - begun_ns

    def start(self) -> Meter:
        """Read from now on, in a thread of its own where there is anything to read."""
        if not (self._has_any and self._files):
            self._finish()
            return self
        self.read()
        self._thread = threading.Thread(target=self._run, name="iobench-machine", daemon=True)
        # No signal is delivered to the thread: a thread that waits for signals gets all of them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads for this user
            self._thread = None
            logger.warning("the machine is not sampled (%s); the run continues", error)
            self._finish()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def close(self) -> None:
        """Read once more and end; idempotent, and nothing in a fork of the process."""
        if os.getpid() != self._pid or self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            if self._thread.is_alive():
                logger.warning("a counter does not answer; its earlier readings remain")

    def _run(self) -> None:
        try:
            while self._files and not self._stopped.wait(self.period_ns / 1e9):
                self.read()
            self.read(everything=True)
        except MemoryError:  # of a limit that the run meets as well, and says
            logger.warning("the machine is not sampled any more (no memory)")
        self._finish()

    def _finish(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
        self._energy.close()

    def _write(self, data: bytes) -> None:
        for path, file in [*self._files.items()]:
            try:
                reason = "" if os.write(file, data) == len(data) else "no space left"
            except OSError as error:
                reason = error.strerror or str(error)
            if reason:
                logger.warning(
                    "%s: nothing more is written to it (%s); the run continues", path, reason
                )
                os.close(self._files.pop(path))
        self._nbytes += len(data)


def start_meter(
    runs: Sequence[Path],
    environment: Mapping[str, str] = os.environ,
    *,
    energy: bool,
    machine: bool,
    clock: Clock = SYSTEM_CLOCK,
) -> Meter:
    """Begin to read what this machine shows, for some run directories."""
    files = [*_claimed_files(runs)] if energy or machine else []
    energy, machine = energy and bool(files), machine and bool(files)
    return Meter(files, environment, energy=energy, machine=machine, clock=clock).start()


def _claimed_files(runs: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    """Make this machine's file in each run directory, if no other process of it has made it."""
    # Containers of several machines may share a name.
    host, boot = (re.sub(r"[^A-Za-z0-9._-]", "_", each) for each in (host_name(), boot_id()))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    for run in runs:
        path = run / METER_FOLDER / f"{host}-{boot[:8]}.samples"
        try:
            path.parent.mkdir(exist_ok=True)
            yield path, os.open(path, flags, 0o666)
        except OSError as error:
            if not path.exists():
                logger.warning("%s: nothing is read for it (%s)", path, error.strerror or error)


def _one(query: Callable[[], Any]) -> Callable[[], Iterable[Any]]:
    """Return what reads a single value."""
    return lambda: [query()]


def _text(path: Path) -> str:
    """Return what a file of the kernel's holds; ``""`` where it cannot be read."""
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""


def _known(query: Callable[[], Any]) -> dict[str, Any]:
    """Return what psutil has by name; nothing where the system has no such thing."""
    try:
        return dict(query())
    except REFUSALS:
        return {}


def _named(path: Path, names: Sequence[str]) -> list[int]:
    """Return the numbers that follow these names at the beginning of lines."""
    numbers = dict(line.split(None, 1) for line in _text(path).splitlines() if " " in line)
    return [int(numbers[name].split()[0]) for name in names]


def _pressure(path: Path) -> int:
    """Return for how many microseconds some task was held up; the second line is of all tasks."""
    return int(_text(path).partition("\n")[0].rpartition("total=")[2])
