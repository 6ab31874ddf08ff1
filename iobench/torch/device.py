"""The device that batches go to and steps run on, as torch has it: CUDA, HIP and Intel's XPU.

torch calls HIP's devices ``cuda``, and has streams and events of the same names for each, so that
one class serves all. Only pinning differs: see `TorchAccelerator.pin`.

The tests run everything that uses it over stand-ins of it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from iobench.errors import DeviceError, MissingDeviceError, OptionError
from iobench.recording.device_lane import DeviceCopy
from iobench.torch.tensors import as_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TYPES: Final = ("cuda", "xpu")
"""Of devices with streams and events, as torch calls them."""
NVIDIA_DRIVER: Final = Path("/proc/driver/nvidia/version")
AMD_DRIVER: Final = Path("/sys/module/amdgpu/version")
PCI_DEVICES: Final = Path("/sys/bus/pci/devices")


class TorchAccelerator:
    """A device of torch's; an `iobench.recording.device_lane.Accelerator`.

    Marks are events of a pool that grows as needed, put into the current stream of the calling
    thread. Who waits for one sleeps, where the driver has such events (CUDA and HIP).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = f"{device.type}:{device.index}"
        self._api: Any = getattr(torch, device.type)
        self._mark_options = {"enable_timing": True}
        if device.type == "cuda":
            self._mark_options["blocking"] = True
        self._is_capturing = getattr(self._api, "is_current_stream_capturing", None)
        self._free: list[Any] = []
        self._copying = threading.Lock()  # so that the time between two marks is of one batch
        self._copy_stream: Any = None

    # -- its time -----------------------------------------------------------------------------

    def mark(self) -> Any:
        """Put an event into the stream; None while that is captured into a graph."""
        if self._is_capturing is not None and self._is_capturing():
            return None  # it would become a part of the graph, and have no time
        try:
            mark = self._free.pop()
        except IndexError:
            mark = self._api.Event(**self._mark_options)
        mark.record(self._api.current_stream(self.device))
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
        """Pin memory with ``cudaHostRegister``, HIP's too; SYCL has nothing like it."""
        if self.device.type != "cuda":
            return None
        start = ctypes.c_ubyte.from_buffer(pages)
        nbytes = memoryview(pages).nbytes
        with self._api.device(self.device):
            runtime = self._api.cudart()
            code = int(runtime.cudaHostRegister(ctypes.addressof(start), nbytes, 0))
        if code != 0:
            raise DeviceError(
                f"{self.name}: cannot pin a buffer of {nbytes} bytes ({_named(runtime, code)}): "
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
        if self.device.type != "cuda":  # buffers of ours are not pinned
            tensors = [tensor.pin_memory() for tensor in tensors]
        if not ahead:
            return self._copy(tensors)
        # The device first: putting back a stream of another one would make a context there.
        with self._copying, self._api.device(self.device):
            if self._copy_stream is None:
                self._copy_stream = self._api.Stream(self.device)
            with self._api.stream(self._copy_stream):
                return self._copy(tensors)

    def _copy(self, tensors: list[torch.Tensor]) -> DeviceCopy:
        first = self.mark()
        copies = [tensor.to(self.device, non_blocking=True) for tensor in tensors]
        nbytes = sum(tensor.nbytes for tensor in tensors)
        return DeviceCopy(copies, first, self.mark(), nbytes, tensors)

    def order(self, copy: DeviceCopy) -> None:
        """Order the thread's stream after the copies, and memory of these after its work."""
        stream = self._api.current_stream(self.device)
        if copy.last is not None:
            stream.wait_event(copy.last)
        for tensor in copy.values:
            tensor.record_stream(stream)  # allocated on the other one

    # -- what it is ---------------------------------------------------------------------------

    def facts(self) -> Mapping[str, Any]:
        """Return what torch and the system tell of it; see `Accelerator.facts`."""
        known = self._api.get_device_properties(self.device)
        kind = "hip" if self.device.type == "cuda" and torch.version.hip else self.device.type
        runtimes = {"cuda": torch.version.cuda, "hip": torch.version.hip}
        drivers = {"cuda": _nvidia_driver(), "hip": _first_line(AMD_DRIVER)}
        found = {
            "title": known.name,
            "kind": kind,
            "memory_nbytes": known.total_memory,
            "driver": drivers.get(kind) or getattr(known, "driver_version", None),
            "runtime": runtimes.get(kind) or getattr(torch.version, kind, None),
            "mig": _is_mig(known.name) if kind == "cuda" else None,
            "link": _pci_link(known),
        }
        return {name: value for name, value in found.items() if value is not None}


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


def _named(runtime: Any, code: int) -> str:
    try:
        return f"error {code}: {runtime.cudaGetErrorString(runtime.cudaError(code))}"
    except (AttributeError, TypeError, ValueError):  # one that torch has no name for
        return f"error {code}"


def _is_mig(title: str) -> bool:
    return "MIG" in title.split()


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").splitlines()[0].strip() or None
    except (OSError, IndexError):
        return None


def _nvidia_driver() -> str | None:
    """Return the driver's version, which its first line has behind the name of the module."""
    words = (_first_line(NVIDIA_DRIVER) or "").split()
    return next((word for word in words if word[0].isdigit() and "." in word), None)


def _pci_link(known: Any) -> str | None:
    """Return what the system says of a device's slot; its speed sinks while nothing is copied."""
    places = [getattr(known, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    domain, bus, slot = places
    if domain is None or bus is None or slot is None:
        return None
    folder = PCI_DEVICES / f"{domain:04x}:{bus:02x}:{slot:02x}.0"
    width = _first_line(folder / "current_link_width")
    most = _first_line(folder / "max_link_speed")
    if width is None or most is None:
        return None
    return f"PCIe x{width}, at most {most.removesuffix(' PCIe')}"


# -- finding one ----------------------------------------------------------------------------


def current_accelerator() -> TorchAccelerator | None:
    """Return the device that this process uses at the moment; None if it uses none (yet)."""
    for kind in TYPES:
        api: Any = getattr(torch, kind, None)
        if api is not None and api.is_initialized():
            return TorchAccelerator(torch.device(kind, api.current_device()))
    return None


def torch_pins() -> bool:
    """Tell whether torch can pin memory here: a device that is none of its own does not help."""
    return any(getattr(torch, kind, None) and getattr(torch, kind).is_available() for kind in TYPES)


def find_accelerator(asked: Any, *, option: str = "device=") -> TorchAccelerator | None:
    """Return the device that is asked for."""
    if asked is None or asked == "none":
        return None
    told = f"{option}{asked!r}" if option.endswith("=") else f"{option} {asked}"
    if asked == "auto":
        for kind in TYPES:
            api: Any = getattr(torch, kind, None)
            if api is not None and api.is_available():
                return _opened(torch.device(kind), told)
        return None
    try:
        device = torch.device(asked)
    except (RuntimeError, TypeError):
        raise OptionError(f"{told}: expected 'cpu', 'cuda', 'cuda:N', 'xpu' or 'xpu:N'") from None
    if device.type == "cpu":
        return None
    if device.type not in TYPES:
        raise OptionError(
            f"{told}: iobench knows a way to 'cuda' devices, which AMD's are for torch as well, "
            "and to 'xpu'; leave it out and move batches with .to()"
        )
    return _opened(device, told)


def _opened(device: torch.device, told: str) -> TorchAccelerator:
    """Return a device that the driver lets us use."""
    api: Any = getattr(torch, device.type)
    kind = device.type.upper()
    try:
        api.init()
        count = api.device_count()
        index = device.index if device.index is not None else api.current_device()
    except (RuntimeError, AssertionError, AttributeError) as error:
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise MissingDeviceError(
            f"{told}: torch {torch.__version__} has no {kind} here: {why.rstrip('.')}; leave it "
            "out to run without"
        ) from None
    if not 0 <= index < count:
        instances = ""
        if "MIG-" in os.environ.get("CUDA_VISIBLE_DEVICES", ""):
            instances = ", of instances of MIG only one for a process"
        raise MissingDeviceError(f"{told}: torch sees {count} {kind} devices here{instances}")
    return TorchAccelerator(torch.device(device.type, index))
