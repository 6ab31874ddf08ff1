"""Bytes a process requested, and that came from the device; what recording that, and spans, costs.

File systems over a network may not count the latter (``read_bytes``), and reads through a mapping
do not show in the former (``rchar``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.recording.clocks import SYSTEM_CLOCK, Clock
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

# Taken before anybody puts a timer in their place: this read is no part of the loading.
_open: Final = os.open
_pread: Final = os.pread
# A recording starts in the user's time: 2 ms of it.
ROUNDS: Final = 9
SPANS_PER_ROUND: Final = 20


class ProcessIo:
    """Reads ``/proc/self/io`` again and again: it stays open, which halves what a reading costs."""

    path = "/proc/self/io"

    def __init__(self) -> None:
        self._descriptor = self._pid = -1
        self._last = self.read()

    def read(self) -> tuple[int, int] | None:
        """Return (rchar, read_bytes) of this process so far; None where they are unknown."""
        with contextlib.suppress(OSError, ValueError):
            if self._pid != os.getpid():
                self._descriptor, self._pid = _open(self.path, os.O_RDONLY), os.getpid()
            return self._numbers(_pread(self._descriptor, 512, 0).split(None, 10))
        self._pid = -1  # closed by the script, and maybe another file's by now: not ours to close
        return None

    def _numbers(self, fields: list[bytes]) -> tuple[int, int]:
        if fields[:1] == [b"rchar:"] and fields[8:9] == [b"read_bytes:"]:
            return int(fields[1]), int(fields[9])
        raise ValueError

    def delta(self) -> tuple[int, int] | None:
        """Return (rchar, read_bytes) since the last call; None where they are unknown."""
        now = self.read()
        last, self._last = self._last, now
        if now is None or last is None:
            return None
        return now[0] - last[0], now[1] - last[1]

    def emit(self, recorder: Recorder, batch: int, epoch: int) -> None:
        """Record what was read since the last call as a counter of the batch."""
        delta = self.delta()
        if delta is not None:
            now = recorder.clock.now_ns()
            recorder.emit(Kind.READ, now, now, *delta, batch, epoch, -1, 0, 0, Flag.IO)

    def close(self) -> None:
        """Close the file; the next reading opens it again."""
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
        self._pid = -1

    __del__ = close


class RunQueue(ProcessIo):
    """Reads the CPU time of this process, and how long its thread has waited for a CPU."""

    path = "/proc/thread-self/schedstat"

    def __init__(self, every_ns: int = 0) -> None:
        self._every_ns, self._due_ns, self._since_ns = every_ns, -1, -1
        super().__init__()

    def _numbers(self, fields: list[bytes]) -> tuple[int, int]:
        if self._every_ns:
            self.close()  # a script's own process has no more files open than without
        _, queued_ns, _ = fields
        return time.process_time_ns(), int(queued_ns)

    def begin(self, now_ns: int) -> None:
        """Count waits from now on, where that is due."""
        self._since_ns = -1
        if now_ns >= self._due_ns and (now := self.read()) is not None:
            self._since_ns, self._due_ns = max(now_ns, 0), now_ns + self._every_ns
            self._last = (self._last or now)[0], now[1]

    def emit(
        self, recorder: Recorder, batch: int, epoch: int, wait: tuple[int, int] | None = None
    ) -> None:
        """Record what was counted since the last call or `begin` as a counter, or of a wait."""
        since_ns = self._since_ns
        if since_ns < 0 or recorder.clock is not SYSTEM_CLOCK or (delta := self.delta()) is None:
            return  # the kernel goes by no other clock
        self._since_ns = recorder.clock.now_ns()
        low_ns, high_ns = wait or (since_ns, self._since_ns)
        recorder.emit(Kind.CPU_WAIT, low_ns, high_ns, *delta, batch, epoch, -1, 0, 0, Flag.IO)


def read_process_io() -> tuple[int, int] | None:
    """Return (rchar, read_bytes) of this process so far; None where they are unknown."""
    return ProcessIo().read()


def unit_costs(clock: Clock = SYSTEM_CLOCK) -> dict[str, int | None]:
    """Return ``light_ns``, ``full_ns`` and ``io_ns``: what a span, or a look at the I/O, costs."""
    try:
        scratch = tempfile.TemporaryDirectory(prefix="iobench-costs-")
    except OSError as error:
        logger.warning(
            "what a span costs is unknown: no scratch directory can be made (%s); "
            "set TMPDIR to a writable directory",
            error.strerror or error,
        )
        return {}
    with scratch as path, Recorder(Path(path), role="scratch", clock=clock) as recorder:

        def spans(span: Callable[[int], Any]) -> int:
            def work() -> None:
                for _ in range(SPANS_PER_ROUND):
                    with span(Kind.READ):
                        pass

            return _median_cost_ns(work, clock)

        read = ProcessIo().read

        def look() -> None:
            for _ in range(SPANS_PER_ROUND):
                read()

        return {
            "light_ns": spans(recorder.span),
            "full_ns": spans(recorder.full_span),
            "io_ns": None if read() is None else _median_cost_ns(look, clock),
        }


def _median_cost_ns(work: Callable[[], None], clock: Clock) -> int:
    rounds = []
    for _ in range(ROUNDS):
        start_ns = clock.now_ns()
        work()
        rounds.append(clock.now_ns() - start_ns)
    return sorted(rounds)[ROUNDS // 2] // SPANS_PER_ROUND
