"""How each batch was asked for, made and handed over: its delays, and its work by stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.partition import leaf_pieces, pieces_inside
from iobench.analysis.replay.loader_run import LoaderRule
from iobench.analysis.replay.stream_shape import StreamPieces, find_shape
from iobench.analysis.stage_table import StageTable
from iobench.recording.kinds import HANDOVER_KINDS, WORKER_KINDS, Kind, is_one_of, stage_name
from iobench.recording.span_keys import lane_keys, stages_of

if TYPE_CHECKING:
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.partition import Pieces
    from iobench.analysis.replay.simulator import StreamShape
    from iobench.analysis.stage_table import Lanes
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]

UNKNOWN: Final = int(np.iinfo(np.int64).min)
"""A time that nobody noted."""


class BatchWork(msgspec.Struct, frozen=True):
    """How the batches of one loader were made; arrays of one row per batch.

    The fields that a `RecordedRun` has are as there.

    Parameters
    ----------
    ready_ns : ndarray of int64
        When it could be picked up, at the earliest.
    seen : ndarray of bool
        Whether anybody noted what was done for it.
    n_makers : int
        Threads at work on whole batches in one round, at most.
    ahead : int or None
        Batches that threads were ahead where they waited for room; None where they never did.
    stream : StreamShape or None
        Of a stream, how its threads hang together.
    """

    stages: tuple[str, ...]
    work_ns: Integers
    beside_ns: Integers
    cpu_ns: Integers
    read_nbytes: Integers
    gap_ns: Integers
    submit_ns: Integers
    transit_ns: Integers
    startup_ns: Integers
    ready_ns: Integers
    maker: Integers
    seen: Marks
    n_makers: int
    ahead: int | None
    stream: StreamShape | None = None


def find_batch_work(
    lanes: Lanes,
    profile: RunData,
    deliveries: Deliveries,
    rows: Integers,
    of_round: Integers,
    round_start_ns: Integers,
    *,
    rule: LoaderRule,
    batches_ahead: int,
) -> BatchWork:
    """Return how the batches of some waits were made.

    Parameters
    ----------
    lanes : Lanes
        Of the training loop.
    rows, of_round : ndarray of int64
        Waits that brought a batch, in order, and the round of each.
    rule : LoaderRule
        Who made them.
    batches_ahead : int
        As configured.
    """
    asked = _AskedBatches(
        row=rows,
        batch=deliveries.batch[rows],
        round=of_round,
        asked_ns=deliveries.asked_ns[rows],
        delivered_ns=deliveries.delivered_ns[rows],
        round_start_ns=round_start_ns,
    )
    if rule is LoaderRule.SERIAL:
        spans = lanes.own[is_one_of(lanes.own["kind"], WORKER_KINDS)]
        pieces = leaf_pieces(spans, np.zeros(len(spans), dtype=np.int64))
        place = np.full(len(deliveries) + 1, -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        of = place[deliveries.waiting_at(pieces.start_ns)]
    else:
        spans, pieces = lanes.pool, leaf_pieces(lanes.pool, lanes.pool_lane)
        of = asked.of(pieces.batch)
    layout = _Layout(asked, spans, pieces, of, profile.strings)
    if rule is LoaderRule.STREAM:
        return layout.streaming(lanes, profile, batches_ahead)
    return layout.whole(lanes, rule)


class _AskedBatches(msgspec.Struct, frozen=True):
    """The batches in question: of which wait, of which round, and when that began."""

    row: Integers
    batch: Integers
    round: Integers
    asked_ns: Integers
    delivered_ns: Integers
    round_start_ns: Integers

    def __len__(self) -> int:
        return len(self.row)

    def of(self, batch: Integers) -> Integers:
        """Return the place of each batch number among these, -1 where it is none of them."""
        order = np.argsort(self.batch, kind="stable")
        place = np.searchsorted(self.batch[order], batch)
        found = place < len(order)
        result = np.full(len(batch), -1, dtype=np.int64)
        result[found] = order[place[found]]
        same = (batch >= 0) & (np.append(self.batch, -1)[result] == batch)
        return np.where(same, result, -1)


def _replayed_as(kind: Kind, label: str) -> str:
    """Return the stage whose speed sets how long something takes."""
    return stage_name(Kind.H2D if kind is Kind.COPY_QUEUE else kind, label)


class _Layout:
    """The pieces of the batches, each with the place of its batch."""

    def __init__(
        self,
        asked: _AskedBatches,
        spans: NDArray[Any],
        pieces: Pieces,
        of: Integers,
        strings: tuple[str, ...],
    ) -> None:
        until = np.append(asked.delivered_ns, UNKNOWN)[of]
        chosen = (of >= 0) & (pieces.start_ns < until)
        self.asked, self.of = asked, of[chosen]
        self.start_ns = pieces.start_ns[chosen]
        # Work that goes on after the batch was taken is no part of it.
        self.end_ns = np.minimum(pieces.end_ns[chosen], until[chosen])
        self.lane, self.first = pieces.lane[chosen], pieces.first[chosen]
        self.spans, self.cpu_ns = spans[pieces.span[chosen]], pieces.cpu_ns[chosen]
        stages, of_span = stages_of(self.spans, strings)
        names = [_replayed_as(*stage) for stage in stages]
        self.stages = tuple(sorted(set(names)))
        number = np.array([self.stages.index(name) for name in names], dtype=np.int64)
        self.stage = number[of_span]

    def whole(self, lanes: Lanes, rule: LoaderRule) -> BatchWork:
        """Return how whole batches were made, each by one thread for the most part."""
        asked, n = self.asked, len(self.asked)
        lane, begin, end, ready = self._extents()
        seen = lane >= 0
        main = self.lane == np.append(lane, -1)[self.of]
        shape = n, len(self.stages)
        own, beside = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        np.add.at(own, (self.of[main], self.stage[main]), (self.end_ns - self.start_ns)[main])
        # What other threads did of it counts from where its maker was done with it.
        after = self.end_ns - np.maximum(self.start_ns, end[self.of])
        other = ~main & (after > 0)
        queued_ns, queued = np.zeros(n, dtype=np.int64), np.zeros(len(other), dtype=bool)
        if rule is LoaderRule.POOL:  # whose link has one copy at a time: these follow from others'
            queued = other & (self.spans["kind"] == Kind.COPY_QUEUE)
            np.add.at(queued_ns, self.of[queued], after[queued])
        other &= ~queued
        np.add.at(beside, (self.of[other], self.stage[other]), after[other])
        gap = np.where(seen, end - begin, 0) - own.sum(axis=1)
        transit = np.where(seen, ready - end, 0) - beside.sum(axis=1) - queued_ns
        transit = np.maximum(transit, 0)
        startup = np.zeros(len(asked.round_start_ns), dtype=np.int64)
        submit, turn = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        ahead = None
        if rule is not LoaderRule.SERIAL:
            submitted, ahead = self._submitted(
                lanes, lane, begin, in_threads=rule is LoaderRule.THREADS
            )
            startup = _startup_of(asked, submitted, begin, seen)
            submit, turn = _submit_of(asked, submitted, startup, lane, begin, end)
        maker, n_makers = _makers_of(asked, lane, begin)
        return BatchWork(
            stages=self.stages,
            work_ns=own + beside,
            beside_ns=beside,
            cpu_ns=self._cpu(main | other, shape),
            read_nbytes=self._read_nbytes(n),
            gap_ns=gap + turn,
            submit_ns=submit,
            transit_ns=transit,
            startup_ns=startup,
            ready_ns=np.where(seen, ready, UNKNOWN),
            maker=maker,
            seen=seen,
            n_makers=n_makers,
            ahead=ahead,
        )

    def streaming(self, lanes: Lanes, profile: RunData, batches_ahead: int) -> BatchWork:
        """Return how batches were made whose parts went from thread to thread."""
        asked = self.asked
        keys = lane_keys(lanes.pool)
        pieces = StreamPieces(
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            lane=self.lane,
            stage=self.stage,
            batch=self.of,
            sample=self.spans["sample"].astype(np.int64),
        )
        shape = find_shape(
            profile,
            np.unique(keys),
            pieces,
            lanes.releases,
            asked.asked_ns,
            n_stages=len(self.stages),
            batches_ahead=batches_ahead,
        )
        return replace(self.flowing(), stream=shape)

    def flowing(self) -> BatchWork:
        """Return how batches were made that several threads work on, whatever these have to do."""
        asked, n = self.asked, len(self.asked)
        lane, begin, _, ready = self._extents()
        seen = lane >= 0
        work = np.zeros((n, len(self.stages)), dtype=np.int64)
        np.add.at(work, (self.of, self.stage), self.end_ns - self.start_ns)
        nothing = np.zeros(n, dtype=np.int64)
        return BatchWork(
            stages=self.stages,
            work_ns=work,
            beside_ns=np.zeros_like(work),
            cpu_ns=self._cpu(np.ones(len(self.of), dtype=bool), work.shape),
            read_nbytes=self._read_nbytes(n),
            gap_ns=nothing,
            submit_ns=nothing,
            transit_ns=nothing,
            startup_ns=_startup_of(asked, np.full(n, UNKNOWN, dtype=np.int64), begin, seen),
            ready_ns=np.where(seen, ready, UNKNOWN),
            maker=np.full(n, -1, dtype=np.int64),
            seen=seen,
            n_makers=len(np.unique(self.lane)),
            ahead=None,
        )

    def _extents(self) -> tuple[Integers, Integers, Integers, Integers]:
        """Return each batch's first lane, when that began and ended, and when all was done."""
        n = len(self.asked)
        lane, begin = np.full(n, -1, dtype=np.int64), np.full(n, 0, dtype=np.int64)
        order = np.lexsort((self.start_ns, self.of))
        earliest = order[np.flatnonzero(np.diff(self.of[order], prepend=-1))]
        lane[self.of[earliest]] = self.lane[earliest]
        begin[self.of[earliest]] = self.start_ns[earliest]
        end, ready = begin.copy(), begin.copy()
        main = self.lane == np.append(lane, -1)[self.of]
        np.maximum.at(end, self.of[main], self.end_ns[main])
        np.maximum.at(ready, self.of, self.end_ns)
        return lane, begin, end, ready

    def _cpu(self, counted: Marks, shape: tuple[int, int]) -> Integers:
        """Return the CPU time of each batch and stage, -1 where a span does not say."""
        chosen = counted & self.first
        place = self.of[chosen], self.stage[chosen]
        cpu, untold = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
        np.add.at(cpu, place, np.maximum(self.cpu_ns[chosen], 0))
        np.logical_or.at(untold, place, self.cpu_ns[chosen] < 0)
        return np.where(untold, -1, cpu)

    def _read_nbytes(self, n: int) -> Integers:
        """Return the bytes that each batch's reads tell of, -1 where there are none that do."""
        reads = self.first & (self.spans["kind"] == Kind.READ)
        of, nbytes = self.of[reads], self.spans["nbytes"][reads]
        total, known = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
        np.add.at(total, of, np.maximum(nbytes, 0))
        known[of] = True
        known[of[nbytes < 0]] = False
        return np.where(known, total, -1)

    def _submitted(
        self, lanes: Lanes, lane: Integers, begin: Integers, *, in_threads: bool
    ) -> tuple[Integers, int | None]:
        """Return when each batch was submitted, as it was noted, and how far threads were ahead."""
        asked = self.asked
        submitted = np.full(len(asked), UNKNOWN, dtype=np.int64)
        if not in_threads:
            place = asked.of(lanes.submissions["batch"].astype(np.int64))
            known = place >= 0
            latest = np.full(len(asked), np.iinfo(np.int64).max)
            np.minimum.at(latest, place[known], lanes.submissions["start_ns"][known])
            submitted[place[known]] = latest[place[known]]
            return submitted, None
        # A thread's release comes before the batch it began next.
        order = np.lexsort((begin, lane))
        by_loop = lanes.releases[lanes.releases[:, 3] < 0]
        for number in np.unique(by_loop[:, 0]).tolist():
            own = order[lane[order] == number]
            released = by_loop[by_loop[:, 0] == number]
            at = np.searchsorted(begin[own], released[:, 2])
            inside = at < len(own)
            submitted[own[at[inside]]] = released[inside, 1]
        return submitted, _batches_ahead_of(asked, submitted)


def _batches_ahead_of(asked: _AskedBatches, submitted: Integers) -> int | None:
    """Return how many batches before the one begun was just taken when there was room for it.

    Where several were taken at that very instant, it does not report which of them made room.
    """
    lags: list[Integers] = []
    for number in range(len(asked.round_start_ns)):
        rows = np.flatnonzero(asked.round == number)
        if not len(rows):
            continue
        release = submitted[rows]
        taken = np.searchsorted(asked.asked_ns[rows], release, side="right") - 1
        delivered = asked.delivered_ns[rows]
        first, after = (np.searchsorted(delivered, release, side) for side in ("left", "right"))
        taken = np.where(after - first == 1, first, taken)
        late = (release != UNKNOWN) & (release > delivered[0]) & (after - first <= 1)
        lags.append((np.arange(len(rows)) - taken)[late & (taken >= 1)])
    all_lags = np.concatenate(lags) if lags else np.zeros(0, dtype=np.int64)
    values, counts = np.unique(all_lags[all_lags > 0], return_counts=True)
    return int(values[np.argmax(counts)]) if len(values) else None


def _startup_of(
    asked: _AskedBatches, submitted: Integers, begin: Integers, seen: Marks
) -> Integers:
    """Return from each round's first question until the first batch was submitted, or begun."""
    earliest = np.full(len(asked.round_start_ns), np.iinfo(np.int64).max)
    known = submitted != UNKNOWN
    np.minimum.at(earliest, asked.round[known], submitted[known])
    begun = np.full(len(earliest), np.iinfo(np.int64).max)
    np.minimum.at(begun, asked.round[seen], begin[seen])
    earliest = np.minimum(earliest, begun)
    untold = earliest == np.iinfo(np.int64).max
    return np.where(untold, 0, earliest - asked.round_start_ns)


def _submit_of(
    asked: _AskedBatches,
    submitted: Integers,
    startup: Integers,
    lane: Integers,
    begin: Integers,
    end: Integers,
) -> tuple[Integers, Integers]:
    """Return from submission to first stage, and what a busy maker took between two batches.

    A busy maker has no delay of the first sort that anybody could see: it has the usual one of
    those that were idle, or as much of it as there was time for.
    """
    order = np.lexsort((begin, lane, asked.round))
    same = (np.diff(lane[order]) == 0) & (np.diff(asked.round[order]) == 0)
    before = np.full(len(asked), UNKNOWN, dtype=np.int64)
    before[order[1:][same]] = end[order[:-1][same]]
    seen, first = lane >= 0, before == UNKNOWN
    opened = (asked.round_start_ns + startup)[asked.round]
    told = submitted != UNKNOWN
    # All that is submitted before the first delivery counts from the first of it.
    since = np.where(first, opened, np.where(told, submitted, before))
    idle = seen & (first | (told & (submitted > before)))
    submit = np.where(idle, np.maximum(begin - since, 0), 0)
    # The rule has it that the loop submits when it holds a batch; it did so while it picked it up.
    submit -= np.where(idle & ~first & told, _before_delivery(asked, submitted), 0)
    usual = submit[idle & ~first]
    typical = int(np.median(usual)) if len(usual) else 0
    busy = seen & ~idle
    submit[busy] = np.where(told, np.clip(before - since, 0, typical), typical)[busy]
    turn = np.where(busy, np.maximum(begin - np.where(busy, before, 0), 0), 0)
    return submit, turn


def _before_delivery(asked: _AskedBatches, submitted: Integers) -> Integers:
    """Return how long before the end of a wait each submission was, 0 for those in no wait."""
    wait = np.maximum(np.searchsorted(asked.asked_ns, submitted, side="left") - 1, 0)
    inside = (asked.asked_ns[wait] < submitted) & (submitted < asked.delivered_ns[wait])
    return np.where(inside, asked.delivered_ns[wait] - submitted, 0)


def _makers_of(asked: _AskedBatches, lane: Integers, begin: Integers) -> tuple[Integers, int]:
    """Return who made each batch, numbered by who began first in its round, and how many."""
    maker = np.full(len(asked), -1, dtype=np.int64)
    n_makers = 0
    for number in range(len(asked.round_start_ns)):
        rows = np.flatnonzero((asked.round == number) & (lane >= 0))
        lanes, first, inverse = np.unique(
            lane[rows[np.argsort(begin[rows], kind="stable")]],
            return_index=True,
            return_inverse=True,
        )
        rank = np.argsort(np.argsort(first))
        maker[rows[np.argsort(begin[rows], kind="stable")]] = rank[inverse.reshape(-1)]
        n_makers = max(n_makers, len(lanes))
    return maker, n_makers


class LoopWork(msgspec.Struct, frozen=True):
    """Stages of the training loop's own thread inside its waits.

    Parameters
    ----------
    work_ns : ndarray of int64, shape (n_waits, n_stages)
    """

    stages: tuple[str, ...]
    work_ns: Integers


def find_loop_work(
    lanes: Lanes, strings: Sequence[str], low_ns: Integers, high_ns: Integers
) -> LoopWork:
    """Return what of each stretch of time the loop spent on the hand-over, by stage.

    Parameters
    ----------
    strings : sequence of str
        Of the profile.
    low_ns, high_ns : ndarray of int64, shape (n_waits,)
        The stretches: from where a batch was there to be picked up until the loop held it.
    """
    spans = lanes.own
    pieces = leaf_pieces(spans, np.zeros(len(spans), dtype=np.int64))
    stages = StageTable(spans, tuple(strings))
    handed = np.array([kind in HANDOVER_KINDS for kind in stages.kinds], dtype=bool)
    stage = stages.of_span[pieces.span]
    counted = handed[stage] & (pieces.duration_ns > 0)
    start, end, stage = pieces.start_ns[counted], pieces.end_ns[counted], stage[counted]
    work = np.zeros((len(low_ns), len(stages)), dtype=np.int64)
    of, piece, length = pieces_inside(start, end, low_ns, high_ns)
    np.add.at(work, (of, stage[piece]), length)
    kept = np.flatnonzero(work.any(axis=0))
    names = tuple(stage_name(stages.kinds[at], stages.labels[at]) for at in kept.tolist())
    return LoopWork(names, work[:, kept])
