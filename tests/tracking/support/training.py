"""A training loop whose loader makes its batches itself, as fast as it can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.recording.session import Recording


class Training:
    """Epochs of some batches, recorded."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.loader = recording.add_loader("torch", "a.Loader", "Samples", batch_size=4)
        self.n_epochs = 0

    def epoch(self, n_batches: int = 3, *, end: bool = True) -> None:
        recorder = self.recording.recorder
        log = DeliveryLog(self.recording, self.loader, epoch=self.n_epochs)
        for _ in range(n_batches):
            number = self.recording.next_batch()
            log.ask(number)
            with recorder.span(Kind.READ):
                pass
            log.deliver(number, nbytes=400, maker="consumer")
            with recorder.span(Kind.FORWARD):
                pass
        if end:
            log.ask()
            log.end()
        else:
            log.leave()
        self.n_epochs += 1
