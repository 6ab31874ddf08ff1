"""The queues between the training process and torch's workers: what passes is stamped on its way.

They are torch's own queues, of a class that adds to a batch for the way alone: whoever puts and
gets sees what the user's code made. Pickling happens in a thread of its own, unpickling where a
batch is taken out.
"""

from __future__ import annotations

import multiprocessing.queues
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import get_worker_info

from iobench.recording.clocks import SYSTEM_CLOCK, now_ns
from iobench.torch import worker_side

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.torch.observation import WorkersObservation

cpu_ns: Final = SYSTEM_CLOCK.cpu_ns


class TravelQueue(multiprocessing.queues.Queue):  # type: ignore[type-arg]
    """Carries the indices of batches to a worker, or batches to the training process.

    torch sends pairs of a task's number and something; with what we tell beside, they are three.
    Plain tuples: an object of a class of ours takes longer to pickle than all the rest of it.
    """

    log: WorkersObservation | None = None
    arrival: _Arrival | None = None

    def put(self, obj: Any, *args: Any, **kwargs: Any) -> None:
        """Put a task with its tag; in a worker a batch, at the end of making it."""
        if type(obj) is tuple and len(obj) == 2 and type(obj[0]) is int:
            worker, log = worker_side.worker, self.log
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
                worker = worker_side.worker
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
