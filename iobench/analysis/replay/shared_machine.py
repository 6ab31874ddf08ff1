"""The loader's own rule, run again where workers and the training loop share one machine.

Each stage of a batch is what it waited, then what it computed. Who computes shares the CPUs, who
reads shares what storage gives (`SharedClock`); waiting that is no reading takes as long as it
took. Picking a batch up computes as well; its way through the pipe is waiting. Where nothing is
short this is `replay` without a machine, to the nanosecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.replay.contract import (
    Change,
    LoaderRule,
    Machine,
    RecordedRun,
    Replayed,
)
from iobench.analysis.replay.doings import BatchDoings
from iobench.analysis.replay.shared_clock import COMPUTES, PAUSES, Activity, Doing, SharedClock

__all__ = ["SharedRun", "replay_shared", "share_machine"]

Integers = NDArray[np.int64]


@dataclass(slots=True)
class SharedRun:
    """What came of a run on a shared machine, in ns; arrays of one row per batch.

    Parameters
    ----------
    asked, delivered, until : ndarray of float64
        When the loop asked for each batch, held it, and asked again.
    making : ndarray of float64
        How long whoever made it was at it, by the order in which batches were asked for.
    wall, closing : float
        From the first round's start to the last one's end; of it, waits that brought no batch.
    """

    asked: NDArray[np.float64]
    delivered: NDArray[np.float64]
    until: NDArray[np.float64]
    making: NDArray[np.float64]
    wall: float = 0.0
    closing: float = 0.0

    def replayed(self, run: RecordedRun) -> Replayed:
        """Return the figures of the run this came of, in whole ns."""
        waits = np.rint(self.delivered - self.asked).astype(np.int64)
        shares = np.rint(self.until - self.asked).astype(np.int64)
        steady = run.steady
        return Replayed(
            wall_ns=round(self.wall),
            wait_ns=int(waits.sum()) + round(self.closing),
            steady_wall_ns=int(shares[steady].sum()),
            steady_wait_ns=int(waits[steady].sum()),
            waits_ns=waits,
            judged_ns=run.judged_ns(shares),
        )


def replay_shared(run: RecordedRun, change: Change, machine: Machine) -> Replayed:
    """Return what a run that was measured on a machine would have taken with a change.

    It starts from what the batches demand (`demands_of`), which takes most of the time: to replay
    several changes of a run, keep its `Demands`.

    Raises
    ------
    OptionError
        If the change cannot be made to this run.
    """
    from iobench.analysis.replay.demands import demands_of

    return demands_of(run, machine).replay(change)


def share_machine(run: RecordedRun, machine: Machine) -> SharedRun:
    """Run a loader's rule over the demands of its batches.

    Parameters
    ----------
    run : RecordedRun
        Its times are taken for what each would take alone; its rule is one that can be replayed.
    machine : Machine
    """
    return _Simulation(run, machine)()


class _Simulation:
    """One run; its activities are generators that say what they do next."""

    def __init__(self, run: RecordedRun, machine: Machine) -> None:
        self.run = run
        self.clock = SharedClock(machine.cores, machine.read_nbytes_per_s)
        self.loop_cpus = machine.loop_cpu_fraction
        self.demanded = BatchDoings(run, machine)
        n = len(run)
        self.result = SharedRun(np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n))
        self.loop = self._all_rounds()

    def __call__(self) -> SharedRun:
        self.clock.wake(self.loop)
        self.clock.run()
        self.result.wall = self.clock.now_ns
        return self.result

    def _all_rounds(self) -> Activity:
        run = self.run
        nothing = np.zeros(len(run.startup_ns), dtype=np.int64)
        opening = (nothing if run.opening_ns is None else run.opening_ns).tolist()
        lead = (nothing if run.lead_ns is None else run.lead_ns).tolist()
        self.result.closing = float(sum(opening) + int(run.shutdown_ns.sum()))
        for number, shutdown in enumerate(run.shutdown_ns.tolist()):
            first = opening[number] + lead[number]
            rows = np.flatnonzero(run.round == number)
            if len(rows):
                yield from _Round(self, rows).loop(first, int(run.startup_ns[number]))
            else:
                yield Doing(PAUSES, first)
            yield Doing(PAUSES, shutdown)


class _Round:
    """One round: whoever makes batches, and the loop; places are in the order of asking."""

    def __init__(self, simulation: _Simulation, rows: Integers) -> None:
        run = simulation.run
        self._simulation, self._clock = simulation, simulation.clock
        self._serial = run.rule is LoaderRule.SERIAL
        self._in_turn = run.rule is LoaderRule.POOL
        self._in_order = run.in_order or not self._in_turn
        asked = rows if run.batch is None else rows[np.argsort(run.batch[rows], kind="stable")]
        self._rows: list[int] = rows.tolist()
        self._asked: list[int] = asked.tolist()
        self._submit: list[int] = run.submit_ns[asked].tolist()
        self._transit: list[int] = run.transit_ns[asked].tolist()
        self._pickup: list[int] = run.pickup_ns[rows].tolist()
        self._compute: list[int] = run.compute_ns[rows].tolist()
        workers = max(run.workers, 1)
        self._ahead = max(run.prefetch, 1) * (workers if self._in_turn else 1)
        self._maker_of = _makers(run, asked, workers)
        one: deque[tuple[int, float]] = deque()
        self._tasks = [deque() if self._in_turn else one for _ in range(workers)]
        self._sends: list[deque[int]] = [deque() for _ in range(workers)]
        self._makers = [self._make(number) for number in range(workers)]
        self._senders = [self._send(number) for number in range(workers)]
        self._idle, self._quiet = [True] * workers, [True] * workers
        self._n_submitted = 0
        self._ready: set[int] = set()
        self._as_they_come: deque[int] = deque()
        self._loop_sleeps = False

    # -- the training loop ------------------------------------------------------------------

    def loop(self, first: int, startup: int) -> Activity:
        """Ask for every batch, hold it, compute."""
        clock, result = self._clock, self._simulation.result
        if not self._serial:
            clock.wake(self._open(startup))
        yield Doing(PAUSES, first)
        asked = clock.now_ns
        for position, row in enumerate(self._rows):
            place = yield from self._made(position)
            yield Doing(COMPUTES, self._pickup[position])
            held = clock.now_ns
            if not self._serial:
                self._submit_next(None if self._in_order else self._maker_of[place])
            yield from self._step(self._compute[position])
            result.asked[row], result.delivered[row] = asked, held
            asked = result.until[row] = clock.now_ns

    def _step(self, compute: int) -> Activity:
        cpus = self._simulation.loop_cpus
        if cpus >= 1:
            yield Doing(COMPUTES, compute, cpus)
        else:
            yield Doing(COMPUTES, compute * cpus)
            yield Doing(PAUSES, compute - compute * cpus)

    def _made(self, position: int) -> Generator[Doing | None, None, int]:
        """Make the batch, or sleep until the one that is next, or any, is ready."""
        if self._serial:
            yield from self._work(position)
            yield from self._simulation.demanded.beside[self._asked[position]]
            return position
        while not (position in self._ready if self._in_order else self._as_they_come):
            self._loop_sleeps = True
            yield None
        return position if self._in_order else self._as_they_come.popleft()

    # -- whoever makes batches --------------------------------------------------------------

    def _open(self, startup: int) -> Activity:
        yield Doing(PAUSES, startup)
        for place in range(self._ahead):
            self._submit_next(None if self._in_order else place % len(self._makers))

    def _submit_next(self, maker: int | None) -> None:
        """Hand on the next batch: to this maker, or to its own; of threads to any that is idle."""
        place = self._n_submitted
        if place == len(self._asked):
            return
        self._n_submitted += 1
        if maker is None:
            idle = (number for number, is_idle in enumerate(self._idle) if is_idle)
            maker = self._maker_of[place] if self._in_turn else next(idle, 0)
        else:
            self._maker_of[place] = maker
        self._tasks[maker].append((place, self._clock.now_ns))
        if self._idle[maker]:
            self._idle[maker] = False
            self._clock.wake(self._makers[maker])

    def _make(self, number: int) -> Activity:
        clock, tasks, beside = self._clock, self._tasks[number], self._simulation.demanded.beside
        while True:
            while not tasks:
                self._idle[number] = True
                yield None
            place, submitted = tasks.popleft()
            yield Doing(PAUSES, submitted + self._submit[place] - clock.now_ns)
            yield from self._work(place)
            if self._in_turn and beside[self._asked[place]]:
                self._sends[number].append(place)
                if self._quiet[number]:
                    self._quiet[number] = False
                    clock.wake(self._senders[number])
            else:
                clock.wake(self._arrive(place))

    def _work(self, place: int) -> Activity:
        began, row = self._clock.now_ns, self._asked[place]
        yield from self._simulation.demanded.own[row]
        self._simulation.result.making[row] = self._clock.now_ns - began

    def _send(self, number: int) -> Activity:
        """Do what a worker's other thread does of its batches, one after another."""
        sends, beside = self._sends[number], self._simulation.demanded.beside
        while True:
            while not sends:
                self._quiet[number] = True
                yield None
            place = sends.popleft()
            yield from beside[self._asked[place]]
            self._clock.wake(self._arrive(place, sent=True))

    def _arrive(self, place: int, *, sent: bool = False) -> Activity:
        """Bring a batch to where the loop may pick it up, while its maker goes on."""
        if not sent:
            yield from self._simulation.demanded.beside[self._asked[place]]
        yield Doing(PAUSES, self._transit[place])
        self._ready.add(place)
        self._as_they_come.append(place)
        if self._loop_sleeps:
            self._loop_sleeps = False
            self._clock.wake(self._simulation.loop)


def _makers(run: RecordedRun, asked: Integers, workers: int) -> list[int]:
    """Return who makes each batch, by the order of asking: who did, or in turn."""
    in_turn = np.arange(len(asked)) % workers
    if run.maker is None:
        return in_turn.tolist()
    known = run.maker[asked]
    makers: list[int] = np.where((known >= 0) & (known < run.workers), known, in_turn).tolist()
    return makers
