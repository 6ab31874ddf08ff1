"""Bytes a process asked for and bytes that came from the device, from ``/proc/self/io``.

``rchar`` counts what ``read`` and its kin returned, cached or not; ``read_bytes`` what storage
had to deliver (Linux, filesystems/proc). Reads through a mapping do not show in ``rchar``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iobench.recording import Flag, Kind, read_process_io
from iobench.remote import is_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.recording import Recorder

__all__ = ["ProcessIo", "counts_device_reads"]

# Kept by the kernel for file systems on a block device; a network or memory one may count nothing.
COUNTING_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs"})


class ProcessIo:
    """Counts what this process has read since the last look."""

    def __init__(self) -> None:
        self._last = read_process_io()

    def delta(self) -> tuple[int, int] | None:
        """Return (rchar, read_bytes) since the last call; None where the system does not tell."""
        now = read_process_io()
        last, self._last = self._last, now
        if now is None or last is None:
            return None
        return now[0] - last[0], now[1] - last[1]

    def emit(self, recorder: Recorder, batch: int, epoch: int) -> None:
        """Record what was read since the last call as a counter of the batch."""
        delta = self.delta()
        if delta is not None:
            now = recorder.clock.now_ns()
            recorder.emit(Kind.READ, now, now, delta[0], delta[1], batch, epoch, -1, 0, 0, Flag.IO)


def counts_device_reads(files: Sequence[Path]) -> bool:
    """Return whether ``read_bytes`` means something for all these files.

    Network, parallel and memory file systems may not count there: unknown, not zero.
    """
    mounts = _mounts(Path("/proc/self/mountinfo"))
    return (
        bool(files)
        and bool(mounts)
        and not any(map(is_url, map(str, files)))
        and all(_file_system(file.resolve(), mounts) in COUNTING_FILE_SYSTEMS for file in files)
    )


def _mounts(mountinfo: Path) -> list[tuple[Path, str]]:
    """Return (mount point, file system type), the longest mount point first."""
    try:
        lines = mountinfo.read_text().splitlines()
    except OSError:
        return []
    mounts = []
    for line in lines:
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        mounts.append((Path(point), right.split()[0]))
    return sorted(mounts, key=lambda mount: len(mount[0].parts), reverse=True)


def _file_system(file: Path, mounts: list[tuple[Path, str]]) -> str:
    return next((kind for point, kind in mounts if file.is_relative_to(point)), "")
