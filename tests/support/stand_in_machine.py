"""A machine that a test makes: files as Linux has them, moved on by hand."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from iobench.recording import meter
from iobench.recording.meter import Meter
from iobench.testing import FakeClock

MS = 1_000_000
SECTOR = 512
KIB = 1024
GIB = 1 << 30


class StandInMachine:
    """``proc`` and ``sys`` below a folder, with what was counted so far."""

    def __init__(
        self,
        root: Path,
        *,
        n_cpus: int = 4,
        disks: dict[str, bool] | None = None,  # whether they rotate
        links: dict[str, int] | None = None,  # Mbit/s; 0 tells none
        quota: str = "",  # a cgroup's cpu.max
        pressure: bool = True,  # whether the kernel tells of it
        has_devices: bool = True,  # of network interfaces, unlike those of containers
    ) -> None:
        self.root, self.n_cpus = root, n_cpus
        self.disks = {"sda": True} if disks is None else disks
        self.links = {"eth0": 10_000} if links is None else links
        self.quota, self.pressure, self.has_devices = quota, pressure, has_devices
        self.clock = FakeClock(0)
        self.ns = 0
        self.cpu_ns = [0.0] * n_cpus
        self.used_ns = 0.0
        self.held_ns = dict.fromkeys(("cpu", "memory", "io"), 0.0)
        self.busy_ns = dict.fromkeys(self.disks, 0.0)
        self.read = dict.fromkeys(self.disks, 0)
        self.received = dict.fromkeys(self.links, 0)
        self.used_nbytes, self.cached_nbytes, self.total_nbytes = 4 * GIB, 2 * GIB, 16 * GIB
        self.write()

    def advance(self, ms: int, **busy: Any) -> None:
        """Let time go by in which things are busy for shares of it.

        ``cpus`` is a share for each; ``disk`` of the first one, with ``disk_nbytes``;
        ``net_nbytes`` through the first link; ``memory`` and ``io`` of time held up; ``quota`` of
        the cgroup's.
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
        if self.quota:
            quota, period = map(int, self.quota.split())
            self.used_ns += busy.get("quota", 0) * ns * quota / period
        self.write()

    def write(self) -> None:
        """Write all files."""
        cpus = [
            f"cpu{n} {round(each / 1e7)} 0 0 1 2 0 0 0 0 0" for n, each in enumerate(self.cpu_ns)
        ]
        whole = f"cpu  {sum(round(each / 1e7) for each in self.cpu_ns)} 0 0 0 0 0 0 0 0 0"
        self._file("proc/stat", "\n".join([whole, *cpus, "intr 77 0 1", "ctxt 5"]))
        free = self.total_nbytes - self.used_nbytes
        memory = {"MemTotal": self.total_nbytes, "MemFree": KIB, "MemAvailable": free, "Buffers": 0,
                  "Cached": self.cached_nbytes, "Shmem": 0, "Active": 0, "Inactive": 0}  # fmt: skip
        self._file("proc/meminfo", "\n".join(f"{k}:  {v // KIB} kB" for k, v in memory.items()))
        for what, ns in self.held_ns.items() if self.pressure else ():
            some = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={round(ns / 1000)}"
            self._file(f"proc/pressure/{what}", f"{some}\n{some.replace('some', 'full')}")
        lines = ["7 0 loop0 9 9 9 9 9 9 9 9 9 9 9"]
        for disk, rotates in self.disks.items():
            sectors = self.read[disk] // SECTOR
            busy_ms = round(self.busy_ns[disk] / MS)
            lines.append(f"8 0 {disk} 10 0 {sectors} 7 5 0 16 2 0 {busy_ms} 20")
            self._file(f"sys/block/{disk}/queue/rotational", str(int(rotates)))
            self._file(f"sys/block/{disk}/device/model", "stand-in")
        self._file("proc/diskstats", "\n".join(lines))
        lines = ["Inter-|   Receive", " face |bytes", "lo: 99 0 0 0 0 0 0 0 99 0 0 0 0 0 0 0"]
        for link in self.links:
            lines.append(f"{link}: {self.received[link]} 0 0 0 0 0 0 0 5 0 0 0 0 0 0 0")
            if self.has_devices:
                self._file(f"sys/class/net/{link}/device/vendor", "0")
        self._file("proc/net/dev", "\n".join(lines))
        self._file("proc/self/cgroup", "0::/job")
        group = "sys/fs/cgroup/job"
        if self.quota:
            self._file(f"{group}/cpu.max", self.quota)
            self._file(f"{group}/cpu.stat", f"usage_usec {round(self.used_ns / 1e3)}\nnr_periods 2")

    def _file(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # In place: the reader has it open.
        with path.open("r+" if path.exists() else "w") as file:
            file.write(f"{text}\n")
            file.truncate()

    def reader(self, run: Path, monkeypatch: Any, *, period_ms: int = 100) -> Meter:
        """Return what reads this machine, which is that of sketched runs."""
        monkeypatch.setattr(meter, "host_name", lambda: "here")
        monkeypatch.setattr(meter, "boot_id", lambda: "boot")
        monkeypatch.setattr(meter, "SYSTEM_ROOT", self.root)
        monkeypatch.setattr(psutil, "PROCFS_PATH", str(self.root / "proc"))
        speeds = {name: SimpleNamespace(speed=speed) for name, speed in self.links.items()}
        monkeypatch.setattr(psutil, "net_if_stats", lambda: speeds)
        folder = run / "machine"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "here.samples"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        monkeypatch.setattr(meter, "PERIOD_NS", period_ms * MS)
        return Meter([(path, file)], {}, energy=False, machine=True, clock=self.clock)
