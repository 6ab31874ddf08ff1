"""Regions of a timer as spans of the recording that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.recording.activation import active_recorder
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.device_lane import DeviceLane, DeviceRegion
from iobench.recording.kinds import Kind
from iobench.recording.session import Recording, current_recording
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.recording.facts import LoaderFacts

KINDS: Final = {"FORWARD": Kind.FORWARD, "BACKWARD": Kind.BACKWARD, "COMM": Kind.COMM}
# They hold the regions of other keys: on the timeline, in no sum.
HOLDING: Final = frozenset({"EPOCH", "BATCH"})
UNSEEN: Final = "what happens in its waits: the script times them, around a loader of its own"


class RegionSpans:
    """Writes the regions of a timer: of a device on its lane, else of the training loop."""

    def __init__(self, lane: DeviceLane | None = None) -> None:
        self._lane = lane
        self._log: DeliveryLog | None = None
        self._loader_of: tuple[Recording, LoaderFacts] | None = None
        self._epoch = -1

    def started(self, name: str) -> None:
        """Ask for a batch with ``IO``, begin a pass with ``EPOCH``."""
        if self._lane is None and name == "IO":
            self._ask()
        elif self._lane is None and name == "EPOCH":
            self._leave()
            self._epoch += 1

    def ended(self, name: str, start_ns: int, end_ns: int, pair: tuple[Any, Any]) -> None:
        """Write the span between these times, or marks, or hold the batch."""
        if self._lane is None and name == "IO":
            self._deliver()
            return
        if self._lane is None and name == "EPOCH":
            self._leave()
        recorder = active_recorder()
        if recorder is None:
            return
        _, batch, epoch = recorder.where()
        kind = KINDS.get(name, Kind.OTHER)
        # 'round' is a pass over a loader.
        label = "" if name in KINDS else "round (timer)" if name == "round" else name
        if self._lane is not None:
            self._lane.add(recorder, DeviceRegion(kind, label, *pair, start_ns, batch, epoch))
            return
        recorder.emit(
            kind,
            start_ns,
            end_ns,
            batch=-1 if name == "EPOCH" else batch,
            epoch=epoch if self._epoch < 0 else self._epoch,
            label=recorder.string(label),
            flags=Flag.DETAIL if name in HOLDING else 0,
        )

    def _ask(self) -> None:
        recording = current_recording()
        if recording is None:
            self._log = None
            return
        if self._log is None or self._log.recording is not recording:
            self._log = DeliveryLog(recording, None, epoch=self._epoch, yields=True)
        self._log.ask()

    def _deliver(self) -> None:
        log = self._log
        if log is None or not log.waits:
            return
        if log.loader is None:
            if self._loader_of is None or self._loader_of[0] is not log.recording:
                timer = "iobench.compat.deep500.timer.Timer"
                facts = log.recording.add_loader("deep500", timer, "IO", unseen=[UNSEEN])
                self._loader_of = log.recording, facts
            log.loader = self._loader_of[1]
        log.deliver(log.recording.next_batch())

    def _leave(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.leave()
