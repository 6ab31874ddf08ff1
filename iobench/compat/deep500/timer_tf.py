"""Timers for TensorFlow: ``from iobench.compat.deep500 import timer_tf as timer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from iobench.compat.deep500.timer import HostTimes, Timer, TimeStats, TimeType
from iobench.compat.deep500.timer_cpugpu import CPUGPUTimerBase, NoDeviceTimes

if TYPE_CHECKING:
    TimerCallback: type[Any]

__all__ = ["CPUGPUTimer", "CPUGPUTimerBase", "TimeStats", "TimeType", "Timer", "TimerCallback"]


class CPUGPUTimer(CPUGPUTimerBase):
    """Times regions on the CPU, with ``gpu=True`` too: TensorFlow shows nobody its streams."""

    MAX_EVENTS: ClassVar[int] = 200

    def __init__(self) -> None:
        super().__init__(cpu_timer_impl=HostTimes, gpu_timer_impl=NoDeviceTimes)


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
