"""The most memory this process has had at once, by the kernel's own count."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

__all__ = ["peak_memory_nbytes"]

STATUS: Final = Path("/proc/self/status")


def peak_memory_nbytes() -> int | None:
    """Return the most bytes of this process that were resident at once; None where unknown.

    Of the program that runs now (``VmHWM``): ``getrusage`` would count what started it as well.
    """
    try:
        for line in STATUS.read_bytes().splitlines():
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return None
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None
