"""Simulated time: threads that work, wait for each other, and share what there is too little of."""

from __future__ import annotations

import heapq
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Gate", "Shared", "SimulatedClock", "Thread"]

Thread = Generator["Gate | Shared | float", None, None]
"""What a thread does: it yields how long it works (in ns), or at which gate it waits.

Work on something shared is asked of that first (`Shared.work`), which is then what is yielded.
"""


class Gate:
    """Where threads wait until another one wakes them all; whoever is woken looks for itself."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.waiting: list[Thread] = []
        self._clock = clock

    def wake(self) -> None:
        """Let all that wait go on at this instant."""
        for thread in self.waiting:
            self._clock.resume_at(self._clock.now, thread)
        self.waiting.clear()


class SimulatedClock:
    """Runs threads in order of time; of several at one instant the first asked for goes first.

    Attributes
    ----------
    now : float
        In ns; whole numbers as long as all durations are and nothing is shared.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._number = 0

    def resume_at(self, time: float, thread: Thread) -> None:
        """Let a thread begin or go on at a time."""
        self.call_at(time, self.resume, thread)

    def call_at(self, time: float, function: Callable[[Any], None], argument: Any) -> None:
        """Call a function of one argument at a time."""
        self._number += 1
        heapq.heappush(self._due, (time, self._number, function, argument))

    def resume(self, thread: Thread) -> None:
        """Let a thread go on now, until it works or waits."""
        wish = next(thread, None)
        if wish is None:
            return
        if isinstance(wish, Gate):
            wish.waiting.append(thread)
        elif isinstance(wish, Shared):
            wish.begin(thread)
        else:
            self.resume_at(self.now + wish, thread)

    def run(self) -> None:
        """Run until every thread has ended or waits for ever."""
        due = self._due
        while due:
            self.now, _, function, argument = heapq.heappop(due)
            function(argument)


class Shared:
    """Cores or a disk: up to ``capacity`` threads go at full speed, more share it equally."""

    def __init__(self, clock: SimulatedClock, capacity: float) -> None:
        self._clock, self._capacity = clock, capacity
        # What each thread at work has been given since the beginning, and when that was so.
        self._given, self._since = 0.0, 0.0
        self._active: list[tuple[float, int, Thread]] = []
        self._amount = 0.0
        self._number = 0

    def work(self, amount_ns: float) -> Shared:
        """Return what a thread yields to have so much done."""
        self._amount = amount_ns
        return self

    def begin(self, thread: Thread) -> None:
        """Take up a thread with the work it has just asked for."""
        self._catch_up()
        self._number += 1
        heapq.heappush(self._active, (self._given + self._amount, self._number, thread))
        self._plan()

    def _rate(self) -> float:
        return min(1.0, self._capacity / len(self._active))

    def _catch_up(self) -> None:
        if self._active:
            self._given += (self._clock.now - self._since) * self._rate()
        self._since = self._clock.now

    def _plan(self) -> None:
        """Come back when the first of the threads has had all its work; older plans are void."""
        self._number += 1
        if self._active:
            left = (self._active[0][0] - self._given) / self._rate()
            self._clock.call_at(self._clock.now + max(left, 0.0), self._finish, self._number)

    def _finish(self, plan: int) -> None:
        if plan != self._number:
            return
        self._since = self._clock.now
        self._given, _, thread = heapq.heappop(self._active)
        self._plan()
        self._clock.resume(thread)
