"""The device that batches go to and steps run on, as torch has it: CUDA, and HIP by that name."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from iobench.errors import DeviceError, MissingDeviceError, OptionError
from iobench.recording.device_lane import DeviceCopy
from iobench.torch.tensors import as_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CUDA: Final = "cuda"


class TorchAccelerator:
    """A device of torch's, an `Accelerator`; marks are events of a pool, in the thread's stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = f"{CUDA}:{device.index}"
        self._free: list[Any] = []
        self._copying = threading.Lock()  # so that the time between two marks is of one batch
        self._copy_stream: Any = None

    # -- its time -----------------------------------------------------------------------------

    def mark(self) -> Any:
        """Put an event into the stream; None while that is captured into a graph."""
        if torch.cuda.is_current_stream_capturing():
            return None  # it would become a part of the graph, and have no time
        try:
            mark = self._free.pop()
        except IndexError:
            mark = torch.cuda.Event(enable_timing=True, blocking=True)
        mark.record(torch.cuda.current_stream(self.device))
        return mark

    def passed(self, mark: Any) -> bool:
        """Return whether the device has come past the event."""
        return bool(mark.query())

    def wait(self, mark: Any) -> None:
        """Wait for the event."""
        mark.synchronize()

    def between_ns(self, first: Any, last: Any) -> int:
        """Return the time between two events, which CUDA tells to about half a microsecond."""
        milliseconds: float = first.elapsed_time(last)
        return round(milliseconds * 1e6)

    def release(self, mark: Any) -> None:
        """Keep the event for another time."""
        self._free.append(mark)

    # -- copies -------------------------------------------------------------------------------

    def pin(self, pages: Any) -> object:
        """Pin memory with ``cudaHostRegister``, HIP's too."""
        start = ctypes.c_ubyte.from_buffer(pages)
        nbytes = memoryview(pages).nbytes
        with torch.cuda.device(self.device):
            runtime = torch.cuda.cudart()
            code = int(runtime.cudaHostRegister(ctypes.addressof(start), nbytes, 0))
        if code != 0:
            raise DeviceError(
                f"{self.name}: cannot pin a buffer of {nbytes} bytes (CUDA error {code}): "
                "take smaller batches, or fewer ahead, or raise the limit of locked memory "
                "(ulimit -l)"
            )
        return _Pinned(start, self.device)

    def takes(self, leaf: Any) -> bool:
        """Tell whether something is a tensor of the host, or an array with a dtype of torch's."""
        if isinstance(leaf, torch.Tensor):
            return bool(leaf.device.type == "cpu")
        if not isinstance(leaf, np.ndarray) or leaf.dtype.char in "gG":  # of 16 bytes a number
            return False
        return leaf.dtype.kind in "biufc"

    def copy(self, leaves: Sequence[Any], *, ahead: bool) -> DeviceCopy:
        """Start copying; return the tensors on the device, with events around the copies."""
        tensors = [as_tensor(leaf) for leaf in leaves]
        if not ahead:
            return self._copy(tensors)
        # The device first: putting back a stream of another one would make a context there.
        with self._copying, torch.cuda.device(self.device):
            if self._copy_stream is None:
                self._copy_stream = torch.cuda.Stream(self.device)
            with torch.cuda.stream(self._copy_stream):
                return self._copy(tensors)

    def _copy(self, tensors: list[torch.Tensor]) -> DeviceCopy:
        first = self.mark()
        copies = [tensor.to(self.device, non_blocking=True) for tensor in tensors]
        nbytes = sum(tensor.nbytes for tensor in tensors)
        return DeviceCopy(copies, first, self.mark(), nbytes, tensors)

    def order(self, copy: DeviceCopy) -> None:
        """Order the thread's stream after the copies, and memory of these after its work."""
        stream = torch.cuda.current_stream(self.device)
        if copy.last is not None:
            stream.wait_event(copy.last)
        for tensor in copy.values:
            tensor.record_stream(stream)  # allocated on the other one

    # -- what it is ---------------------------------------------------------------------------

    def facts(self) -> Mapping[str, Any]:
        """Return what torch and the system tell of it; see `Accelerator.facts`."""
        known = torch.cuda.get_device_properties(self.device)
        facts = {
            "title": known.name,
            "kind": "hip" if torch.version.hip else CUDA,
            "memory_nbytes": known.total_memory,
            "runtime": torch.version.hip or torch.version.cuda,
            "mig": None if torch.version.hip else "MIG" in known.name.split(),
        }
        return {name: value for name, value in facts.items() if value is not None}


class _Pinned:
    """A registration with the driver; when it ends, so does that, and only then the memory."""

    def __init__(self, start: ctypes.c_ubyte, device: torch.device) -> None:
        # Not at exit: CUDA may be gone by then, and with it what it knew.
        weakref.finalize(self, _unregister, start, device, os.getpid()).atexit = False


def _unregister(start: ctypes.c_ubyte, device: torch.device, pid: int) -> None:
    if os.getpid() != pid:  # a forked child cannot use CUDA
        return
    with torch.cuda.device(device):  # of whatever thread this is
        torch.cuda.cudart().cudaHostUnregister(ctypes.addressof(start))


# -- finding one ----------------------------------------------------------------------------


def current_accelerator() -> TorchAccelerator | None:
    """Return the device that this process uses at the moment; None if it uses none (yet)."""
    if not torch.cuda.is_initialized():
        return None
    return TorchAccelerator(torch.device(CUDA, torch.cuda.current_device()))


def find_accelerator(target: Any, *, option: str = "device=") -> TorchAccelerator | None:
    """Return the device that is asked for."""
    if target is None or target == "none":
        return None
    spelled = f"{option}{target!r}" if option.endswith("=") else f"{option} {target}"
    if target == "auto":
        return _opened(torch.device(CUDA), spelled) if torch.cuda.is_available() else None
    try:
        device = torch.device(target)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in (CUDA, "cpu"):
        raise OptionError(
            f"{spelled}: expected 'cpu', 'cuda' (NVIDIA, AMD) or 'cuda:N'; to others move batches "
            "with .to()"
        )
    return None if device.type == "cpu" else _opened(device, spelled)


def _opened(device: torch.device, spelled: str) -> TorchAccelerator:
    """Return a device that the driver lets us use."""
    try:
        torch.cuda.init()
        count = torch.cuda.device_count()
        index = device.index if device.index is not None else torch.cuda.current_device()
    except (RuntimeError, AssertionError, AttributeError) as error:
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise MissingDeviceError(
            f"{spelled}: torch {torch.__version__} has no CUDA here: {why.rstrip('.')}"
        ) from None
    if not 0 <= index < count:
        raise MissingDeviceError(f"{spelled}: torch sees {count} CUDA devices here")
    return TorchAccelerator(torch.device(CUDA, index))
