"""The loader's own rule, run again where workers and the training loop share one machine.

Each stage of a batch is what it waited, then what it computed. Who computes shares the CPUs, who
reads shares what storage gives (`SharedClock`); waiting that is no reading takes as long as it
took. Handing a batch over (pickling, the pipe, the pick-up) computes as well. Where nothing is
short this is `replay` without a machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.replay.contract import LoaderRule, Machine, RecordedRun, Replayed
from iobench.analysis.replay.shared_clock import (
    COMPUTES,
    PAUSES,
    READS,
    Activity,
    Doing,
    SharedClock,
)

__all__ = ["SharedRun", "share_machine"]

Integers = NDArray[np.int64]
READING: Final = frozenset({"open", "read", "fused", "opaque"})
"""Kinds of stages whose waiting may be for storage."""


@dataclass(slots=True)
class SharedRun:
    """What came of a run on a shared machine, in ns; arrays of one row per batch.

    Parameters
    ----------
    asked, delivered : ndarray of float64
        When the loop asked for each batch, and held it.
    making : ndarray of float64
        How long whoever made it was at it.
    wall, closing : float
        From the first round's start to the last one's end; of it, waits that found no batch.
    next_asked : ndarray of float64
        When the loop asked again, or the round's end.
    """

    asked: NDArray[np.float64]
    delivered: NDArray[np.float64]
    next_asked: NDArray[np.float64]
    making: NDArray[np.float64]
    wall: float = 0.0
    closing: float = 0.0

    def replayed(self, steady: NDArray[np.bool_]) -> Replayed:
        """Return the figures, in whole ns."""
        waits = np.rint(self.delivered - self.asked).astype(np.int64)
        shares = np.rint(self.next_asked - self.asked).astype(np.int64)
        return Replayed(
            wall_ns=round(self.wall),
            wait_ns=int(waits.sum()) + round(self.closing),
            steady_wall_ns=int(shares[steady].sum()),
            steady_wait_ns=int(waits[steady].sum()),
            waits_ns=waits,
        )


@dataclass(slots=True)
class _Round:
    """The state of a round: batches that may be made, and those that are ready."""

    tasks: list[deque[tuple[int, float]]]
    asleep: list[Activity | None]
    makers: list[Activity]
    batches: range
    n_submitted: int = 0
    ready: set[int] = field(default_factory=set)
    in_time: deque[int] = field(default_factory=deque)
    loop_sleeps: bool = False


class _Simulation:
    """One run; activities are generators that say what they do next."""

    def __init__(self, run: RecordedRun, machine: Machine) -> None:
        n = len(run)
        self.run = run
        self.clock = SharedClock(machine.cores, machine.read_nbytes_per_s)
        self.result = SharedRun(np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n))
        self._stages = _doings(run)
        self._loop_cpus = machine.loop_cpu_fraction
        self._submit: list[int] = run.submit_ns.tolist()
        self._transit: list[int] = run.transit_ns.tolist()
        self._pickup: list[int] = run.pickup_ns.tolist()
        self._compute: list[int] = run.compute_ns.tolist()
        self._loop: Activity = self._whole_run()

    def __call__(self) -> SharedRun:
        self.clock.wake(self._loop)
        self.clock.run()
        self.result.wall = self.clock.now_ns
        return self.result

    # -- the training loop ------------------------------------------------------------------

    def _whole_run(self) -> Activity:
        run = self.run
        for number in range(len(run.startup_ns)):
            rows = np.flatnonzero(run.round == number)
            batches = range(int(rows[0]), int(rows[-1]) + 1) if len(rows) else range(0)
            startup = float(run.startup_ns[number])
            if run.rule is LoaderRule.SERIAL:
                yield from self._serial_round(batches, startup)
            else:
                yield from self._pooled_round(batches, startup)
            closing = float(run.shutdown_ns[number])
            self.result.closing += closing + (0 if len(batches) else startup)
            yield Doing(PAUSES, closing)

    def _serial_round(self, batches: range, startup: float) -> Activity:
        asked = self.clock.now_ns
        yield Doing(PAUSES, startup)
        for batch in batches:
            began = self.clock.now_ns
            yield from self._stages[batch]
            self.result.making[batch] = self.clock.now_ns - began
            yield Doing(COMPUTES, self._transit[batch] + self._pickup[batch])
            asked = yield from self._step(batch, asked)

    def _pooled_round(self, batches: range, startup: float) -> Activity:
        run, clock = self.run, self.clock
        shared = run.rule is LoaderRule.THREADS
        n_makers = max(run.workers, 1)
        queue: deque[tuple[int, float]] = deque()
        state = _Round(
            tasks=[queue if shared else deque() for _ in range(n_makers)],
            asleep=[None] * n_makers,
            makers=[],
            batches=batches,
        )
        state.makers = [self._maker(state, number) for number in range(n_makers)]
        ahead = max(run.prefetch, n_makers) if shared else n_makers * max(run.prefetch, 1)
        asked = clock.now_ns
        yield Doing(PAUSES, startup)
        for maker in state.makers:
            clock.wake(maker)
        for _ in range(ahead):
            self._submit_next(state)
        for position in range(len(batches)):
            batch = yield from self._await(state, position)
            yield Doing(COMPUTES, self._pickup[batch])
            self._submit_next(state)
            asked = yield from self._step(batch, asked)

    def _await(self, state: _Round, position: int) -> Generator[Doing | None, None, int]:
        """Sleep until the batch that is next, or any, is ready."""
        wanted = state.batches[position]
        while not (wanted in state.ready if self.run.in_order else state.in_time):
            state.loop_sleeps = True
            yield None
        batch = wanted if self.run.in_order else state.in_time.popleft()
        state.ready.discard(batch)
        return batch

    def _step(self, batch: int, asked: float) -> Generator[Doing | None, None, float]:
        """Hold a batch and compute; return when the loop asks for the next."""
        result, compute = self.result, self._compute[batch]
        result.asked[batch], result.delivered[batch] = asked, self.clock.now_ns
        cpus = self._loop_cpus
        if cpus >= 1:
            yield Doing(COMPUTES, compute, cpus)
        else:
            yield Doing(COMPUTES, compute * cpus)
            yield Doing(PAUSES, compute - compute * cpus)
        result.next_asked[batch] = self.clock.now_ns
        return self.clock.now_ns

    # -- whoever makes batches --------------------------------------------------------------

    def _submit_next(self, state: _Round) -> None:
        if state.n_submitted >= len(state.batches):
            return
        tasks = state.tasks[state.n_submitted % len(state.tasks)]
        tasks.append((state.batches[state.n_submitted], self.clock.now_ns))
        state.n_submitted += 1
        for number, sleeper in enumerate(state.asleep):
            if sleeper is not None and state.tasks[number] is tasks:
                state.asleep[number] = None
                self.clock.wake(sleeper)
                return

    def _maker(self, state: _Round, number: int) -> Activity:
        clock, tasks = self.clock, state.tasks[number]
        while True:
            while not tasks:
                state.asleep[number] = state.makers[number]
                yield None
            batch, submitted = tasks.popleft()
            yield Doing(PAUSES, submitted + self._submit[batch] - clock.now_ns)
            began = clock.now_ns
            yield from self._stages[batch]
            self.result.making[batch] = clock.now_ns - began
            clock.wake(self._send(state, batch))

    def _send(self, state: _Round, batch: int) -> Activity:
        """Bring a batch to where the loop may pick it up, while its maker goes on."""
        yield Doing(COMPUTES, self._transit[batch])
        state.ready.add(batch)
        state.in_time.append(batch)
        if state.loop_sleeps:
            state.loop_sleeps = False
            self.clock.wake(self._loop)


def share_machine(run: RecordedRun, machine: Machine) -> SharedRun:
    """Run a loader's rule over the demands of its batches.

    Parameters
    ----------
    run : RecordedRun
        Its times are taken for what each would take alone.
    machine : Machine
    """
    return _Simulation(run, machine)()


def _doings(run: RecordedRun) -> list[list[Doing]]:
    """Return what making each batch consists of: for each stage waiting, then computing.

    Time of which it is not known what it was counts as computing.
    """
    work = run.work_ns
    known = (run.cpu_ns >= 0) & (run.cpu_ns < work)
    waited = np.where(known, work - run.cpu_ns, 0)
    reads = np.array([name.partition(":")[0] in READING for name in run.stages], dtype=bool)
    in_reads = (waited * reads).sum(axis=1)
    nbytes = np.maximum(run.read_nbytes, 0)
    rate = np.where(in_reads > 0, nbytes / np.maximum(in_reads, 1), 0.0).tolist()
    waited_of, computed_of = waited.tolist(), (work - waited).tolist()
    made: list[list[Doing]] = []
    for batch, gap in enumerate(run.gap_ns.tolist()):
        doings = []
        for stage, waits in enumerate(waited_of[batch]):
            if waits:
                from_storage = reads[stage] and rate[batch] > 0
                doings.append(
                    Doing(READS, waits, rate[batch]) if from_storage else Doing(PAUSES, waits)
                )
            if computed_of[batch][stage]:
                doings.append(Doing(COMPUTES, computed_of[batch][stage]))
        if gap:
            doings.append(Doing(COMPUTES, gap))
        made.append(doings)
    return made
