"""How many CPUs this process may use: its affinity and its cgroup's quota, nothing else.

Defaults for workers and threads everywhere come from here.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["available_cpus"]

CGROUP_ROOT = Path("/sys/fs/cgroup")


def available_cpus() -> int:
    """Return the number of CPUs this process may keep busy, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    quota = _cgroup_quota(CGROUP_ROOT, Path("/proc/self/cgroup"))
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def _cgroup_quota(root: Path, membership: Path) -> float | None:
    """Return the tightest CPU quota from the process's cgroup v2 up to the root, in CPUs.

    ``cpu.max`` holds ``quota period`` in microseconds (Linux, admin-guide/cgroup-v2). None where
    there is no limit or no cgroup v2.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = root / own.lstrip("/")
    tightest: float | None = None
    for directory in (folder, *folder.parents):
        try:
            quota, period = (directory / "cpu.max").read_text().split()
        except (OSError, ValueError):
            quota, period = "max", "0"
        if quota != "max":
            cpus = int(quota) / int(period)
            tightest = cpus if tightest is None else min(tightest, cpus)
        if directory == root:
            break
    return tightest
