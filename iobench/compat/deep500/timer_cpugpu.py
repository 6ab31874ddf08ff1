"""Timers of the CPU and a GPU side by side, the GPU's by events in its queue."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from iobench.compat.deep500.timer import HostTimes, Timer, save_text
from iobench.compat.deep500.timer_spans import RegionSpans
from iobench.recording.device_lane import DeviceLane

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from iobench.compat.deep500.timer import TimeStats
    from iobench.recording.clocks import DeviceClock

__all__ = ["CPUGPUTimerBase"]

logger = logging.getLogger(__name__)


class CPUGPUTimerBase:
    """Times regions on the CPU, and with ``gpu=True`` on the GPU as well."""

    def __init__(
        self, cpu_timer_impl: Callable[[], Any], gpu_timer_impl: Callable[[], Any]
    ) -> None:
        self.cpu_timer, self.gpu_timer = Timer(cpu_timer_impl), Timer(gpu_timer_impl)
        self._both = {"CPU": self.cpu_timer, "GPU": self.gpu_timer}

    def start(self, key: Hashable, gpu: bool = False) -> None:
        """Begin a region."""
        self.cpu_timer.start(key)
        if gpu:
            self.gpu_timer.start(key)

    def end(self, key: Hashable, gpu: bool = False) -> None:
        """End a region; with the same ``gpu`` as it began."""
        self.cpu_timer.end(key)
        if gpu:
            self.gpu_timer.end(key)

    def get_time(self, key: Hashable, gpu: bool = False) -> list[float]:
        """Return the seconds of every region of that key on the CPU, or on the GPU."""
        return self._both["GPU" if gpu else "CPU"].get_time(key)

    def get_time_stats(self, key: Hashable, gpu: bool = False) -> TimeStats:
        """Return the statistics of `get_time`."""
        return self._both["GPU" if gpu else "CPU"].get_time_stats(key)

    def complete_all(self) -> None:
        """Turn what has ended into times, so that its events are free again."""
        for each in self._both.values():
            each.complete_all()

    def print_all_time_stats(self, file: Any = None) -> None:
        """Print what `Timer.print_all_time_stats` does under ``CPU``, then under ``GPU``."""
        for name, each in self._both.items():
            print(name, file=file)
            each.print_all_time_stats(file)

    def save_all_time_stats(self, filename: str) -> None:
        """Print the statistics of every key into a new file."""
        save_text(filename, self.print_all_time_stats)

    def log_wb_all(self, prefix: str = "") -> None:
        """Log means to Weights & Biases, as ``CPU/<key>`` and ``GPU/<key>``."""
        for name, each in self._both.items():
            each.log_wb_all(f"{prefix.rstrip('/')}/{name}".lstrip("/"))

    def log_mlflow_all(self, prefix: str = "") -> None:
        """Log means to MLflow, as ``CPU/<key>`` and ``GPU/<key>``."""
        for name, each in self._both.items():
            each.log_mlflow_all(f"{prefix.rstrip('/')}/{name}".lstrip("/"))


class DeviceTimes:
    """The time of a device, by a limited number of marks in its queue."""

    def __init__(self, clock: DeviceClock, limit: int) -> None:
        self._clock, self._left = clock, limit
        self._lane = DeviceLane(clock, releases=False)
        self._newest: Any = None
        self.spans = RegionSpans(self._lane)

    def start(self) -> Any:
        """Put a mark into the queue."""
        if not self._left:
            raise RuntimeError("No more CUDA events, try completing some")
        mark = self._clock.mark()
        if mark is None:
            raise RuntimeError("No CUDA event can be recorded while a CUDA graph is captured")
        self._left -= 1
        self._newest = mark
        return mark

    end = start

    def settle(self) -> None:
        """Wait for the device, once, and write its spans."""
        self._lane.write(last=True)
        if self._newest is not None and not self._clock.passed(self._newest):
            self._clock.wait(self._newest)

    def get_time(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks, and take them back."""
        if not self._clock.passed(end):
            self._clock.wait(end)
        seconds = self._clock.between_ns(start, end) * 1e-9
        for mark in (start, end):
            self._clock.release(mark)
        self._left += 2
        return seconds


class NoDeviceTimes(HostTimes):
    """What stands for a GPU where there is none: the host's time, of which there is a span."""

    spans = None

    def __init__(self) -> None:
        logger.warning("no CUDA device is used here: gpu=True times the CPU")
