"""The time of a CUDA device, by events put into its streams; HIP devices have the same."""

from __future__ import annotations

from typing import Any

import torch

from iobench.errors import OptionError

__all__ = ["CudaClock", "cuda_device", "current_cuda_clock"]


class CudaClock:
    """A `DeviceClock` of CUDA events, taken from a pool that grows as needed.

    Marks go into the current stream of the thread that puts them.

    Parameters
    ----------
    device : torch.device
        With an index.
    """

    __slots__ = ("_free", "device", "name")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = f"{device.type}:{device.index}"
        self._free: list[torch.cuda.Event] = []

    def mark(self) -> torch.cuda.Event | None:
        """Put an event into the stream; None while that is captured into a graph."""
        if torch.cuda.is_current_stream_capturing():
            return None  # it would become a part of the graph, and have no time
        mark = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        mark.record(torch.cuda.current_stream(self.device))
        return mark

    def passed(self, mark: torch.cuda.Event) -> bool:
        """Return whether the device has come past the event."""
        return bool(mark.query())

    def wait(self, mark: torch.cuda.Event) -> None:
        """Wait for the event."""
        mark.synchronize()

    def between_ns(self, first: torch.cuda.Event, last: torch.cuda.Event) -> int:
        """Return the time between two events, which CUDA tells to about half a microsecond."""
        return int(first.elapsed_time(last) * 1e6 + 0.5)

    def release(self, mark: torch.cuda.Event) -> None:
        """Keep the event for another time."""
        self._free.append(mark)


def current_cuda_clock() -> CudaClock | None:
    """Return a clock of the current CUDA device; None if this process uses no CUDA (yet)."""
    if not torch.cuda.is_initialized():
        return None
    return CudaClock(torch.device("cuda", torch.cuda.current_device()))


def cuda_device(device: Any, otherwise: str) -> torch.device | None:
    """Return a CUDA device with its index; None for the CPU.

    Raises
    ------
    OptionError
        If it is no device, not there, or of another kind: then the message ends ``otherwise``.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise OptionError(f"device={device!r}: expected 'cpu', 'cuda' or 'cuda:N'") from None
    if found.type == "cpu":
        return None
    if found.type != "cuda":
        raise OptionError(f"device={device!r}: {otherwise}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = found.index if found.index is not None else torch.cuda.current_device() if count else 0
    if index >= count:
        raise OptionError(f"device={device!r}: torch sees {count} CUDA devices here")
    return torch.device("cuda", index)
