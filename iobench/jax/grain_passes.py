"""What is recorded of a pass over a pipeline of grain: its waits, and who made its batches."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from iobench.jax import device_puts
from iobench.jax.elements import begin_element, begin_pending, count_own, end_element, set_pace
from iobench.jax.grain_pipelines import n_elements_at_most, read_shape
from iobench.jax.grain_worker import GrainWorkerSpec, WorkerStart
from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.pass_names import frames_above, role_by_name
from iobench.samples import handed_on_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.jax.elements import Arrival, Pending
    from iobench.jax.grain_pipelines import PipelineShape
    from iobench.recording.facts import LoaderFacts
    from iobench.recording.session import Recording

MOST_BATCHES: Final = 1 << 20
"""Of a pass that may go on without end, so many have numbers that its workers know."""
MOVED: Final = "the state of a pass was set while its workers went on"
MIXED: Final = "workers: which of their elements make a batch was counted, and not so in the end"
BEYOND: Final = f"workers: what they do for a pass's batches after the first {MOST_BATCHES:,}"

_lock: Final = threading.Lock()
_known: Final[dict[int, tuple[weakref.ref[Any], _KnownPipeline]]] = {}
_passes: Final[dict[int, list[weakref.ref[GrainPass]]]] = {}
"""By the dataset of a worker, the passes that may start it; the newest last."""


class _KnownPipeline:
    """A pipeline that was asked for batches in a recording."""

    __slots__ = ("facts", "n_passes", "recording", "shape")

    def __init__(self, recording: Recording, dataset: Any) -> None:
        self.recording = recording
        self.shape = shape = read_shape(dataset)
        self.n_passes = 0
        kind = type(dataset)
        self.facts: LoaderFacts = recording.add_loader(
            "grain",
            f"{kind.__module__}.{kind.__qualname__}",
            shape.source,
            workers=shape.workers,
            prefetch=shape.prefetch,
            threads=shape.threads,
            batch_size=shape.batch_size,
            start_method="spawn" if shape.workers else "",
            unreplayed=shape.unreplayed,
            unseen=[*shape.unseen],
        )


def _known_pipeline(recording: Recording, dataset: Any) -> _KnownPipeline:
    number = id(dataset)
    entry = _known.get(number)
    if entry is not None and entry[0]() is dataset and entry[1].recording is recording:
        return entry[1]
    known = _KnownPipeline(recording, dataset)
    _known[number] = (weakref.ref(dataset, lambda _: _known.pop(number, None)), known)
    return known


class GrainPass:
    """Records one pass; made as its iterator is asked for, and begun with its first batch.

    grain makes iterators for its own use, too: those that nobody asks for a batch are no passes.

    Parameters
    ----------
    dataset : object
        The ``DataLoader``, ``IterDataset`` or ``MapDataset`` of the script.
    asked_ns, started_ns : int
        When its iterator was asked for, and was there.
    """

    def __init__(self, recording: Recording, dataset: Any, asked_ns: int, started_ns: int) -> None:
        self.recording = recording
        self._dataset = dataset
        self._times_ns = asked_ns, started_ns
        self._known: _KnownPipeline | None = None
        self._log: DeliveryLog | None = None
        self._resumed = self._misfits = False
        self._first_batch, self._n_batches, self._last_number = -1, 0, -1
        self._turn = self._n_batches_had = 0
        self._n_moved = device_puts.n_moved()
        self._started: dict[int, int] = {}

    @property
    def live(self) -> bool:
        """Whether its recording goes on."""
        return not self.recording.closed

    @property
    def is_inner(self) -> bool:
        """Whether the calling thread waits for another loader, whose work this is."""
        outer = getattr(self.recording.waiting, "log", None)
        return outer is not None and not outer.yields

    # -- the loop -------------------------------------------------------------------------

    def begin(self, iterator: Any) -> DeliveryLog:
        """Begin the pass, now that something is asked of it. Idempotent."""
        if self._log is not None:
            return self._log
        recording = self.recording
        known = self._known = _known_pipeline(recording, self._dataset)
        if not known.n_passes:
            set_pace(recording.detail, recording.facts.unit_costs)
        log = self._log = DeliveryLog(recording, known.facts, epoch=known.n_passes)
        known.n_passes += 1
        frames = frames_above()
        log.role = log.role or role_by_name(self._dataset, frames) or role_by_name(iterator, frames)
        log.resumed = self._resumed
        log.began(*self._times_ns)
        shape = known.shape
        if shape.shards:
            self._reserve(shape)
            self._turn = _turn_of(iterator)
            reference = weakref.ref(self)
            with _lock:
                for each in shape.shards:
                    found = [ref for ref in _passes.get(id(each), ()) if ref() is not None]
                    _passes[id(each)] = [*found, reference]
        weakref.finalize(iterator, self.leave).atexit = False
        return log

    def _reserve(self, shape: PipelineShape) -> None:
        if not shape.per_batch:
            return
        # Workers that are started again leave out what those before were ahead.
        most = n_elements_at_most(shape.shards[0]) // shape.per_batch + 1
        self._n_batches = min(most + 8 * shape.workers * (shape.prefetch + 1), MOST_BATCHES)
        self._first_batch = self.recording.reserve_batches(self._n_batches)

    def begun(self, iterator: Any) -> DeliveryLog | None:
        """Begin the pass unless it has; None where the pipeline has another shape than is known."""
        if self._misfits:
            return None
        try:
            return self.begin(iterator)
        except Exception as error:  # noqa: BLE001 - a version of grain that is not known
            self._misfits = True
            self.recording.add_unseen(f"a pipeline of grain: {type(error).__name__}: {error}")
            return None

    def wait_for(self, iterator: Any, take: Callable[[], Any]) -> Any:
        """Return what the function returns, and record the wait for it."""
        recording = self.recording
        if recording.closed or self.is_inner:
            return take()
        log = self.begun(iterator)
        if log is None:
            return take()
        shape = self._shape
        number = -1 if shape.shards else recording.next_batch()
        log.ask(number)
        if not log.waits:
            return take()  # another loader's work
        recorder = recording.recorder
        lane = recorder.lane()
        found, mark, n_before = begin_pending(), lane.mark(), lane.n_written
        sums = begin_element(recorder, alone=shape.in_loop)
        lane.loading += 1
        try:
            data = take()
        except StopIteration:
            log.end()
            if self._n_batches_had and device_puts.moved_none(self._n_moved):
                self._tell_unseen(device_puts.UNTOLD)
            raise
        except BaseException:
            log.fail()
            raise
        finally:
            lane.loading -= 1
            end_element()
        nbytes = handed_on_nbytes(data)
        maker = "consumer" if shape.in_loop else "threads"
        spans = None
        if number < 0:
            spans = lane.since(mark)  # written while nobody knew the number
            number, maker = self._number_of(found.arrivals)
        log.deliver(number, nbytes=nbytes, maker=maker)
        self._n_batches_had += 1
        if sums is not None:
            sums.write(number, log.epoch)
        count_own(recorder, lane.n_written - n_before)
        if spans:
            found.spans += spans
        self._place(found, number, log.epoch)
        return data

    def _place(self, found: Pending, number: int, epoch: int) -> None:
        recorder = self.recording.recorder
        now_ns = recorder.clock.now_ns
        start_ns = now_ns()
        found.place(number, epoch)
        recorder.own_ns += now_ns() - start_ns

    @property
    def _shape(self) -> PipelineShape:
        assert self._known is not None
        return self._known.shape

    def _number_of(self, arrivals: Sequence[Arrival]) -> tuple[int, str]:
        """Return the number of the batch that these elements are, and who made it."""
        for each in arrivals:
            self._started[each.worker] = max(self._started.get(each.worker, 0), each.number + 1)
        numbers = {each.batch for each in arrivals}
        makers = {each.worker for each in arrivals}
        maker = f"worker-{makers.pop()}" if len(makers) == 1 else ""
        number = numbers.pop() if len(numbers) == 1 else -1
        if number < 0 or number == self._last_number:
            number = self.recording.next_batch()
            if self._shape.per_batch and arrivals:
                self._tell_unseen(MIXED if numbers else BEYOND)
        self._last_number = number
        return number, maker

    def _tell_unseen(self, what: str) -> None:
        facts = self._known.facts if self._known is not None else None
        if facts is not None and what not in facts.unseen:
            facts.unseen.append(what)
            self.recording.write_facts()

    def state_set(self) -> None:
        """Note that the script set the state of the iterator."""
        if self._log is None:
            self._resumed = True
        elif self._known is not None and self._known.shape.shards and self.live:
            self._known.facts.unreplayed = MOVED
            self.recording.write_facts()

    def leave(self) -> None:
        """Note that the iterator is gone. Idempotent."""
        if self._log is not None and self.live:
            self._log.leave()

    # -- its workers ----------------------------------------------------------------------

    def start_of(self, shard: Any, then: Callable[[], None] | None) -> WorkerStart:
        """Return what a worker for this dataset begins with."""
        recording, shape = self.recording, self._shape
        worker = next(place for place, each in enumerate(shape.shards) if each is shard)
        first = self._started.get(worker, 0)
        if first:
            first += shape.prefetch * max(shape.per_batch or 1, 1)
        assert self._log is not None
        spec = GrainWorkerSpec(
            run=recording.run.path,
            rank=recording.job.rank,
            worker=worker,
            epoch=self._log.epoch,
            first_batch=self._first_batch,
            n_batches=self._n_batches,
            first=first,
            place=(worker - self._turn) % shape.workers,
            n_workers=shape.workers,
            per_batch=shape.per_batch or 1,
            started_ns=recording.clock.now_ns(),
            keep_nbytes=recording.keep_nbytes // 4 // shape.workers,
            alone=shape.in_workers,
            detail=recording.detail,
            unit_costs={**recording.facts.unit_costs},
        )
        return WorkerStart(spec, then)

    def worker_started(self, pid: int | None) -> None:
        """Note a worker process."""
        if pid is not None and self._known is not None:
            self._known.facts.worker_pids.append(pid)
            self.recording.write_facts()


def _turn_of(iterator: Any) -> int:
    """Return which worker is asked first: not the first one where a state was set."""
    for _ in range(1000):
        iterator = getattr(iterator, "_iterator", iterator)  # of a DataLoader
        turn = getattr(iterator, "_next_index_in_cycle", None)
        if isinstance(turn, int):
            return turn
        parents: Any = getattr(iterator, "_parents", ())
        if len(parents) != 1:
            break
        iterator = parents[0]
    return 0


def pass_of_worker(shard: Any) -> GrainPass | None:
    """Return the pass that a worker for this dataset is started for: the newest that goes on."""
    with _lock:
        for reference in reversed(_passes.get(id(shard), ())):
            found = reference()
            if found is not None and found.live:
                return found
    return None
