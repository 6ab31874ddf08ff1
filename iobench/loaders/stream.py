"""Runs a `Stream`: stages in threads of the training process, bounded queues between them.

What an application's own pipeline of that shape does (``tf.data`` with Python functions, a
generator read ahead by a thread), with the work of every thread recorded.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import OptionError
from iobench.loaders.contract import IN_THREADS, Batch
from iobench.loaders.measured_loader import MeasuredLoader
from iobench.loaders.pipeline import STEP_KINDS
from iobench.loaders.stage_timer import Detail
from iobench.loaders.stream_ends import Batcher, Numbering, StreamEnded, StreamPart, StreamSource
from iobench.loaders.stream_log import CONSUMER, ThreadLog, Work
from iobench.loaders.stream_relay import Relay
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.datasets.own_pipelines import Stream
    from iobench.loaders.contract import PlannedBatch
    from iobench.recording.recorder import Recorder

logger = logging.getLogger(__name__)

JOIN_S: Final = 5.0
NAME_LIMIT: Final = 24
"""Characters of a stage's name in that of its threads, which span files hold 36 bytes of."""


class StreamLoader(MeasuredLoader):
    """Makes the batches of a stream; its threads start with the first batch asked for.

    Which samples make up a batch is the stream's business: of the plan only the numbers of the
    batches are used, which have to follow each other. Batches come in the stream's order, pass
    after pass; one that a pass does not fill is completed from the next (a stream that hands on
    batches itself may hand on a short one). Threads stay alive between rounds and keep what they
    have made ready. A batch stays valid as long as it is held.

    ``prefetch`` is how many batches are kept ready; the fill of a round is one more.

    Parameters
    ----------
    stream : Stream
        What to run.
    batch_size : int
        Samples a batch.
    recorder : Recorder
        The training process's: the stages run in threads of it.
    seed : int
        Of the shuffle buffer.
    detail : Detail
        How finely stages are recorded.
    unit_costs : mapping of str to int
        What recording one span costs, ns.

    Raises
    ------
    OptionError
        If a number of the stream or ``batch_size`` cannot be used, more than one stage spreads, or
        a stream of whole batches has a shuffle buffer.
    """

    def __init__(
        self,
        stream: Stream,
        batch_size: int,
        *,
        recorder: Recorder,
        seed: int = 0,
        detail: Detail = Detail.AUTO,
        unit_costs: Mapping[str, int | None],
    ) -> None:
        super().__init__(prefetch=stream.ahead)
        _check(stream, batch_size)
        self._stream = stream
        self._batch_size = batch_size
        self._recorder = recorder
        self._seed = seed
        self._detail = detail
        self._unit_costs = dict(unit_costs)
        self._log = self._new_log(CONSUMER)
        self._source: StreamSource | None = None
        self._relays: list[Relay] = []
        self._threads: list[threading.Thread] = []
        self._top: StreamPart | None = None
        self._next = -1

    def _take(self, planned: PlannedBatch) -> Batch:
        self._check_open()
        top = self._top or self._start(planned.batch)
        if planned.batch != self._next:
            raise OptionError(
                f"batch {planned.batch} is planned where {self._next} was expected: a stream "
                "makes its batches one after another"
            )
        return Batch(planned, self._arrays(top), IN_THREADS if self._threads else -1)

    def _arrays(self, top: StreamPart) -> dict[str, NDArray[Any]]:
        self._log.fed(CONSUMER)  # whatever was waited for before, the loop now asks by itself
        try:
            arrays: dict[str, NDArray[Any]] = top.take(self._log).value
        except StreamEnded:
            self._check_open()
            raise
        except BaseException:
            self.close()
            raise
        self._log.flush()
        self._next += 1
        return arrays

    def _new_log(self, name: str) -> ThreadLog:
        return ThreadLog(self._recorder, name, detail=self._detail, unit_costs=self._unit_costs)

    def _start(self, first: int) -> StreamPart:
        """Build the chain from its source to the part the training loop asks, start its threads."""
        stream = self._stream
        numbering = Numbering(first, self._batch_size, stream.shuffle, stream.batched)
        self._source = StreamSource(
            stream, numbering, _work(stream.makes) if stream.makes else None
        )
        since_ns = self._recorder.clock.now_ns()
        part: StreamPart = self._source
        for position, stage in enumerate(stream.stages):
            part = Relay(part, stage, _work(stage.name), stage.ahead, numbering)
            self._add(part, f"{position}-{stage.name[:NAME_LIMIT]}", stage.threads, since_ns)
        part = Batcher(part, stream, numbering, self._seed)
        if stream.ahead:
            part = Relay(part, None, None, stream.ahead, numbering)
            self._add(part, f"{len(stream.stages)}-batch", 1, since_ns)
        self._top, self._next = part, first
        for thread in self._threads:
            thread.start()
        return part

    def _add(self, relay: Relay, name: str, n_threads: int, since_ns: int) -> None:
        self._relays.append(relay)
        for number in range(n_threads):
            full_name = f"{name}-{number}"
            self._threads.append(
                threading.Thread(
                    target=_run,
                    args=(relay, self._new_log(full_name), since_ns),
                    name=full_name,
                    daemon=True,
                )
            )

    def _let_go(self) -> None:
        """End the threads, each after the item it works on; those that hang are left behind."""
        for relay in self._relays:
            relay.close()
        for thread in self._threads:
            if thread.ident is None:  # not started: starting another one failed
                continue
            thread.join(JOIN_S)
            if thread.is_alive():
                logger.warning("thread %s of the stream still works on an item", thread.name)
                return
        if self._source is not None:
            self._source.close()
        self._threads, self._relays, self._top = [], [], None


def _run(relay: Relay, log: ThreadLog, since_ns: int) -> None:
    log.started(since_ns)
    relay.work(log)
    log.flush()


def _work(name: str) -> Work:
    kind = Kind.OPAQUE if name == Kind.OPAQUE.spelled else STEP_KINDS.get(name)
    return Work(Kind.FUSED, name, name) if kind is None else Work(kind, "", name)


def _check(stream: Stream, batch_size: int) -> None:
    if batch_size < 1:
        raise OptionError(f"--batch-size {batch_size}: expected 1 or more")
    if stream.ahead < 0 or stream.shuffle < 0:
        raise OptionError(
            f"stream: ahead {stream.ahead}, shuffle {stream.shuffle}: expected 0 or more of each"
        )
    for stage in stream.stages:
        if stage.threads < 1 or stage.ahead < 1:
            raise OptionError(
                f"stage {stage.name}: threads {stage.threads}, ahead {stage.ahead}: expected 1 or "
                "more of each"
            )
    if sum(stage.spreads for stage in stream.stages) > 1:
        raise OptionError("stream: several stages spread, expected one: join them, or their work")
    if stream.batched and stream.shuffle:
        raise OptionError("stream: its stages hand on batches, so no samples can be shuffled")
