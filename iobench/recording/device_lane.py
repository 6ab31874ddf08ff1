"""What iobench asks of a device, and what it did: spans on a lane of its own, on the host's time.

Marks around a region are looked at much later, many at a time. A mark was passed between the time
it was put there, or that of any mark before plus the device's time since, and the time its passing
was noticed: so who notices late makes nothing late.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from iobench.recording.clocks import DeviceClock
from iobench.recording.kinds import Kind
from iobench.recording.session import current_recording
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.recording.recorder import Lane, Recorder

ANCHOR: Final = "anchor"
"""Label of the span, of kind ``other``, in which the device passed a mark: its times' accuracy."""
DEVICE_FLAGS: Final = Flag.DEVICE | Flag.DETAIL
DRIFT: Final = 20_000
"""The clocks of host and device go apart by less than one in so many."""
REGIONS_AN_ANCHOR: Final = 64

# Lanes with regions that are not written yet, so that no timer that is dropped takes them along.
_pending: Final[set[DeviceLane]] = set()


class DeviceCopy(msgspec.Struct, frozen=True):
    """Arrays on their way to a device."""

    values: list[Any]  # on the device, as its framework has them
    first: Any  # marks in the device's queue before the copies and behind them; None without
    last: Any
    nbytes: int
    held: Any = None  # what is copied from; to be referenced until the last mark is passed


class Accelerator(DeviceClock, Protocol):
    """A device that works through queues and has a memory of its own."""

    def facts(self) -> Mapping[str, Any]:
        """Return what a run keeps of it; what nobody tells is left out."""

    def pin(self, pages: Any) -> object:
        """Make the memory of a writable buffer one that the device reads by itself."""

    def takes(self, leaf: Any) -> bool:
        """Tell whether something of a batch is an array that can be copied."""

    def copy(self, leaves: Sequence[Any], *, ahead: bool) -> DeviceCopy:
        """Start copying; do not wait, where the memory copied from is pinned."""

    def order(self, copy: DeviceCopy) -> None:
        """Let what the calling thread gives the device to do next come after the copies."""


class DeviceRegion(msgspec.Struct, frozen=True):
    """A stretch of a device's queue: two marks in it, and when or before they were put there."""

    kind: Kind
    label: str
    first: Any
    last: Any
    put_ns: int
    batch: int
    epoch: int
    nbytes: int = -1


_ANCHORS: Final = DeviceRegion(Kind.OTHER, ANCHOR, None, None, -1, -1, -1)


class _Sighting(msgspec.Struct, frozen=True):
    """A mark that the device passed between two times of the host."""

    mark: Any
    earliest_ns: int
    latest_ns: int


class DeviceLane:
    """Keeps the regions of one device until they are written as spans."""

    def __init__(self, clock: DeviceClock, *, releases: bool = True) -> None:
        self.clock = clock
        self.failed = False
        self._releases = releases
        self._lock = threading.RLock()
        self._regions: list[DeviceRegion] = []
        self._recorder: Recorder | None = None
        self._lane: Lane | None = None
        self._sighted: _Sighting | None = None
        self._own_mark: Any = None  # of that, where nobody else has it
        self._n_since = self._widest_ns = 0  # regions since the last anchor

    def mark(self) -> Any:
        """Put a mark into the queue; None where that cannot be done."""
        try:  # not held up by another thread that waits for the device
            return None if self.failed else self.clock.mark()
        except RuntimeError as error:
            return self._fail(error)

    @contextlib.contextmanager
    def _driver(self) -> Iterator[None]:
        """Use the driver, alone; what it refuses ends the timing."""
        with self._lock:
            try:
                yield
            except RuntimeError as error:
                self._fail(error)

    def _fail(self, error: RuntimeError) -> None:
        self.failed = True
        self.drop()
        recording = current_recording()
        if recording is not None:
            first_line = str(error).partition("\n")[0]
            recording.add_unseen(f"device time of {self.clock.name}: {first_line}")

    def add(self, recorder: Recorder, region: DeviceRegion) -> int:
        """Keep a region for the next `write`; return how many there are."""
        with self._lock:
            if recorder is not self._recorder:
                self._begin(recorder)
            self._regions.append(region)
            _pending.add(self)
            return len(self._regions)

    def noticed(self, recorder: Recorder, region: DeviceRegion, noticed_ns: int) -> None:
        """Write a region whose last mark somebody waited for, and found passed at that time."""
        with self._driver():
            if self.failed:
                return
            if recorder is not self._recorder:
                self._begin(recorder)
            duration_ns = max(0, self.clock.between_ns(region.first, region.last))
            is_first = self._sighted is None
            sighting = self._sight(region.last, region.put_ns + duration_ns, noticed_ns)
            end_ns = sighting.latest_ns
            self._emit(recorder, region, end_ns - duration_ns, end_ns)
            self._n_since += 1
            self._widest_ns = max(self._widest_ns, end_ns - sighting.earliest_ns)
            if is_first or self._n_since >= REGIONS_AN_ANCHOR:
                self._emit(recorder, _ANCHORS, end_ns - self._widest_ns, end_ns)
                self._n_since = self._widest_ns = 0

    def _sight(
        self, mark: Any, earliest_ns: int, latest_ns: int, *, own: bool = False
    ) -> _Sighting:
        """Note between which times a mark was passed, as closely as is known by now."""
        before = self._sighted
        latest_ns = max(earliest_ns, latest_ns)
        if before is not None:
            since_ns = self.clock.between_ns(before.mark, mark)
            drift_ns = abs(since_ns) // DRIFT
            least_ns = max(earliest_ns, before.earliest_ns + since_ns - drift_ns)
            most_ns = min(latest_ns, before.latest_ns + since_ns + drift_ns)
            if least_ns <= most_ns:  # else a clock was set, and what was known is of no use
                earliest_ns, latest_ns = least_ns, most_ns
            if self._own_mark is not None:
                self.clock.release(self._own_mark)
        self._own_mark = mark if own else None
        self._sighted = _Sighting(mark, earliest_ns, latest_ns)
        return self._sighted

    def _begin(self, recorder: Recorder) -> None:
        self.drop()
        self._recorder = recorder
        self._forget()
        self._lane = recorder.foreign_lane(self.clock.name)
        recording = current_recording()
        if recording is not None:
            recording.open_log(self)

    def leave(self) -> None:
        """Write all there is: the recording, or its window, ends."""
        self.write(last=True)
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._own_mark is not None:
            self.clock.release(self._own_mark)
        self._sighted = self._own_mark = None
        self._n_since = self._widest_ns = 0

    def write(self, *, last: bool = False) -> None:
        """Write what the device has done as spans, after waiting once for what it was given."""
        with self._driver():
            if self._regions and self._recorder is not None and not self.failed:
                self._write(self._recorder, last)

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
        begun = [region.put_ns + clock.between_ns(region.first, anchor) for region in passed]
        sighting = self._sight(anchor, max([put_ns, *begun]), noticed_ns, own=True)
        for region in passed:
            start_ns = sighting.latest_ns - clock.between_ns(region.first, sighting.mark)
            end_ns = sighting.latest_ns - clock.between_ns(region.last, sighting.mark)
            self._emit(recorder, region, start_ns, max(start_ns, end_ns))
            if self._releases:
                clock.release(region.first)
                clock.release(region.last)
        self._emit(recorder, _ANCHORS, sighting.earliest_ns, sighting.latest_ns)
        self._regions = left
        if not left:
            _pending.discard(self)

    def _emit(self, recorder: Recorder, region: DeviceRegion, start_ns: int, end_ns: int) -> None:
        assert self._lane is not None
        recorder.emit_on(
            self._lane, region.kind, start_ns, end_ns, batch=region.batch, epoch=region.epoch,
            nbytes=region.nbytes, label=recorder.string(region.label), flags=DEVICE_FLAGS,
        )  # fmt: skip

    def drop(self) -> None:
        """Forget what is not written."""
        with self._lock:
            self._regions = []
            _pending.discard(self)


class OpenRegion:
    """A stretch of a device's queue that is given to it now, between two marks."""

    __slots__ = ("_first", "_last", "_put_ns", "lane")

    def __init__(self, lane: DeviceLane, put_ns: int) -> None:
        self.lane, self._put_ns, self._last = lane, put_ns, None
        self._first = lane.mark()

    def end(self) -> None:
        """Put the second mark."""
        if self._first is not None:
            self._last = self.lane.mark()

    def keep(self, recorder: Recorder, kind: Kind, label: str, batch: int, epoch: int) -> int:
        """Let it become a span once the device has passed it; return how many wait for that."""
        if self._last is None:
            if self._first is not None:
                self.lane.clock.release(self._first)
            return 0
        region = DeviceRegion(kind, label, self._first, self._last, self._put_ns, batch, epoch)
        return self.lane.add(recorder, region)
