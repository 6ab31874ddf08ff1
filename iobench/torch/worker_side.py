"""A worker of an observed loader, as it sees itself, and the queues that lead there and back."""

from __future__ import annotations

import functools
import logging
import multiprocessing.queues
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info

from iobench.adapters.installed import install
from iobench.errors import IobenchError
from iobench.loaders.stage_timer import Detail
from iobench.recording.activation import activate, active_recorder
from iobench.recording.clocks import SYSTEM_CLOCK, now_ns
from iobench.recording.kinds import RETAINS, Kind
from iobench.recording.rotation import Rotation
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_file import Flag
from iobench.torch.batch_recorder import BatchRecorder, BatchTag, open_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from iobench.recording.recorder import Recorder
    from iobench.torch.observation import WorkersObservation

logger = logging.getLogger(__name__)

cpu_ns: Final = SYSTEM_CLOCK.cpu_ns

# After the queue's feeder thread has been joined (-5 in multiprocessing), since it records too.
CLOSE_PRIORITY: Final = -100
COLLECTIONS: Final = (dict, list, set, OrderedDict, defaultdict, deque)
MOST_NESTED: Final = 4  # datasets of datasets, as a Subset is one

worker: WorkerSide | None = None
"""Of this process, if it is a worker that records."""

# Frames that the user's code would not have around it without us, in a formatted traceback.
_OURS: Final = rf"{re.escape(str(Path(__file__).parents[1]))}[/\\](?:torch|adapters|recording)[/\\]"
_OWN_FRAME: Final = re.compile(
    rf'^([ |]*)  File "{_OURS}[^"\n]*", line \d+, in [^\n]*\n(?:\1    [^\n]*\n)*',
    re.MULTILINE,
)


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to know to record; picklable."""

    run: Path
    rank: int
    detail: str
    unit_costs: Mapping[str, int | None]
    batches: bool  # whether the loader makes batches of samples
    digests: bool
    started_ns: int
    keep_nbytes: int
    loop: Path | None  # the span file of the training loop, which says what of it is kept


class WorkerStarter:
    """Stands in for the user's ``worker_init_fn``: opens the worker's span file, then calls it."""

    def __init__(self, spec: WorkerSpec, then: Callable[[int], Any] | None) -> None:
        self._spec = spec
        self._then = then

    def __call__(self, number: int) -> None:
        """Record from now on; a run directory that is gone is a warning."""
        global worker
        activate(None)  # a fork has its parent's, and what is read here is not the user's
        try:
            worker = WorkerSide(self._spec, number)
        except IobenchError as error:
            logger.warning("worker-%d records nothing: %s", number, error)
        if self._then is not None:
            self._then(number)


class WorkerCollate:
    """Stands in for the user's ``collate_fn`` in the workers."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        """Call it, and record the call."""
        if worker is None:
            return self._collate(samples)
        return worker.maker.collate(self._collate, samples)


class WorkerSide:
    """The recording worker; one per process, in `worker`."""

    def __init__(self, spec: WorkerSpec, number: int) -> None:
        began_ns = now_ns()
        self.number = number
        self.recorder: Recorder = RunDirectory.open(spec.run).recorder(
            role="worker",
            worker=number,
            rank=spec.rank,
            rotation=Rotation(spec.keep_nbytes, spec.loop),
        )
        util.Finalize(None, self._close, exitpriority=CLOSE_PRIORITY)
        install(where="everywhere")
        info = get_worker_info()
        self.maker = BatchRecorder(
            self.recorder,
            None if info is None else info.dataset,
            batches=spec.batches,
            detail=Detail(spec.detail),
            unit_costs=spec.unit_costs,
            digests=open_digests(spec.digests, spec.run, spec.rank),
            worker=True,
        )
        self.maker.methods.__enter__()  # for the life of this process
        self._dataset = None if info is None else info.dataset
        self._n_held = _n_held_by(self._dataset)
        self._opened_ns = now_ns()
        self._waits_for_first = True
        self._taken_ns = self._opened_ns
        self.recorder.emit(Kind.STARTUP, spec.started_ns, self._opened_ns)
        activate(self.recorder)
        self.recorder.once_ns += now_ns() - began_ns

    def _close(self) -> None:
        self.maker.count_last_reads()
        if _n_held_by(self._dataset) > self._n_held:
            now_ns, label = self.recorder.clock.now_ns(), self.recorder.string(RETAINS)
            self.recorder.emit(Kind.OTHER, now_ns, now_ns, label=label, flags=Flag.DETAIL)
        self.recorder.close()

    def begin(self, index: Any, tag_values: tuple[int, int, int, bool]) -> Any:
        """Take up a batch that came out of the queue; return its index for the fetcher."""
        recorder, taken_ns = self.recorder, now_ns()
        tag = BatchTag(*tag_values)
        if self._waits_for_first:
            # What the user's own functions did at the start is in here.
            self._waits_for_first = False
            recorder.emit(Kind.STARTUP, self._opened_ns, taken_ns)
        recording = recorder if tag.is_recorded else None
        if active_recorder() is not recording:
            activate(recording)
        if tag.is_recorded:
            recorder.emit(Kind.SUBMIT_QUEUE, tag.submitted_ns, taken_ns, -1, -1, *tag[:2])
        self._taken_ns = taken_ns
        self.maker.theirs_ns = 0
        return self.maker.begin(tag, index)

    def finish(self, number: int, result: Any) -> tuple[Any, ...]:
        """End the batch of this task; return what is to travel."""
        if isinstance(result, ExceptionWrapper):
            result.exc_msg = without_own_frames(result.exc_msg)
        maker = self.maker
        nbytes, tag = maker.nbytes, maker.finish()
        if tag is None:
            return number, result
        sent = number, _Sent(result, self.recorder, nbytes, tag), nbytes
        self.recorder.own_ns += now_ns() - self._taken_ns - maker.theirs_ns
        return sent


class _Sent:
    """A batch on its way to the training process, where it arrives as a tuple of itself."""

    __slots__ = ("_batch", "_nbytes", "_recorder", "_tag")

    def __init__(self, batch: Any, recorder: Recorder, nbytes: int, tag: BatchTag) -> None:
        self._batch = batch
        self._recorder = recorder
        self._nbytes = nbytes
        self._tag = tag

    def __reduce__(self) -> tuple[Any, ...]:
        clock = self._recorder.clock
        return tuple, ((self._batch,),), None, self._no_more(clock.now_ns(), clock.cpu_ns())

    def _no_more(self, start_ns: int, start_cpu_ns: int) -> Iterator[None]:
        # Asked for last, when the batch itself has been pickled.
        recorder = self._recorder
        spent_ns, end_ns = recorder.clock.cpu_ns() - start_cpu_ns, recorder.clock.now_ns()
        recorder.emit(Kind.SERIALISE, start_ns, end_ns, self._nbytes, spent_ns, *self._tag[:2])
        recorder.own_ns += 2 * (recorder.clock.now_ns() - end_ns)  # with what led here
        yield from ()


def without_own_frames(text: str) -> str:
    """Return a formatted traceback without the frames of what records."""
    return _OWN_FRAME.sub("", text)


def _n_held_by(dataset: Any) -> int:
    """Return how many values collections and caches of a dataset, and those inside, hold."""
    n_held = 0
    for _ in range(MOST_NESTED):
        for value in (*getattr(dataset, "__dict__", {}).values(), *vars(type(dataset)).values()):
            if type(value) in COLLECTIONS:
                n_held += len(value)
            elif isinstance(value, functools._lru_cache_wrapper):
                n_held += value.cache_info().currsize
        dataset = getattr(dataset, "__dict__", {}).get("dataset")
    return n_held


# -- the queues between the training process and workers: what passes is stamped ---
#
# They are torch's own, of a class that adds to a batch for the way alone: whoever puts and gets
# sees what the user's code made. Pickling happens in a thread of its own, unpickling where a batch
# is taken out.


class TravelQueue(multiprocessing.queues.Queue):  # type: ignore[type-arg]
    """Carries tasks to a worker or batches back; with what we tell torch's pairs are threes."""

    log: WorkersObservation | None = None
    arrival: _Arrival | None = None

    def put(self, obj: Any, *args: Any, **kwargs: Any) -> None:
        """Put a task with its tag; in a worker a batch, at the end of making it."""
        if type(obj) is tuple and len(obj) == 2 and type(obj[0]) is int:
            log = self.log
            if worker is not None:
                obj = worker.finish(*obj)
            elif log is not None and get_worker_info() is None:
                entered_ns = now_ns()
                tag = log.submitted(obj[0])
                if tag is not None:
                    obj = (*obj, tuple(tag))
                log.spent(now_ns() - entered_ns)
        super().put(obj, *args, **kwargs)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Take out what has arrived, as it was put."""
        entered_ns, log, arrival = now_ns(), self.log, self.arrival
        if log is None or arrival is None or get_worker_info() is not None:
            item = super().get(*args, **kwargs)
            if type(item) is tuple and len(item) == 3:
                number, index, tag_values = item
                return number, index if worker is None else worker.begin(index, tag_values)
            return item
        log.taking()
        own_ns = now_ns() - entered_ns
        item = super().get(*args, **kwargs)
        taken_ns = now_ns()
        if type(item) is tuple and len(item) == 3:
            number, batch, nbytes = item
            log.arrived(number, nbytes, arrival.start_ns, arrival.cpu_ns)
            item = number, batch[0]
        log.spent(own_ns + now_ns() - taken_ns)
        return item


class _Arrival:
    """Stamps the moment between the arrival of bytes and their unpickling; of one queue."""

    __slots__ = ("_receive", "cpu_ns", "start_ns")

    def __init__(self, receive: Callable[[], Any]) -> None:
        self._receive = receive
        self.start_ns = self.cpu_ns = -1

    def receive(self) -> Any:
        """Return what the queue receives, and note when that was."""
        received = self._receive()
        self.start_ns, self.cpu_ns = now_ns(), cpu_ns()
        return received


class ObservedContext:
    """A multiprocessing context whose queues are ours; all else is the user's context."""

    def __init__(self, context: Any, log: WorkersObservation) -> None:
        self._context = context
        self._log = log
        self.foreign = False

    def Queue(self, *args: Any, **kwargs: Any) -> Any:
        """Return a queue of the context, observed."""
        queue: Any = self._context.Queue(*args, **kwargs)
        receive = getattr(queue, "_recv_bytes", None)
        if type(queue) is not multiprocessing.queues.Queue or receive is None:
            self.foreign = True
            return queue
        queue.__class__ = TravelQueue
        arrival = _Arrival(receive)
        # In this process only: a fork of it makes this attribute anew, and pickling leaves it out.
        queue.__dict__ |= {"log": self._log, "arrival": arrival, "_recv_bytes": arrival.receive}
        return queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
