"""Batches to a device, ahead of the loop: from pinned buffers, in the reader threads.

A reader thread starts the copies of a batch and sleeps until they are done, while another one
fills the next buffer. So a buffer comes back to the ring when nothing reads it any more, without
anybody who polls; and what is handed out is on the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iobench.errors import DeviceError
from iobench.loaders.ring.presenting import map_leaves
from iobench.recording.device_lane import DeviceLane, DeviceRegion
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.loaders.ring.buffers import BatchMemory
    from iobench.loaders.ring.log import BatchLog
    from iobench.recording.accelerator import Accelerator, DeviceCopy
    from iobench.recording.recorder import Recorder

__all__ = ["DeviceCopies"]


class DeviceCopies:
    """Copies batches to a device, and notes what that takes the host and the device.

    Parameters
    ----------
    accelerator : Accelerator
        The device.
    recorder : Recorder, optional
        Where that is noted, whatever else the ring notes elsewhere or nowhere.
    """

    def __init__(self, accelerator: Accelerator, recorder: Recorder | None = None) -> None:
        self.accelerator = accelerator
        self._recorder = recorder
        self._lane = DeviceLane(accelerator, releases=False)

    def prepare(self, memory: BatchMemory) -> None:
        """Pin the buffer, once: copies from pageable memory take twice as long.

        Raises
        ------
        DeviceError
            If the device refuses.
        """
        try:
            memory.pinned = self.accelerator.pin(memory.pages)
        except RuntimeError as error:
            raise self._refusal(error, f"pinning a buffer of {len(memory.pages)} bytes") from error

    def send(self, value: Any, log: BatchLog) -> tuple[Any, DeviceCopy]:
        """Copy what was made of a batch, in a reader thread; return what `receive` is given.

        When it returns, nothing reads the host's memory any more.

        Raises
        ------
        DeviceError
            If the device refuses, or is gone.
        """
        accelerator = self.accelerator
        recorder = self._recorder or log.recorder
        leaves: list[Any] = []
        map_leaves(value, lambda leaf: leaves.append(leaf) if accelerator.takes(leaf) else None)
        start_ns = log.now_ns()
        try:
            copy = accelerator.copy(leaves, ahead=True)
            if copy.last is not None:
                accelerator.wait(copy.last)
        except RuntimeError as error:
            nbytes = sum(leaf.nbytes for leaf in leaves)
            raise self._refusal(error, f"copying a batch of {nbytes} bytes") from error
        end_ns = log.now_ns()
        if recorder is not None:
            recorder.emit(Kind.H2D, start_ns, end_ns, copy.nbytes, -1, log.batch, log.epoch)
            if copy.first is not None and copy.last is not None:
                region = DeviceRegion(
                    Kind.H2D, "", copy.first, copy.last, start_ns, log.batch, log.epoch, copy.nbytes
                )
                self._lane.noticed(recorder, region, end_ns)
        left = iter(copy.values)
        batch = map_leaves(value, lambda leaf: next(left) if accelerator.takes(leaf) else leaf)
        return batch, replace(copy, held=None)

    def receive(self, sent: tuple[Any, DeviceCopy]) -> Any:
        """Return the batch, in the consumer's thread, ordered before what its stream does next."""
        batch, copy = sent
        try:
            self.accelerator.order(copy)
        except RuntimeError as error:
            raise self._refusal(error, "handing over a batch") from error
        return batch

    def _refusal(self, error: RuntimeError, doing: str) -> DeviceError:
        if isinstance(error, DeviceError):
            return error
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        advice = "; take a smaller batch_size or depth" if "out of memory" in reason.lower() else ""
        return DeviceError(f"{self.accelerator.name}: {doing} failed: {reason}{advice}")
