"""What a reader thread does in turns within a batch, summed up by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iobench.loaders.ring.log import BatchLog
    from iobench.recording.kinds import Kind

__all__ = ["Laps"]


class Laps:
    """Times of one batch.

    Reading and decoding take turns extent by extent, while the bytes are still in the cache of the
    processor: a span for each turn would cost more than small ones take. So each kind gets one, one
    after another; their sum is the time it took.

    Parameters
    ----------
    log : BatchLog
        Where spans go in the end. Where it records nothing, the clock is not read.
    """

    def __init__(self, log: BatchLog) -> None:
        self._log = log
        self._is_on = log.is_on
        self._first_ns = self._last_ns = log.now_ns() if log.is_on else 0
        self._sums: dict[Kind, list[int]] = {}

    def start(self) -> None:
        """Begin a turn; what comes before the first one is in none of the spans."""
        if self._is_on:
            self._last_ns = self._log.now_ns()
            if not self._sums:
                self._first_ns = self._last_ns

    def end(self, kind: Kind, nbytes: int) -> None:
        """End a turn, and begin the next one."""
        if not self._is_on:
            return
        now_ns = self._log.now_ns()
        sums = self._sums.setdefault(kind, [0, 0])
        sums[0] += now_ns - self._last_ns
        sums[1] += nbytes
        self._last_ns = now_ns

    def emit(self) -> None:
        """Note all of it."""
        start_ns = self._first_ns
        for kind, (duration_ns, nbytes) in self._sums.items():
            self._log.add(kind, start_ns, start_ns + duration_ns, nbytes=nbytes)
            start_ns += duration_ns
