"""One pass of a ring: threads fill buffers ahead, the consumer takes them in order.

Without threads the consumer fills each buffer itself, when it asks for it.
"""

from __future__ import annotations

import os
import threading
import warnings
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.loaders.ring.buffers import Lease
from iobench.loaders.ring.log import BatchLog
from iobench.recording.clocks import now_ns
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from iobench.loaders.contract import BatchSource, PlannedBatch, Present, Reader
    from iobench.loaders.device_copies import DeviceCopies
    from iobench.loaders.ring.buffers import BatchMemory, BufferPool
    from iobench.recording.recorder import Recorder

CONSUMER: Final = "consumer"
"""Who released a thread, as `iobench.analysis.stage_table` reads it."""
LISTENING_S: Final = 1.0
"""How long the consumer waits at once: a signal that comes just before a wait does not end it."""


class RingRun:
    """Reader threads and what they have ready: all of an iteration that threads may keep alive."""

    def __init__(
        self,
        source: BatchSource,
        batches: Iterator[PlannedBatch],
        pool: BufferPool,
        *,
        threads: int,
        ahead: int,
        present: Present | None = None,
        device: DeviceCopies | None = None,
        recorder: Callable[[], Recorder | None] = lambda: None,  # asked for each batch
    ) -> None:
        self.pool = pool
        self.pid = os.getpid()
        self.worker = -1
        self.pending: list[int] = []  # samples that come before those of later batches
        self._source = source
        self._batches = batches
        self._present = present
        self._device = device
        self._recorder = recorder
        self._since_ns = now_ns()
        self._stopping = False
        self._failure: BaseException | None = None
        self._turn = threading.Lock()  # buffers go to batches in their order: so none can starve
        self._room: SimpleQueue[int] = SimpleQueue()  # since when there is room for a batch
        for _ in range(ahead):
            self._room.put(0)
        self._taking = threading.Lock()
        self._changed = threading.Condition()  # of an RLock: who takes may make, too
        self._ready: dict[int, tuple[PlannedBatch, Lease]] = {}
        self._n_drawn = 0
        self._n_all: int | None = None
        self._n_taken = 0
        self._warned = False
        self._own_fillers: list[Reader] = []  # one, where there are no threads
        self._n_threads = threads
        self._threads = [
            threading.Thread(target=self._read, name=f"iobench-ring-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads, where there are any; `stop` ends those that were, if this fails."""
        for thread in self._threads:
            thread.start()

    # -- reader threads ---------------------------------------------------------------------

    def _read(self) -> None:
        log = BatchLog(self._recorder(), lambda: self._stopping)
        fillers: list[Reader] = []  # one, made for the first batch
        try:
            log.add(Kind.STARTUP, self._since_ns)
            self._make_all(fillers, log)
        except BaseException as error:  # noqa: BLE001  the consumer raises it
            self._end(self._n_drawn, error)
        finally:
            for filler in fillers:
                filler.close()

    def _make_all(self, fillers: list[Reader], log: BatchLog) -> None:
        idle_ns = self._since_ns
        while (drawn := self._draw()) is not None:
            number, batch, memory, free_ns = drawn
            log.recorder = self._recorder()
            release_ns = max(free_ns, memory.freed_ns, self._since_ns)
            lease = self._make(fillers, batch, memory, log, (idle_ns, release_ns))
            idle_ns = log.now_ns()
            self._put(number, batch, lease)
            del lease, memory, drawn

    def _draw(self) -> tuple[int, PlannedBatch, BatchMemory, int] | None:
        """Wait for room; return the next batch, a buffer, and since when; None at the end."""
        free_ns = self._room.get()
        with self._turn:
            if self._stopping or self._n_all is not None:
                return None
            memory = self.pool.take(lambda: self._stopping)
            if memory is None:
                return None
            number = self._n_drawn
            try:
                batch = next(self._batches, None)
            except BaseException as error:  # noqa: BLE001  the consumer raises it
                self._end(number, error)
                batch = None
            if batch is None:
                self.pool.give(memory)
                self._end(number, None)
                return None
            self._n_drawn += 1
        return number, batch, memory, free_ns

    def _make(
        self,
        fillers: list[Reader],
        batch: PlannedBatch,
        memory: BatchMemory,
        log: BatchLog,
        idle_release_ns: tuple[int, int],
    ) -> Lease:
        key, arrays = self.pool.lend(memory, len(batch.samples))
        idle_ns, release_ns = idle_release_ns
        try:
            log.begin(batch.batch, batch.epoch, release_ns)
            if release_ns >= idle_ns:
                log.add(Kind.SUBMIT_QUEUE, release_ns, detail=CONSUMER)
            if not fillers:
                fillers.append(self._source.filler())
            samples = np.asarray(batch.samples, dtype=np.int64)
            fillers[0].fill(samples, arrays, log)
            return Lease(key, self._presented(arrays, samples, log), worker=log.worker)
        except BaseException as error:  # noqa: BLE001  the consumer raises it
            error.add_note(f"while batch {batch.batch} of epoch {batch.epoch} was made")
            return Lease(key, None, error)

    def _presented(self, arrays: Any, samples: NDArray[np.int64], log: BatchLog) -> Any:
        """Return what is handed out of filled arrays."""
        value: Any = arrays
        if self._present is not None:
            value = log.transform(self._present, arrays, samples)
        return value if self._device is None else self._device.send(value, log)

    def _put(self, number: int, batch: PlannedBatch, lease: Lease) -> None:
        with self._changed:
            if self._stopping:
                self.pool.hand_out(lease.key)  # nobody gets it
                return
            self._ready[number] = batch, lease
            if lease.error is not None and self._n_all is None:
                self._n_all = number + 1  # nobody will ask for what comes after it
            self._changed.notify_all()

    def _end(self, n_all: int, error: BaseException | None) -> None:
        with self._changed:
            if self._n_all is None:
                self._n_all = n_all
                self._failure = error
            self._changed.notify_all()
        self._wake()

    def _wake(self) -> None:
        for _ in range(self._n_threads):
            self._room.put(0)

    # -- the consumer -----------------------------------------------------------------------

    def take(self) -> tuple[PlannedBatch, Any] | None:
        """Return the next batch, waiting for it; None after the last, or when stopped.

        Several threads may take; each batch goes to one of them.
        """
        with self._taking:
            return self._take()

    def _take(self) -> tuple[PlannedBatch, Any] | None:
        number = self._n_taken
        with self._changed:
            while number not in self._ready:
                if self._stopping:
                    return None
                if self._n_all is not None and number >= self._n_all:
                    if self._failure is not None:
                        raise self._failure
                    return None
                if self.pool.is_all_held:
                    self._grow()
                if self._n_threads:
                    self._changed.wait(LISTENING_S)
                else:
                    self._make_here()
            batch, lease = self._ready.pop(number)
            self.pool.hand_out(lease.key)
        if (error := lease.error) is not None:
            try:
                raise error
            finally:
                del error, lease  # or its traceback would hold it, and the buffer
        self.worker = lease.worker
        self._n_taken += 1
        self._room.put(now_ns())
        if self.pool.is_all_held and self.pool.can_grow:
            self._grow()  # now, so that the next batch is made meanwhile
        return batch, lease.value

    def _make_here(self) -> None:
        """Make the next batch in the consumer's thread; nobody had to wait until there was room."""
        if (drawn := self._draw()) is not None:
            number, batch, memory, _ = drawn
            log = BatchLog(self._recorder())
            self._put(number, batch, self._make(self._own_fillers, batch, memory, log, (1, 0)))

    def _grow(self) -> None:
        self.pool.grow()
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.pool.n_held} batches are held at once and each keeps its buffer, so more "
                f"buffers of {self.pool.nbytes} bytes are made: copy what you keep of a batch, or "
                "raise depth",
                UserWarning,
                stacklevel=5,
            )

    def stop(self, patience_s: float | None = None) -> bool:
        """End the threads, after the batch each is at; safe to call twice and from any thread."""
        if os.getpid() != self.pid:
            return True  # a forked child has none
        self._stopping = True
        self._wake()
        self.pool.wake()
        with self._changed:
            self._changed.notify_all()
        if threading.current_thread() in self._threads:
            return False
        end_ns = None if patience_s is None else now_ns() + int(patience_s * 1e9)
        for thread in self._threads:
            if thread.is_alive():  # else it ended, or finds on starting that all is over
                thread.join(None if end_ns is None else max(0.0, (end_ns - now_ns()) / 1e9))
            if thread.is_alive():
                return False
        for _, lease in self._ready.values():
            self.pool.hand_out(lease.key)
        self._ready.clear()
        while self._own_fillers:
            self._own_fillers.pop().close()
        return True
