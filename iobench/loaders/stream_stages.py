"""The parts of a running stream: the source of items, stages in threads, the maker of batches.

Each part is asked by the next one (``take``), by one thread at a time. Nothing polls: whoever
waits is woken when there is an item, when there is room, or when the stream is closed.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from iobench.errors import SampleError, WorkerError
from iobench.loaders.stream_log import CONSUMER, NOTHING, StreamPlace, Work
from iobench.recording import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Stream, StreamStage
    from iobench.loaders.stream_log import ThreadLog
    from iobench.samples import Sample

__all__ = ["Batcher", "Numbering", "Parcel", "Relay", "StreamEnded", "StreamPart", "StreamSource"]

COLLATE: Final = Work(Kind.COLLATE, "", "collate")


class StreamEnded(Exception):
    """The stream was closed while a thread waited in it."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """An item on its way, or with ``NOTHING`` in it the end of a pass."""

    value: Any
    place: StreamPlace


class StreamPart(Protocol):
    """Something that hands out items in order."""

    def take(self, log: ThreadLog) -> Parcel:
        """Return the next item, made by the calling thread or by others.

        Raises
        ------
        IobenchError
            What the making of the item ended in, again each time.
        StreamEnded
            If the stream was closed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Numbering:
    """Which batch needs an arriving sample first: known before the sample is made.

    Output ``o`` of a pass can leave when ``o + shuffle`` samples have arrived, or all of the pass.

    Parameters
    ----------
    first : int
        Number of the stream's first batch.
    batch_size : int
    shuffle : int
        Samples the shuffle buffer is filled to before each draw.
    batched : bool
        Whether batches arrive instead of samples.
    """

    first: int
    batch_size: int
    shuffle: int
    batched: bool

    def n_arrivals(self, n_samples: int) -> int:
        """Return how many samples, or batches where these arrive, so many samples are."""
        return -(-n_samples // self.batch_size) if self.batched else n_samples

    def place(self, epoch: int, item: int, arrival: int, before: int) -> StreamPlace:
        """Return where an arrival is, and which batch needs it."""
        output = before + max(arrival - max(self.shuffle - 1, 0), 0)
        batch = self.first + (output if self.batched else output // self.batch_size)
        return StreamPlace(epoch, item, arrival, batch, before)

    def later(self, place: StreamPlace, n: int) -> StreamPlace:
        """Return the place of the n-th arrival that an item spreads to."""
        return self.place(place.epoch, place.item, place.arrival + n, place.before)


class StreamSource:
    """The stream's items, pass after pass, counted; each pass ends with a parcel of nothing."""

    def __init__(self, stream: Stream, numbering: Numbering, makes: Work | None) -> None:
        self._stream = stream
        self._numbering = numbering
        self._makes = makes
        self._iterator: Iterator[Any] | None = None
        self._epoch = self._item = self._n_samples = self._arrival = self._before = 0

    def take(self, log: ThreadLog) -> Parcel:
        """Return the next item, or the end of the pass."""
        place = self._numbering.place(self._epoch, self._item, self._arrival, self._before)
        value = log.run(self._makes, place, self._pull, None)
        if value is NOTHING:
            self._end_pass()
            return Parcel(NOTHING, place)
        n_samples = log.run(None, place, self._stream.n_samples, value)
        self._item += 1
        self._n_samples += n_samples
        self._arrival += self._numbering.n_arrivals(n_samples)
        return Parcel(value, place)

    def _pull(self, _: None) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._stream.items(self._epoch))
        return next(self._iterator, NOTHING)

    def _end_pass(self) -> None:
        if not self._n_samples:
            raise WorkerError(
                f"pass {self._epoch} of the stream has no sample ({self._item} items): nothing to "
                "load; see what its items are made from"
            )
        if self._n_samples != self._stream.n_samples_all:
            raise WorkerError(
                f"the items of pass {self._epoch} hold {self._n_samples} samples, expected "
                f"{self._stream.n_samples_all}: correct n_samples or n_samples_all of the stream"
            )
        self._iterator = None
        self._epoch += 1
        self._before += self._arrival
        self._item = self._n_samples = self._arrival = 0

    def close(self) -> None:
        """Close the items where they can be; nobody takes any more."""
        _close(self._iterator)
        self._iterator = None


class _Ticket:
    """What becomes of one item: parcels made of it so far, whether all are, what it failed with."""

    __slots__ = ("done", "error", "parcels")

    def __init__(self) -> None:
        self.parcels: deque[Parcel] = deque()
        self.done = False
        self.error: BaseException | None = None


class Relay:
    """One stage in threads of its own: takes items in order, hands on what they become in order.

    A thread begins while fewer than ``ahead`` finished items lie ready, and the oldest item's
    thread goes on while nothing of it does, or several threads could wait for each other.

    Parameters
    ----------
    upstream : StreamPart
        Asked for items.
    stage : StreamStage or None
        What is done to them; None for nothing, where all work is the upstream part's.
    work : Work or None
        The sort of work of the stage.
    ahead : int
        Finished items kept ready, at least 1.
    numbering : Numbering
        For the parts of an item that spreads.
    """

    def __init__(
        self,
        upstream: StreamPart,
        stage: StreamStage | None,
        work: Work | None,
        ahead: int,
        numbering: Numbering,
    ) -> None:
        self._upstream = upstream
        self._stage = stage
        self._work = work
        self._ahead = ahead
        self._numbering = numbering
        self._lock = threading.Lock()
        self._some = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._tickets: deque[_Ticket] = deque()
        self._n_ready = 0
        self._closed = False
        self._release = (0, CONSUMER)
        self._feeder = CONSUMER
        # Held while one thread takes: that is what keeps the order.
        self._intake = threading.Lock()
        self._intake_release = (0, CONSUMER)
        self._over = False

    def take(self, log: ThreadLog) -> Parcel:
        """Return the next finished item; wait for it if there is none."""
        with self._lock:
            waited = False
            while not self._closed:
                ticket = self._tickets[0] if self._tickets else None
                if ticket is not None and ticket.parcels:
                    if waited:
                        log.fed(self._feeder)
                    return self._pop(ticket, log)
                if ticket is not None and ticket.error is not None:
                    raise ticket.error
                if not waited:
                    log.flush()
                    waited = True
                self._some.wait()
        raise StreamEnded

    def _pop(self, ticket: _Ticket, log: ThreadLog) -> Parcel:
        parcel = ticket.parcels.popleft()
        self._n_ready -= 1
        self._drop_done()
        self._release = (log.now_ns(), log.cause)
        self._room.notify_all()
        return parcel

    def _drop_done(self) -> None:
        while self._tickets and self._tickets[0].done and not self._tickets[0].parcels:
            self._tickets.popleft()

    def close(self) -> None:
        """Wake every thread that waits here; from now on all of them find the stream ended."""
        with self._lock:
            self._closed = True
            self._some.notify_all()
            self._room.notify_all()

    def work(self, log: ThreadLog) -> None:
        """Do the stage's work until the stream is closed or fails; what a thread runs."""
        while (taken := self._begin(log)) is not None:
            ticket, parcel = taken
            del taken
            try:
                self._make(ticket, parcel, log)
            except BaseException as error:  # noqa: BLE001 - a thread that just ended would hang others
                self._fail(ticket, error)
                return
            del parcel  # or its memory would be held while the thread waits

    def _begin(self, log: ThreadLog) -> tuple[_Ticket, Parcel] | None:
        ticket = _Ticket()
        self._enter(log)
        try:
            if self._over:
                return None
            self._await_room(None, log)
            with self._lock:
                self._tickets.append(ticket)
            return ticket, self._upstream.take(log)
        except BaseException as error:  # noqa: BLE001 - as in work
            self._over = True
            self._fail(ticket, error)
            return None
        finally:
            self._leave(log)

    def _enter(self, log: ThreadLog) -> None:
        if not self._intake.acquire(blocking=False):
            log.flush()
            self._intake.acquire()
            if self._intake_release[0]:
                log.held(self._intake_release)

    def _leave(self, log: ThreadLog) -> None:
        self._intake_release = (log.now_ns(), log.cause)
        self._intake.release()

    def _await_room(self, ticket: _Ticket | None, log: ThreadLog) -> None:
        with self._lock:
            held = False
            while not self._closed and not self._has_room(ticket):
                if not held:
                    log.flush()
                    held = True
                self._room.wait()
            if self._closed:
                raise StreamEnded
            if held:
                log.held(self._release)

    def _has_room(self, ticket: _Ticket | None) -> bool:
        if self._n_ready < self._ahead:
            return True
        return ticket is not None and ticket is self._tickets[0] and not ticket.parcels

    def _make(self, ticket: _Ticket, parcel: Parcel, log: ThreadLog) -> None:
        stage = self._stage
        if stage is None or parcel.value is NOTHING:
            self._hand_on(ticket, parcel, log, done=True)
        elif stage.spreads:
            self._spread(stage, ticket, parcel, log)
        else:
            value = log.run(self._work, parcel.place, stage.run, parcel.value)
            self._hand_on(ticket, Parcel(value, parcel.place), log, done=True)

    def _spread(self, stage: StreamStage, ticket: _Ticket, parcel: Parcel, log: ThreadLog) -> None:
        """Make the first of several with the call itself, the others one by one."""
        several: Iterator[Any] | None = None

        def pull(_: None) -> Any:
            nonlocal several
            if several is None:
                several = iter(stage.run(parcel.value))
            return next(several, NOTHING)

        try:
            place, n = parcel.place, 0
            while (value := log.run(self._work, place, pull, None)) is not NOTHING:
                self._hand_on(ticket, Parcel(value, place), log, done=False)
                del value
                n += 1
                place = self._numbering.later(parcel.place, n)
                self._await_room(ticket, log)
        finally:
            _close(several)
        self._hand_on(ticket, None, log, done=True)

    def _hand_on(
        self, ticket: _Ticket, parcel: Parcel | None, log: ThreadLog, *, done: bool
    ) -> None:
        with self._lock:
            self._feeder = log.name
            if parcel is not None:
                ticket.parcels.append(parcel)
                self._n_ready += 1
            ticket.done = done
            self._wake()

    def _fail(self, ticket: _Ticket, error: BaseException) -> None:
        with self._lock:
            ticket.error = error
            if ticket not in self._tickets:
                self._tickets.append(ticket)
            self._wake()

    def _wake(self) -> None:
        """Wake whoever waits: the oldest item may have something now, or be another one."""
        self._drop_done()
        self._some.notify_all()
        self._room.notify_all()


class Batcher:
    """Samples to batches, through the shuffle buffer; stacked by the thread that asks.

    The buffer is filled before each draw and drained at the end of a pass, so that every pass has
    each sample once; batches reach across passes.
    """

    def __init__(
        self, upstream: StreamPart, stream: Stream, numbering: Numbering, seed: int
    ) -> None:
        self._upstream = upstream
        self._spec = stream.spec
        self._numbering = numbering
        self._batched = stream.batched
        self._seed = seed
        self._next = numbering.first
        self._buffer: list[Parcel] = []
        self._arrived = 0
        self._draining = False
        self._epoch = 0
        self._random = random.Random(f"{seed}-0")

    def take(self, log: ThreadLog) -> Parcel:
        """Return the next batch."""
        if self._batched:
            parcel = self._arrival(log)
            while parcel.value is NOTHING:
                parcel = self._arrival(log)
            log.run(None, parcel.place, self._check_batch, parcel)
            return parcel
        drawn = [self._draw(log) for _ in range(self._numbering.batch_size)]
        first = drawn[0].place
        place = StreamPlace(first.epoch, first.item, -1, self._next, -1)
        self._next += 1
        return Parcel(log.run(COLLATE, place, self._stack, drawn), place)

    def _arrival(self, log: ThreadLog) -> Parcel:
        parcel = self._upstream.take(log)
        if parcel.value is not NOTHING:
            self._arrived += 1
        elif parcel.place.arrival != self._arrived:
            what = "batches" if self._batched else "samples"
            raise WorkerError(
                f"pass {parcel.place.epoch} of the stream made {self._arrived} {what}, its items "
                f"were to become {parcel.place.arrival}: correct n_samples of the stream"
            )
        else:
            self._arrived = 0
        return parcel

    def _draw(self, log: ThreadLog) -> Parcel:
        buffer = self._buffer
        while True:
            while not self._draining and len(buffer) < max(self._numbering.shuffle, 1):
                parcel = self._arrival(log)
                if parcel.value is NOTHING:
                    self._draining = True
                    self._epoch = parcel.place.epoch + 1
                else:
                    buffer.append(parcel)
            if buffer:
                break
            self._draining = False
            self._random = random.Random(f"{self._seed}-{self._epoch}")
        chosen = self._random.randrange(len(buffer)) if len(buffer) > 1 else 0
        buffer[chosen], buffer[-1] = buffer[-1], buffer[chosen]
        return buffer.pop()

    def _stack(self, drawn: list[Parcel]) -> dict[str, NDArray[Any]]:
        samples: list[Sample] = []
        for parcel in drawn:
            where = f"sample {parcel.place.arrival} of pass {parcel.place.epoch}"
            self._spec.check(parcel.value, where=where)
            samples.append(parcel.value)
        arrays = {name: np.stack([sample[name] for sample in samples]) for name in self._spec.names}
        samples.clear()  # their memory is given back inside the stage
        drawn.clear()
        return arrays

    def _check_batch(self, parcel: Parcel) -> None:
        where = f"batch of item {parcel.place.item} of pass {parcel.place.epoch}"
        sizes = {len(array) if array.ndim else 0 for array in parcel.value.values()}
        if len(sizes) != 1 or not 0 < sizes.pop() <= self._numbering.batch_size:
            raise SampleError(
                f"{where}: expected arrays of 1 to {self._numbering.batch_size} samples, all alike"
            )
        self._spec.check({name: array[0] for name, array in parcel.value.items()}, where=where)


def _close(items: Iterator[Any] | None) -> None:
    """Let a generator end what it holds open; other iterators hold nothing."""
    if isinstance(items, Generator):
        items.close()
