"""What a script's recording is told of a ring: the waits for its batches, and who made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.session import loop_recording

if TYPE_CHECKING:
    from iobench.loaders.ring.contract import RingBatch
    from iobench.recording.facts import LoaderFacts
    from iobench.recording.recorder import Recorder
    from iobench.recording.session import Recording

MADE_BY = "threads"
"""As `iobench.analysis.deliveries` reads it."""


class RecordedLoader:
    """A loader that a script's recording knows of, once it is asked for a batch."""

    def __init__(self, kind: str, name: str, sample_nbytes: int, **settings: Any) -> None:
        self._kind, self._name, self._settings = kind, name, settings
        self._sample_nbytes = sample_nbytes
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
        return RecordedPass(recording, self._known[1], self._sample_nbytes)


class RecordedPass:
    """One pass of a training loop over a ring, which the first ``next`` begins."""

    def __init__(self, recording: Recording, loader: LoaderFacts, sample_nbytes: int) -> None:
        self._recording, self._sample_nbytes = recording, sample_nbytes
        self._log = DeliveryLog(recording, loader)

    def next_batch(self) -> int:
        """Return the number of the next batch, none of any other loader."""
        return self._recording.next_batch()

    def recorder(self) -> Recorder | None:
        """Return where reader threads note the batch they begin; None if that is not recorded."""
        return None if self._recording.closed else self._recording.recorder

    @property
    def waits(self) -> bool:
        """Whether the loop waits for a batch at present."""
        return self._log.waits

    def ask(self) -> None:
        """Note that the loop waits from now on."""
        if not self._recording.closed:
            self._log.ask()

    def of_epoch(self, epoch: int) -> None:
        """Say which epoch it turned out to be."""
        self._log.epoch = epoch

    def deliver(self, batch: RingBatch) -> None:
        """Note that the loop holds a batch."""
        if not self._recording.closed:
            nbytes = len(batch.samples) * self._sample_nbytes
            self._log.deliver(batch.batch, nbytes=nbytes, maker=MADE_BY)

    def end(self) -> None:
        """Note that there was none."""
        if not self._recording.closed:
            self._log.end()

    def fail(self) -> None:
        """Note that the wait ended with an exception."""
        if not self._recording.closed:
            self._log.fail()

    def leave(self) -> None:
        """Note that nobody asks any more. Idempotent."""
        if not self._recording.closed:
            self._log.leave()
