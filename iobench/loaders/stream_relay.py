"""A stage of a running stream, in threads of its own, with a bounded queue behind it.

Nothing polls: whoever waits is woken when there is an item, when there is room, or when the stream
is closed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from iobench.loaders.ring.ring_run import LISTENING_S
from iobench.loaders.stream_ends import Parcel, StreamEnded, close_items
from iobench.loaders.stream_log import CONSUMER, NOTHING

if TYPE_CHECKING:
    from iobench.datasets.own_pipelines import StreamStage
    from iobench.loaders.stream_ends import Numbering, StreamPart
    from iobench.loaders.stream_log import ThreadLog, Work


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
                self._some.wait(LISTENING_S)
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
            close_items(several)
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
