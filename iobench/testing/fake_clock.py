"""A clock that stands still until it is moved, for tests with exact times."""

from __future__ import annotations


class FakeClock:
    """A ``Clock`` moved by hand; ``step_ns`` pass at each ``now_ns()``, after it is read.

    Examples
    --------
    >>> clock = FakeClock(start_ns=100)
    >>> clock.advance(5, cpu_ns=2)
    >>> clock.now_ns(), clock.cpu_ns()
    (105, 2)
    """

    __slots__ = ("_cpu_ns", "_now_ns", "_step_ns", "_wall_offset_ns")

    def __init__(self, start_ns: int = 0, *, wall_offset_ns: int = 0, step_ns: int = 0) -> None:
        self._now_ns = start_ns
        self._cpu_ns = 0
        self._wall_offset_ns = wall_offset_ns
        self._step_ns = step_ns

    def advance(self, wall_ns: int, *, cpu_ns: int = 0) -> None:
        """Let time pass, of which the thread was on the CPU for ``cpu_ns``."""
        self._now_ns += wall_ns
        self._cpu_ns += cpu_ns

    def now_ns(self) -> int:
        """Return the monotonic time."""
        now_ns = self._now_ns
        self._now_ns += self._step_ns
        return now_ns

    def cpu_ns(self) -> int:
        """Return the CPU time; the same for all threads."""
        return self._cpu_ns

    def wall_ns(self) -> int:
        """Return the time since the epoch."""
        return self._now_ns + self._wall_offset_ns

    def wait_until_ns(self, deadline_ns: int) -> int:
        """Move the clock to the deadline, without sleeping; return the time then."""
        self._now_ns = max(self._now_ns, deadline_ns)
        return self._now_ns
