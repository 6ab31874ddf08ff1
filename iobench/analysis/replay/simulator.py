"""One loader's pipeline, run again: who makes which batch when, and how long the loop waits.

A batch is dispatched when one ``ahead`` before it was taken, begun by a worker that is free, done
in its service time, handed over, and picked up by the training loop, which computes and asks again.
Where nothing is short, every time follows from earlier ones (`straight`). Where CPUs or storage
have a bound, reads and computing share them, and the pipeline goes from event to event (`shared`).
Both are the same where there is plenty.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

PAUSE, CPU, STORAGE = range(3)
MOST_ITEMS: Final = 8
"""Items that a batch of a stream is simulated as, at most: more tell little and take long."""
UNKNOWN: Final = -1.0


class StreamShape(msgspec.Struct, frozen=True):
    """How the threads of a stream hang together.

    Parameters
    ----------
    group : tuple of int
        By stage, the group of threads that does it; groups are in the order of the stream.
    threads : tuple of int
        Of each group.
    ahead : tuple of int
        Items that each group may have ready, before it waits for room.
    items : int
        What a batch is made of, and goes through the groups one by one.
    batches_apart : bool
        Whether the last group takes the items of a batch and hands on batches; else the training
        loop takes the items.
    """

    group: tuple[int, ...]
    threads: tuple[int, ...]
    ahead: tuple[int, ...]
    items: int
    batches_apart: bool


class Dispatch(msgspec.Struct, frozen=True):
    """How a loader hands batches to whoever makes them.

    Parameters
    ----------
    ahead : int
        Batches in flight at most; 0 where a batch is begun when the loop asks for it.
    is_queue : bool
        Whether whichever worker is free takes the next batch; else each batch has its worker.
    in_order : bool
        Whether batches are taken in the order of dispatch; else as they come, and who made the
        one that was taken gets the next.
    stream : StreamShape, optional
        What a worker gathers the items of its batches from.
    is_linked : bool
        Whether what is done beside is copying over one link, which takes one batch after another
        as they come, of all workers of a rank; else of each worker. Of `shared` alone.
    """

    workers: int
    ahead: int
    is_queue: bool = False
    in_order: bool = True
    stream: StreamShape | None = None
    is_linked: bool = False


@dataclass(slots=True)
class Batches:
    """What batches take, in ns: numbers, or rows with one for each rank.

    Parameters
    ----------
    service, beside : sequence
        By order of dispatch: what its worker spends on each, and another thread after that.
    submit, transit : sequence
        From its dispatch until a worker that is idle begins it; from its end to being ready.
    pickup, compute : sequence
        By order of delivery.
    worker : sequence of int
        Which makes it, where each batch has its own.
    items : sequence of sequence of int
        By group of a stream and batch, the time of its threads.
    """

    service: Sequence[Any]
    beside: Sequence[Any]
    submit: Sequence[Any]
    transit: Sequence[Any]
    pickup: Sequence[Any]
    compute: Sequence[Any]
    worker: Sequence[int]
    items: Sequence[Sequence[int]] = ()


@dataclass(slots=True)
class Times:
    """When things were, in ns from the start; numbers, or rows with one for each rank.

    Parameters
    ----------
    taken : list
        By order of delivery, when the loop held each batch.
    begun : list
        By order of dispatch, when the worker began each; only of rows of `straight`.
    making : list
        How long the worker was at each; only of `shared`.
    until : list
        When the loop, and that of all ranks, asked again after each; only of `shared`.
    """

    taken: list[Any] = field(default_factory=list)
    begun: list[Any] = field(default_factory=list)
    making: list[float] = field(default_factory=list)
    until: list[float] = field(default_factory=list)


def straight(
    how: Dispatch,
    batches: Batches,
    *,
    start_ns: Any = 0,
    first_ns: Any = 0,
    in_ranks: bool = False,
) -> Times:
    """Return the times of batches where nothing is short, exactly.

    Parameters
    ----------
    start_ns : int
        When workers begin.
    first_ns : int
        When the loop asks first.
    in_ranks : bool
        Of rows: whether all ask again when the slowest rank has ended its step.
    """
    if not how.in_order:
        return _as_they_come(how, batches, start_ns, first_ns)
    on_demand, ahead, is_queue = not how.ahead, how.ahead, how.is_queue
    free: Any = [start_ns] * how.workers
    sent = [start_ns] * how.workers
    ranks = np.arange(len(batches.pickup[0])) if in_ranks else None
    greatest: Callable[[Any, Any], Any] = max
    if ranks is not None:
        free, greatest = np.zeros((how.workers, len(ranks))), np.maximum
    line = None if how.stream is None else _Line(how.stream, batches.items, start_ns)
    times = Times()
    taken, asked = times.taken, first_ns
    for number, (service, beside, submit, transit, worker, pickup, compute) in enumerate(
        zip(
            batches.service,
            batches.beside,
            batches.submit,
            batches.transit,
            batches.worker,
            batches.pickup,
            batches.compute,
            strict=True,
        )
    ):
        if on_demand:
            begin = asked
        else:
            begin = (taken[number - ahead] if number >= ahead else start_ns) + submit
            if ranks is None:
                begin = greatest(begin, free[0 if is_queue else worker])
            else:
                worker = free.argmin(axis=0) if is_queue else worker
                begin = greatest(begin, free[worker, ranks])
        if line is not None:
            begin = line.gather(number, begin)
        end = begin + service
        if ranks is not None:
            times.begun.append(begin)
            free[worker, ranks] = end
        elif on_demand:
            end += beside
        elif is_queue:
            heapq.heapreplace(free, end)
            end += beside
        else:
            free[worker] = end
            if beside:
                end = sent[worker] = greatest(end, sent[worker]) + beside
        held = greatest(asked, end + transit) + pickup
        taken.append(held)
        asked = held + compute
        if in_ranks:
            asked = asked.max()
    return times


def _as_they_come(how: Dispatch, batches: Batches, start_ns: int, first_ns: int) -> Times:
    """Return the times where the loop takes whatever is ready first."""
    free, sent = [start_ns] * how.workers, [start_ns] * how.workers
    ready: list[tuple[int, int, int]] = []
    times = Times()
    asked, n_batches = first_ns, len(batches.pickup)

    def dispatch(batch: int, room: int, worker: int) -> None:
        end = free[worker] = (
            max(room + batches.submit[batch], free[worker]) + batches.service[batch]
        )
        if batches.beside[batch]:
            end = sent[worker] = max(end, sent[worker]) + batches.beside[batch]
        heapq.heappush(ready, (end + batches.transit[batch], batch, worker))

    for batch in range(min(how.ahead, n_batches)):
        dispatch(batch, start_ns, batch % how.workers)
    for number, (pickup, compute) in enumerate(zip(batches.pickup, batches.compute, strict=True)):
        there, _, worker = heapq.heappop(ready)
        held = max(asked, there) + pickup
        if number + how.ahead < n_batches:
            dispatch(number + how.ahead, held, worker)
        asked = held + compute
        times.taken.append(held)
    return times


class _Line:
    """The groups of a stream that hand on items, and how far each has come."""

    def __init__(self, shape: StreamShape, spent: Sequence[Sequence[int]], start_ns: int) -> None:
        n_groups = len(shape.threads) - shape.batches_apart
        self.items = min(shape.items, MOST_ITEMS)
        scale = self.items / shape.items
        self.ahead = [max(1, round(each * scale)) for each in shape.ahead[:n_groups]]
        self.free = [[start_ns] * max(each, 1) for each in shape.threads[:n_groups]]
        self.taken: list[list[int]] = [[] for _ in range(n_groups)]
        self.handed = [start_ns] * n_groups
        self.spent, self.start_ns = spent, start_ns

    def gather(self, batch: int, now: int) -> int:
        """Return when all items of a batch are taken, by one who takes them from now on."""
        parts = [each[batch] for each in self.spent[: len(self.free)]]
        for item in range(self.items):
            ready = self.start_ns
            for number, part in enumerate(parts):
                ready = self._item(number, part, item, ready)
            now = max(now, ready)
            if self.taken:
                self.taken[-1].append(now)
        return now

    def _item(self, number: int, part: int, item: int, ready: int) -> int:
        """Return when a group has handed on its next item, given when the one before had it."""
        count, ahead, free = len(self.taken[number]), self.ahead[number], self.free[number]
        begin = free[0]
        if count >= ahead:
            begin = max(begin, self.taken[number][count - ahead])
        take = max(begin, ready)
        if number:
            self.taken[number - 1].append(take)
        share = part // self.items + (part % self.items if item == self.items - 1 else 0)
        heapq.heapreplace(free, take + share)
        self.handed[number] = max(self.handed[number], take + share)
        return self.handed[number]


class Use(NamedTuple):
    """What is done next for a batch.

    Parameters
    ----------
    what : int
        ``PAUSE``, ``CPU`` or ``STORAGE``.
    amount : float
        How long that takes where nobody is in the way, in ns.
    rate : float
        Of the resource, that it takes alone: CPUs, or what storage gives in a ns.
    least_ns : float
        How long it takes at least, whatever the resource gives.
    after_ns : float
        How long its maker pauses then.
    """

    what: int
    amount: float
    rate: float = 1.0
    least_ns: float = 0.0
    after_ns: float = 0.0


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks share, in the units of `Use.rate`.

    Parameters
    ----------
    cpus, storage : float
        ``math.inf`` where there is no bound.
    loop_cpus : float or None
        CPUs that the compute of the training loop takes, which then picks batches up on one; None
        where it shares nothing.
    """

    cpus: float = math.inf
    storage: float = math.inf
    loop_cpus: float | None = None


def shared(
    how: Dispatch,
    batches: Batches,
    resources: Resources,
    *,
    n_ranks: int = 1,
    start_ns: float = 0.0,
    first_ns: float = 0.0,
) -> Times:
    """Return the times of batches where all ranks share resources.

    Processor sharing: at each moment all who use a resource are slowed down alike where together
    they would take more than there is. A step ends when the slowest rank has ended
    it.

    Parameters
    ----------
    how : Dispatch
        Of no stream.
    batches : Batches
        Step by step those of each rank; ``service`` and ``beside`` are of `Use`, all else numbers.
    start_ns, first_ns : float
        As of `straight`.

    Returns
    -------
    Times
        Of as many batches, ``until`` step by step.
    """
    job = _Job(how, batches, resources, n_ranks, start_ns)
    job.run(first_ns)
    return Times(job.taken, making=job.making, until=job.until)


class _Shared:
    """One resource and who uses it.

    Attributes
    ----------
    users : list
        A heap of how far each has to come, its key, its rate, and how it goes on.
    done, since_ns : float
        How far all of them had come at that moment.
    used, slowdown : float
        Of the resource; and how much slower all are for it.
    at_ns : float
        When the first of them has had what it asked for.
    """

    __slots__ = ("at_ns", "done", "limit", "since_ns", "slowdown", "used", "users")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.users: list[Any] = []
        self.used = self.since_ns = self.done = 0.0
        self.slowdown, self.at_ns = 1.0, math.inf

    def next_end(self) -> float:
        """Return when the first of its users has had what it asked for."""
        slowdown = self.used / self.limit
        self.slowdown = slowdown = slowdown if slowdown > 1.0 else 1.0
        left = self.users[0][0] - self.done
        return self.since_ns + left * slowdown if left > 0.0 else self.since_ns


class _Job:
    """All ranks of a job, from event to event; batches are numbered step by step, rank by rank.

    Attributes
    ----------
    begins : list
        A heap of what begins: when; its key, of which the lowest comes first at the same moment;
        its uses, one after another, and which is next; what follows then, and of which batch.
    """

    __slots__ = (
        "ahead", "asked_ns", "begins", "beside", "came", "compute", "cpus",
        "free", "in_order", "is_linked", "is_queue", "last_ns", "left", "loop_cpus",
        "made", "making", "n_batches", "n_idle", "n_ranks", "pickup", "ready",
        "sends", "service", "storage", "submit", "taken", "taker", "transit", "until", "waiting",
        "wanted", "worker", "workers",
    )  # fmt: skip

    def __init__(
        self,
        how: Dispatch,
        batches: Batches,
        resources: Resources,
        n_ranks: int,
        start_ns: float,
    ) -> None:
        n, workers = len(batches.pickup), how.workers
        self.n_ranks, self.n_batches = n_ranks, n
        self.ahead, self.is_queue, self.in_order = how.ahead, how.is_queue, how.in_order
        self.is_linked = how.is_linked
        self.workers, self.loop_cpus = workers, resources.loop_cpus
        self.cpus, self.storage = _Shared(resources.cpus), _Shared(resources.storage)
        self.begins: list[Any] = []
        self.service, self.beside = batches.service, batches.beside
        self.submit, self.transit = batches.submit, batches.transit
        self.pickup, self.compute = batches.pickup, batches.compute
        self.worker = list(batches.worker)
        self.making, self.ready = [0.0] * n, [UNKNOWN] * n
        self.taken: list[float] = [0.0] * n
        self.until: list[float] = []
        self.made = self._made  # one object, for all events
        # Of each worker since when it is free, and what waits for it and its other thread.
        self.free = [start_ns] * (n_ranks * workers)
        self.waiting: list[list[tuple[int, float]]] = [[] for _ in range(n_ranks * workers)]
        self.sends: dict[int, list[tuple[int, float]]] = {}
        # Of each rank.
        self.n_idle, self.asked_ns = [workers] * n_ranks, 0.0
        self.wanted, self.taker = [-1] * n_ranks, [0] * n_ranks
        self.came: list[list[int]] = [[] for _ in range(n_ranks)]
        self.left, self.last_ns = n_ranks, 0.0
        for batch in range(min(how.ahead * n_ranks, n)):
            turn = self.worker[batch] if how.in_order else batch // n_ranks % workers
            self._dispatch(batch, start_ns, turn)

    def run(self, first_ns: float) -> None:
        """Go on until nothing is left to happen."""
        begins, cpus, storage = self.begins, self.cpus, self.storage
        push, pop = heapq.heappush, heapq.heappop
        push(begins, (first_ns, -(2 * self.n_batches + 1), (), 0, self._ask, 0))
        while True:
            on = cpus if cpus.at_ns < storage.at_ns else storage
            now = on.at_ns
            if begins and begins[0][0] < now:
                now, key, uses, place, then, batch = pop(begins)
                moment = now
            elif on.users:
                on.done, key, rate, moment, after, uses, place, then, batch = pop(on.users)
                on.since_ns = now
                on.used -= rate
                on.at_ns = on.next_end() if on.users else math.inf
                moment = (now if now > moment else moment) + after
            else:
                return
            n_uses = len(uses)
            while place < n_uses:
                what, amount, rate, least, after = uses[place]
                if what == PAUSE:
                    moment += amount
                    place += 1
                    continue
                if moment > now:
                    push(begins, (moment, key, uses, place, then, batch))
                    break
                place += 1
                least += now
                if amount:
                    on = cpus if what == CPU else storage
                    if on.users:
                        on.done += (now - on.since_ns) / on.slowdown
                        on.used += rate
                    else:
                        on.done, on.used = 0.0, rate  # forgets what rounding left
                    on.since_ns = now
                    end = on.done + amount
                    push(on.users, (end, key, rate, least, after, uses, place, then, batch))
                    on.at_ns = on.next_end()
                    break
                moment = least + after
            else:
                then(batch, moment)

    def _go(
        self, moment: float, key: int, uses: Sequence[Use], then: Callable[..., None], batch: int
    ) -> None:
        """Let uses begin, and something follow; keys are even for batches and odd for the loop."""
        heapq.heappush(self.begins, (moment, key, uses, 0, then, batch))

    # -- the training loop: ``at`` is the place of a batch by order of delivery ------------------

    def _ask(self, first: int, moment: float) -> None:
        """Let all ranks ask for their batches of a step."""
        if first >= self.n_batches:
            return
        self.asked_ns, ready = moment, self.ready
        for at in range(first, first + self.n_ranks):
            self.wanted[at - first] = at
            if not self.ahead:
                self._begin(at, moment)
            elif not self.in_order:
                if self.came[at - first]:
                    self._take(self.came[at - first].pop(0), moment)
            elif ready[at] != UNKNOWN:
                self._take(at, ready[at])

    def _take(self, batch: int, moment: float) -> None:
        rank = batch % self.n_ranks
        at, self.wanted[rank] = self.wanted[rank], -1
        if moment < self.asked_ns:
            moment = self.asked_ns
        pickup = self.pickup[at]
        if not self.in_order:
            self.taker[rank] = self.worker[batch]
        if self.loop_cpus is None or not pickup:
            self._hold(at, moment + pickup)
        else:
            self._go(moment, 2 * at + 1, (Use(CPU, pickup),), self._hold, at)

    def _hold(self, at: int, moment: float) -> None:
        compute, cpus = self.compute[at], self.loop_cpus
        self.taken[at] = moment
        following = at + self.ahead * self.n_ranks
        if self.ahead and following < self.n_batches:
            rank = at % self.n_ranks
            worker = self.worker[following] if self.in_order else self.taker[rank]
            self._dispatch(following, moment, worker)
        if not cpus or not compute:
            self._end_step(at, moment + compute)
            return
        alone = compute * min(cpus, 1.0)
        uses = (Use(CPU, alone, max(cpus, 1.0)), Use(PAUSE, compute - alone))
        self._go(moment, 2 * at + 1, uses, self._end_step, at)

    def _end_step(self, at: int, moment: float) -> None:
        if moment > self.last_ns:
            self.last_ns = moment
        self.left -= 1
        if not self.left:
            self.left, until = self.n_ranks, self.last_ns
            self.until.append(until)
            first = (at // self.n_ranks + 1) * self.n_ranks
            self._go(until, -(2 * self.n_batches + 1), (), self._ask, first)

    # -- who makes batches ----------------------------------------------------------------------

    def _dispatch(self, batch: int, moment: float, worker: int) -> None:
        moment += self.submit[batch]
        rank = batch % self.n_ranks
        if self.is_queue:
            if self.n_idle[rank]:
                self.n_idle[rank] -= 1
                self._begin(batch, moment)
            else:
                self.waiting[rank].append((batch, moment))
            return
        self.worker[batch] = worker
        worker += rank * self.workers
        free = self.free[worker]
        if free != UNKNOWN:
            self.free[worker] = UNKNOWN
            self._begin(batch, moment if moment > free else free)
        else:
            self.waiting[worker].append((batch, moment))

    def _begin(self, batch: int, moment: float) -> None:
        self.making[batch] = -moment
        entry = (moment, 2 * batch, self.service[batch], 0, self.made, batch)
        heapq.heappush(self.begins, entry)

    def _made(self, batch: int, moment: float) -> None:
        self.making[batch] += moment
        if self.is_queue:
            # Whoever is free first takes the next batch, so it has to be seen in order of time.
            self._go(moment, -2 * batch - 1, (), self._freed, batch)
        elif self.ahead:
            worker = batch % self.n_ranks * self.workers + self.worker[batch]
            if self.waiting[worker]:
                following, room = self.waiting[worker].pop(0)
                self._begin(following, room if room > moment else moment)
            else:
                self.free[worker] = moment
        if self.beside[batch]:
            self._do_beside(batch, moment)
        elif self.in_order:
            self.ready[batch] = moment = moment + self.transit[batch]
            if self.wanted[batch % self.n_ranks] == batch:
                self._take(batch, moment)
        else:
            self._arrive(batch, moment)

    def _freed(self, batch: int, moment: float) -> None:
        rank = batch % self.n_ranks
        if self.waiting[rank]:
            following, room = self.waiting[rank].pop(0)
            self._begin(following, room if room > moment else moment)
        else:
            self.n_idle[rank] += 1

    def _do_beside(self, batch: int, moment: float) -> None:
        """Let another thread go on with a batch; that of a worker, or a link, has one at a time."""
        worker = self._sender(batch)
        if self.is_queue or not self.ahead:
            self._go(moment, 2 * batch, self.beside[batch], self._arrive, batch)
        elif worker in self.sends:
            self.sends[worker].append((batch, moment))
        else:
            self.sends[worker] = []
            self._go(moment, 2 * batch, self.beside[batch], self._send, batch)

    def _send(self, batch: int, moment: float) -> None:
        """Let a batch be sent then: what comes to be sent before that waits for it."""
        self._go(moment, 2 * batch, (), self._sent, batch)

    def _sender(self, batch: int) -> int:
        own = 0 if self.is_linked else self.worker[batch]
        return batch % self.n_ranks * self.workers + own

    def _sent(self, batch: int, moment: float) -> None:
        worker = self._sender(batch)
        if self.sends[worker]:
            following, made = self.sends[worker].pop(0)
            uses = self.beside[following]
            self._go(max(made, moment), 2 * following, uses, self._send, following)
        else:
            del self.sends[worker]
        self._arrive(batch, moment)

    def _arrive(self, batch: int, moment: float) -> None:
        moment += self.transit[batch]
        if not self.in_order:
            self._go(moment, 2 * batch, (), self._come, batch)
            return
        self.ready[batch] = moment
        if self.wanted[batch % self.n_ranks] == batch:
            self._take(batch, moment)

    def _come(self, batch: int, moment: float) -> None:
        rank = batch % self.n_ranks
        self.came[rank].append(batch)
        if self.wanted[rank] >= 0:
            self._take(self.came[rank].pop(0), moment)
