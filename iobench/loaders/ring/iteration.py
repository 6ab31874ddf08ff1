"""One pass of a ring: threads fill buffers ahead, the consumer takes them in order."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import WorkerError
from iobench.loaders.ring.buffers import Lease
from iobench.loaders.ring.log import BatchLog
from iobench.recording import Kind, now_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from iobench.loaders.ring.buffers import BatchMemory, BufferPool
    from iobench.loaders.ring.contract import (
        BatchSource,
        DevicePath,
        Filler,
        Present,
        RingBatch,
    )
    from iobench.recording import Recorder

__all__ = ["RingIteration", "RingRun"]

N_LISTED: Final = 16
"""Samples of a batch that an error names."""


class RingRun:
    """Reader threads and what they have ready: all of an iteration that threads may keep alive.

    Parameters
    ----------
    source : BatchSource
        What fills buffers.
    batches : iterator of RingBatch
        Which, in order; drawn a little ahead.
    pool : BufferPool
        Where to.
    threads : int
        How many fill at once.
    ahead : int
        Batches made ahead of the consumer, at most.
    present : callable, optional
        Makes what is handed out of the arrays, in the reader thread.
    device : DevicePath, optional
        Copies what was made to a device, in the reader thread.
    recorder : Recorder, optional
        Where threads note what they do.
    """

    def __init__(
        self,
        source: BatchSource,
        batches: Iterator[RingBatch],
        pool: BufferPool,
        *,
        threads: int,
        ahead: int,
        present: Present | None = None,
        device: DevicePath | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.pool = pool
        self.pid = os.getpid()
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
        self._changed = threading.Condition()
        self._ready: dict[int, tuple[RingBatch, Lease | BaseException]] = {}
        self._n_drawn = 0
        self._n_all: int | None = None
        self._n_taken = 0
        self._warned = False
        self._threads = [
            threading.Thread(target=self._read, name=f"iobench-ring-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    # -- reader threads ---------------------------------------------------------------------

    def _read(self) -> None:
        log = BatchLog(self._recorder, self._is_stopping)
        log.started(self._since_ns)
        filler: Filler | None = None
        idle_ns = self._since_ns
        try:
            while (drawn := self._draw()) is not None:
                number, batch, memory, room_ns = drawn
                log.begin(batch.batch, batch.epoch)
                release_ns = max(room_ns, memory.freed_ns, self._since_ns)
                if release_ns >= idle_ns:
                    log.released(release_ns)
                try:
                    if filler is None:
                        filler = self._source.filler()
                    made: Lease | BaseException = self._make(filler, batch, memory, log)
                except BaseException as error:  # noqa: BLE001  the consumer raises it
                    made = error
                idle_ns = log.now_ns()
                self._put(number, batch, made)
                del made, memory, drawn
        finally:
            if filler is not None:
                filler.close()

    def _draw(self) -> tuple[int, RingBatch, BatchMemory, int] | None:
        """Return the next batch, a buffer for it, and since when there was room; None at the end.

        Waits for room.
        """
        room_ns = self._room.get()
        with self._turn:
            if self._stopping or self._n_all is not None:
                return None
            memory = self.pool.take(self._is_stopping)
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
        return number, batch, memory, room_ns

    def _is_stopping(self) -> bool:
        return self._stopping

    def _make(self, filler: Filler, batch: RingBatch, memory: BatchMemory, log: BatchLog) -> Lease:
        key, arrays = self.pool.lend(memory, len(batch.samples))
        try:
            filler.fill(batch.samples, arrays, log)
            value = self._presented(arrays, batch, log)
            return Lease(key, value if self._device is None else self._device.send(value, log))
        except BaseException as error:
            self.pool.drop(key)
            error.add_note(f"while batch {batch.batch} of epoch {batch.epoch} was made")
            raise

    def _presented(self, arrays: dict[str, NDArray[Any]], batch: RingBatch, log: BatchLog) -> Any:
        if self._present is None:
            return arrays
        start_ns = log.now_ns()
        try:
            value = self._present(arrays)
        except BaseException as error:
            listed = batch.samples[:N_LISTED].tolist()
            more = f" and {n_more} more" if (n_more := len(batch.samples) - len(listed)) else ""
            error.add_note(f"the transform was given samples {listed}{more}")
            raise
        log.add(Kind.TRANSFORM, start_ns, log.now_ns())
        return value

    def _put(self, number: int, batch: RingBatch, made: Lease | BaseException) -> None:
        with self._changed:
            if not self._stopping:
                self._ready[number] = batch, made
                self._changed.notify_all()

    def _end(self, n_all: int, error: BaseException | None) -> None:
        with self._changed:
            if self._n_all is None:
                self._n_all = n_all
                self._failure = error
            self._changed.notify_all()
        for _ in self._threads:
            self._room.put(0)

    # -- the consumer -----------------------------------------------------------------------

    def take(self) -> tuple[RingBatch, Any] | None:
        """Return the next batch, waiting for it; None after the last.

        Raises
        ------
        IobenchError
            What a thread ended in; OptionError if all buffers are held and no more are allowed.
        """
        number = self._n_taken
        with self._changed:
            while number not in self._ready:
                if self._n_all is not None and number >= self._n_all:
                    if self._failure is not None:
                        raise self._failure
                    return None
                if self.pool.is_all_held:
                    self._grow()
                self._changed.wait()
            batch, made = self._ready.pop(number)
        if isinstance(made, BaseException):
            raise made
        self._n_taken += 1
        self.pool.hand_out(made.key)
        self._room.put(now_ns())
        if self.pool.is_all_held and self.pool.can_grow:
            self._grow()  # now, so that the next batch is made meanwhile
        return batch, made.value

    def _grow(self) -> None:
        self.pool.grow()
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.pool.n_held} batches are held at once and each keeps its buffer, so more "
                f"buffers of {self.pool.nbytes} bytes are made: copy what you keep of a batch, or "
                "raise depth",
                UserWarning,
                stacklevel=4,
            )

    def stop(self) -> None:
        """End the threads, after the batch each is at; safe to call twice and from any thread."""
        if os.getpid() != self.pid:
            return  # a forked child has none
        self._stopping = True
        for _ in self._threads:
            self._room.put(0)
        self.pool.wake()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        for _, made in self._ready.values():
            if isinstance(made, Lease):
                self.pool.drop(made.key)
        self._ready.clear()


class RingIteration:
    """What ``iter(loader)`` returns: ends its threads when exhausted, closed or forgotten.

    Nothing begins before the first batch is asked for: some libraries call ``iter`` to see whether
    it works, and the epoch may still be set after it.
    """

    def __init__(
        self,
        begin: Callable[[], RingRun],
        *,
        receive: Callable[[Any], Any] | None = None,
        taken: Callable[[RingBatch], None],
        ended: Callable[[RingRun], None],
    ) -> None:
        self._begin: Callable[[], RingRun] | None = begin
        self._run: RingRun | None = None
        self._receive = receive
        self._taken = taken
        self._ended = ended
        self._end: weakref.finalize[..., RingIteration] | None = None

    def __iter__(self) -> RingIteration:
        return self

    def __next__(self) -> Any:
        run = self._run or self._started()
        if os.getpid() != run.pid:
            raise WorkerError(
                "this iterator belongs to the process that was forked; call iter(loader) again"
            )
        try:
            found = run.take()
        except BaseException:
            self.close()
            raise
        if found is None:
            self.close()
            raise StopIteration
        batch, value = found
        self._taken(batch)
        return value if self._receive is None else self._receive(value)

    def _started(self) -> RingRun:
        begin, self._begin = self._begin, None
        if begin is None:
            raise StopIteration
        self._run = run = begin()
        self._end = weakref.finalize(self, _finish, run, self._ended)
        return run

    def close(self) -> None:
        """End the threads; batches that are held stay valid."""
        self._run = self._begin = None
        if self._end is not None:
            self._end()


def _finish(run: RingRun, ended: Callable[[RingRun], None]) -> None:
    run.stop()
    ended(run)
