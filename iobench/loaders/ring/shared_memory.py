"""Batch buffers that several processes see: one unnamed file, mapped buffer by buffer."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections import deque
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from iobench.errors import StorageError, WorkerError
from iobench.loaders.ring.buffers import BatchMemory


class SharedFile:
    """An unnamed file in memory (memfd) that grows by a buffer at a time. Picklable to a child.

    A killed process leaves nothing behind, and ``/dev/shm``, which containers keep small, is not
    used. Where the system has no memfd it is a file in the folder for temporary ones.
    """

    def __init__(self) -> None:
        self._descriptor = _unnamed_file()
        self._pid = os.getpid()
        self._nbytes = 0
        self._offsets: dict[int, int] = {}  # by address here
        self._unused: deque[tuple[int, int]] = deque()  # size and offset of buffers that are gone

    def new_memory(self, nbytes: int) -> BatchMemory:
        """Return a further buffer."""
        if self._descriptor < 0 or self._pid != os.getpid():
            whose = "is closed" if self._descriptor < 0 else "is of the process that was forked"
            raise WorkerError(f"the loader {whose}: make a new one")
        size = -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        offset = self._free_place(size)
        free = psutil.virtual_memory().available
        try:
            if offset == self._nbytes:
                if size > free:
                    raise OSError(f"{free} bytes are free")
                os.posix_fallocate(self._descriptor, offset, size)
            pages = mmap.mmap(self._descriptor, size, offset=offset)
        except OSError as error:
            raise StorageError(
                f"no shared memory for a batch of {nbytes} bytes in addition to {offset} bytes of "
                f"others ({error.strerror or error}); take a smaller batch_size or depth"
            ) from error
        self._nbytes = max(self._nbytes, offset + size)
        self._offsets[np.frombuffer(pages, dtype=np.uint8).ctypes.data] = offset
        weakref.finalize(pages, self._unused.append, (size, offset)).atexit = False
        return BatchMemory(nbytes, pages)

    def _free_place(self, size: int) -> int:
        """Return where a buffer that nobody holds any more was, else the end of the file."""
        for _ in range(len(self._unused)):
            place = self._unused.popleft()
            if place[0] == size:
                return place[1]
            self._unused.append(place)
        return self._nbytes

    def offset_of(self, address: int) -> int:
        """Return where in the file the buffer is that begins at this address."""
        return self._offsets[address]

    def map(self, offset: int, nbytes: int) -> mmap.mmap:
        """Map a buffer, in a process that did not make it."""
        size = -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        return mmap.mmap(self._descriptor, size, offset=offset)

    def close(self) -> None:
        """Give the file back; buffers that are mapped live as long as their mappings."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_dup": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._descriptor = state["_dup"].detach()
        self._pid = -1  # maps what there is, and makes nothing new


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("iobench-ring", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="iobench-ring-")
    Path(path).unlink()
    return descriptor
