"""Bytes a process requested and bytes that came from the device, from ``/proc/self/io``.

``rchar`` counts what ``read`` and its kin returned, cached or not; ``read_bytes`` what storage
had to deliver (Linux, filesystems/proc); file systems over a network may not count the latter.
Reads through a mapping do not show in ``rchar``.
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


class ProcessIoReader:
    """Reads ``/proc/self/io`` again and again; keeps it open, which halves what a reading costs."""

    def __init__(self) -> None:
        self._descriptor = self._pid = -1

    def __call__(self) -> tuple[int, int] | None:
        """Return (rchar, read_bytes); None where there is no such file."""
        if self._pid == os.getpid():
            with contextlib.suppress(OSError, ValueError):
                return _parsed(_pread(self._descriptor, 512, 0))
            # Closed, and maybe another file's by now: not ours to close.
        self._pid = -1
        try:
            self._descriptor = _open("/proc/self/io", os.O_RDONLY)
            self._pid = os.getpid()
            return _parsed(_pread(self._descriptor, 512, 0))
        except (OSError, ValueError):
            self.close()
            return None

    def close(self) -> None:
        """Close the file; the next reading opens it again. Idempotent."""
        pid, self._pid = self._pid, -1
        if pid == os.getpid():
            with contextlib.suppress(OSError):
                os.close(self._descriptor)

    def __del__(self) -> None:
        self.close()


def read_process_io() -> tuple[int, int] | None:
    """Return (rchar, read_bytes) of this process so far; None where there is no such file."""
    return ProcessIoReader()()


def _parsed(text: bytes) -> tuple[int, int]:
    """Return the two counts; ValueError if this is not what the kernel writes."""
    fields = text.split(None, 10)
    if fields[:1] != [b"rchar:"] or fields[8:9] != [b"read_bytes:"]:
        raise ValueError("no counts of a process")
    return int(fields[1]), int(fields[9])


class ProcessIo:
    """Counts what this process has read since the last call."""

    def __init__(self) -> None:
        self._read = ProcessIoReader()
        self._last = self._read()

    def delta(self) -> tuple[int, int] | None:
        """Return (rchar, read_bytes) since the last call; None where they are unknown."""
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
