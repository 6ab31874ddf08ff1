"""How each batch was requested, made and handed over: its delays, and its work by stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.deliveries import STEADY
from iobench.analysis.partition import leaf_pieces, pieces_inside
from iobench.analysis.replay.loader_run import LoaderRule, LoaderRun
from iobench.analysis.stage_table import StageTable
from iobench.recording.kinds import (
    HANDOVER_KINDS,
    WORKER_KINDS,
    Kind,
    is_one_of,
    stage_name,
    stages_of,
)

if TYPE_CHECKING:
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.replay.runs import LoaderBatches
    from iobench.analysis.stage_table import Lanes
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]

HANDED: Final = HANDOVER_KINDS | {Kind.CPU_WAIT}
UNKNOWN: Final = int(np.iinfo(np.int64).min)
"""A time that was not recorded."""
NEVER: Final = int(np.iinfo(np.int64).max)


def loader_run(
    lanes: Lanes, data: RunData, deliveries: Deliveries, batches: LoaderBatches, rule: LoaderRule
) -> LoaderRun:
    """Return what spans say of some batches, each made by one thread for the most part."""
    n, is_serial = len(batches), rule is LoaderRule.SERIAL
    work = _Work(lanes, data, deliveries, batches, is_serial=is_serial)
    shape = n, len(work.stages)
    main = work.lane == np.append(work.first_lane, -1)[work.of]
    own, neighbour = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    np.add.at(own, (work.of[main], work.stage[main]), (work.end_ns - work.start_ns)[main])
    # What other threads did of it counts from where its worker was done with it.
    after = work.end_ns - np.maximum(work.start_ns, work.until_ns[work.of])
    other = ~main & (after > 0)
    queued_ns = np.zeros(n, dtype=np.int64)
    if rule is LoaderRule.POOL:  # whose link has one copy at a time: these follow from others'
        queued = other & (work.spans["kind"] == Kind.COPY_QUEUE)
        np.add.at(queued_ns, work.of[queued], after[queued])
        other &= ~queued
    np.add.at(neighbour, (work.of[other], work.stage[other]), after[other])
    known = work.first_lane >= 0
    gap = np.where(known, work.until_ns - work.begin_ns, 0) - own.sum(axis=1)
    transit = np.where(known, work.ready_ns - work.until_ns, 0) - neighbour.sum(axis=1) - queued_ns
    submit, startup = np.zeros(n, dtype=np.int64), np.zeros(len(batches.start_ns), dtype=np.int64)
    loop_stages: tuple[str, ...] = ()
    ahead, loop = 0, np.zeros((n, 0), dtype=np.int64)
    wait = batches.delivered_ns - batches.requested_ns
    if is_serial:
        in_transit, pickup = np.zeros(n, dtype=np.int64), wait - own.sum(axis=1) - gap
        requested, delivered = batches.requested_ns, batches.delivered_ns
        loop_stages, loop = _loop_work(lanes, data.strings, requested, delivered)
    else:
        in_threads = rule is LoaderRule.THREADS
        submitted = _submitted(lanes, batches, work, in_threads=in_threads)
        ahead = _batches_ahead(batches, submitted) if in_threads else 0
        startup = _startup(batches, submitted, work)
        submit, turn = _delays(batches, submitted, startup, work)
        gap += turn
        ready = np.where(known, work.ready_ns, UNKNOWN)
        there = np.maximum(batches.requested_ns, ready)
        loop_stages, loop = _loop_work(lanes, data.strings, there, batches.delivered_ns)
        in_transit, pickup = _picked_up(batches, ready, there, loop.sum(axis=1))
    worker, n_workers = _workers(batches, work)
    return LoaderRun(
        rule=rule,
        workers=n_workers,
        prefetch=ahead,
        is_part=batches.is_part,
        wall_ns=batches.wall_ns,
        wait_ns=batches.wait_ns,
        round=batches.round,
        number=batches.number,
        worker=worker,
        steady=deliveries.phase[batches.rows] == STEADY,
        weight=batches.weight,
        stages=work.stages,
        work_ns=own + neighbour,
        cpu_ns=work.cpu_of(main | other),
        async_ns=neighbour,
        read_nbytes=work.read_nbytes(),
        gap_ns=gap,
        submit_ns=submit,
        transit_ns=np.maximum(transit, 0) + in_transit,
        pickup_ns=np.maximum(pickup, 0),
        compute_ns=batches.compute_ns,
        loop_stages=loop_stages,
        loop_ns=loop,
        iter_ns=batches.iter_ns,
        before_first_ns=batches.before_first_ns,
        startup_ns=startup,
        shutdown_ns=batches.shutdown_ns,
        repeated=batches.repeated,
    )


class _Work:
    """The pieces of work on the batches, each with the place of its batch (``of``)."""

    def __init__(
        self,
        lanes: Lanes,
        data: RunData,
        deliveries: Deliveries,
        batches: LoaderBatches,
        *,
        is_serial: bool,
    ) -> None:
        if is_serial:
            spans = lanes.own[is_one_of(lanes.own["kind"], {*WORKER_KINDS, Kind.CPU_WAIT})]
            pieces = leaf_pieces(spans, np.zeros(len(spans), dtype=np.int64))
            place = np.full(len(deliveries) + 1, -1, dtype=np.int64)
            place[batches.rows] = np.arange(len(batches))
            of = place[deliveries.waiting_at(pieces.start_ns)]
        else:
            spans, pieces = lanes.pool, leaf_pieces(lanes.pool, lanes.pool_lane)
            of = batches.place_of(pieces.batch)
        until = np.append(batches.delivered_ns, UNKNOWN)[of]
        chosen = (of >= 0) & (pieces.start_ns < until)
        self.of = of[chosen]
        self.start_ns = pieces.start_ns[chosen]
        # Work that goes on after the batch was taken is no part of it.
        self.end_ns = np.minimum(pieces.end_ns[chosen], until[chosen])
        self.lane, self.first = pieces.lane[chosen], pieces.first[chosen]
        self.spans, self.cpu_ns = spans[pieces.span[chosen]], pieces.cpu_ns[chosen]
        stages, of_span = stages_of(self.spans, data.strings)
        # The speed of copies sets how long a batch waits for one.
        names = [stage_name(Kind.H2D if kind is Kind.COPY_QUEUE else kind, label)
                 for kind, label in stages]  # fmt: skip
        self.stages = tuple(sorted(set(names)))
        numbers = np.array([self.stages.index(name) for name in names], dtype=np.int64)
        self.stage = numbers[of_span]
        n = self.n_batches = len(batches)
        self.first_lane, self.begin_ns = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
        order = np.lexsort((self.start_ns, self.of))
        earliest = order[np.flatnonzero(np.diff(self.of[order], prepend=-1))]
        self.first_lane[self.of[earliest]] = self.lane[earliest]
        self.begin_ns[self.of[earliest]] = self.start_ns[earliest]
        self.until_ns, self.ready_ns = self.begin_ns.copy(), self.begin_ns.copy()
        main = self.lane == np.append(self.first_lane, -1)[self.of]
        np.maximum.at(self.until_ns, self.of[main], self.end_ns[main])
        np.maximum.at(self.ready_ns, self.of, self.end_ns)

    def cpu_of(self, counted: NDArray[np.bool_]) -> Integers:
        """Return the CPU time of each batch and stage, -1 where a span has none."""
        chosen = counted & self.first
        place, shape = (self.of[chosen], self.stage[chosen]), (self.n_batches, len(self.stages))
        cpu, unknown = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
        np.add.at(cpu, place, np.maximum(self.cpu_ns[chosen], 0))
        np.logical_or.at(unknown, place, self.cpu_ns[chosen] < 0)
        return np.where(unknown, -1, cpu)

    def read_nbytes(self) -> Integers:
        """Return the bytes that each batch's reads record, -1 where one records none."""
        reads = self.first & (self.spans["kind"] == Kind.READ)
        of, nbytes = self.of[reads], self.spans["nbytes"][reads]
        total = np.zeros(self.n_batches, dtype=np.int64)
        known = np.zeros(self.n_batches, dtype=bool)
        np.add.at(total, of, np.maximum(nbytes, 0))
        known[of] = True
        known[of[nbytes < 0]] = False
        return np.where(known, total, -1)


def _submitted(lanes: Lanes, batches: LoaderBatches, work: _Work, *, in_threads: bool) -> Integers:
    """Return when each batch was submitted, where that was recorded."""
    submitted = np.full(len(batches), UNKNOWN, dtype=np.int64)
    if not in_threads:
        place = batches.place_of(lanes.submissions["batch"].astype(np.int64))
        known = place >= 0
        earliest = np.full(len(batches), NEVER)
        np.minimum.at(earliest, place[known], lanes.submissions["start_ns"][known])
        submitted[place[known]] = earliest[place[known]]
        return submitted
    # A thread's release comes before the batch it began next.
    order = np.lexsort((work.begin_ns, work.first_lane))
    by_loop = lanes.releases[lanes.releases[:, 3] < 0]
    for number in np.unique(by_loop[:, 0]).tolist():
        own = order[work.first_lane[order] == number]
        released = by_loop[by_loop[:, 0] == number]
        at = np.searchsorted(work.begin_ns[own], released[:, 2])
        inside = at < len(own)
        submitted[own[at[inside]]] = released[inside, 1]
    return submitted


def _batches_ahead(batches: LoaderBatches, submitted: Integers) -> int:
    """Return how many batches before the one begun was just taken when a buffer was free for it."""
    lags = [np.zeros(0, dtype=np.int64)]
    for number in range(len(batches.start_ns)):
        rows = np.flatnonzero(batches.round == number)
        release, delivered = submitted[rows], batches.delivered_ns[rows]
        taken = np.searchsorted(batches.requested_ns[rows], release, side="right") - 1
        first, after = (np.searchsorted(delivered, release, side) for side in ("left", "right"))
        taken = np.where(after - first == 1, first, taken)
        late = (release != UNKNOWN) & (release > delivered[0]) & (after - first <= 1)
        lags.append((np.arange(len(rows)) - taken)[late & (taken >= 1)])
    all_lags = np.concatenate(lags)
    values, counts = np.unique(all_lags[all_lags > 0], return_counts=True)
    return int(values[np.argmax(counts)]) if len(values) else 0


def _startup(batches: LoaderBatches, submitted: Integers, work: _Work) -> Integers:
    """Return from each round's first request until the first batch was submitted, or begun."""
    earliest = np.full(len(batches.start_ns), NEVER)
    known, visited = submitted != UNKNOWN, work.first_lane >= 0
    np.minimum.at(earliest, batches.round[known], submitted[known])
    np.minimum.at(earliest, batches.round[visited], work.begin_ns[visited])
    return np.where(earliest == NEVER, 0, earliest - batches.start_ns)


def _delays(
    batches: LoaderBatches, submitted: Integers, startup: Integers, work: _Work
) -> tuple[Integers, Integers]:
    """Return from submission to first stage, and what a busy worker took between two batches."""
    lane, begin = work.first_lane, work.begin_ns
    order = np.lexsort((begin, lane, batches.round))
    same = (np.diff(lane[order]) == 0) & (np.diff(batches.round[order]) == 0)
    before = np.full(len(batches), UNKNOWN, dtype=np.int64)
    before[order[1:][same]] = work.until_ns[order[:-1][same]]
    known, first = lane >= 0, before == UNKNOWN
    opened = (batches.start_ns + startup)[batches.round]
    noted = submitted != UNKNOWN
    # All that is submitted before the first delivery counts from the first of it.
    since = np.where(first, opened, np.where(noted, submitted, before))
    idle = known & (first | (noted & (submitted > before)))
    submit = np.where(idle, np.maximum(begin - since, 0), 0)
    # The rule has it that the loop submits when it holds a batch; it did so while it picked it up.
    wait = np.maximum(np.searchsorted(batches.requested_ns, submitted, side="left") - 1, 0)
    delivered = batches.delivered_ns[wait]
    inside = (batches.requested_ns[wait] < submitted) & (submitted < delivered)
    submit -= np.where(idle & ~first & noted & inside, delivered - submitted, 0)
    # A busy worker shows no delay: it has the usual one, or as much of it as there was time for.
    usual = submit[idle & ~first]
    typical = int(np.median(usual)) if len(usual) else 0
    busy = known & ~idle
    submit[busy] = np.where(noted, np.clip(before - since, 0, typical), typical)[busy]
    return submit, np.where(busy, np.maximum(begin - np.where(busy, before, 0), 0), 0)


def _workers(batches: LoaderBatches, work: _Work) -> tuple[Integers, int]:
    """Return which worker made each batch, by the order of their begins in its round; how many."""
    worker, n_workers = np.full(len(batches), -1, dtype=np.int64), 0
    for number in range(len(batches.start_ns)):
        rows = np.flatnonzero((batches.round == number) & (work.first_lane >= 0))
        rows = rows[np.argsort(work.begin_ns[rows], kind="stable")]
        lanes, first, inverse = np.unique(
            work.first_lane[rows], return_index=True, return_inverse=True
        )
        worker[rows] = np.argsort(np.argsort(first))[inverse.reshape(-1)]
        n_workers = max(n_workers, len(lanes))
    return worker, n_workers


def _picked_up(
    batches: LoaderBatches, ready: Integers, there: Integers, loop: Integers
) -> tuple[Integers, Integers]:
    """Return how long each batch was on its way, and what picking it up took."""
    # Batches that had lain ready show what picking up takes; the rest of a wait was the pipe.
    transit = np.zeros(len(batches), dtype=np.int64)
    visited = ready != UNKNOWN
    rest = batches.delivered_ns - there - loop
    lain = visited & (ready < batches.requested_ns)
    if lain.any():
        usual = int(np.median(rest[lain]))
        waited = visited & ~lain
        transit[waited] = np.maximum(rest[waited] - usual, 0)
        typical = int(np.median(transit[waited])) if waited.any() else 0
        # One that had lain ready was slow to be picked up, if it was; it was not longer on its way.
        transit[lain] = np.minimum(typical, (batches.requested_ns - ready)[lain])
        rest = np.where(waited, np.minimum(rest, usual), rest)
    return transit, rest + loop


def _loop_work(
    lanes: Lanes, strings: tuple[str, ...], low_ns: Integers, high_ns: Integers
) -> tuple[tuple[str, ...], Integers]:
    """Return what of each stretch of time the loop spent on the hand-over, by stage."""
    pieces = leaf_pieces(lanes.own, np.zeros(len(lanes.own), dtype=np.int64))
    table = StageTable(lanes.own, strings)
    handed = np.array([kind in HANDED for kind in table.kinds], dtype=bool)
    stage = table.of_span[pieces.span]
    counted = handed[stage] & (pieces.duration_ns > 0)
    start, end, stage = pieces.start_ns[counted], pieces.end_ns[counted], stage[counted]
    work = np.zeros((len(low_ns), len(table)), dtype=np.int64)
    of, piece, length = pieces_inside(start, end, low_ns, high_ns)
    np.add.at(work, (of, stage[piece]), length)
    columns = np.flatnonzero(work.any(axis=0))
    names = tuple(table.names[at] for at in columns.tolist())
    return names, work[:, columns]
