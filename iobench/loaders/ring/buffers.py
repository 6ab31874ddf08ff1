"""Buffers of batches, allocated once and lent out; what is lent comes back when nobody holds it.

A buffer that is filled again while somebody still looks at it is the worst failure a loader can
have: no error, other numbers. So every hand-out is a *lease*: a fresh owner object over the
buffer's memory, which all arrays of the batch are made from. Views, tensors, the autograd graph and
DLPack capsules keep the owner alive, and only its death brings the buffer back. It must not be a
slice of an array that lives longer: NumPy hangs views on the outermost array, past such an owner.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil

from iobench.errors import OptionError, StorageError
from iobench.files.memory import anonymous_pages
from iobench.recording.clocks import now_ns

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from numpy.typing import NDArray

    from iobench.samples import SampleSpec

ALIGNMENT: Final = 4096
"""Of each variable in a buffer: a page; vector instructions want less."""
MEMORY_SHARE: Final = 0.5
"""Of the memory that is free, for buffers of one loader."""


class BatchMemory:
    """Memory for one batch; a forked child gets copies and never writes into its parent's."""

    __slots__ = ("__weakref__", "freed_ns", "pages", "pinned")

    def __init__(self, nbytes: int, pages: mmap.mmap | None = None) -> None:
        self.freed_ns = 0  # when it last came back
        self.pinned: object = None  # keeps a registration with a driver as long as the memory
        try:
            self.pages = anonymous_pages(nbytes) if pages is None else pages
        except OSError as error:
            raise StorageError(
                f"no memory for a batch of {nbytes} bytes: {error.strerror}; take a smaller "
                "batch_size or depth"
            ) from error


class BatchLayout:
    """Where in a buffer the arrays of a batch lie: one after the other, each aligned."""

    def __init__(self, spec: SampleSpec, batch_size: int) -> None:
        self._parts: list[tuple[str, tuple[int, ...], np.dtype[Any], int]] = []
        nbytes = 0
        for variable in spec:
            self._parts.append((variable.name, variable.shape, np.dtype(variable.dtype), nbytes))
            nbytes += -(-variable.nbytes * batch_size // ALIGNMENT) * ALIGNMENT
        self.nbytes = max(nbytes, ALIGNMENT)

    def arrays(self, buffer: Any, n_samples: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of ``n_samples`` samples in a buffer, which they keep alive."""
        return {
            name: np.ndarray((n_samples, *shape), dtype, buffer=buffer, offset=offset)
            for name, shape, dtype, offset in self._parts
        }


@dataclass(frozen=True, slots=True)
class Lease:
    """A buffer on its way to the consumer, filled or given up."""

    key: int  # number of the lease
    value: Any  # the arrays of the batch, or what was made of them
    error: BaseException | None = None  # why there is none. Its traceback holds the arrays
    worker: int = -1  # the process that filled it; -1 for a thread


class BufferPool:
    """The buffers of one iteration at a time.

    ``take`` is called by reader threads, ``grow`` and ``hand_out`` by the consumer. Buffers come
    back from wherever their last holder dies: in any thread, at any moment, in the middle of a
    garbage collection. So that end takes no lock.
    """

    def __init__(
        self,
        spec: SampleSpec,
        batch_size: int,
        *,
        depth: int,
        prepare: Callable[[BatchMemory], None] | None = None,
        new_memory: Callable[[int], BatchMemory] | None = None,
    ) -> None:
        self._free: SimpleQueue[BatchMemory | None] = SimpleQueue()
        self._owners: dict[int, weakref.ref[Any]] = {}
        self._new_memory = new_memory or BatchMemory
        self.pid = os.getpid()
        self.n_buffers = 0
        self._depth = depth
        self._prepare = prepare
        self._layout = BatchLayout(spec, batch_size)
        self.nbytes = self._layout.nbytes
        free_nbytes = psutil.virtual_memory().available
        self._max_nbytes = int(free_nbytes * MEMORY_SHARE)
        if depth * self.nbytes > self._max_nbytes:
            raise OptionError(
                f"{depth} buffers of {self.nbytes} bytes, {batch_size} samples of "
                f"{spec.nbytes} each, need {depth * self.nbytes} bytes of memory; more than "
                f"half of the {free_nbytes} that are free: take a smaller batch_size or depth"
            )
        self._owner_type = ctypes.c_ubyte * self.nbytes
        self._keys = itertools.count()
        self._counting = threading.Lock()
        self._held: dict[int, None] = {}  # handed out and alive
        for _ in range(depth):
            self._add()

    def _add(self) -> None:
        memory = self._new_memory(self.nbytes)
        if self._prepare is not None:
            self._prepare(memory)
        with self._counting:
            self.n_buffers += 1
        self._free.put(memory)

    # -- reader threads, one after the other --------------------------------------------------

    def take(self, is_ended: Callable[[], bool]) -> BatchMemory | None:
        """Return a buffer nobody holds, waiting for one; None if woken when all has ended."""
        while (memory := self._free.get()) is None:
            if is_ended():
                return None
        with self._counting:
            if self.n_buffers > self._depth:
                with suppress(Empty):
                    if (other := self._free.get_nowait()) is None:
                        self.wake()  # meant for who waits
                    else:
                        self.n_buffers -= 1  # grown for batches that were held, and no longer are
                        memory = other
        return memory

    def wake(self) -> None:
        """Make a waiting `take` look whether all has ended."""
        self._free.put(None)

    def give(self, memory: BatchMemory) -> None:
        """Take a buffer back that was not lent."""
        self._free.put(memory)

    def lend(self, memory: BatchMemory, n_samples: int) -> tuple[int, dict[str, NDArray[Any]]]:
        """Return key and arrays of a new lease; these alone keep the buffer from coming back."""
        owner = self._owner_type.from_buffer(memory.pages)
        key = next(self._keys)
        free, held, owners = self._free, self._held, self._owners

        def returned(_: object) -> None:
            owners.pop(key, None)
            held.pop(key, None)
            memory.freed_ns = now_ns()
            free.put(memory)

        owners[key] = weakref.ref(owner, returned)
        return key, self._layout.arrays(owner, n_samples)

    # -- the consumer -----------------------------------------------------------------------

    def hand_out(self, key: int) -> None:
        """Count a lease as held by the consumer from now on, until it dies."""
        self._held[key] = None
        if key not in self._owners:  # dead already: nothing of the buffer was handed out
            self._held.pop(key, None)

    @property
    def n_held(self) -> int:
        """Buffers whose batches the consumer holds."""
        return len(self._held)

    @property
    def is_all_held(self) -> bool:
        """Whether no buffer is left that could be filled before the consumer lets go of one."""
        return self.n_held >= self.n_buffers

    @property
    def can_grow(self) -> bool:
        """Whether one more buffer fits into memory."""
        return (self.n_buffers + 1) * self.nbytes <= self._max_nbytes

    def grow(self) -> None:
        """Add a buffer."""
        if not self.can_grow:
            total = (self.n_buffers + 1) * self.nbytes
            raise OptionError(
                f"{self.n_held} batches of {self.nbytes} bytes are held at once, one more makes "
                f"{total} bytes, more than {self._max_nbytes}, half of what was free: let go of "
                "batches, or copy what you keep of them"
            )
        self._add()

    def __del__(self) -> None:
        self.discard()

    def discard(self) -> None:
        """Let go of all buffers; those of batches that are held live as long as these."""
        self._owners.clear()  # ends a cycle, so that memory goes at once
        while not self._free.empty():
            self._free.get()


class ScratchBytes(dict[object, "NDArray[np.uint8]"]):
    """Memory of one thread, by what it is for: used again, and larger when more is wanted."""

    def take(self, key: object, nbytes: int) -> NDArray[np.uint8]:
        """Return so many bytes, valid until the same are taken again."""
        memory = self.get(key)
        if memory is None or memory.size < nbytes:
            memory = self[key] = np.empty(nbytes, dtype=np.uint8)
        return memory[:nbytes]


class ScratchRows:
    """Memory for samples of one spec, used again, and larger when more are wanted."""

    def __init__(self, spec: SampleSpec) -> None:
        self._spec = spec
        self._n_samples = 0
        self._layout = BatchLayout(spec, 0)
        self._memory: BatchMemory | None = None

    def arrays(self, n_samples: int, *, at_least: int = 0) -> dict[str, NDArray[Any]]:
        """Return rows for so many samples, valid until the next call."""
        if self._memory is None or n_samples > self._n_samples:
            self._n_samples = max(n_samples, at_least)
            self._layout = BatchLayout(self._spec, self._n_samples)
            self._memory = BatchMemory(self._layout.nbytes)
        return self._layout.arrays(self._memory.pages, n_samples)
