"""What ``iter(loader)`` returns: one pass over an epoch, and what is recorded of it."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import WorkerError
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.session import loop_recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.loaders.ring.contract import RingBatch
    from iobench.loaders.ring.ring_run import RingRun
    from iobench.recording.facts import LoaderFacts
    from iobench.recording.recorder import Recorder
    from iobench.recording.session import Recording

MADE_BY: Final = "threads"
"""As `iobench.analysis.deliveries` reads it."""
PATIENCE_S: Final = 2.0
"""How long a pass that is forgotten or interrupted waits for its threads."""


def _nothing() -> None:
    """Return no log: nobody records."""


class RingPass:
    """What ``iter(loader)`` returns: ends its threads when exhausted, closed or forgotten.

    Nothing begins before the first batch is asked for: some libraries call ``iter`` to see whether
    it works, and the epoch may still be set after it.
    """

    def __init__(
        self,
        begin: Callable[[RecordedPass | None], RingRun],
        *,
        receive: Callable[[Any], Any] | None = None,
        taken: Callable[[RingBatch | None], None],
        ended: Callable[[RingRun], None],
        recorded: Callable[[], RecordedPass | None] = _nothing,
        sample_nbytes: int = 0,
    ) -> None:
        self._starting = threading.RLock()  # another thread may close meanwhile
        self._begin: Callable[[RecordedPass | None], RingRun] | None = begin
        self._recorded = recorded
        self._sample_nbytes = sample_nbytes
        self._log: RecordedPass | None = None
        self._run: RingRun | None = None
        self._receive = receive
        self._taken = taken
        self._ended = ended
        self._end: weakref.finalize[..., RingPass] | None = None

    def __iter__(self) -> RingPass:
        return self

    def __next__(self) -> Any:
        run = self._run
        if run is not None and os.getpid() != run.pid:
            raise WorkerError(
                "this iterator belongs to the process that was forked; call iter(loader) again"
            )
        if run is None and self._begin is not None:
            self._log = self._recorded()
            if self._log is not None:
                weakref.finalize(self, self._log.leave)
        log = self._log
        if log is None:
            return self._taken_next()[1]
        log.ask()
        try:
            batch, value = self._taken_next()
        except StopIteration:
            log.end()
            self._log = None
            raise
        except BaseException:
            log.fail()
            self._log = None
            raise
        log.hand_over(batch, len(batch.samples) * self._sample_nbytes)
        return value

    def _taken_next(self) -> tuple[RingBatch, Any]:
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
                self._taken(None)
            self.close()
            raise StopIteration
        batch, value = taken
        self._taken(batch)
        return batch, value if self._receive is None else self._receive(value)

    def _started(self) -> RingRun:
        with self._starting:
            if self._run is not None:
                return self._run
            begin, self._begin = self._begin, None
            if begin is None:
                raise StopIteration
            run = begin(self._log)
            self._end = weakref.finalize(self, _finish, run, self._ended, PATIENCE_S)
            self._run = run
            run.start()  # from now on an interrupt finds what it has to end
            return run

    def close(self) -> None:
        """End the threads; batches that are held stay valid."""
        self._close(None)
        if self._log is not None and not self._log.waits:
            self._log.leave()
            self._log = None

    def _close(self, patience_s: float | None) -> None:
        with self._starting:
            self._run = self._begin = None
            end = None if self._end is None else self._end.detach()
        if end is not None:
            run, ended, _ = end[2]
            _finish(run, ended, patience_s)


def _finish(run: RingRun, ended: Callable[[RingRun], None], patience_s: float | None) -> None:
    if run.stop(patience_s):  # else a thread may still come back to its buffers
        ended(run)


class RecordedLoader:
    """A loader that a script's recording knows of, once it is asked for a batch."""

    def __init__(self, kind: str, name: str, **settings: Any) -> None:
        self._kind, self._name, self._settings = kind, name, settings
        self._known: tuple[Recording, LoaderFacts] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}

    def begin(self) -> RecordedPass | None:
        """Return the log of another pass; None where nothing is recorded."""
        recording = loop_recording()
        if recording is None:
            return None
        if self._known is None or self._known[0] is not recording:
            facts = recording.add_loader("native", self._kind, self._name, **self._settings)
            self._known = recording, facts
        return RecordedPass(recording, self._known[1])


class RecordedPass(DeliveryLog):
    """One pass of a training loop over a ring, as long as the recording goes on."""

    def recorder(self) -> Recorder | None:
        """Return where reader threads note the batch they begin; None if that is not recorded."""
        return None if self.recording.closed else self.recording.recorder

    def ask(self, batch: int = -1) -> None:
        """Note that the loop waits from now on."""
        if not self.recording.closed:
            super().ask(batch)

    def hand_over(self, batch: RingBatch, nbytes: int) -> None:
        """Note that the loop holds a batch."""
        if not self.recording.closed:
            self.deliver(batch.batch, nbytes=nbytes, maker=MADE_BY)

    def end(self) -> None:
        """Note that there was none."""
        if not self.recording.closed:
            super().end()

    def fail(self) -> None:
        """Note that the wait ended with an exception."""
        if not self.recording.closed:
            super().fail()

    def leave(self) -> None:
        """Note that nobody asks any more. Idempotent."""
        if not self.recording.closed:
            super().leave()
