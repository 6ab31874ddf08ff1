"""How many CPUs this process may use: its affinity and its cgroup's quota, nothing else.

Defaults for workers and threads everywhere come from here.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUP_ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def available_cpus() -> int:
    """Return the number of CPUs this process may keep busy, at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quota = _cgroup_quota(CGROUP_ROOT, MEMBERSHIP)
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cgroup_folders(root: Path = CGROUP_ROOT, membership: Path = MEMBERSHIP) -> Iterator[Path]:
    """Yield the folder of the process's cgroup v2 and those above it, up to the root."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = root / own.lstrip("/")
    for directory in (folder, *folder.parents):
        yield directory
        if directory == root:
            return


def _cgroup_quota(root: Path, membership: Path) -> float | None:
    """Return the tightest CPU quota from the process's cgroup v2 up to the root, in CPUs.

    ``cpu.max`` holds ``quota period`` in microseconds (Linux, admin-guide/cgroup-v2). None where
    there is no limit or no cgroup v2.
    """
    tightest: float | None = None
    for directory in cgroup_folders(root, membership):
        try:
            quota, period = (directory / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            cpus = int(quota) / int(period)
            tightest = cpus if tightest is None else min(tightest, cpus)
    return tightest
