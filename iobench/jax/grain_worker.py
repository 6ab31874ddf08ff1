"""A worker process of grain's ``mp_prefetch``, as it sees itself: its recorder, and its elements.

grain sends nothing to its workers: each makes every n-th element, as far ahead as its queue lets
it. So the numbers of batches are reserved as a pass begins, and each worker counts.
"""

from __future__ import annotations

import logging
import threading
from multiprocessing import util
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from grain._src.python.dataset.transformations import process_prefetch

from iobench.adapters import installed
from iobench.errors import IobenchError
from iobench.jax.elements import (
    Arrival,
    begin_element,
    begin_pending,
    count_own,
    end_element,
    receive,
    set_pace,
)
from iobench.recording.activation import activate
from iobench.recording.clocks import now_ns
from iobench.recording.kinds import Kind
from iobench.recording.process_io import ProcessIo
from iobench.recording.run_directory import RunDirectory
from iobench.samples import handed_on_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

# After the queue's feeder thread has been joined (-5 in multiprocessing).
CLOSE_PRIORITY: Final = -100
IO_EVERY_NS: Final = 1_000_000
"""How often a worker looks at what it has read, at most: a look takes 1.5 us."""

_worker: GrainWorker | None = None


def this_worker() -> GrainWorker | None:
    """Return the worker that this process is, if it records as one."""
    return _worker


class GrainWorkerSpec(NamedTuple):
    """What a worker needs to know to record; picklable."""

    run: Path
    rank: int
    worker: int
    epoch: int
    first_batch: int
    """The number of the pass's first batch; -1 where elements are of no batch that is known."""
    n_batches: int
    first: int
    """The number of its own first element, among those of the worker."""
    place: int
    """Which of each round of elements is its own, and how many there are in a round."""
    n_workers: int
    per_batch: int
    started_ns: int
    keep_nbytes: int
    alone: bool
    """Whether its one thread makes all of an element."""
    detail: str
    unit_costs: dict[str, int | None]


class WorkerStart:
    """Stands in for the user's ``worker_init_fn``: opens the span file, then calls it."""

    def __init__(self, spec: GrainWorkerSpec, then: Callable[[], None] | None) -> None:
        self._spec = spec
        self._then = then

    def __call__(self) -> None:
        """Record from now on; a run directory that is gone is a warning."""
        global _worker
        from iobench.jax.hooks import install  # which look for this worker

        install()
        try:
            _worker = GrainWorker(self._spec)
        except IobenchError as error:
            logger.warning("worker-%d records nothing: %s", self._spec.worker, error)
        if self._then is not None:
            self._then()


class GrainWorker:
    """The recording worker; one per process."""

    def __init__(self, spec: GrainWorkerSpec) -> None:
        self._spec = spec
        self.recorder = RunDirectory.open(spec.run).recorder(
            role="worker", worker=spec.worker, rank=spec.rank, keep_nbytes=spec.keep_nbytes
        )
        util.Finalize(None, self.recorder.close, exitpriority=CLOSE_PRIORITY)
        installed.install(where="everywhere")
        set_pace(spec.detail, spec.unit_costs)
        self._copy = process_prefetch.shared_memory_array.copy_to_shm
        self._put = process_prefetch.grain_queue.add_element_to_queue
        process_prefetch.shared_memory_array.copy_to_shm = self.copy
        process_prefetch.grain_queue.add_element_to_queue = self.put
        self._io, self._io_due_ns = ProcessIo(), 0
        self._number = spec.first
        self._batch = -1
        self._due_ns = -1
        self._thread, self._claimed = threading.get_ident(), False
        self._opened_ns = now_ns()
        self.recorder.emit(Kind.STARTUP, spec.started_ns, self._opened_ns)
        activate(self.recorder)

    def claim(self) -> bool:
        """Tell whether the iterator that was just made is the worker's: its thread's first one."""
        if self._claimed or threading.get_ident() != self._thread:
            return False
        self._claimed = True
        return True

    def take(self, take: Callable[[], Any]) -> Any:
        """Return the next element, and record how it is made."""
        spec, recorder = self._spec, self.recorder
        element = self._number * spec.n_workers + spec.place
        batch = element // spec.per_batch if spec.first_batch >= 0 else -1
        self._batch = spec.first_batch + batch if 0 <= batch < spec.n_batches else -1
        begun_ns = now_ns()
        if self._due_ns < 0:  # what the user's own function did at the start is in here
            recorder.emit(Kind.STARTUP, self._opened_ns, begun_ns)
            self._due_ns = self._opened_ns
        recorder.emit(Kind.SUBMIT_QUEUE, self._due_ns, begun_ns, -1, -1, self._batch, spec.epoch)
        recorder.position(self._batch, spec.epoch, element if spec.per_batch > 1 else -1)
        lane = recorder.lane()
        n_before = lane.n_written
        found, sums = begin_pending(), begin_element(recorder, alone=spec.alone)
        try:
            return take()
        finally:
            end_element()
            if sums is not None:
                sums.write(self._batch, spec.epoch)
            count_own(recorder, lane.n_written - n_before)
            found.place(self._batch, spec.epoch)

    def copy(self, element: Any, *args: Any, **kwargs: Any) -> Any:
        """Do what grain does to hand an element on, and record it."""
        start_ns = now_ns()
        copied = self._copy(element, *args, **kwargs)
        self.recorder.emit(
            Kind.SERIALISE, start_ns, now_ns(), handed_on_nbytes(element), -1, self._batch,
            self._spec.epoch,
        )  # fmt: skip
        return copied

    def put(self, item: Any, queue: Any, *args: Any, **kwargs: Any) -> Any:
        """Put an element into the queue, with what it is; note whether there was room for it."""
        if type(item) is not tuple or type(item[0]).__name__ == "_SetStateIsDone" or any(item[3:]):
            return self._put(item, queue, *args, **kwargs)
        told = Arrival(self._spec.worker, self._number, self._batch)
        self._look()
        was_full, start_ns = queue.full(), now_ns()
        done = self._put((_Sent(item[0], told), *item[1:]), queue, *args, **kwargs)
        self._due_ns = now_ns() if was_full else start_ns
        self._number += 1
        return done

    def _look(self) -> None:
        """Record what was read since the last look; of short elements, several have one."""
        at_ns = now_ns()
        if at_ns >= self._io_due_ns:
            self._io_due_ns = at_ns + IO_EVERY_NS
            self._io.emit(self.recorder, self._batch, self._spec.epoch)


class _Sent:
    """An element on its way to the training process, where it arrives as it was."""

    __slots__ = ("_element", "_told")

    def __init__(self, element: Any, told: Arrival) -> None:
        self._element = element
        self._told = told

    def __reduce__(self) -> tuple[Any, ...]:
        return receive, (self._element, tuple(self._told))
