"""Bytes that no memory holds at once, kept in a file without a name until they are needed."""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.errors import StorageError
from iobench.files.atomic import storage_errors
from iobench.files.objects import TEMPORARY_SUFFIX
from iobench.files.ranges import read_into

if TYPE_CHECKING:
    from collections.abc import Sequence


class SpillFile:
    """A file that nobody else sees, and that is gone with the process however that ends.

    Threads may write and read at once.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._end = 0
        with storage_errors(folder, resumable=True):
            self._descriptor = _nameless(folder)

    def write(self, data: memoryview) -> int:
        """Write all of a buffer of bytes behind what was written; return where that is."""
        with self._lock:
            start = self._end
            self._end += len(data)
        at = start
        with storage_errors(self._folder, resumable=True):
            while len(data):
                count = os.pwrite(self._descriptor, data, at)
                data, at = data[count:], at + count
        return start

    def read(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Fill buffers, one after the other, with what was written from ``offset`` on."""
        end = offset + sum(map(len, buffers))
        with storage_errors(self._folder, resumable=True):
            if read_into(self._descriptor, buffers, offset, end) < end:
                raise StorageError(f"{self._folder}: what was put aside there is gone")

    def clear(self) -> None:
        """Begin anew; its pages are used again."""
        self._end = 0

    def close(self) -> None:
        """Give its room back; nothing is read after that."""
        os.close(self._descriptor)


def _nameless(folder: Path) -> int:
    """Return the descriptor of a new file that no folder lists."""
    if hasattr(os, "O_TMPFILE"):
        with suppress(OSError):  # a file system that makes none without a name
            return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    descriptor, name = tempfile.mkstemp(prefix=".spill.", suffix=TEMPORARY_SUFFIX, dir=folder)
    Path(name).unlink()
    return descriptor
