"""The clocks of a profile. Nothing else in the package reads a clock or sleeps."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from pathlib import Path


class Clock(Protocol):
    """A source of time, in integer nanoseconds; ``iobench.testing.FakeClock`` is one for tests."""

    def now_ns(self) -> int:
        """Return the monotonic time, common to all processes of one boot."""

    def cpu_ns(self) -> int:
        """Return the CPU time the calling thread has used."""

    def wall_ns(self) -> int:
        """Return the time since the Unix epoch; only ever paired with ``now_ns``."""

    def wait_until_ns(self, deadline_ns: int) -> int:
        """Sleep until ``now_ns() >= deadline_ns`` without using the CPU; return the time then."""


class DeviceClock(Protocol):
    """The time of a device that works through a queue, by marks in it."""

    @property
    def name(self) -> str:
        """The device, as the timeline calls it: ``"cuda:0"``."""

    def mark(self) -> Any:
        """Put a mark behind what the calling thread has given the device; None where it cannot."""

    def passed(self, mark: Any) -> bool:
        """Return whether the device has passed the mark, without waiting."""

    def wait(self, mark: Any) -> None:
        """Wait until the device has passed the mark."""

    def between_ns(self, first: Any, last: Any) -> int:
        """Return the device's time between two marks that it has passed."""

    def release(self, mark: Any) -> None:
        """Take back a mark that nobody asks for any more."""


class SystemClock:
    """The machine's own clocks; ``perf_counter`` is CLOCK_MONOTONIC on Linux."""

    __slots__ = ()

    # The built-in functions themselves: a method around them would double the cost of a span.
    now_ns = staticmethod(time.perf_counter_ns)
    cpu_ns = staticmethod(time.thread_time_ns)
    wall_ns = staticmethod(time.time_ns)

    def wait_until_ns(self, deadline_ns: int) -> int:
        """Sleep until the deadline, late by the timer's slack (50 us on Linux), never early."""
        while (now := time.perf_counter_ns()) < deadline_ns:
            time.sleep((deadline_ns - now) * 1e-9)
        return now


SYSTEM_CLOCK: Final = SystemClock()


def process_start_ns() -> int | None:
    """Return when this process began or was forked, good to a tick (10 ms); None where unknown."""
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib's is watched
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 10**9 // os.sysconf(
            "SC_CLK_TCK"
        )
    except (OSError, ValueError, IndexError):
        return None
    return SYSTEM_CLOCK.now_ns() - age_ns


now_ns = SYSTEM_CLOCK.now_ns
wait_until_ns = SYSTEM_CLOCK.wait_until_ns


class Budget:
    """Time since its making against a limit in seconds; None is no limit."""

    def __init__(self, limit_s: float | None) -> None:
        self._end_ns = None if limit_s is None else now_ns() + round(limit_s * 1e9)

    @property
    def spent(self) -> bool:
        """Whether the time is over."""
        return self._end_ns is not None and now_ns() >= self._end_ns


# Darshan tells the zero of its times 1 to 42 ms late, in each process by another time. So a process
# that records while its runtime is loaded reads an empty file a few times, each time at the offset
# that its monotonic clock shows: each call in the log began after its own offset, and ended before
# the next one's.
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
