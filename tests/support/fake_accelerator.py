"""An accelerator of threads: a device with queues of its own, at work while the host goes on.

It takes known times for copies and kernels, on the system's clock, and keeps what it did when. A
copy reads its source and writes its end as late as it may, and memory that is freed too early is
given to the next copy, so that a wrong order of things shows as wrong values. Tensors "on it" are
the CPU's.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from iobench.recording.clocks import now_ns, wait_until_ns
from iobench.recording.device_lane import DeviceCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["FakeAccelerator", "Faults", "Kernel", "Piece"]

PATIENCE_S: Final = 60.0
"""How long a call waits for what never comes before a test is told so."""
LOST: Final = "CUDA error: device-side assert triggered\nCUDA kernel errors might be reported late"


@dataclass(slots=True)
class Piece:
    """What the device did, as it happened."""

    name: str  # "copy", or the kernel's
    queue: str  # "copies" or "compute"
    start_ns: int
    end_ns: int
    least_ns: int  # what it was to take; a busy machine makes it longer
    nbytes: int = 0  # of a copy
    pinned: bool = False
    since_ns: int = 0  # when the queue came to the host's last mark before it,
    until_ns: int = 0  # and to the first one after it


@dataclass(slots=True)
class Faults:
    """What goes wrong, and when; by default nothing."""

    copy: int | None = None  # its number, from 0: the device is of no use from then on
    allocation: int | None = None  # its number, from 0: there is no memory for it
    pinning: bool = False


@dataclass(eq=False, slots=True)
class Mark:
    """A mark in a queue; when the device came past it, 0 until it has."""

    at_ns: int = 0


@dataclass(slots=True)
class Kernel:
    """A kernel: when it was given, what became of it, and what it saw of the tensors it read."""

    given_ns: int
    piece: Piece | None = None
    first: list[torch.Tensor] = field(default_factory=list)  # as it began
    last: list[torch.Tensor] = field(default_factory=list)  # as it ended


class _Queue(threading.Thread):
    """A stream: does one thing after the other."""

    def __init__(self, device: FakeAccelerator, name: str) -> None:
        super().__init__(name=f"{device.name}-{name}", daemon=True)
        self.short = name
        self.todo: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._device = device
        self._marked_ns = 0
        self._unmarked: list[Piece] = []  # since that

    def run(self) -> None:
        while (work := self.todo.get()) is not None:
            if not self._device.is_lost:
                work()

    def mark(self, *, is_told: bool = False) -> Mark:
        """Put a mark; one of the host's ``is_told`` to the pieces around it."""
        mark = Mark()

        def work() -> None:
            self._device.come_to(mark)
            if is_told:
                for piece in self._unmarked:
                    piece.until_ns = mark.at_ns
                self._marked_ns, self._unmarked = mark.at_ns, []

        self.todo.put(work)
        return mark

    def did(self, piece: Piece) -> Piece:
        piece.since_ns = self._marked_ns
        self._unmarked.append(piece)
        self._device.pieces.append(piece)
        return piece


class _Block:
    """Device memory of one queue; others that use it keep it from being used again."""

    def __init__(self, nbytes: int, queue: _Queue) -> None:
        self.memory = (ctypes.c_ubyte * max(nbytes, 1))()
        ctypes.memset(self.memory, 0x77, nbytes)
        self.nbytes, self.queue = nbytes, queue
        self.used_by: set[_Queue] = set()
        self.last_uses: list[Mark] = []  # of these, as it was freed

    def is_free_for(self, nbytes: int, queue: _Queue) -> bool:
        same = (self.nbytes, self.queue) == (nbytes, queue)
        return same and all(mark.at_ns for mark in self.last_uses)


class _Pinned:
    """A registration; ends as it goes."""

    def __init__(self, pinned: dict[int, int], start: ctypes.c_ubyte, nbytes: int) -> None:
        self._pinned, self._start = pinned, start
        pinned[ctypes.addressof(start)] = nbytes

    def __del__(self) -> None:
        del self._pinned[ctypes.addressof(self._start)]


class FakeAccelerator(AbstractContextManager["FakeAccelerator"]):
    """An accelerator of two queues, one for copies alone, and a link for one copy at a time."""

    def __init__(
        self,
        *,
        pinned_bytes_per_s: float = 1e9,
        pageable_bytes_per_s: float = 4e8,
        latency_ns: int = 100_000,
        memory_nbytes: int | None = None,
        faults: Faults | None = None,
        name: str = "fake:0",
    ) -> None:
        self.name = name
        self.faults = faults or Faults()
        self.pieces: list[Piece] = []  # in the order in which they ended
        self.n_waits = self.n_copies = self.n_allocations = 0
        self.pinned: dict[int, int] = {}  # bytes by address
        self.is_lost = False
        self._rates = {True: pinned_bytes_per_s, False: pageable_bytes_per_s}
        self._latency_ns = latency_ns
        self._memory_nbytes = memory_nbytes
        self._changed = threading.Condition()
        self._counting = threading.Lock()
        self._copying = threading.Lock()
        self._link = threading.Lock()
        self._free: list[_Block] = []
        self._lent: dict[int, _Block] = {}  # by address
        self.compute, self.copies = _Queue(self, "compute"), _Queue(self, "copies")
        self.compute.start()
        self.copies.start()

    # -- a clock of marks ---------------------------------------------------------------------

    def mark(self) -> Mark:
        self._check()
        return self.compute.mark(is_told=True)

    def come_to(self, mark: Mark) -> None:
        with self._changed:
            mark.at_ns = now_ns()
            self._changed.notify_all()

    def passed(self, mark: Mark) -> bool:
        self._check()
        return mark.at_ns > 0

    def wait(self, mark: Mark) -> None:
        self._check()
        self.n_waits += 1
        self._sleep(mark)
        self._check()

    def between_ns(self, first: Mark, last: Mark) -> int:
        self._check()
        if not (first.at_ns and last.at_ns):
            raise RuntimeError("CUDA error: device not ready")
        return last.at_ns - first.at_ns

    def release(self, mark: Mark) -> None:
        pass

    # -- copies ---------------------------------------------------------------------------------

    def pin(self, pages: object) -> object:
        """Pin memory until the returned object is gone."""
        self._check()
        start, nbytes = ctypes.c_ubyte.from_buffer(pages), memoryview(pages).nbytes
        if self.faults.pinning:
            raise RuntimeError(f"CUDA cannot pin a buffer of {nbytes} bytes (error 2)")
        return _Pinned(self.pinned, start, nbytes)

    def takes(self, leaf: object) -> bool:
        return isinstance(leaf, torch.Tensor | np.ndarray)

    def copy(self, leaves: Sequence[Any], *, ahead: bool) -> DeviceCopy:
        """Begin to copy; the host goes on meanwhile only where the memory is pinned."""
        self._check()
        queue = self.copies if ahead else self.compute
        tensors = [torch.as_tensor(leaf) for leaf in leaves]
        with self._copying:  # so that nothing else is between the marks
            first = queue.mark(is_told=True)
            copies = [self._copied(tensor, queue) for tensor in tensors]
            last = queue.mark(is_told=True)
        if not all(self.is_pinned(tensor) for tensor in tensors if tensor.numel()):
            self.wait(last)
        return DeviceCopy(copies, first, last, sum(tensor.nbytes for tensor in tensors))

    def order(self, copy: DeviceCopy) -> None:
        """Let kernels given from now on come after the copies, and their memory after these."""
        self._check()
        self.compute.todo.put(lambda: self._sleep(copy.last))
        for tensor in copy.values:
            if tensor.numel():
                self._lent[tensor.data_ptr()].used_by.add(self.compute)

    def facts(self) -> Mapping[str, Any]:
        return {"title": "threads", "kind": "fake"}

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether a copy from there needs no other memory between."""
        at = tensor.data_ptr()
        pinned = list(self.pinned.items())
        return any(start <= at < start + nbytes for start, nbytes in pinned)

    def launch(
        self, duration_ns: int, reads: Sequence[torch.Tensor] = (), name: str = "kernel"
    ) -> Kernel:
        """Give it a kernel that takes so long; it reads of tensors those that are on the device."""
        self._check()
        kernel = Kernel(now_ns())
        # Addresses: whoever lets go of a tensor frees its memory, kernels or not. The host's is
        # then gone for good.
        reads = [each for each in reads if each.data_ptr() in self._lent]
        places = [(each.data_ptr(), each.nbytes, each.dtype, each.shape) for each in reads]

        def work() -> None:
            start_ns = now_ns()
            kernel.first = [_seen(*place) for place in places]
            wait_until_ns(start_ns + duration_ns)
            kernel.last = [_seen(*place) for place in places]
            piece = Piece(name, "compute", start_ns, now_ns(), duration_ns)
            kernel.piece = self.compute.did(piece)

        self.compute.todo.put(work)
        return kernel

    def synchronize(self) -> None:
        self.wait(self.copies.mark())
        self.wait(self.compute.mark())

    def fall_away(self) -> None:
        """Be of no use from now on: every call is refused, as CUDA does after an error."""
        with self._changed:
            self.is_lost = True
            self._changed.notify_all()

    def close(self) -> None:
        for queue in (self.compute, self.copies):
            queue.todo.put(None)
        for queue in (self.compute, self.copies):
            queue.join(PATIENCE_S)
            assert not queue.is_alive(), f"{queue.name} does not end"

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self.is_lost:
            raise RuntimeError(LOST)

    def _sleep(self, mark: Mark) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: mark.at_ns or self.is_lost, PATIENCE_S)
        assert came, f"{self.name} never comes to a mark"

    def _copied(self, tensor: torch.Tensor, queue: _Queue) -> torch.Tensor:
        if not tensor.numel():
            return tensor.clone()
        source = tensor.contiguous()
        copied = self._allocated(source, queue)
        with self._counting:
            number = self.n_copies
            self.n_copies += 1
        # Addresses, as a device has them: they keep no memory, but what was made for the copy.
        start, end, nbytes = source.data_ptr(), copied.data_ptr(), source.nbytes
        kept = None if source is tensor else source
        is_pinned = kept is None and self.is_pinned(tensor)
        least_ns = self._latency_ns + round(nbytes * 1e9 / self._rates[is_pinned])

        def work(_: object = kept) -> None:
            if number == self.faults.copy:
                self.fall_away()
                return
            with self._link:
                start_ns = now_ns()
                wait_until_ns(start_ns + least_ns)
                ctypes.memmove(end, start, nbytes)
                end_ns = now_ns()
            queue.did(Piece("copy", queue.short, start_ns, end_ns, least_ns, nbytes, is_pinned))

        queue.todo.put(work)
        return copied

    def _allocated(self, like: torch.Tensor, queue: _Queue) -> torch.Tensor:
        with self._counting:
            number = self.n_allocations
            self.n_allocations += 1
            used = sum(block.nbytes for block in list(self._lent.values()))
            full = self._memory_nbytes is not None and used + like.nbytes > self._memory_nbytes
            if full or number == self.faults.allocation:
                told = f"CUDA out of memory. Tried to allocate {like.nbytes} bytes.\nSee the manual"
                raise torch.OutOfMemoryError(told)
            # The one freed last, as allocators do: what is still in use shows at once.
            block = next((b for b in self._free[::-1] if b.is_free_for(like.nbytes, queue)), None)
            if block is None:
                block = _Block(like.nbytes, queue)
            else:
                self._free.remove(block)
        owner = type(block.memory).from_buffer(block.memory)
        address = ctypes.addressof(owner)
        self._lent[address] = block
        weakref.finalize(owner, self._freed, address).atexit = False
        return torch.frombuffer(owner, dtype=like.dtype).view(like.shape)

    def _freed(self, address: int) -> None:
        """Take memory back, in the midst of anything: without a lock."""
        block = self._lent.pop(address)
        block.last_uses = [queue.mark() for queue in block.used_by]
        block.used_by = set()
        self._free.append(block)


def _seen(address: int, nbytes: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    memory = bytearray(ctypes.string_at(address, nbytes))
    return torch.frombuffer(memory, dtype=dtype).view(shape)
