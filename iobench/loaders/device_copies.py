"""Batches to a device: ahead of the loop, in the threads that fill buffers, or by the loop itself.

A thread starts the copies of a batch from pinned memory and sleeps until they are done, while
another one fills the next buffer. What it waits for copies of other batches is no copying.
"""

from __future__ import annotations

import dataclasses
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.errors import DeviceError
from iobench.loaders.ring.presenting import map_leaves
from iobench.recording.device_lane import DeviceLane, DeviceRegion
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
        with self._one_line(f"pinning a buffer of {len(memory.pages)} bytes"):
            memory.pinned = self.accelerator.pin(memory.pages)

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
            if (recorder := self._recorder or log.recorder) is not None:
                self._note(recorder, copy, start_ns, log.batch, log.epoch, queued=n_before > 0)
        finally:
            with self._counting:
                self._n_under_way -= 1
        left = iter(copy.values)
        batch = map_leaves(value, lambda leaf: next(left) if accelerator.takes(leaf) else leaf)
        return batch, replace(copy, held=None)

    def receive(self, sent: tuple[Any, DeviceCopy | None]) -> Any:
        """Return the batch, in the consumer's thread, ordered before what its stream does next."""
        batch, copy = sent
        if copy is not None:
            with self._one_line("handing over a batch"):
                self.accelerator.order(copy)
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
        self._note(recorder, copy, start_ns, planned.batch, planned.epoch)
        arrays = batch.arrays | dict(zip(names, copy.values, strict=True))
        return dataclasses.replace(batch, arrays=arrays, on_device=True)

    def fetch(self, arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return arrays of a batch in the host's memory, as they are on the device."""
        with self._one_line("fetching a batch back"):
            return {
                name: array if isinstance(array, np.ndarray) else np.asarray(array.cpu())
                for name, array in arrays.items()
            }

    def _copied(self, arrays: list[Any], *, ahead: bool) -> DeviceCopy:
        """Copy arrays and wait for it."""
        with self._one_line(f"copying a batch of {sum(each.nbytes for each in arrays)} bytes"):
            copy = self.accelerator.copy(arrays, ahead=ahead)
            if copy.last is not None:
                self.accelerator.wait(copy.last)
        return copy

    def _note(
        self,
        recorder: Recorder,
        copy: DeviceCopy,
        start_ns: int,
        batch: int,
        epoch: int,
        *,
        queued: bool = False,
    ) -> None:
        """Note copies that are done; ``queued``: others may have been under way before them."""
        begun_ns, end_ns = start_ns, recorder.clock.now_ns()
        first, last = copy.first, copy.last
        if queued and first is not None and last is not None:
            took_ns = self.accelerator.between_ns(first, last)
            begun_ns = max(start_ns, end_ns - max(0, took_ns))
        if begun_ns > start_ns:
            recorder.emit(Kind.COPY_QUEUE, start_ns, begun_ns, batch=batch, epoch=epoch)
        recorder.emit(Kind.H2D, begun_ns, end_ns, copy.nbytes, -1, batch, epoch)
        if first is not None and last is not None:
            region = DeviceRegion(Kind.H2D, "", first, last, start_ns, batch, epoch, copy.nbytes)
            self._lane.noticed(recorder, region, end_ns)

    @contextmanager
    def _one_line(self, doing: str) -> Iterator[None]:
        """Turn what a driver refuses into an error of one line."""
        try:
            yield
        except DeviceError:
            raise
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            if "out of memory" in reason.lower():
                reason += "; take smaller batches, or fewer ahead"
            raise DeviceError(f"{self.accelerator.name}: {doing} failed: {reason}") from error
