"""Timers for TensorFlow: ``from iobench.compat.deep500 import timer_tf as timer``.

TensorFlow shows nobody its streams, so that GPU times are CuPy's events in the default one, and
every ``end`` waits for them. Where CuPy is not installed, or there is no GPU, ``gpu=True`` times
the CPU.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.compat.deep500.timer import HostTimes, Timer, TimeStats, TimeType
from iobench.compat.deep500.timer_cpugpu import CPUGPUTimerBase, DeviceTimes, NoDeviceTimes

if TYPE_CHECKING:
    from iobench.compat.deep500.timer import TimeSource

    TimerCallback: type[Any]

__all__ = ["CPUGPUTimer", "CPUGPUTimerBase", "TimeStats", "TimeType", "Timer", "TimerCallback"]


class CPUGPUTimer(CPUGPUTimerBase):
    """Times regions on the CPU, and with ``gpu=True`` by CUDA events as well."""

    MAX_EVENTS: ClassVar[int] = 200

    def __init__(self) -> None:
        super().__init__(cpu_timer_impl=HostTimes, gpu_timer_impl=self._gpu_times)

    def _gpu_times(self) -> TimeSource:
        try:
            cupy = importlib.import_module("cupy")  # the user's own, for their CUDA
        except ImportError:
            return NoDeviceTimes()
        if not cupy.cuda.is_available():
            return NoDeviceTimes()
        return DeviceTimes(CupyClock(cupy), self.MAX_EVENTS, waits_at_end=True)


class CupyClock:
    """A `DeviceClock` of CuPy's events, in the default stream."""

    def __init__(self, cupy: Any) -> None:
        self._cuda = cupy.cuda
        self.name = f"cuda:{cupy.cuda.Device().id}"
        self._free: list[Any] = []

    def mark(self) -> Any:
        """Put an event into the stream."""
        mark = self._free.pop() if self._free else self._cuda.Event()
        mark.record()
        return mark

    def passed(self, mark: Any) -> bool:
        """Return whether the device has come past the event."""
        return bool(mark.done)

    def wait(self, mark: Any) -> None:
        """Wait for the event."""
        mark.synchronize()

    def between_ns(self, first: Any, last: Any) -> int:
        """Return the time between two events."""
        return int(self._cuda.get_elapsed_time(first, last) * 1e6 + 0.5)

    def release(self, mark: Any) -> None:
        """Keep the event for another time."""
        self._free.append(mark)


def __getattr__(name: str) -> Any:
    """Make the callback, which is one of Keras's, when it is asked for."""
    if name != "TimerCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = callback = _callback_class()
    return callback


def _callback_class() -> type[Any]:
    import tensorflow

    base: Any = tensorflow.keras.callbacks.Callback

    class TimerCallback(base):  # type: ignore[misc]
        """Times epochs and batches of ``model.fit``."""

        def __init__(self, timer: Any, gpu: bool = False) -> None:
            super().__init__()
            self.timer, self.gpu = timer, gpu
            self._how = {"gpu": True} if gpu else {}

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.timer.start(TimeType.EPOCH)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.timer.end(TimeType.EPOCH)
            self.timer.complete_all()

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.timer.start(TimeType.BATCH, **self._how)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.timer.end(TimeType.BATCH, **self._how)
            if batch % 10 == 0:
                self.timer.complete_all()

    return TimerCallback
