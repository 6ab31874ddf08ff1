"""A pass whose batches are of the samples that are ready first: none waits for a slow one.

Threads take sample after sample, in the order of the pass, into memory of their own, and copy each
to the next row of the batch that is open. Who fills its last row makes of it what is handed out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from iobench.loaders.ring.buffers import BatchLayout, BatchMemory, Lease
from iobench.loaders.ring.log import BatchLog, HeldSpans
from iobench.loaders.ring.ring_run import CONSUMER, RingRun
from iobench.recording.clocks import now_ns
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from numpy.typing import NDArray

    from iobench.loaders.contract import PlannedBatch, Reader, Rows
    from iobench.recording.recorder import Recorder


@dataclass(slots=True)
class OpenBatch:
    """A batch whose rows are given to samples as these are ready."""

    number: int
    planned: PlannedBatch
    key: int
    arrays: Any
    samples: NDArray[np.int64]  # by row
    n_given: int = 0
    n_filled: int = 0


class ReadyRun(RingRun):
    """Reader threads that fill batches together; see `RingRun`."""

    def __init__(
        self, *given: Any, new_memory: Callable[[int], BatchMemory] | None = None, **options: Any
    ) -> None:
        super().__init__(*given, **options)
        layout = BatchLayout(self._source.spec, 1)
        memories = [(new_memory or BatchMemory)(layout.nbytes) for _ in self._threads]
        self._own_rows = deque(layout.arrays(memory.pages, 1) for memory in memories)
        self._planned: deque[PlannedBatch] = deque()  # of which no batch is open yet
        self._samples = self._samples_in_order()
        self._open: OpenBatch | None = None
        self._n_open = 0  # batches that were opened
        self._release_ns = self._since_ns  # when there was room for the latest of them
        self._under_way: dict[int, None] = {}  # samples that were drawn and not handed out

    # -- reader threads ---------------------------------------------------------------------

    def _make_all(self, fillers: list[Reader], log: BatchLog) -> None:
        rows = self._own_rows.popleft()
        idle_ns = self._since_ns
        try:
            while (drawn := self._draw_sample()) is not None:
                log.sample, planned = drawn
                recorder = self._recorder()
                held = None if recorder is None else HeldSpans(recorder)
                log.recorder = cast("Recorder | None", held)
                log.begin(planned.batch, planned.epoch)
                self._note_release(idle_ns, log)
                if not fillers:
                    fillers.append(self._source.filler())
                fillers[0].fill(np.array([log.sample]), rows, log)
                if not self._place(rows, held, log):
                    return
                idle_ns = log.now_ns()
        except BaseException as error:  # noqa: BLE001  the consumer raises it
            error.add_note(f"while sample {log.sample} of epoch {log.epoch} was made")
            self._fail(error)

    def _samples_in_order(self) -> Generator[tuple[int, PlannedBatch]]:
        """Yield each sample, and the batch that has it in the order."""
        for planned in self._batches:
            self._n_drawn += 1
            self._planned.append(planned)
            yield from ((sample, planned) for sample in np.asarray(planned.samples).tolist())

    def _draw_sample(self) -> tuple[int, PlannedBatch] | None:
        """Return the next sample and its batch; None at the end."""
        with self._turn:
            if self._stopping or self._failure is not None:
                return None
            if (drawn := next(self._samples, None)) is None:
                self._end(self._n_drawn, None)
                return None
            with self._changed:
                self._under_way[drawn[0]] = None
            return drawn

    def _place(self, rows: Rows, held: HeldSpans | None, log: BatchLog) -> bool:
        """Copy a sample to a row of the batch that is open; return whether there is one."""
        ended_ns = now_ns()
        if (given := self._give_row(log.sample)) is None:
            return False
        batch, row = given
        self._note_release(ended_ns, log)
        start_ns = log.now_ns()
        for name, values in rows.items():
            batch.arrays[name][row] = values[0]
        nbytes = sum(values.nbytes for values in rows.values())
        log.add(Kind.COLLATE, start_ns, nbytes=nbytes)
        log.sample = -1
        if held is not None:
            held.emit_all(batch.planned.batch)
            log.recorder = held.recorder
            log.begin(batch.planned.batch, batch.planned.epoch)
        with self._changed:
            batch.n_filled += 1
            is_full = batch.n_filled == len(batch.samples)
        if is_full:
            self._finish(batch, log)
        return True

    def _note_release(self, since_ns: int, log: BatchLog) -> None:
        """Note since when there was room, where this thread waited for it."""
        if self._release_ns >= since_ns:
            log.add(Kind.SUBMIT_QUEUE, self._release_ns, detail=CONSUMER)

    def _give_row(self, sample: int) -> tuple[OpenBatch, int] | None:
        """Return the batch that is open, a new one where none is, and a row of it."""
        with self._turn:
            if self._stopping or self._failure is not None:
                return None
            if (batch := self._open) is None:
                free_ns = self._room.get()
                memory = None if self._stopping else self.pool.take(lambda: self._stopping)
                if memory is None:
                    return None
                self._release_ns = max(free_ns, memory.freed_ns, self._since_ns)
                planned = self._planned.popleft()
                key, arrays = self.pool.lend(memory, len(planned.samples))
                samples = np.empty(len(planned.samples), dtype=np.int64)
                batch = self._open = OpenBatch(self._n_open, planned, key, arrays, samples)
                self._n_open += 1
            row = batch.n_given
            batch.samples[row] = sample
            batch.n_given += 1
            if batch.n_given == len(batch.samples):
                self._open = None
            return batch, row

    def _finish(self, batch: OpenBatch, log: BatchLog) -> None:
        planned = replace(batch.planned, samples=batch.samples)
        try:
            value = self._presented(batch.arrays, batch.samples, log)
            lease = Lease(batch.key, value, worker=log.worker)
        except BaseException as error:  # noqa: BLE001  the consumer raises it
            error.add_note(f"while batch {planned.batch} of epoch {planned.epoch} was made")
            lease = Lease(batch.key, None, error)
        self._put(batch.number, planned, lease)

    def _fail(self, error: BaseException) -> None:
        """End after the batches all of whose rows are given: nobody fills the others."""
        with self._turn, self._changed:
            if self._failure is None:
                self._failure = error
                self._n_all = self._n_open - (self._open is not None)
                self._open = None
            self._changed.notify_all()
        self._wake()

    # -- the consumer -----------------------------------------------------------------------

    def _take(self) -> tuple[PlannedBatch, Any] | None:
        taken = super()._take()
        if taken is not None:
            with self._changed:
                for sample in np.asarray(taken[0].samples).tolist():
                    self._under_way.pop(sample, None)
                self.pending = list(self._under_way)
        return taken

    def stop(self, patience_s: float | None = None) -> bool:
        """End the threads, and let go of the batch that is open."""
        is_ended = super().stop(patience_s)
        if is_ended:
            self._open = None
            self._samples.close()  # which has this run, and the run it
        return is_ended
