"""The waits of a measured loop for tf.data, and what its threads did meanwhile, round by round."""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from iobench.recording.kinds import Kind
from iobench.tensorflow.host_tracer import HostTracer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.loaders.contract import PlannedBatch
    from iobench.recording.recorder import Recorder

TRACED_SAMPLES: Final = 10_000
"""Of a round, at most: a trace takes memory, and time to be read."""
TRACED_BATCHES: Final = 10
OPAQUE: Final = "tf.data"

_alive: Final[weakref.WeakSet[TracedRounds]] = weakref.WeakSet()


class TracedRounds:
    """Traces the first batches of each round; the others are opaque."""

    def __init__(self, recorder: Recorder, batch_size: int) -> None:
        self._recorder = recorder
        self._limit = max(TRACED_BATCHES, TRACED_SAMPLES // batch_size)
        self._tracer = HostTracer(recorder.clock)
        self._waits: list[tuple[int, int, int]] = []
        self._epoch = -1
        self._stopping: threading.Thread | None = None
        self._is_due = False
        _alive.add(self)

    def start(self) -> None:
        """Trace from now on, until the round has enough batches.

        Where loops take turns, from the first batch on: there is one tracer for all of them.
        """
        self._is_due = len(_alive) > 1
        if not self._is_due:
            self._tracer.start()

    @contextmanager
    def batch(self, planned: PlannedBatch) -> Iterator[None]:
        """Note that the loop asks for a batch, and when it holds it."""
        if self._is_due:
            self._is_due = False
            self._tracer.start()
        if len(self._waits) == self._limit and self._tracer.running:
            # Writing the trace out takes a while, in which the training loop goes on.
            self._stopping = threading.Thread(target=self._tracer.stop, name="trace")
            self._stopping.start()
        requested_ns = self._recorder.clock.now_ns()
        yield
        self._waits.append((requested_ns, self._recorder.clock.now_ns(), planned.batch))
        self._epoch = planned.epoch

    def next_round(self) -> None:
        """Write what was traced, and trace the next round."""
        self.write()
        self.start()

    def close(self) -> None:
        """Write what is left; there is no further round."""
        self.write()
        _alive.discard(self)

    def write(self) -> None:
        """End the trace, and write what TensorFlow's threads did in the round."""
        self._is_due = False
        if self._stopping is not None:
            self._stopping.join()
            self._stopping = None
        self._tracer.stop()
        recorder, tracer = self._recorder, self._tracer
        self._tracer = HostTracer(recorder.clock)
        waits, self._waits = self._waits, []
        seen = tracer.write(recorder, waits, epoch=self._epoch)
        label = recorder.string(OPAQUE)
        for requested_ns, delivered_ns, batch in waits:
            if batch not in seen:
                recorder.emit(
                    Kind.OPAQUE,
                    requested_ns,
                    delivered_ns,
                    batch=batch,
                    epoch=self._epoch,
                    label=label,
                )
