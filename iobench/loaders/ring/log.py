"""What a reader thread notes of the batch it makes; free where nothing is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.recording.clocks import now_ns
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from iobench.recording.recorder import Recorder

N_LISTED: Final = 16
"""Samples of a batch that an error names."""


class BatchLog:
    """Notes spans of one thread's batches."""

    def __init__(
        self,
        recorder: Recorder | None = None,
        is_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self.recorder = recorder
        self.is_ended = is_ended
        self.now_ns: Callable[[], int] = now_ns if recorder is None else recorder.clock.now_ns
        self.batch = self.epoch = -1
        self.free_ns = 0
        self.worker = -1
        self.sample = -1  # where one is made at a time

    def begin(self, batch: int, epoch: int, free_ns: int = 0) -> None:
        """Say which batch all that follows is for, and since when there was room for it."""
        self.batch, self.epoch, self.free_ns = batch, epoch, free_ns
        if self.recorder is not None:
            self.recorder.position(batch, epoch, -1)

    def add(
        self,
        kind: Kind,
        start_ns: int,
        end_ns: int | None = None,
        *,
        nbytes: int = -1,
        label: str = "",
        detail: str = "",
    ) -> None:
        """Note one stretch of work for the batch, which ends now by default."""
        if self.recorder is not None:
            end_ns = self.now_ns() if end_ns is None else end_ns
            texts = (self.recorder.string(each) if each else 0 for each in (label, detail))
            self.recorder.emit(
                kind, start_ns, end_ns, nbytes, -1, self.batch, self.epoch, self.sample, *texts
            )

    def transform(
        self, function: Callable[[Any], Any], arrays: Any, samples: NDArray[np.int64]
    ) -> Any:
        """Return what a user's function makes of a batch; its error names the samples."""
        start_ns = self.now_ns()
        try:
            value = function(arrays)
        except BaseException as error:
            listed = f"samples {samples[:N_LISTED].tolist()}"
            n_more = len(samples) - N_LISTED
            more = f" and {n_more} more" if n_more > 0 else ""
            error.add_note(f"the transform was given {listed}{more}")
            raise
        self.add(Kind.TRANSFORM, start_ns)
        return value


class HeldSpans:
    """Takes the spans of a sample as a recorder does, until it is known which batch has it."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.clock, self.string = recorder, recorder.clock, recorder.string
        self._spans: list[tuple[tuple[int, ...], dict[str, int]]] = []

    def position(self, batch: int, epoch: int = -1, sample: int = -1) -> None:
        """Say what the thread works on, apart from the batch."""
        self.recorder.position(-1, epoch, sample)

    def emit(self, *span: int, **named: int) -> None:
        """Keep one span, whose sixth value is its batch."""
        self._spans.append((span, named))

    def emit_all(self, batch: int) -> None:
        """Write them all, of this batch."""
        for span, named in self._spans:
            self.recorder.emit(*(*span[:5], batch, *span[6:]), **named)


class StageStopwatch:
    """Times of one batch: of each kind of work one span, one after another.

    Reading and decoding take turns extent by extent: a span for each turn would cost too much.
    """

    def __init__(self, log: BatchLog) -> None:
        self._log = log
        self._is_on = log.recorder is not None
        self._first_ns = self._last_ns = log.now_ns() if self._is_on else 0
        self._sums: dict[Kind, list[int]] = {}

    def start(self) -> None:
        """Begin a turn; what comes before the first one is in none of the spans."""
        if self._is_on:
            self._last_ns = self._log.now_ns()
            if not self._sums:
                self._first_ns = self._last_ns

    def end(self, kind: Kind, nbytes: int) -> None:
        """End a turn, and begin the next one."""
        if not self._is_on:
            return
        now_ns = self._log.now_ns()
        sums = self._sums.setdefault(kind, [0, 0])
        sums[0] += now_ns - self._last_ns
        sums[1] += nbytes
        self._last_ns = now_ns

    def emit(self) -> None:
        """Note all of it."""
        start_ns = self._first_ns
        for kind, (duration_ns, nbytes) in self._sums.items():
            self._log.add(kind, start_ns, start_ns + duration_ns, nbytes=nbytes)
            start_ns += duration_ns
