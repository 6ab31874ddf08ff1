"""Batches to a device: ahead of the loop, in the threads that fill buffers, or by the loop itself.

A thread starts the copies of a batch from pinned memory and sleeps until they are done, while
another one fills the next buffer. What it waits for copies of other batches is no copying.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.errors import DeviceError
from iobench.loaders.ring.presenting import map_leaves
from iobench.recording.device_lane import DeviceLane, DeviceRegion
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.loaders.contract import Batch
    from iobench.loaders.ring.buffers import BatchMemory
    from iobench.loaders.ring.log import BatchLog
    from iobench.recording.device_lane import Accelerator, DeviceCopy
    from iobench.recording.recorder import Recorder


class DeviceCopies:
    """Copies batches to a device, and notes what that takes the host and the device."""

    def __init__(self, accelerator: Accelerator, recorder: Recorder | None = None) -> None:
        self.accelerator = accelerator
        self._recorder = recorder
        self._lane = DeviceLane(accelerator, releases=False)
        self._counting = threading.Lock()
        self._n_under_way = 0

    # -- ahead, from buffers that are pinned ----------------------------------------------------

    def prepare(self, memory: BatchMemory) -> None:
        """Pin the buffer, once: copies from pageable memory take twice as long."""
        try:
            memory.pinned = self.accelerator.pin(memory.pages)
        except RuntimeError as error:
            raise self._refusal(error, f"pinning a buffer of {len(memory.pages)} bytes") from error

    def send(self, value: Any, log: BatchLog) -> tuple[Any, DeviceCopy | None]:
        """Copy what was made of a batch, in a reader thread; return what `receive` is given."""
        accelerator = self.accelerator
        leaves: list[Any] = []
        map_leaves(value, lambda leaf: leaves.append(leaf) if accelerator.takes(leaf) else None)
        if not leaves:
            return value, None
        start_ns = log.now_ns()
        with self._counting:
            n_before, self._n_under_way = self._n_under_way, self._n_under_way + 1
        try:
            copy = self._copied(leaves, ahead=True)
            self._note(log, copy, start_ns, queued=n_before > 0)
        finally:
            with self._counting:
                self._n_under_way -= 1
        left = iter(copy.values)
        batch = map_leaves(value, lambda leaf: next(left) if accelerator.takes(leaf) else leaf)
        return batch, replace(copy, held=None)

    def _note(self, log: BatchLog, copy: DeviceCopy, start_ns: int, *, queued: bool) -> None:
        """Note copies that are done; ``queued``: others may have been under way before them."""
        recorder = self._recorder or log.recorder
        if recorder is None:
            return
        begun_ns, end_ns = start_ns, log.now_ns()
        if queued and copy.first is not None and copy.last is not None:
            took_ns = self.accelerator.between_ns(copy.first, copy.last)
            begun_ns = max(start_ns, end_ns - max(0, took_ns))
        if begun_ns > start_ns:
            recorder.emit(Kind.COPY_QUEUE, start_ns, begun_ns, batch=log.batch, epoch=log.epoch)
        recorder.emit(Kind.H2D, begun_ns, end_ns, copy.nbytes, -1, log.batch, log.epoch)
        if (region := _region(copy, start_ns, log.batch, log.epoch)) is not None:
            self._lane.noticed(recorder, region, end_ns)

    def receive(self, sent: tuple[Any, DeviceCopy | None]) -> Any:
        """Return the batch, in the consumer's thread, ordered before what its stream does next."""
        batch, copy = sent
        if copy is None:
            return batch
        try:
            self.accelerator.order(copy)
        except RuntimeError as error:
            raise self._refusal(error, "handing over a batch") from error
        return batch

    # -- by the training loop -------------------------------------------------------------------

    def move(self, batch: Batch) -> Batch:
        """Copy a batch in the loop's thread and wait for it there; what is there already stays."""
        recorder, planned = self._recorder, batch.planned
        names = [name for name, array in batch.arrays.items() if self.accelerator.takes(array)]
        if batch.on_device or recorder is None or not names:
            return batch
        start_ns = recorder.clock.now_ns()
        copy = self._copied([batch.arrays[name] for name in names], ahead=False)
        end_ns = recorder.clock.now_ns()
        recorder.emit(Kind.H2D, start_ns, end_ns, copy.nbytes, -1, planned.batch, planned.epoch)
        if (region := _region(copy, start_ns, planned.batch, planned.epoch)) is not None:
            self._lane.noticed(recorder, region, end_ns)
        arrays = batch.arrays | dict(zip(names, copy.values, strict=True))
        return dataclasses.replace(batch, arrays=arrays, on_device=True)

    def fetch(self, arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return arrays of a batch in the host's memory, as they are on the device."""
        try:
            return {
                name: array if isinstance(array, np.ndarray) else np.asarray(array.cpu())
                for name, array in arrays.items()
            }
        except RuntimeError as error:
            raise self._refusal(error, "fetching a batch back") from error

    def _copied(self, arrays: list[Any], *, ahead: bool) -> DeviceCopy:
        """Copy arrays and wait for it."""
        try:
            copy = self.accelerator.copy(arrays, ahead=ahead)
            if copy.last is not None:
                self.accelerator.wait(copy.last)
        except RuntimeError as error:
            nbytes = sum(array.nbytes for array in arrays)
            raise self._refusal(error, f"copying a batch of {nbytes} bytes") from error
        return copy

    def _refusal(self, error: RuntimeError, doing: str) -> DeviceError:
        if isinstance(error, DeviceError):
            return error
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if "out of memory" in reason.lower():
            reason += "; take smaller batches, or fewer ahead"
        return DeviceError(f"{self.accelerator.name}: {doing} failed: {reason}")


def _region(copy: DeviceCopy, put_ns: int, batch: int, epoch: int) -> DeviceRegion | None:
    if copy.first is None or copy.last is None:
        return None
    return DeviceRegion(Kind.H2D, "", copy.first, copy.last, put_ns, batch, epoch, copy.nbytes)
