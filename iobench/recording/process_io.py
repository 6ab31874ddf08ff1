"""Bytes a process requested and bytes that came from the device, from ``/proc/self/io``.

File systems over a network may not count the latter (``read_bytes``), and reads through a mapping
do not show in the former (``rchar``).
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.recording.recorder import Recorder

# Taken before anybody puts a timer in their place: this read is no part of the loading.
_open: Final = os.open
_pread: Final = os.pread


class ProcessIo:
    """Reads ``/proc/self/io`` again and again: it stays open, which halves what a reading costs."""

    def __init__(self) -> None:
        self._descriptor = self._pid = -1
        self._last = self.read()

    def read(self) -> tuple[int, int] | None:
        """Return (rchar, read_bytes) of this process so far; None where they are unknown."""
        with contextlib.suppress(OSError, ValueError):
            if self._pid != os.getpid():
                self._descriptor, self._pid = _open("/proc/self/io", os.O_RDONLY), os.getpid()
            fields = _pread(self._descriptor, 512, 0).split(None, 10)
            if fields[:1] == [b"rchar:"] and fields[8:9] == [b"read_bytes:"]:
                return int(fields[1]), int(fields[9])
        self._pid = -1  # closed by the script, and maybe another file's by now: not ours to close
        return None

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

    def __del__(self) -> None:
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):
                os.close(self._descriptor)


def read_process_io() -> tuple[int, int] | None:
    """Return (rchar, read_bytes) of this process so far; None where they are unknown."""
    return ProcessIo().read()
