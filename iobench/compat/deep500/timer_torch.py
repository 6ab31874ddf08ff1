"""Timers for PyTorch: ``from iobench.compat.deep500 import timer_torch as timer``."""

from __future__ import annotations

from typing import ClassVar

from iobench.compat.deep500.timer import HostTimes, Timer, TimeStats, TimeType
from iobench.compat.deep500.timer_cpugpu import CPUGPUTimerBase, DeviceTimes, NoDeviceTimes

__all__ = ["CPUGPUTimer", "CPUGPUTimerBase", "TimeStats", "TimeType", "Timer"]


class CPUGPUTimer(CPUGPUTimerBase):
    """Times regions on the CPU, and with ``gpu=True`` by CUDA events as well.

    Where there is no CUDA, ``gpu=True`` times the CPU, after a warning.
    """

    MAX_EVENTS: ClassVar[int] = 200

    def __init__(self) -> None:
        super().__init__(cpu_timer_impl=HostTimes, gpu_timer_impl=self._gpu_times)

    def _gpu_times(self) -> HostTimes | DeviceTimes:
        import torch

        from iobench.torch.device import current_accelerator

        if not torch.cuda.is_available() or torch.cuda.device_count() < 1:
            return NoDeviceTimes()
        torch.cuda.init()
        clock = current_accelerator()
        return NoDeviceTimes() if clock is None else DeviceTimes(clock, self.MAX_EVENTS)
