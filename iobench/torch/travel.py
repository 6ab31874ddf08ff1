"""The queues between the training process and torch's workers: what passes is stamped on its way.

They are torch's own queues, of a class that wraps a batch for the way alone: whoever puts and gets
sees what the user's code made. Pickling happens in a thread of its own, unpickling where a batch
is taken out.
"""

from __future__ import annotations

import multiprocessing.queues
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.data import get_worker_info

from iobench.recording import SYSTEM_CLOCK, Kind, now_ns
from iobench.torch import worker_side

if TYPE_CHECKING:
    from iobench.torch.making import BatchTag

__all__ = ["Arrived", "ObservedContext", "Sent", "TravelLog", "TravelQueue"]


class TravelLog(Protocol):
    """The training process's side: what it wants to know of things that pass."""

    def submitted(self, number: int) -> BatchTag | None:
        """Return the tag of the indices submitted as this task; None to leave them alone."""
        ...

    def taking(self) -> None:
        """Note that the calling thread asks for what has arrived."""
        ...

    def arrived(self, number: int, batch: Arrived) -> None:
        """Note a batch, unpickled just now by the calling thread."""
        ...


class TravelQueue(multiprocessing.queues.Queue):  # type: ignore[type-arg]
    """Carries the indices of batches to a worker, or batches to the training process."""

    log: TravelLog | None = None

    def put(self, obj: Any, *args: Any, **kwargs: Any) -> None:
        """Put a task with its tag; in a worker a batch, at the end of making it."""
        if _is_task(obj):
            worker, log = worker_side.worker, self.log
            if worker is not None:
                obj = (obj[0], worker.made(obj[1]))
            elif log is not None and get_worker_info() is None:
                tag = log.submitted(obj[0])
                if tag is not None:
                    obj = (obj[0], _Submitted(obj[1], tag))
        super().put(obj, *args, **kwargs)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Take out what has arrived, as it was put."""
        log = self.log
        if log is None or get_worker_info() is not None:
            return super().get(*args, **kwargs)
        log.taking()
        item = super().get(*args, **kwargs)
        if type(item) is tuple and len(item) == 2 and type(item[1]) is Arrived:
            number, batch = item
            log.arrived(number, batch)
            return number, batch.made
        return item


def _is_task(item: Any) -> bool:
    return type(item) is tuple and len(item) == 2 and type(item[0]) is int


class ObservedContext:
    """A multiprocessing context whose queues are ours; all else is the user's context.

    Attributes
    ----------
    foreign : bool
        Whether it made a queue of a class that cannot be observed.
    """

    def __init__(self, context: Any, log: TravelLog) -> None:
        self._context = context
        self._log = log
        self.foreign = False

    def Queue(self, *args: Any, **kwargs: Any) -> Any:
        """Return a queue of the context, observed."""
        queue: Any = self._context.Queue(*args, **kwargs)
        if type(queue) is not multiprocessing.queues.Queue:
            self.foreign = True
            return queue
        queue.__class__ = TravelQueue
        queue.__dict__["log"] = self._log
        return queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class _Submitted:
    """The indices of a batch; arrives in a worker as the plain indices."""

    def __init__(self, index: Any, tag: BatchTag) -> None:
        self._index = index
        self._tag = tag

    def __reduce__(self) -> tuple[Any, ...]:
        return _dequeued, (self._index, self._tag)


def _dequeued(index: Any, tag: BatchTag) -> Any:
    worker = worker_side.worker
    return index if worker is None else worker.begin(index, tag)


class Sent:
    """A batch on its way to the training process, where it arrives as an `Arrived`."""

    __slots__ = ("made", "nbytes", "tag", "worker")

    def __init__(self, made: Any, tag: BatchTag, nbytes: int, worker: int) -> None:
        self.made = made
        self.tag = tag
        self.nbytes = nbytes
        self.worker = worker

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled in order: the first argument stamps the start on both sides, the last one the
        # end of serialising.
        start = _Begin()
        told = (self.tag, self.nbytes, self.worker)
        return Arrived, (start, self.made, *told, _Finish(start, *told))


class Arrived:
    """A batch as it was unpickled, and when that began (``start_ns``, ``cpu_ns``)."""

    __slots__ = ("cpu_ns", "made", "nbytes", "start_ns", "tag", "worker")

    def __init__(
        self, start: _Begin, made: Any, tag: BatchTag, nbytes: int, worker: int, _: None
    ) -> None:
        self.start_ns, self.cpu_ns = start.start_ns, start.cpu_ns
        self.made = made
        self.tag = tag
        self.nbytes = nbytes
        self.worker = worker


class _Begin:
    """Stamps when it was made, and in the other process when it was unpickled."""

    def __init__(self) -> None:
        self.start_ns = now_ns()
        self.cpu_ns = SYSTEM_CLOCK.cpu_ns()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Begin, ()


class _Finish:
    """Records, when it is pickled, that all before it has been."""

    def __init__(self, start: _Begin, tag: BatchTag, nbytes: int, worker: int) -> None:
        self._start = start
        self._tag = tag
        self._nbytes = nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        worker = worker_side.worker
        if worker is not None:
            spent_ns = SYSTEM_CLOCK.cpu_ns() - self._start.cpu_ns
            worker.recorder.emit(
                Kind.SERIALISE, self._start.start_ns, now_ns(), self._nbytes, spent_ns,
                self._tag.batch, self._tag.epoch,
            )  # fmt: skip
        return _nothing, ()


def _nothing() -> None:
    return None
