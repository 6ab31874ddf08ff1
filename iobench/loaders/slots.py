"""Batch buffers in memory that several processes share, allocated once and used again.

A slot holds the arrays of one batch back to back, each 64-byte aligned. The memory is an unnamed
file (memfd), so a killed process leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from iobench.errors import StorageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.samples import Sample, SampleSpec

__all__ = ["Slots", "batch_nbytes"]

ALIGNMENT = 64
PAGE = mmap.ALLOCATIONGRANULARITY


def batch_nbytes(spec: SampleSpec, batch_size: int) -> int:
    """Return the bytes one slot takes: its arrays, aligned, in whole pages."""
    total = sum(_aligned(variable.nbytes * batch_size, ALIGNMENT) for variable in spec)
    return _aligned(max(total, 1), PAGE)


class Slots:
    """``n_slots`` batch buffers in one shared mapping. Picklable while a process is started.

    Raises
    ------
    StorageError
        If they would take more than the memory that is free now, or the system refuses it.
    """

    def __init__(self, spec: SampleSpec, batch_size: int, n_slots: int) -> None:
        self.n_slots = n_slots
        self._spec = spec
        self._batch_size = batch_size
        self._slot_nbytes = batch_nbytes(spec, batch_size)
        total = self._slot_nbytes * n_slots
        free = psutil.virtual_memory().available
        if total > free:
            raise StorageError(
                f"{n_slots} batches of {self._slot_nbytes} bytes need {total} bytes of memory, "
                f"{free} are free: take a smaller --batch-size or fewer --workers"
            )
        self._fd = -1
        try:
            self._fd = _unnamed_file()
            os.ftruncate(self._fd, total)
            self._map()
        except OSError as error:
            self.close()
            raise StorageError(
                f"{n_slots} batches of {self._slot_nbytes} bytes: {error.strerror}; take a smaller "
                "--batch-size or fewer --workers, or raise the limit (ulimit -v, ulimit -n)"
            ) from error

    def _map(self) -> None:
        # Held by its arrays alone: it goes, and its descriptor with it, when the last one dies.
        memory = mmap.mmap(self._fd, self._slot_nbytes * self.n_slots)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # advice only: shared memory may have none
                memory.madvise(mmap.MADV_HUGEPAGE)
        self._arrays = [self._slot_arrays(memory, slot) for slot in range(self.n_slots)]

    def _slot_arrays(self, memory: mmap.mmap, slot: int) -> dict[str, NDArray[Any]]:
        offset = slot * self._slot_nbytes
        arrays: dict[str, NDArray[Any]] = {}
        for variable in self._spec:
            shape = (self._batch_size, *variable.shape)
            arrays[variable.name] = np.frombuffer(
                memory, np.dtype(variable.dtype), math.prod(shape), offset
            ).reshape(shape)
            offset += _aligned(variable.nbytes * self._batch_size, ALIGNMENT)
        return arrays

    def arrays(self, slot: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of a slot, the batch as their first axis."""
        return self._arrays[slot]

    def place(self, slot: int, position: int, sample: Sample) -> int:
        """Copy a sample into its row of a slot and return its bytes; check it against the spec."""
        self._spec.check(sample, where=f"sample at position {position}")
        nbytes = 0
        for name, rows in self._arrays[slot].items():
            array = sample[name]
            rows[position] = array
            nbytes += array.nbytes
        return nbytes

    def close(self) -> None:
        """Give the memory back; arrays handed out stay valid until they die."""
        self._arrays = []
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __getstate__(self) -> dict[str, Any]:
        return {
            "n_slots": self.n_slots,
            "_spec": self._spec,
            "_batch_size": self._batch_size,
            "_slot_nbytes": self._slot_nbytes,
            "_dup": reduction.DupFd(self._fd),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        dup = state.pop("_dup")
        for name, value in state.items():
            setattr(self, name, value)
        self._fd = dup.detach()
        self._map()


def _aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("iobench-slots", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix="iobench-slots-")
        Path(path).unlink()
    return fd
