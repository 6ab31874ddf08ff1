"""A loader simulated event by event: the spans it would leave, and what its wall time would be.

Written from what PyTorch's ``DataLoader`` and iobench's streams do, not from `iobench.analysis`:
the truth that attribution is scored by must not come from the code under test.

*Pool.* At first the training loop draws and submits N x P batches; after each batch it takes, and
before it goes on, one more. In order, batch i goes to worker i mod N; out of order to the next
worker in turn that has fewer than P. A worker makes whole batches, one after another; a second
thread of it pickles them into one pipe. In order, batches that come before the one asked for are
unpickled meanwhile and kept; out of order the first to arrive is delivered.

*Stream.* Each stage is one thread, which begins an item when fewer than P that it finished lie
ready and its input is there; the last stage makes batches of one item each.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from simulator_clock import Gate, Shared, SimulatedClock, Thread
from simulator_spans import LOOP, thread_names

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator_spans import Schedule, SpanLog

__all__ = ["simulate"]


def simulate(
    schedule: Schedule, factors: Sequence[float] | None = None, log: SpanLog | None = None
) -> tuple[float, float]:
    """Return (wall, wait) in ns, with the time of each stage multiplied by its factor.

    Spans are written to ``log`` where there is one.
    """
    scaled = schedule.work_ns * np.array(factors or [1.0] * len(schedule.stages))
    run = (_Stream if schedule.stream else _Pool)(schedule, scaled.tolist(), log)
    run.clock.run()
    if log is not None:
        log.ended_ns = run.clock_at_end
    return run.clock_at_end, run.wait_ns


class _Run:
    """What both layouts have: a clock, what is shared, the log and the sums."""

    def __init__(self, schedule: Schedule, work_ns: list[list[float]], log: SpanLog | None) -> None:
        self.schedule, self.work_ns = schedule, work_ns
        self.clock = SimulatedClock()
        self.rows: list[Any] | None = None if log is None else log.rows
        disk, cores = (
            None if capacity is None else Shared(self.clock, capacity)
            for capacity in (schedule.disk, schedule.cores)
        )
        self.shared = [disk if kind is Kind.READ else cores for kind in schedule.stages]
        self.compute_ns: list[int] = schedule.compute_ns.tolist()
        self.n_batches = len(self.compute_ns)
        self.wait_ns = 0.0
        self.clock_at_end = 0.0
        self.clock.resume_at(0.0, self.loop())

    def loop(self) -> Thread:
        """Return what the training loop does."""
        raise NotImplementedError

    def write(
        self,
        process: int,
        thread: int,
        kind: Kind,
        start: float,
        batch: int,
        detail: str = "",
        alone: float = -1,
    ) -> None:
        """Write a span that ends now; ``alone`` is what its work takes where nothing is short."""
        if self.rows is not None:
            self.rows.append((process, thread, kind, start, self.clock.now, batch, detail, alone))

    def waited(self, asked: float, batch: int, detail: str) -> None:
        """Count a wait that ends now."""
        self.wait_ns += self.clock.now - asked
        self.write(LOOP, 0, Kind.WAIT, asked, batch, detail)

    def make(self, stage: int, spent: float) -> Shared | float:
        """Return what a thread yields to work on a stage."""
        shared = self.shared[stage]
        return spent if shared is None else shared.work(spent)


class _Pool(_Run):
    def __init__(self, schedule: Schedule, work_ns: list[list[float]], log: SpanLog | None) -> None:
        super().__init__(schedule, work_ns, log)
        n_workers = schedule.workers
        even = np.ones((n_workers, len(schedule.stages)))
        slowness = even if schedule.slowness is None else schedule.slowness
        self.slowness: list[list[float]] = slowness.tolist()
        self.tasks: list[deque[tuple[int, float]]] = [deque() for _ in range(n_workers)]
        self.made: list[deque[int]] = [deque() for _ in range(n_workers)]
        self.task_gates = [Gate(self.clock) for _ in range(n_workers)]
        self.made_gates = [Gate(self.clock) for _ in range(n_workers)]
        self.pipe: deque[tuple[int, int]] = deque()
        self.pipe_gate = Gate(self.clock)
        self.outstanding = [0] * n_workers
        self.next_worker = self.n_submitted = 0
        drawn = [stage for stage, kind in enumerate(schedule.stages) if kind is Kind.SAMPLER]
        self.sampler = drawn[0] if drawn else None
        for number in range(n_workers):
            self.clock.resume_at(0.0, self.worker(number))
            self.clock.resume_at(0.0, self.feeder(number))

    def draw(self) -> Thread:
        """Draw a batch and submit it, if there is one left."""
        if self.n_submitted == self.n_batches:
            return
        batch, self.n_submitted = self.n_submitted, self.n_submitted + 1
        if self.sampler is not None:
            start = self.clock.now
            yield self.work_ns[batch][self.sampler]
            self.write(LOOP, 0, Kind.SAMPLER, start, batch)
        worker = self.next_worker
        if not self.schedule.in_order:
            while self.outstanding[worker] >= self.schedule.prefetch:
                worker = (worker + 1) % self.schedule.workers
        self.next_worker = (worker + 1) % self.schedule.workers
        self.outstanding[worker] += 1
        self.tasks[worker].append((batch, self.clock.now))
        self.task_gates[worker].wake()

    def worker(self, number: int) -> Thread:
        tasks, gate, slowness = self.tasks[number], self.task_gates[number], self.slowness[number]
        stages = [(i, kind) for i, kind in enumerate(self.schedule.stages) if i != self.sampler]
        while True:
            while not tasks:
                yield gate
            batch, submitted = tasks.popleft()
            self.write(number, 0, Kind.SUBMIT_QUEUE, submitted, batch)
            spent = self.work_ns[batch]
            for stage, kind in stages:
                start, alone = self.clock.now, spent[stage] * slowness[stage]
                yield self.make(stage, alone)
                self.write(number, 0, kind, start, batch, alone=alone)
            self.made[number].append(batch)
            self.made_gates[number].wake()

    def feeder(self, number: int) -> Thread:
        """Return what the second thread of a worker does."""
        made, gate = self.made[number], self.made_gates[number]
        while True:
            while not made:
                yield gate
            batch, start = made.popleft(), self.clock.now
            yield float(self.schedule.serialise_ns)
            self.write(number, 1, Kind.SERIALISE, start, batch, alone=self.schedule.serialise_ns)
            self.pipe.append((batch, number))
            self.pipe_gate.wake()

    def loop(self) -> Thread:
        schedule, kept = self.schedule, dict[int, int]()
        asked = 0.0
        for _ in range(schedule.workers * schedule.prefetch):
            yield from self.draw()
        for place in range(self.n_batches):
            batch = place if schedule.in_order else -1
            while batch not in kept:
                while not self.pipe:
                    yield self.pipe_gate
                arrived, worker = self.pipe.popleft()
                batch = arrived if batch < 0 else batch
                start = self.clock.now
                yield float(schedule.unpickle_ns)
                self.outstanding[worker] -= 1
                kept[arrived] = worker
                kind = Kind.UNPICKLE if arrived == batch else Kind.HEAD_OF_LINE
                self.write(LOOP, 0, kind, start, batch)
            yield from self.draw()
            self.waited(asked, batch, f"worker-{kept.pop(batch)}")
            yield float(self.compute_ns[place])
            asked = self.clock_at_end = self.clock.now


class _Relay:
    """What a stage of a stream has finished, and who last made room there."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.ready: deque[int] = deque()
        self.some, self.room = Gate(clock), Gate(clock)
        self.release = (0.0, "consumer")

    def take(self, now: float, cause: str) -> int:
        self.release = (now, cause)
        self.room.wake()
        return self.ready.popleft()


class _Stream(_Run):
    def __init__(self, schedule: Schedule, work_ns: list[list[float]], log: SpanLog | None) -> None:
        super().__init__(schedule, work_ns, log)
        self.names = thread_names(schedule)[1:]
        self.relays = [_Relay(self.clock) for _ in schedule.stages]
        for number in range(len(schedule.stages)):
            self.clock.resume_at(0.0, self.thread(number))

    def thread(self, number: int) -> Thread:
        """Return what a stage's thread does, and how it notes who held it back."""
        name, kind, mine = self.names[number], self.schedule.stages[number], self.relays[number]
        upstream = self.relays[number - 1] if number else None
        cause, held = name, (0.0, "consumer")
        marked = True
        for batch in range(self.n_batches):
            if len(mine.ready) >= self.schedule.prefetch:
                while len(mine.ready) >= self.schedule.prefetch:
                    yield mine.room
                if mine.release[1] != name:
                    held, marked, cause = mine.release, True, mine.release[1]
            if upstream is not None:
                if not upstream.ready:
                    while not upstream.ready:
                        yield upstream.some
                    cause = self.names[number - 1]
                upstream.take(self.clock.now, cause)
            if marked:
                self.write(LOOP, number + 1, Kind.SUBMIT_QUEUE, held[0], batch, held[1])
                marked = False
            start, alone = self.clock.now, self.work_ns[batch][number]
            yield self.make(number, alone)
            self.write(LOOP, number + 1, kind, start, batch, alone=alone)
            cause = name
            mine.ready.append(batch)
            mine.some.wake()

    def loop(self) -> Thread:
        top, asked = len(self.schedule.stages) - 1, 0.0
        for place in range(self.n_batches):
            while not self.relays[top].ready:
                yield self.relays[top].some
            batch = self.relays[top].take(self.clock.now, "consumer")
            self.waited(asked, batch, "threads")
            yield float(self.compute_ns[place])
            asked = self.clock_at_end = self.clock.now
