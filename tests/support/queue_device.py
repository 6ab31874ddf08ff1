"""A device that works through a queue, for tests without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iobench.testing.fake_clock import FakeClock

__all__ = ["QueueDevice"]


class QueueDevice:
    """A ``DeviceClock`` of a device that does what it is given, in order.

    Its marks are the times, on the host's clock, at which it comes past them; waiting for the
    device moves that clock.
    """

    def __init__(self, clock: FakeClock, name: str = "stand-in:0") -> None:
        self.name = name
        self.n_waits = 0
        self.released: list[int] = []
        self._clock = clock
        self._free_ns = 0

    def work(self, duration_ns: int) -> None:
        """Give the device work, which begins when it has done all before."""
        self._free_ns = max(self._free_ns, self._clock.now_ns()) + duration_ns

    def mark(self) -> int | None:
        """Put a mark behind all work."""
        self._free_ns = max(self._free_ns, self._clock.now_ns())
        return self._free_ns

    def passed(self, mark: int) -> bool:
        return mark <= self._clock.now_ns()

    def wait(self, mark: int) -> None:
        self.n_waits += 1
        self._clock.wait_until_ns(mark)

    def between_ns(self, first: int, last: int) -> int:
        if not (self.passed(first) and self.passed(last)):
            raise RuntimeError("a mark is not passed yet")
        return last - first

    def release(self, mark: int) -> None:
        self.released.append(mark)
