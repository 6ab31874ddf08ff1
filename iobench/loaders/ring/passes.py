"""What ``iter(loader)`` returns: one pass over an epoch, and what is recorded of it."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import WorkerError

if TYPE_CHECKING:
    from iobench.loaders.contract import PlannedBatch
    from iobench.loaders.ring.buffers import BufferPool
    from iobench.loaders.ring.loader import RingLoader
    from iobench.loaders.ring.ring_run import RingRun
    from iobench.recording.delivery_log import DeliveryLog

MADE_BY: Final = "threads"
"""As `iobench.analysis.deliveries` reads it."""
PATIENCE_S: Final = 2.0
"""How long a pass that is forgotten or interrupted waits for its threads."""


class RingPass:
    """What ``iter(loader)`` returns: ends its threads when exhausted, closed or forgotten.

    Nothing begins before the first batch is asked for: some libraries call ``iter`` to see whether
    it works, and the epoch may still be set after it.
    """

    def __init__(self, loader: RingLoader) -> None:
        self._loader = loader
        self._nbytes = loader.spec.nbytes
        self._starting = threading.RLock()  # another thread may close meanwhile
        self._is_over = False
        self._log: DeliveryLog | None = None
        self._run: RingRun | None = None
        self._end: weakref.finalize[..., RingPass] | None = None

    def __iter__(self) -> RingPass:
        return self

    def __next__(self) -> Any:
        run = self._run
        if run is not None and os.getpid() != run.pid:
            raise WorkerError(
                "this iterator belongs to the process that was forked; call iter(loader) again"
            )
        if run is None and not self._is_over:
            self._log = self._loader.new_log()
            if self._log is not None:
                weakref.finalize(self, _leave, self._log)
        log = self._log
        if log is None or log.recording.closed:
            return self._take()[1]
        log.ask()
        try:
            batch, value = self._take()
        except BaseException as error:
            self._log = None
            if not log.recording.closed:
                log.end() if isinstance(error, StopIteration) else log.fail()
            raise
        if not log.recording.closed:
            log.deliver(batch.batch, nbytes=len(batch.samples) * self._nbytes, maker=MADE_BY)
        return value

    def _take(self) -> tuple[PlannedBatch, Any]:
        try:
            taken = (self._run or self._started()).take()
        except Exception:
            self.close()
            raise
        except BaseException:  # Ctrl-C: whoever pressed it does not want to wait for a batch
            self._close(PATIENCE_S)
            raise
        if taken is None:
            if self._run is not None:  # not closed by another thread meanwhile
                self._loader.took(None)
            self.close()
            raise StopIteration
        batch, value = taken
        self._loader.took(batch)
        return batch, self._loader.receive(value)

    def _started(self) -> RingRun:
        with self._starting:
            if self._run is not None:
                return self._run
            if self._is_over:
                raise StopIteration
            self._is_over = True  # until the run is there
            run = self._loader.begin(self._log)
            self._end = weakref.finalize(self, _finish, run, self._loader.idle, PATIENCE_S)
            self._run = run
            run.start()  # from now on an interrupt finds what it has to end
            return run

    def close(self) -> None:
        """End the threads; batches that are held stay valid."""
        self._close(None)
        if self._log is not None and not self._log.waits:
            _leave(self._log)
            self._log = None

    def _close(self, patience_s: float | None) -> None:
        with self._starting:
            self._run, self._is_over = None, True
            end = None if self._end is None else self._end.detach()
        if end is not None:
            run, idle, _ = end[2]
            _finish(run, idle, patience_s)


def _finish(run: RingRun, idle: list[BufferPool], patience_s: float | None) -> None:
    if run.stop(patience_s) and not idle:  # else a thread may still come back to its buffers
        idle.append(run.pool)


def _leave(log: DeliveryLog) -> None:
    if not log.recording.closed:
        log.leave()
