"""Batch buffers that several processes see: one unnamed file, mapped buffer by buffer."""

from __future__ import annotations

import mmap
import os
import weakref
from multiprocessing import reduction
from typing import Any

import numpy as np

from iobench.errors import StorageError, WorkerError
from iobench.loaders.ring.buffers import BatchMemory


class SharedFile:
    """An unnamed file in memory (memfd) that grows by a buffer at a time. Picklable to a child.

    A killed process leaves nothing behind, and ``/dev/shm``, which containers keep small, is not
    used.
    """

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("iobench-ring", os.MFD_CLOEXEC)
        self._pid = os.getpid()
        self._nbytes = 0
        self._offsets: dict[int, int] = {}  # by address here
        self._unused: list[tuple[int, int]] = []  # size and offset of buffers that are gone

    def new_memory(self, nbytes: int) -> BatchMemory:
        """Return a further buffer, where one was that nobody holds any more, or at the end."""
        if self._descriptor < 0 or self._pid != os.getpid():
            whose = "is closed" if self._descriptor < 0 else "is of the process that was forked"
            raise WorkerError(f"the loader {whose}: make a new one")
        size = _whole_pages(nbytes)
        place = next((each for each in tuple(self._unused) if each[0] == size), None)
        try:
            if place is None:
                place = size, self._nbytes
                os.posix_fallocate(self._descriptor, self._nbytes, size)
                self._nbytes += size
            else:
                self._unused.remove(place)
            pages = mmap.mmap(self._descriptor, size, offset=place[1])
        except OSError as error:
            raise StorageError(
                f"no shared memory for a batch of {nbytes} bytes in addition to {self._nbytes} "
                f"bytes of others ({error.strerror or error}); take a smaller batch_size or depth"
            ) from error
        self._offsets[np.frombuffer(pages, dtype=np.uint8).ctypes.data] = place[1]
        weakref.finalize(pages, self._unused.append, place).atexit = False
        return BatchMemory(nbytes, pages)

    def offset_of(self, address: int) -> int:
        """Return where in the file the buffer is that begins at this address."""
        return self._offsets[address]

    def map(self, offset: int, nbytes: int) -> mmap.mmap:
        """Map a buffer, in a process that did not make it."""
        return mmap.mmap(self._descriptor, _whole_pages(nbytes), offset=offset)

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


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
