"""Reads at known times, by which the log of a tracer tells how far its clock is from ours.

Darshan tells the zero of its times 1 to 42 ms late, in each process by another time. So a process
that records while Darshan's runtime is loaded reads an empty file a few times, each time at the
offset that its monotonic clock shows just then: each call in the log began after the time that is
its own offset, and ended before the one that is the next one's.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.recording.clocks import Clock

MARKER_NAME: Final = "iobench-clock-marker"
N_READS: Final = 4  # the first one is slow: the tracer takes up a new file then
# Taken before anybody puts a timer in their place: these reads are no part of the loading.
_open: Final = os.open
_pread: Final = os.pread


def mark_clock(folder: Path, clock: Clock) -> None:
    """Make the reads, where Darshan's runtime is preloaded and the folder can be written."""
    if "libdarshan" not in os.environ.get("LD_PRELOAD", ""):
        return
    with contextlib.suppress(OSError):
        marker = _open(folder / MARKER_NAME, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            for _ in range(N_READS):
                _pread(marker, 1, clock.now_ns())
        finally:
            os.close(marker)


def is_clock_marker(name: str) -> bool:
    """Return whether a file is one that was read to mark times."""
    return name.rpartition("/")[2] == MARKER_NAME
