"""A machine that a test makes: files as Linux has them, moved on by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iobench.recording import monitor
from iobench.recording.host_reader import claimed_files
from iobench.recording.machine_counters import MachineCounters
from iobench.recording.monitor import MachineReader
from iobench.recording.this_process import boot_id
from iobench.testing import FakeClock

MS = 1_000_000
SECTOR = 512
KIB = 1024
GIB = 1 << 30


class StandInMachine:
    """``proc`` and ``sys`` below a folder, with what was counted so far.

    Parameters
    ----------
    root : Path
    n_cpus : int
    disks : dict of str to bool
        Whether they rotate.
    links : dict of str to int
        Mbit/s of network interfaces with a device; 0 tells none.
    quota : str
        A cgroup's ``cpu.max``.
    memory_limit : int
        A cgroup's ``memory.max``; 0 is none.
    swap : bool
    pressure : bool
        Whether the kernel tells of it.
    """

    def __init__(
        self,
        root: Path,
        *,
        n_cpus: int = 4,
        disks: dict[str, bool] | None = None,
        links: dict[str, int] | None = None,
        quota: str = "",
        memory_limit: int = 0,
        swap: bool = False,
        pressure: bool = True,
    ) -> None:
        self.root, self.n_cpus = root, n_cpus
        self.disks = {"sda": True} if disks is None else disks
        self.links = {"eth0": 10_000} if links is None else links
        self.quota, self.memory_limit = quota, memory_limit
        self.swap, self.pressure = swap, pressure
        self.clock = FakeClock(0)
        self.ns = 0
        self.cpu_ns = [0.0] * n_cpus
        self.used_ns = self.throttled = self.periods = 0.0
        self.held_ns = dict.fromkeys(("cpu", "memory", "io"), 0.0)
        self.busy_ns = dict.fromkeys(self.disks, 0.0)
        self.read = dict.fromkeys(self.disks, 0)
        self.received = dict.fromkeys(self.links, 0)
        self.swapped_pages = 0
        self.used_nbytes, self.cached_nbytes, self.total_nbytes = 4 * GIB, 2 * GIB, 16 * GIB
        self.group_nbytes = 0
        self.write()

    def advance(self, ms: int, **busy: Any) -> None:
        """Let time go by in which things are busy for shares of it.

        ``cpus`` is a share for each; ``disk`` of the first one, with ``disk_nbytes``;
        ``net_nbytes`` through the first link; ``memory`` and ``io`` of time held up;
        ``swap_pages``; ``quota`` and ``throttled`` of the cgroup's.
        """
        ns = ms * MS
        self.ns += ns
        self.clock.advance(ns)
        for number, share in enumerate(busy.get("cpus", ())):
            self.cpu_ns[number] += share * ns
        for disk in [*self.disks][:1]:
            self.busy_ns[disk] += busy.get("disk", 0) * ns
            self.read[disk] += busy.get("disk_nbytes", 0)
        for link in [*self.links][:1]:
            self.received[link] += busy.get("net_nbytes", 0)
        for what in ("memory", "io"):
            self.held_ns[what] += busy.get(what, 0) * ns
        self.swapped_pages += busy.get("swap_pages", 0)
        if self.quota:
            quota, period = map(int, self.quota.split())
            self.used_ns += busy.get("quota", 0) * ns * quota / period
            self.periods += ns / 1e3 / period
            self.throttled += busy.get("throttled", 0) * ns / 1e3 / period
        self.write()

    def write(self) -> None:
        """Write all files."""
        cpus = [
            f"cpu{n} {round(each / 1e7)} 0 0 1 2 0 0 0 0 0" for n, each in enumerate(self.cpu_ns)
        ]
        whole = f"cpu  {sum(round(each / 1e7) for each in self.cpu_ns)} 0 0 0 0 0 0 0 0 0"
        self._file("proc/stat", "\n".join([whole, *cpus, "intr 77 0 1", "ctxt 5"]))
        free = self.total_nbytes - self.used_nbytes
        memory = {"MemTotal": self.total_nbytes, "MemFree": 1, "MemAvailable": free,
                  "Cached": self.cached_nbytes, "SwapCached": 0, "Dirty": 0,
                  "SwapTotal": GIB if self.swap else 0}  # fmt: skip
        self._file("proc/meminfo", "\n".join(f"{k}:  {v // KIB} kB" for k, v in memory.items()))
        self._file("proc/vmstat", f"nr_free_pages 7\npswpin {self.swapped_pages}\npswpout 3")
        for what, ns in self.held_ns.items() if self.pressure else ():
            some = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={round(ns / 1000)}"
            self._file(f"proc/pressure/{what}", f"{some}\n{some.replace('some', 'full')}")
        for disk, rotates in self.disks.items():
            sectors = self.read[disk] // SECTOR
            line = f"10 0 {sectors} 7 5 0 16 2 0 {round(self.busy_ns[disk] / MS)} 20"
            self._file(f"sys/block/{disk}/stat", line)
            self._file(f"sys/block/{disk}/queue/rotational", str(int(rotates)))
            self._file(f"sys/block/{disk}/device/model", "stand-in")
        self._file("sys/block/loop0/stat", "9 " * 11)
        for link, speed in self.links.items():
            self._file(f"sys/class/net/{link}/statistics/rx_bytes", str(self.received[link]))
            self._file(f"sys/class/net/{link}/statistics/tx_bytes", "5")
            self._file(f"sys/class/net/{link}/speed", str(speed or -1))
            self._file(f"sys/class/net/{link}/device/vendor", "0")
        self._file("sys/class/net/lo/statistics/rx_bytes", "99")
        self._file("proc/self/cgroup", "0::/job")
        group = "sys/fs/cgroup/job"
        if self.quota:
            self._file(f"{group}/cpu.max", self.quota)
            told = (self.used_ns / 1e3, self.periods, self.throttled)
            names = ("usage_usec", "nr_periods", "nr_throttled")
            lines = (f"{k} {round(v)}" for k, v in zip(names, told, strict=True))
            self._file(f"{group}/cpu.stat", "\n".join(lines))
        if self.memory_limit:
            self._file(f"{group}/memory.max", str(self.memory_limit))
            self._file(f"{group}/memory.current", str(self.group_nbytes + GIB))
            self._file(f"{group}/memory.stat", f"anon 5\ninactive_file {GIB}\nfile 3")

    def _file(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # In place: the reader has it open.
        with path.open("r+" if path.exists() else "w") as file:
            file.write(f"{text}\n")
            file.truncate()

    def reader(
        self, run: Path, monkeypatch: Any, *, period_ms: int = 100, host: str = "here"
    ) -> MachineReader:
        """Return the reader of this machine; ``""`` is the one that the test runs on."""
        if host:
            monkeypatch.setattr(monitor, "host_name", lambda: host)
            monkeypatch.setattr(monitor, "boot_id", lambda: "boot" if host == "here" else boot_id())
        run.mkdir(parents=True, exist_ok=True)
        files = [*claimed_files([run], "machine", "samples")]
        counters = MachineCounters.open(self.root)
        return MachineReader(files, counters, clock=self.clock, period_ns=period_ms * MS)
