"""What a device did, as spans on a lane of its own, on the time of the host.

A mark is put into the device's queue where a region begins and ends, and looked at much later,
many at a time. To bring them to the host's time one more mark is waited for: the only
synchronisation there is. Its time on the host is known to lie between the time it was put there,
or that of any mark plus the device time since, and the time its passing was noticed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from iobench.recording.kinds import Kind
from iobench.recording.session import current_recording
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.recording.clocks import DeviceClock
    from iobench.recording.lanes import Lane
    from iobench.recording.recorder import Recorder

__all__ = ["ANCHOR", "DeviceLane", "DeviceRegion"]

ANCHOR: Final = "anchor"
"""Label of the span, of kind ``other``, in which the device passed a mark: how far its times may
be off."""
DEVICE_FLAGS: Final = Flag.DEVICE | Flag.DETAIL

# Lanes with regions that are not written yet, so that no timer that is dropped takes them along.
_pending: Final[set[DeviceLane]] = set()


@dataclass(frozen=True, slots=True)
class DeviceRegion:
    """A stretch of a device's queue: two marks in it, and when the first was put there."""

    kind: Kind
    label: str
    first: Any
    last: Any
    put_ns: int
    batch: int
    epoch: int


class DeviceLane:
    """Keeps the regions of one device until they are written as spans.

    What the device's driver refuses ends its timing, and is told as not seen: no error of a
    driver is raised from here, the training meets it itself.

    Parameters
    ----------
    clock : DeviceClock
        Of the device.
    releases : bool
        Whether marks go back to the clock once they are looked at; else who made them does that.
    """

    def __init__(self, clock: DeviceClock, *, releases: bool = True) -> None:
        self.clock = clock
        self.failed = False
        self._releases = releases
        self._lock = threading.RLock()
        self._regions: list[DeviceRegion] = []
        self._recorder: Recorder | None = None
        self._lane: Lane | None = None

    def mark(self) -> Any:
        """Put a mark into the queue; None where that cannot be done."""
        if self.failed:
            return None
        try:
            return self.clock.mark()
        except RuntimeError as error:
            self._fail(error)
            return None

    def add(self, recorder: Recorder, region: DeviceRegion) -> int:
        """Keep a region for the next `write`; return how many there are."""
        if recorder is not self._recorder:
            self._begin(recorder)
        with self._lock:
            self._regions.append(region)
        _pending.add(self)
        return len(self._regions)

    def _begin(self, recorder: Recorder) -> None:
        self.drop()
        self._recorder = recorder
        self._lane = recorder.foreign_lane(self.clock.name)
        recording = current_recording()
        if recording is not None:
            recording.open_log(self)

    def leave(self) -> None:
        """Write all there is: the recording, or its window, ends."""
        self.write(last=True)

    def write(self, *, last: bool = False) -> None:
        """Write what the device has done as spans, after waiting once for what it was given.

        What another of its streams has not come to stays for the next time, unless this is the
        ``last``.
        """
        with self._lock:
            if not self._regions or self._recorder is None or self.failed:
                return
            try:
                self._write(self._recorder, last)
            except RuntimeError as error:
                self._fail(error)

    def _write(self, recorder: Recorder, last: bool) -> None:
        clock, now_ns = self.clock, recorder.clock.now_ns
        put_ns = now_ns()
        anchor = clock.mark()
        if anchor is None:
            return
        clock.wait(anchor)
        noticed_ns = now_ns()
        passed: list[DeviceRegion] = []
        left: list[DeviceRegion] = []
        for region in self._regions:
            if last and not clock.passed(region.last):
                clock.wait(region.last)
            (passed if clock.passed(region.last) else left).append(region)
        begun = [(region.put_ns, clock.between_ns(region.first, anchor)) for region in passed]
        earliest_ns = max([put_ns, *(put + since for put, since in begun)])
        at_ns = max(earliest_ns, noticed_ns)
        for region, (_, since_ns) in zip(passed, begun, strict=True):
            start_ns = at_ns - since_ns
            end_ns = max(start_ns, at_ns - clock.between_ns(region.last, anchor))
            self._emit(recorder, region, start_ns, end_ns)
            if self._releases:
                clock.release(region.first)
                clock.release(region.last)
        clock.release(anchor)
        self._emit_anchor(recorder, earliest_ns, at_ns)
        self._regions = left
        if not left:
            _pending.discard(self)

    def _emit(self, recorder: Recorder, region: DeviceRegion, start_ns: int, end_ns: int) -> None:
        assert self._lane is not None
        recorder.emit_on(
            self._lane,
            region.kind,
            start_ns,
            end_ns,
            batch=region.batch,
            epoch=region.epoch,
            label=recorder.string(region.label),
            flags=DEVICE_FLAGS,
        )

    def _emit_anchor(self, recorder: Recorder, earliest_ns: int, latest_ns: int) -> None:
        assert self._lane is not None
        recorder.emit_on(
            self._lane,
            Kind.OTHER,
            earliest_ns,
            latest_ns,
            label=recorder.string(ANCHOR),
            flags=DEVICE_FLAGS,
        )

    def drop(self) -> None:
        """Forget what is not written."""
        with self._lock:
            self._regions = []
            _pending.discard(self)

    def _fail(self, error: RuntimeError) -> None:
        self.failed = True
        self.drop()
        recording = current_recording()
        if recording is not None:
            first_line = str(error).partition("\n")[0]
            recording.add_unseen(f"device time of {self.clock.name}: {first_line}")
