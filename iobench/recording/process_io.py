"""Bytes a process asked for and bytes that came from the device, from ``/proc/self/io``.

``rchar`` counts what ``read`` and its kin returned, cached or not; ``read_bytes`` what storage
had to deliver (Linux, filesystems/proc). Reads through a mapping do not show in ``rchar``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.this_process import ProcessIoReader

if TYPE_CHECKING:
    from iobench.recording.recorder import Recorder


class ProcessIo:
    """Counts what this process has read since the last look."""

    def __init__(self) -> None:
        self._read = ProcessIoReader()
        self._last = self._read()

    def delta(self) -> tuple[int, int] | None:
        """Return (rchar, read_bytes) since the last call; None where the system does not tell."""
        now = self._read()
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
