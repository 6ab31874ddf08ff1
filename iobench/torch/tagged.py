"""What travels between the consumer and torch's workers, and stamps its own way as it does.

PyTorch pickles a list of indices into a worker's queue and a batch out of it; both carry objects
here whose pickling and unpickling records a span where it runs (exposure of every edge without
patching PyTorch).
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from iobench.recording import SYSTEM_CLOCK, Flag, Kind, active_recorder, now_ns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.errors import IobenchError
    from iobench.loaders.contract import PlannedBatch
    from iobench.recording import Recorder

__all__ = ["Arrivals", "Tag", "TaggedBatch", "TaggedIndices"]

_numbers: Final = itertools.count()
_arrivals: Final[WeakValueDictionary[int, Arrivals]] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Tag:
    """Which batch something belongs to, and when its indices were submitted."""

    batch: int
    epoch: int
    submitted_ns: int


class TaggedIndices(list[int]):
    """The sample numbers of one batch; unpickled in a worker, records how long they queued."""

    def __init__(self, samples: Iterable[int], tag: Tag) -> None:
        super().__init__(samples)
        self.tag = tag

    def __reduce__(self) -> tuple[Any, ...]:
        return _dequeued, (tuple(self), self.tag)


def _dequeued(samples: tuple[int, ...], tag: Tag) -> TaggedIndices:
    dequeued_ns = now_ns()
    recorder = active_recorder()
    if recorder is not None:
        recorder.emit(
            Kind.SUBMIT_QUEUE, tag.submitted_ns, dequeued_ns, batch=tag.batch, epoch=tag.epoch
        )
    return TaggedIndices(samples, tag)


class Arrivals:
    """The consumer's side of one loader: where arriving batches are recorded.

    Attributes
    ----------
    number : int
        Finds this object again when a batch is unpickled; unique in the consumer.
    recorder : Recorder
        The consumer's.
    waited : PlannedBatch or None
        The batch the consumer's thread waits for.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.number = next(_numbers)
        self.recorder = recorder
        self.waited: PlannedBatch | None = None
        self._thread = 0
        _arrivals[self.number] = self

    def wait_for(self, planned: PlannedBatch | None) -> None:
        """Note which batch the calling thread, the consumer, waits for from now on."""
        self.waited = planned
        self._thread = threading.get_ident()

    def arrived(self, batch: TaggedBatch, start_ns: int, cpu_ns: int) -> None:
        """Record the unpickling that began at these times.

        A batch unpickled by the consumer while it waits for another one is in that one's way;
        the time counts there, and as a detail with its own batch.
        """
        clock = self.recorder.clock
        spent_ns, end_ns = clock.cpu_ns() - cpu_ns, clock.now_ns()
        waited, flags = self.waited, Flag(0)
        in_the_way = waited is not None and waited.batch != batch.tag.batch
        if waited is not None and in_the_way and threading.get_ident() == self._thread:
            self.recorder.emit(
                Kind.HEAD_OF_LINE, start_ns, end_ns, batch.nbytes, spent_ns,
                waited.batch, waited.epoch,
            )  # fmt: skip
            flags = Flag.DETAIL
        self.recorder.emit(
            Kind.UNPICKLE, start_ns, end_ns, batch.nbytes, spent_ns,
            batch.tag.batch, batch.tag.epoch, flags=flags,
        )  # fmt: skip


class TaggedBatch:
    """A batch of tensors, or what went wrong instead; pickling and pinning it is recorded.

    Parameters
    ----------
    tensors : dict of str to torch.Tensor
        The batch as torch's own collate made it; sent through shared memory as torch does.
    tag : Tag
        Which batch.
    worker : int
        Who made it, -1 for the consumer.
    arrivals : int
        Number of the `Arrivals` in the consumer.
    failure : IobenchError or None
        Why there are no tensors.
    """

    def __init__(
        self,
        tensors: dict[str, Any],
        tag: Tag,
        *,
        worker: int,
        arrivals: int,
        failure: IobenchError | None = None,
    ) -> None:
        self.tensors = tensors
        self.tag = tag
        self.worker = worker
        self.arrivals = arrivals
        self.failure = failure

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def pin_memory(self) -> TaggedBatch:
        """Return the batch in page-locked memory; torch's pin thread calls this."""
        arrivals = _arrivals.get(self.arrivals)
        start_ns = now_ns()
        pinned = {name: tensor.pin_memory() for name, tensor in self.tensors.items()}
        if arrivals is not None:
            arrivals.recorder.emit(
                Kind.PIN, start_ns, now_ns(), self.nbytes,
                batch=self.tag.batch, epoch=self.tag.epoch,
            )  # fmt: skip
        return TaggedBatch(
            pinned, self.tag, worker=self.worker, arrivals=self.arrivals, failure=self.failure
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled in order: the first argument stamps the start on both sides, the last one the
        # end of serialising; the call to _arrived is the end of unpickling.
        start = _Start()
        tensors = {**self.tensors}
        end = _End(self, start)
        return _arrived, (
            start, tensors, self.tag, self.worker, self.arrivals, self.failure, end,
        )  # fmt: skip


class _Start:
    """Stamps when it was made, and in the other process when it was unpickled."""

    def __init__(self) -> None:
        self.start_ns = now_ns()
        self.cpu_ns = SYSTEM_CLOCK.cpu_ns()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Start, ()


class _End:
    """Records, when it is pickled, that all before it has been."""

    def __init__(self, batch: TaggedBatch, start: _Start) -> None:
        self._batch = batch
        self._start = start

    def __reduce__(self) -> tuple[Any, ...]:
        recorder = active_recorder()
        if recorder is not None:
            spent_ns = SYSTEM_CLOCK.cpu_ns() - self._start.cpu_ns
            tag = self._batch.tag
            recorder.emit(
                Kind.SERIALISE, self._start.start_ns, now_ns(), self._batch.nbytes, spent_ns,
                tag.batch, tag.epoch,
            )  # fmt: skip
        return _nothing, ()


def _nothing() -> None:
    return None


def _arrived(
    start: _Start,
    tensors: dict[str, Any],
    tag: Tag,
    worker: int,
    number: int,
    failure: IobenchError | None,
    end: None,
) -> TaggedBatch:
    batch = TaggedBatch(tensors, tag, worker=worker, arrivals=number, failure=failure)
    arrivals = _arrivals.get(number)
    if arrivals is not None:
        arrivals.arrived(batch, start.start_ns, start.cpu_ns)
    return batch
