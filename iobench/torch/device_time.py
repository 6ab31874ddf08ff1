"""What the steps of a training loop take, on the CPU and on the device that works behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.errors import OptionError
from iobench.recording.activation import active_recorder
from iobench.recording.device_lane import DeviceLane, DeviceRegion
from iobench.recording.kinds import Kind
from iobench.recording.session import current_recording
from iobench.torch import device_moves
from iobench.torch.device import current_accelerator, find_accelerator
from iobench.torch.training_hooks import Watch

if TYPE_CHECKING:
    import torch

    from iobench.recording.clocks import DeviceClock
    from iobench.recording.recorder import Recorder

REGIONS_PER_FLUSH: Final = 64

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
        regions_per_flush: int = REGIONS_PER_FLUSH,
    ) -> None:
        if regions_per_flush < 1:
            raise OptionError(f"regions_per_flush={regions_per_flush}: expected 1 or more")
        self._regions_per_flush = regions_per_flush
        if clock is None and device is not None:
            clock = find_accelerator(device)
        self._lane = None if clock is None else DeviceLane(clock)
        self._finds_device = clock is None and device is None
        self._open: dict[str, _Region] = {}
        current_recording()  # which starts one where the environment names a run

    def __call__(self, name: str) -> _Region:
        """Return a context manager that times its body."""
        return _Region(self, name)

    def start(self, name: str, detail: str = "") -> None:
        """Begin a region, for code that is no block; one begun before and not ended is dropped.

        ``detail`` names what does it, as one of several optimizers.
        """
        region = self._open[name] = _Region(self, name)
        region.begin(detail)

    def end(self, name: str) -> None:
        """End the region of that name; nothing where none was begun, or not recorded."""
        region = self._open.pop(name, None)
        if region is not None:
            region.end()

    def watch(
        self, model: torch.nn.Module | None = None, *optimizers: torch.optim.Optimizer
    ) -> Watch:
        """Time ``forward`` of a model that trains, every ``backward``, and ``step`` of optimizers.

        Until ``remove()`` of what is returned, or the end of the ``with`` block it opens.
        """
        return Watch(self, model, optimizers)

    def flush(self) -> None:
        """Wait for the device, once, and write what it has done."""
        if self._lane is not None:
            self._lane.write()

    def _device_lane(self) -> DeviceLane | None:
        if self._lane is None and self._finds_device:
            clock = current_accelerator()
            self._lane = None if clock is None else DeviceLane(clock)
        return self._lane


class _Region:
    """One stretch of the training loop, and of the device's queue."""

    __slots__ = ("_first", "_kind", "_label", "_lane", "_put_ns", "_recorder", "_span", "_timer")

    def __init__(self, timer: DeviceTimer, name: str) -> None:
        self._timer = timer
        self._kind = KINDS.get(name, Kind.OTHER)
        self._label = "" if name in KINDS else name
        self._recorder: Recorder | None = None

    def begin(self, detail: str = "") -> None:
        recorder = self._recorder = active_recorder()
        if recorder is None:
            return
        self._span = recorder.full_span(self._kind, self._label, detail=detail)
        self._lane = self._timer._device_lane()
        if self._kind is Kind.H2D:
            device_moves.here.is_timed = True
        if self._lane is not None:
            self._put_ns = recorder.clock.now_ns()
            self._first = self._lane.mark()
        self._span.__enter__()

    def end(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        if self._kind is Kind.H2D:
            device_moves.here.is_timed = False
        lane = self._lane
        last = None if lane is None else lane.mark()
        self._span.__exit__(None, None, None)
        if lane is None or self._first is None or last is None:
            return
        _, batch, epoch = recorder.where()
        region = DeviceRegion(
            self._kind, self._label, self._first, last, self._put_ns, batch, epoch
        )
        if lane.add(recorder, region) >= self._timer._regions_per_flush:
            lane.write()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *error: object) -> None:
        self.end()
