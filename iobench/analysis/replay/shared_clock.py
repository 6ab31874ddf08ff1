"""Activities in time that share CPUs and the bandwidth of storage, each its equal part.

Processor sharing: at every instant each activity that computes advances at the same speed, at most
that of a CPU for itself; each that reads is slowed down by the same factor where all together
would read faster than storage gives. What does neither is never slowed down.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Generator
from typing import Final, NamedTuple

__all__ = ["COMPUTES", "PAUSES", "READS", "Activity", "Doing", "SharedClock"]

PAUSES, COMPUTES, READS = range(3)


class Doing(NamedTuple):
    """What an activity does next.

    Parameters
    ----------
    what : int
        ``PAUSES``, ``COMPUTES`` or ``READS``.
    alone_ns : float
        How long that takes if nobody is in the way.
    rate : float
        CPUs it can keep busy; for reads bytes in a nanosecond.
    """

    what: int
    alone_ns: float
    rate: float = 1.0


Activity = Generator[Doing | None, None, None]
"""Yields what it does next, or None to sleep until `SharedClock.wake`; both return when done."""


class SharedClock:
    """Runs activities until none has anything left to do.

    Parameters
    ----------
    cores : float or None
        CPUs there are; None for as many as it takes.
    read_nbytes_per_s : float or None
        What storage gives; None for no bound.

    Attributes
    ----------
    now_ns : float
        Exact as long as nothing is short and all times are whole numbers.
    """

    __slots__ = ("_advanced", "_busy", "_ends", "_limits", "_number", "_speeds", "now_ns")

    def __init__(self, cores: float | None, read_nbytes_per_s: float | None) -> None:
        self.now_ns = 0.0
        bandwidth = math.inf if read_nbytes_per_s is None else read_nbytes_per_s / 1e9
        self._limits: Final = (math.inf, math.inf if cores is None else cores, bandwidth)
        # Of each way of being busy: how far everybody in it has come, how fast that goes, what is
        # used of it, and who ends when on the scale of the first.
        self._advanced = [0.0, 0.0, 0.0]
        self._speeds = [1.0, 1.0, 1.0]
        self._busy: list[float] = [0.0, 0.0, 0.0]
        self._ends: list[list[tuple[float, int, float, Activity]]] = [[], [], []]
        self._number = itertools.count()

    def wake(self, activity: Activity) -> None:
        """Let an activity that is new, or sleeps, go on now."""
        for doing in activity:
            if doing is None:
                return
            if doing.alone_ns > 0:
                self._start(activity, doing)
                return

    def run(self) -> None:
        """Go on until everybody has ended or sleeps."""
        while (found := self._next()) is not None:
            way, after_ns = found
            end, _, rate, activity = heapq.heappop(self._ends[way])
            for each in (PAUSES, COMPUTES, READS):
                self._advanced[each] += after_ns * self._speeds[each]
            self._advanced[way] = end
            self.now_ns += after_ns
            self._use(way, -rate)
            self.wake(activity)

    def _next(self) -> tuple[int, float] | None:
        """Return who ends first, by the way it is busy, and in how long."""
        found, soonest = None, math.inf
        for way in (PAUSES, COMPUTES, READS):
            ends = self._ends[way]
            if ends:
                after = max(ends[0][0] - self._advanced[way], 0.0) / self._speeds[way]
                if after < soonest:
                    found, soonest = way, after
        return None if found is None else (found, soonest)

    def _start(self, activity: Activity, doing: Doing) -> None:
        way = doing.what
        end = self._advanced[way] + doing.alone_ns
        heapq.heappush(self._ends[way], (end, next(self._number), doing.rate, activity))
        self._use(way, doing.rate)

    def _use(self, way: int, rate: float) -> None:
        if not self._ends[way]:
            self._busy[way], self._speeds[way] = 0.0, 1.0  # forgets what rounding left
            self._advanced[way] = 0.0
            return
        self._busy[way] += rate
        used = self._busy[way]
        self._speeds[way] = 1.0 if used <= self._limits[way] else self._limits[way] / used
