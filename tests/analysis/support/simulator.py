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
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from simulator_clock import Gate, Shared, SimulatedClock, Thread

from iobench.recording.kinds import Kind
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tests.support.sketched_runs import Lane

__all__ = ["Schedule", "simulate", "simulated_run"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that a run's times depend on.

    Parameters
    ----------
    stages : tuple of Kind
        What makes a batch; `Kind.SAMPLER` is done by the training loop when it submits.
    work_ns : ndarray of int64, shape (n_batches, n_stages)
        Of each batch; on something shared, what it takes alone.
    compute_ns : ndarray of int64, shape (n_batches,)
        Of the training loop after each batch.
    workers, prefetch : int
    in_order : bool
    stream : bool
        One thread for each stage instead of a pool; ``workers`` are its stages then.
    slowness : ndarray of float64, shape (workers, n_stages), or None
        What each worker takes, over ``work_ns``.
    serialise_ns, unpickle_ns : int
        Of each batch of a pool.
    disk, cores : float or None
        How many reads, and how many other stages, go at full speed at a time; None for all.
    """

    stages: tuple[Kind, ...]
    work_ns: NDArray[np.int64]
    compute_ns: NDArray[np.int64]
    workers: int
    prefetch: int = 2
    in_order: bool = True
    stream: bool = False
    slowness: NDArray[np.float64] | None = None
    serialise_ns: int = 0
    unpickle_ns: int = 0
    disk: float | None = None
    cores: float | None = None


def simulate(
    schedule: Schedule, factors: Sequence[float] | None = None, sketch: SketchedRun | None = None
) -> tuple[float, float]:
    """Return (wall, wait) in ns, with the time of each stage multiplied by its factor.

    Spans are added to ``sketch`` where there is one.
    """
    scaled = schedule.work_ns * np.array(factors or [1.0] * len(schedule.stages))
    run = (_Stream if schedule.stream else _Pool)(schedule, scaled.tolist(), sketch)
    run.clock.run()
    return run.clock_at_end, run.wait_ns


def simulated_run(schedule: Schedule) -> SketchedRun:
    """Return the run that iobench would have recorded."""
    n_workers = 0 if schedule.stream else schedule.workers
    sketch = SketchedRun(
        workers=n_workers,
        prefetch=schedule.prefetch,
        batch_size=1,
        in_order=schedule.in_order,
        expected_workers=[f"worker-{number}" for number in range(n_workers)],
    )
    if schedule.cores is not None:
        sketch.config["machine"] = {"cpus": int(schedule.cores)}
    if schedule.disk is not None:
        sketch.config["read_nbytes_per_s"] = schedule.disk * 1e9
    sketch.processes |= {("worker", number): {} for number in range(n_workers)}
    if schedule.stream:
        sketch.processes[CONSUMER] = {"threads": thread_names(schedule)}
    end_ns = round(simulate(schedule, None, sketch)[0])
    sketch.round(0, end_ns)
    sketch.shutdown(end_ns, end_ns)
    return sketch


def thread_names(schedule: Schedule) -> tuple[str, ...]:
    """Return the names of a stream's threads."""
    stages = (f"{number}-{kind.spelled}-0" for number, kind in enumerate(schedule.stages))
    return ("MainThread", *stages)


class _Run:
    """What both layouts have: a clock, what is shared, the spans and the sums."""

    def __init__(
        self, schedule: Schedule, work_ns: list[list[float]], sketch: SketchedRun | None
    ) -> None:
        self.schedule, self.work_ns, self.sketch = schedule, work_ns, sketch
        self.clock = SimulatedClock()
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
        lane: Lane,
        thread: int,
        kind: Kind,
        start: float,
        batch: int,
        detail: str = "",
        alone: float = -1,
    ) -> None:
        """Write a span that ends now; ``alone`` is what its work takes where nothing is short."""
        if self.sketch is None:
            return
        # What is read alone at full speed is a byte in a nanosecond; reading takes no CPU.
        nbytes, cpu_ns = (round(alone), 0) if kind is Kind.READ else (-1, round(alone))
        self.sketch.add(
            lane, kind, round(start), round(self.clock.now), thread=thread, batch=batch, epoch=0,
            sample=batch if kind < Kind.SAMPLER else -1, nbytes=nbytes, cpu_ns=cpu_ns,
            detail=detail,
        )  # fmt: skip

    def waited(self, asked: float, batch: int, detail: str) -> None:
        """Count a wait that ends now."""
        self.wait_ns += self.clock.now - asked
        self.write(CONSUMER, 0, Kind.WAIT, asked, batch, detail)

    def make(self, stage: int, spent: float) -> Shared | float:
        """Return what a thread yields to work on a stage."""
        shared = self.shared[stage]
        return spent if shared is None else shared.work(spent)


class _Pool(_Run):
    def __init__(
        self, schedule: Schedule, work_ns: list[list[float]], sketch: SketchedRun | None
    ) -> None:
        super().__init__(schedule, work_ns, sketch)
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
            self.write(CONSUMER, 0, Kind.SAMPLER, start, batch)
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
        lane = ("worker", number)
        stages = [(i, kind) for i, kind in enumerate(self.schedule.stages) if i != self.sampler]
        while True:
            while not tasks:
                yield gate
            batch, submitted = tasks.popleft()
            self.write(lane, 0, Kind.SUBMIT_QUEUE, submitted, batch)
            spent = self.work_ns[batch]
            for stage, kind in stages:
                start, alone = self.clock.now, spent[stage] * slowness[stage]
                yield self.make(stage, alone)
                self.write(lane, 0, kind, start, batch, alone=alone)
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
            alone = self.schedule.serialise_ns
            self.write(("worker", number), 1, Kind.SERIALISE, start, batch, alone=alone)
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
                self.write(CONSUMER, 0, kind, start, batch)
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
    def __init__(
        self, schedule: Schedule, work_ns: list[list[float]], sketch: SketchedRun | None
    ) -> None:
        super().__init__(schedule, work_ns, sketch)
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
                self.write(CONSUMER, number + 1, Kind.SUBMIT_QUEUE, held[0], batch, held[1])
                marked = False
            start, alone = self.clock.now, self.work_ns[batch][number]
            yield self.make(number, alone)
            self.write(CONSUMER, number + 1, kind, start, batch, alone=alone)
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
