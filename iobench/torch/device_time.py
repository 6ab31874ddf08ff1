"""What the steps of a training loop take, on the CPU and on the device that works behind it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from iobench.recording.activation import active_recorder
from iobench.recording.device_lane import DeviceLane, OpenRegion
from iobench.recording.kinds import Kind
from iobench.recording.session import current_recording
from iobench.torch.device import current_accelerator, find_accelerator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from iobench.recording.clocks import DeviceClock

REGIONS_PER_FLUSH = 64

KINDS: Final = {
    kind.spelled: kind
    for kind in (
        Kind.H2D, Kind.FORWARD, Kind.BACKWARD, Kind.STEP, Kind.COMM, Kind.EVALUATE, Kind.CHECKPOINT,
    )
}  # fmt: skip


class DeviceTimer:
    """Times the parts of a training step: ``with timer("forward"):``.

    Each becomes a span of the training loop, with the thread's CPU time; on a CUDA, HIP or Intel
    device also a span of what the device did for it, which may be much later. For that two events
    are put into the current stream, and once in 64 regions one of them is waited for; nothing else
    synchronises. With no recording active nothing is done at all.

    Names are ``h2d``, ``forward``, ``backward``, ``step``, ``comm``, ``evaluate`` and
    ``checkpoint``; any other one is a label of kind ``other``, which a report shows, but which
    says nothing about what the device waited for.
    """

    def __init__(
        self,
        device: torch.device | str | int | None = None,
        *,
        clock: DeviceClock | None = None,
    ) -> None:
        if clock is None and device is not None:
            clock = find_accelerator(device)
        self._lane = None if clock is None else DeviceLane(clock)
        self._finds_device = clock is None and device is None
        current_recording()  # which starts one where the environment names a run

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the body of a ``with`` block."""
        recorder = active_recorder()
        if recorder is None:
            yield
            return
        kind, label = (KINDS[name], "") if name in KINDS else (Kind.OTHER, name)
        lane = self._device_lane()
        region = None if lane is None else OpenRegion(lane, recorder.clock.now_ns())
        try:
            with recorder.full_span(kind, label):
                try:
                    yield
                finally:
                    if region is not None:
                        region.end()
        finally:
            if region is not None:
                _, batch, epoch = recorder.where()
                if region.keep(recorder, kind, label, batch, epoch) >= REGIONS_PER_FLUSH:
                    region.lane.write()

    def flush(self) -> None:
        """Wait for the device, once, and write what it has done."""
        if self._lane is not None:
            self._lane.write()

    def _device_lane(self) -> DeviceLane | None:
        if self._lane is None and self._finds_device:
            clock = current_accelerator()
            self._lane = None if clock is None else DeviceLane(clock)
        return self._lane
