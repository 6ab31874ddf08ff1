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
DRIFT: Final = 20_000
"""The clocks of host and device go apart by less than one in so many."""
REGIONS_AN_ANCHOR: Final = 64

# Lanes with regions that are not written yet, so that no timer that is dropped takes them along.
_pending: Final[set[DeviceLane]] = set()


@dataclass(frozen=True, slots=True)
class DeviceRegion:
    """A stretch of a device's queue: two marks in it, and when or before they were put there."""

    kind: Kind
    label: str
    first: Any
    last: Any
    put_ns: int
    batch: int
    epoch: int
    nbytes: int = -1


@dataclass(slots=True)
class _Noticed:
    """The last region that somebody waited for: its end lies between two times of the host."""

    last: Any
    earliest_ns: int
    latest_ns: int
    n_since_told: int = 0
    uncertainty_ns: int = 0


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
        self._noticed: _Noticed | None = None

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
        with self._lock:
            if recorder is not self._recorder:
                self._begin(recorder)
            self._regions.append(region)
            _pending.add(self)
            return len(self._regions)

    def noticed(self, recorder: Recorder, region: DeviceRegion, noticed_ns: int) -> None:
        """Write a region whose last mark somebody waited for, and found passed at ``noticed_ns``.

        So nothing is waited for here. Late to notice, as who was asleep is, does not make the
        region late: on the device's time it lies behind those before it.
        """
        with self._lock:
            if self.failed:
                return
            if recorder is not self._recorder:
                self._begin(recorder)
            try:
                self._write_noticed(recorder, region, noticed_ns)
            except RuntimeError as error:
                self._fail(error)

    def _write_noticed(self, recorder: Recorder, region: DeviceRegion, noticed_ns: int) -> None:
        clock, before = self.clock, self._noticed
        duration_ns = max(0, clock.between_ns(region.first, region.last))
        earliest_ns, latest_ns = region.put_ns + duration_ns, noticed_ns
        since_ns = -1 if before is None else clock.between_ns(before.last, region.last)
        if before is not None and since_ns >= 0:
            drift_ns = since_ns // DRIFT
            earliest_ns = max(earliest_ns, before.earliest_ns + since_ns - drift_ns)
            latest_ns = min(latest_ns, before.latest_ns + since_ns + drift_ns)
        latest_ns = max(earliest_ns, latest_ns)
        now = _Noticed(region.last, earliest_ns, latest_ns)
        if before is not None:
            now.n_since_told, now.uncertainty_ns = before.n_since_told + 1, before.uncertainty_ns
        now.uncertainty_ns = max(now.uncertainty_ns, latest_ns - earliest_ns)
        self._emit(recorder, region, latest_ns - duration_ns, latest_ns)
        if before is None or now.n_since_told >= REGIONS_AN_ANCHOR:
            self._emit_anchor(recorder, latest_ns - now.uncertainty_ns, latest_ns)
            now.n_since_told = now.uncertainty_ns = 0
        if before is None or since_ns >= 0:
            self._noticed = now

    def _begin(self, recorder: Recorder) -> None:
        self.drop()
        self._recorder = recorder
        self._noticed = None
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
            nbytes=region.nbytes,
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
