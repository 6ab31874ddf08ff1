"""Batches to a GPU: from pinned buffers, on a stream of their own, in the reader threads.

A reader thread starts the copies of a batch and sleeps until they are done, while another one
fills the next buffer. So a buffer comes back to the ring when nothing reads it any more, without
anybody who polls; and what is handed out is on the device.

`CudaStream` is all that needs CUDA. The tests run everything else over a stand-in of it, on the
CPU, which copies as late as a device may.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch

from iobench.errors import StorageError
from iobench.loaders.ring.presenting import map_leaves
from iobench.recording.kinds import Kind
from iobench.torch.cuda_clock import cuda_device

if TYPE_CHECKING:
    from iobench.loaders.ring.buffers import BatchMemory
    from iobench.loaders.ring.log import BatchLog

__all__ = ["CopyStream", "CudaStream", "DeviceCopies", "find_device"]


class CopyStream(Protocol):
    """What a device does: everything that `DeviceCopies` needs of one, for a test to stand in."""

    def register(self, start: ctypes.c_ubyte, nbytes: int) -> object:
        """Pin the memory there; it is pinned, and kept, until the returned object is gone."""
        ...

    def copy(self, tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
        """Start copying; return the copies and a mark behind them."""
        ...

    def wait(self, mark: Any) -> None:
        """Sleep until the device has come to the mark."""
        ...

    def order(self, mark: Any, tensors: list[torch.Tensor]) -> None:
        """Let whatever the calling thread gives the device to do next come after the mark.

        ``tensors`` are in use by it, until they are freed.
        """
        ...


class DeviceCopies:
    """Copies batches to a device; see `DevicePath`.

    Parameters
    ----------
    stream : CopyStream
        Of the device.
    """

    def __init__(self, stream: CopyStream) -> None:
        self._stream = stream

    def prepare(self, memory: BatchMemory) -> None:
        """Pin the buffer, once: copies from pageable memory take twice as long."""
        start = ctypes.c_ubyte.from_buffer(memory.pages)
        memory.pinned = self._stream.register(start, len(memory.pages))

    def send(self, value: Any, log: BatchLog) -> tuple[Any, list[torch.Tensor], Any]:
        """Copy all tensors of a batch, and wait for it."""
        start_ns = log.now_ns()
        tensors: list[torch.Tensor] = []
        map_leaves(value, lambda leaf: tensors.append(leaf) if _is_tensor(leaf) else None)
        copies, mark = self._stream.copy(tensors)
        self._stream.wait(mark)
        nbytes = sum(tensor.nbytes for tensor in tensors)
        log.add(Kind.H2D, start_ns, log.now_ns(), nbytes=nbytes)
        left = iter(copies)
        batch = map_leaves(value, lambda leaf: next(left) if _is_tensor(leaf) else leaf)
        return batch, copies, mark

    def receive(self, sent: tuple[Any, list[torch.Tensor], Any]) -> Any:
        """Return the batch, ordered before what the consumer's stream does next."""
        batch, copies, mark = sent
        self._stream.order(mark, copies)
        return batch


class CudaStream:
    """A stream of a CUDA device, for copies alone.

    Parameters
    ----------
    device : torch.device
        With an index.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)

    def register(self, start: ctypes.c_ubyte, nbytes: int) -> object:
        """Pin memory with ``cudaHostRegister``.

        Raises
        ------
        StorageError
            If CUDA refuses.
        """
        with torch.cuda.device(self.device):
            code = int(torch.cuda.cudart().cudaHostRegister(ctypes.addressof(start), nbytes, 0))
        if code != 0:
            raise StorageError(
                f"CUDA cannot pin a buffer of {nbytes} bytes (error {code}): take a smaller "
                "batch_size or depth, or raise the limit of locked memory (ulimit -l)"
            )
        return _Pinned(start)

    def copy(self, tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.cuda.Event]:
        """Start copying; return the copies and the event behind them."""
        with torch.cuda.stream(self._stream):
            copies = [tensor.to(self.device, non_blocking=True) for tensor in tensors]
            mark = torch.cuda.Event(blocking=True)  # who waits for it sleeps
            mark.record(self._stream)
        return copies, mark

    def wait(self, mark: torch.cuda.Event) -> None:
        """Sleep until the copies are made."""
        mark.synchronize()

    def order(self, mark: torch.cuda.Event, tensors: list[torch.Tensor]) -> None:
        """Order the consumer's stream after the copies, and memory of these after its work."""
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(mark)
        for tensor in tensors:
            tensor.record_stream(stream)  # allocated on the other one


class _Pinned:
    """A registration with CUDA; when it ends, so does that, and only then the memory."""

    def __init__(self, start: ctypes.c_ubyte) -> None:
        # Not at exit: CUDA may be gone by then, and with it what it knew.
        weakref.finalize(self, _unregister, start, os.getpid()).atexit = False


def _unregister(start: ctypes.c_ubyte, pid: int) -> None:
    if os.getpid() == pid:  # a forked child cannot use CUDA
        torch.cuda.cudart().cudaHostUnregister(ctypes.addressof(start))


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def find_device(device: Any) -> DeviceCopies | None:
    """Return the way to a device; None for the CPU, where there is none to go.

    Raises
    ------
    OptionError
        If it is no device, none we know a way to, or not there.
    """
    if device is None:
        return None
    advice = "leave device= away and move batches with .to()"
    found = cuda_device(device, f"only 'cpu' and 'cuda' are known; {advice}")
    return None if found is None else DeviceCopies(CudaStream(found))
