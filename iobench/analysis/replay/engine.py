"""Each loader's own rule, run again: who makes which batch when, and how long the loop waits.

With sub_i when batch i is submitted, D_i what its worker spends on it and b_i when the loop holds
it, a pool in order is the recurrence sub_i = b_(i - N P), start_i = max(sub_i + its delay, end of
the worker's batch before it), end_i = start_i + D_i, b_i = max(a_i, end_i + its way) + pick-up,
a_(i+1) = b_i + compute. Threads take the next batch, whichever of them is free, once there is
room. Times are whole ns, and exact.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.replay.changes import changed
from iobench.analysis.replay.contract import Change, LoaderRule, Machine, RecordedRun, Replayed
from iobench.analysis.replay.streams import stream_rule
from iobench.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["can_replay", "replay", "replay_error"]

Integers = NDArray[np.int64]


def can_replay(run: RecordedRun) -> bool:
    """Tell whether the rule of a run's loader is known, and what it did."""
    return run.rule in _RULES


def replay(
    run: RecordedRun, change: Change | None = None, machine: Machine | None = None
) -> Replayed:
    """Return what a run would have taken with something done otherwise.

    Parameters
    ----------
    run : RecordedRun
    change : Change, optional
        By default nothing: the run as it was, for the error of the replay.
    machine : Machine, optional
        What workers share. Without it, each works as fast as it did, however many there are; so
        do the threads of a stream with it, since they stay as many.

    Raises
    ------
    ProfileError
        If the run cannot be replayed.
    OptionError
        If the change cannot be made to this run.
    """
    if not can_replay(run):
        raise ProfileError(f"{run.name}: it cannot be replayed: {run.reason or run.rule.value}")
    if machine is not None and run.rule is not LoaderRule.STREAM:
        from iobench.analysis.replay.shared_machine import replay_shared

        return replay_shared(run, change or Change(), machine)
    if change is not None:
        run = changed(run, change)
    asked, delivered, until, closing_ns, wall_ns = _rounds(run)
    waits = delivered - asked
    share = until - asked
    return Replayed(
        wall_ns=wall_ns,
        wait_ns=int(waits.sum()) + closing_ns,
        steady_wall_ns=int(share[run.steady].sum()),
        steady_wait_ns=int(waits[run.steady].sum()),
        waits_ns=waits,
        judged_ns=run.judged_ns(share),
    )


def replay_error(run: RecordedRun) -> float:
    """Return by how much the replay of the unmodified run misses its measured wall time.

    Returns
    -------
    float
        Replayed over measured, less 1; NaN where nothing was measured.

    Raises
    ------
    ProfileError
        If the run cannot be replayed.
    """
    replayed = replay(run)
    return replayed.wall_ns / run.wall_ns - 1 if run.wall_ns else float("nan")


def _rounds(run: RecordedRun) -> tuple[Integers, Integers, Integers, int, int]:
    """Return when each batch was asked for, held, and followed; other waits; and the wall time."""
    asked, delivered, until = (np.zeros(len(run), dtype=np.int64) for _ in range(3))
    nothing = np.zeros(len(run.startup_ns), dtype=np.int64)
    opening = (nothing if run.opening_ns is None else run.opening_ns).tolist()
    lead = (nothing if run.lead_ns is None else run.lead_ns).tolist()
    closing_ns, wall_ns = sum(opening) + int(run.shutdown_ns.sum()), 0
    order = np.argsort(run.round, kind="stable")
    edges = np.searchsorted(run.round[order], np.arange(len(run.startup_ns) + 1)).tolist()
    rule = _RULES[run.rule]
    for number, shutdown in enumerate(run.shutdown_ns.tolist()):
        rows = order[edges[number] : edges[number + 1]]
        first = opening[number] + lead[number]
        held, last = [], first
        if len(rows):
            part = _Round(run, rows, first, int(run.startup_ns[number]))
            held, last = rule(part), 0
            delivered[rows] = held
            until[rows] = delivered[rows] + run.compute_ns[rows]
            asked[rows] = np.append(first, until[rows[:-1]])
            last = int(until[rows[-1]])
        wall_ns += last + shutdown
    return asked, delivered, until, closing_ns, wall_ns


class _Round:
    """The batches of one round: those of workers in the order in which they were asked for."""

    def __init__(self, run: RecordedRun, rows: Integers, first_ns: int, startup_ns: int) -> None:
        self.workers, self.prefetch, self.in_order = run.workers, run.prefetch, run.in_order
        self.first_ns, self.startup_ns = first_ns, startup_ns
        numbers = None if run.batch is None else run.batch[rows]
        asked = rows if numbers is None else rows[np.argsort(numbers, kind="stable")]
        work, beside = run.work_ns[asked].sum(axis=1), np.zeros(len(rows), dtype=np.int64)
        if run.beside_ns is not None:
            beside = run.beside_ns[asked].sum(axis=1)
        self.spent: list[int] = (work - beside + run.gap_ns[asked]).tolist()
        self.beside: list[int] = beside.tolist()
        self.submit: list[int] = run.submit_ns[asked].tolist()
        self.transit: list[int] = run.transit_ns[asked].tolist()
        self.maker = self._makers(run, asked)
        self.run, self.rows = run, rows
        self.pickup: list[int] = run.pickup_ns[rows].tolist()
        self.compute: list[int] = run.compute_ns[rows].tolist()

    def __len__(self) -> int:
        return len(self.pickup)

    def _makers(self, run: RecordedRun, rows: Integers) -> list[int]:
        in_turn = np.arange(len(rows)) % max(self.workers, 1)
        if run.maker is None:
            return in_turn.tolist()
        known = run.maker[rows]
        fits = (known >= 0) & (known < self.workers)
        makers: list[int] = np.where(fits, known, in_turn).tolist()
        return makers


def _serial(part: _Round) -> list[int]:
    held, clock = [], part.first_ns
    for spent, beside, pickup, compute in zip(
        part.spent, part.beside, part.pickup, part.compute, strict=True
    ):
        delivered = clock + spent + beside + pickup
        held.append(delivered)
        clock = delivered + compute
    return held


def _pool(part: _Round) -> list[int]:
    return _pool_in_order(part) if part.in_order else _pool_as_they_come(part)


def _pool_in_order(part: _Round) -> list[int]:
    ahead = part.workers * part.prefetch
    free = [part.startup_ns] * part.workers
    sent = [part.startup_ns] * part.workers
    held: list[int] = []
    asked = part.first_ns
    for number, (spent, beside, submit, transit, maker, pickup, compute) in enumerate(
        zip(
            part.spent,
            part.beside,
            part.submit,
            part.transit,
            part.maker,
            part.pickup,
            part.compute,
            strict=True,
        )
    ):
        submitted = held[number - ahead] if number >= ahead else part.startup_ns
        end = max(submitted + submit, free[maker]) + spent
        free[maker] = end
        if beside:
            end = max(end, sent[maker]) + beside
            sent[maker] = end
        delivered = max(asked, end + transit) + pickup
        held.append(delivered)
        asked = delivered + compute
    return held


def _pool_as_they_come(part: _Round) -> list[int]:
    """Hand on whatever is ready first; a worker has a new batch when one of its own is taken."""
    free = [part.startup_ns] * part.workers
    sent = [part.startup_ns] * part.workers
    ready: list[tuple[int, int, int]] = []
    submitted = 0

    def submit(maker: int, now: int) -> None:
        nonlocal submitted
        if submitted == len(part):
            return
        number, submitted = submitted, submitted + 1
        end = max(now + part.submit[number], free[maker]) + part.spent[number]
        free[maker] = end
        if part.beside[number]:
            end = max(end, sent[maker]) + part.beside[number]
            sent[maker] = end
        heapq.heappush(ready, (end + part.transit[number], number, maker))

    for place in range(part.workers * part.prefetch):
        submit(place % part.workers, part.startup_ns)
    held: list[int] = []
    asked = part.first_ns
    for pickup, compute in zip(part.pickup, part.compute, strict=True):
        ready_ns, _, maker = heapq.heappop(ready)
        delivered = max(asked, ready_ns) + pickup
        held.append(delivered)
        submit(maker, delivered)
        asked = delivered + compute
    return held


def _threads(part: _Round) -> list[int]:
    """Let whichever thread is free first take the next batch, once there is room for it."""
    ahead = max(part.prefetch, 1)
    free = [part.startup_ns] * max(part.workers, 1)
    held: list[int] = []
    asked = part.first_ns
    for number, (spent, beside, submit, transit, pickup, compute) in enumerate(
        zip(
            part.spent,
            part.beside,
            part.submit,
            part.transit,
            part.pickup,
            part.compute,
            strict=True,
        )
    ):
        room = held[number - ahead] if number >= ahead else part.startup_ns
        end = max(room + submit, free[0]) + spent
        heapq.heapreplace(free, end)
        delivered = max(asked, end + beside + transit) + pickup
        held.append(delivered)
        asked = delivered + compute
    return held


def _stream(part: _Round) -> list[int]:
    shape = part.run.stream
    if shape is None:
        raise ProfileError(f"{part.run.name}: a stream without its shape, expected one")
    work = part.run.work_ns[part.rows]
    group = np.array(shape.group, dtype=np.int64)
    return stream_rule(
        shape,
        [work[:, group == number].sum(axis=1).tolist() for number in range(len(shape.threads))],
        start_ns=part.startup_ns,
        first_ns=part.first_ns,
        transit=part.transit,
        pickup=part.pickup,
        compute=part.compute,
    )


_RULES: dict[LoaderRule, Callable[[_Round], list[int]]] = {
    LoaderRule.SERIAL: _serial,
    LoaderRule.POOL: _pool,
    LoaderRule.THREADS: _threads,
    LoaderRule.STREAM: _stream,
}
