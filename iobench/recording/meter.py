"""One thread that reads what a machine shows while a run goes on: ``machine/<host>.samples``.

A line of JSON (`MachineHead`), then readings of equal length, each appended by one write, so that a
process that is killed loses one at most: the monotonic time (int64), the busy ticks of each CPU
(uint32, beginning again at 0), and a value for each column of the head (int64, -1 where it is
unknown or was not due). All are counts since the machine started, but for memory and GPUs. The last
column is the CPU time in ns that reading took so far.

CPUs are those that this process may run on, a quota of CPUs the tightest of its cgroup (v2) and
those above it. Disks and links are those with a device of their own, so that none is counted twice
through LVM or RAID; of links without any, as in a container, all but the loopback.
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
from iobench.recording.energy_counters import EnergyCounters, open_counters, text_of
from iobench.recording.machine_head import (
    METER_FOLDER,
    METER_VERSION,
    OWN_COLUMN,
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
"""Memory is read once in so many readings."""
MOST_OF_A_CPU: Final = 500
"""Reading takes one part of so many of a CPU at most: else it comes less often."""
LARGE_NBYTES: Final = 8 << 20
"""Readings come half as often for each of these that a file has."""
PATIENCE_S: Final = 2.0
"""A driver that does not answer delays the end of a process by no more."""
MOST_DEVICES: Final = 32
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
MBIT_NBYTES: Final = 125_000
DISK_COLUMNS: Final = {"busy_ms": "busy_time", "read": "read_bytes", "written": "write_bytes"}
LINK_COLUMNS: Final = {"received": "bytes_recv", "sent": "bytes_sent"}
"""Our columns, and psutil's names of what they count."""
REFUSALS: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)
"""What reading raises where a system does not have something."""


class _Source(NamedTuple):
    columns: Sequence[str]
    read: Callable[[], Iterable[Any]]
    is_slow: bool = False


def _allowed_cpus(root: Path) -> tuple[list[int], tuple[int, ...]]:
    """Return the places among the system's CPUs of those that may be used, and their numbers."""
    there = [
        int(each) for each in re.findall(r"^cpu(\d+) ", text_of(root / "proc/stat"), re.MULTILINE)
    ]
    allowed = os.sched_getaffinity(0) if root == Path("/") else there
    rows = [row for row, cpu in enumerate(there) if cpu in allowed]
    return rows, tuple(there[row] for row in rows)


def _sources(root: Path, head: dict[str, Any]) -> Iterator[_Source]:
    """Yield what is read of cgroup, pressure, memory, disks and links; add constants to a head."""
    yield from _quota(root, head)
    for what in ("cpu", "memory", "io"):
        path = root / "proc/pressure" / what
        yield _Source((f"pressure.{what}_us",), _one(functools.partial(_pressure, path)))
    yield _Source(("memory.used_nbytes", "memory.cached_nbytes"), _memory, is_slow=True)
    with contextlib.suppress(*REFUSALS):
        head["memory_nbytes"] = psutil.virtual_memory().total
    disks = functools.partial(psutil.disk_io_counters, perdisk=True, nowrap=False)
    links = functools.partial(psutil.net_io_counters, pernic=True, nowrap=False)
    yield _devices("disk", root / "sys/block", disks, DISK_COLUMNS)
    yield _devices("net", root / "sys/class/net", links, LINK_COLUMNS)
    speeds = _known(psutil.net_if_stats).items()
    head["links"] = {name: each.speed * MBIT_NBYTES for name, each in speeds if each.speed}


def _quota(root: Path, head: dict[str, Any]) -> Iterator[_Source]:
    """Yield how much of the tightest quota is used, of the process's cgroup or one above it."""
    quotas = []
    for folder in cgroup_folders(root / "sys/fs/cgroup", root / "proc/self/cgroup"):
        quota, _, period = text_of(folder / "cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal():
            quotas.append((int(quota) / int(period), folder / "cpu.stat"))
    if quotas:
        head["quota_cpus"], stat = min(quotas)
        usage = re.compile(r"^usage_usec (\d+)", re.MULTILINE)
        yield _Source(("cgroup.cpu_us",), lambda: usage.findall(text_of(stat))[:1])


def _memory() -> tuple[int, int]:
    now = psutil.virtual_memory()
    return now.total - now.available, now.cached


def _devices(
    sort: str, folder: Path, query: Callable[[], Any], columns: Mapping[str, str]
) -> _Source:
    """Return what is read of disks or links: of those with a device, else of any link."""

    def read() -> Iterator[int]:
        now = query()
        return (getattr(now.get(name), of, UNKNOWN) for name in names for of in columns.values())

    known = [each for each in _known(query) if each != "lo"]
    names = [each for each in known if (folder / each / "device").exists()]
    names = (names or known * (sort == "net"))[:MOST_DEVICES]
    return _Source([f"{sort}:{name}.{each}" for name in names for each in columns], read)


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
    ) -> None:
        self._files, self._clock = dict(files), clock
        self._nbytes = self._n_readings = self._cpu_ns = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._energy = open_counters(environment, SYSTEM_ROOT) if energy else EnergyCounters()
        self._refusals = REFUSALS + self._energy.refusals
        self._cpu_rows, cpus = _allowed_cpus(SYSTEM_ROOT) if machine else ([], ())
        self._ticks = [0] * len(cpus)
        about: dict[str, Any] = {"cpus": cpus, "ticks_per_s": TICKS_PER_S}
        counters = [*enumerate(self._energy.counters)]
        self._sources = [_Source((f"energy:{n}.uj",), _one(of.read_uj)) for n, of in counters]
        gpus = [
            _Source((f"gpu:{n}.busy",), _one(of.busy_percent))
            for n, of in counters
            if of.busy_percent
        ]
        possible = [*gpus, *(_sources(SYSTEM_ROOT, about) if machine else ())]
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

    def _values(self, source: _Source) -> Sequence[int]:
        try:
            return [int(each) for each in source.read()]
        except self._refusals:
            return [UNKNOWN] * len(source.columns)

    @property
    def period_ns(self) -> int:
        """Time to the next reading: longer in a long run, and where reading takes long."""
        cost_ns = self._cpu_ns // max(self._n_readings, 1)
        return max(PERIOD_NS << (self._nbytes // LARGE_NBYTES), cost_ns * MOST_OF_A_CPU)

    def read(self, *, everything: bool = False) -> None:
        """Read what is due once, and write what it shows."""
        begun_ns, now_ns = self._clock.cpu_ns(), self._clock.now_ns()
        slow = everything or self._n_readings % SLOW_EVERY == 0
        values: list[int] = []
        for each in self._sources:
            due = slow or not each.is_slow
            values += self._values(each) if due else [UNKNOWN] * len(each.columns)
        self._write(self._pack(now_ns, *self._busy_ticks(), *values, self._cpu_ns))
        self._n_readings += 1
        self._cpu_ns += self._clock.cpu_ns() - begun_ns

    def _busy_ticks(self) -> list[int]:
        """Return for how many ticks each CPU was busy, as before where that cannot be read."""
        with contextlib.suppress(*REFUSALS):
            times = psutil.cpu_times(percpu=True) if self._cpu_rows else []
            busy = (
                each.user + each.nice + each.system + each.irq + each.softirq + each.steal
                for each in (times[row] for row in self._cpu_rows)
            )
            self._ticks = [round(each * TICKS_PER_S) & 0xFFFFFFFF for each in busy]
        return self._ticks

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
        """Read once more and end; idempotent."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            if self._thread.is_alive():
                logger.warning("a counter does not answer; its earlier readings remain")

    def _run(self) -> None:
        while self._files and not self._stopped.wait(self.period_ns / 1e9):
            self.read()
        self.read(everything=True)
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
) -> Meter:
    """Begin to read what this machine shows, for some run directories."""
    files = [*_claimed_files(runs)] if energy or machine else []
    energy, machine = energy and bool(files), machine and bool(files)
    return Meter(files, environment, energy=energy, machine=machine).start()


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


def _known(query: Callable[[], Any]) -> dict[str, Any]:
    """Return what psutil has by name; nothing where the system has no such thing."""
    try:
        return dict(query())
    except REFUSALS:
        return {}


def _pressure(path: Path) -> int:
    """Return for how many microseconds some task was held up; the second line is of all tasks."""
    return int(text_of(path).partition("\n")[0].rpartition("total=")[2])
