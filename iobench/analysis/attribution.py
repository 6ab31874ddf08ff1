"""Who was waited for: every nanosecond of every wait, given to one stage.

Section numbers are those of the definition (``iobench/docs/numbers.md``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.deliveries import IN_THREADS, SERIAL
from iobench.analysis.ledger import ChargedWork, Ledger, apportion
from iobench.analysis.loop import USES
from iobench.analysis.partition import Pieces, leaf_pieces, pieces_inside
from iobench.analysis.paths import Path, Stretch, Turns, Walker, make_turns, releases_by_turn
from iobench.analysis.stage_table import StageTable, find_lanes
from iobench.analysis.time_intervals import overlap_ns, union
from iobench.recording.kinds import HANDOVER_KINDS, WAITING_KINDS, WORKER_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.loop import TrainingLoop
    from iobench.analysis.stage_table import Lanes
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
NOBODY: Final = -1
NOT_SUMMED: Final = Flag.DETAIL | Flag.IO
LOADING: Final = (WORKER_KINDS | HANDOVER_KINDS) - WAITING_KINDS


class Attribution(msgspec.Struct, frozen=True):
    """Every delivery's busy and exposed time by stage.

    Rows of ``exposed_ns`` add up to the waits. Work on a delivery's path counts as its busy time,
    other work as that of the delivery of its own batch; work on batches never delivered, on no
    path, counts nowhere. So for any set of deliveries ``0 <= exposed <= busy``, and disjoint sets
    add up.
    """

    ledger: Ledger
    ready_ns: Integers  # when loading processes had each batch ready, -1 where that is unknown
    work: Callable[[], ChargedWork]  # which delivery counts which part of which span as busy

    @property
    def stages(self) -> StageTable:
        """The columns of the ledger."""
        return self.ledger.stages


def attribute(profile: RunData, loop: TrainingLoop, deliveries: Deliveries) -> Attribution:
    """Return who each delivery waited for."""
    lanes = find_lanes(profile, loop)
    counted = np.concatenate((lanes.own, lanes.pool, lanes.compute))
    stages = StageTable(counted, profile.strings)
    own_stage, pool_stage, compute_stage = np.split(
        stages.of_span, np.cumsum((len(lanes.own), len(lanes.pool)))
    )
    ledger = Ledger(len(deliveries), stages)
    lossy = np.array([bool(process.lost or process.damaged) for process in profile.processes], bool)
    pool = _Pool(lanes, pool_stage, stages, deliveries, ledger, lossy)
    own = _Own(lanes, own_stage, stages, deliveries, ledger)
    ready_ns, created = _ready(deliveries, pool)
    # 4.1: what is left of a wait once the batch is ready, and of waits that brought none.
    request_ns = deliveries.requested_ns
    low_ns = np.where(created, np.maximum(request_ns, ready_ns), request_ns)
    own.charge(low_ns, _stages_of_rest(deliveries, created, stages, own))
    pool.count()
    ledger.settle()
    _charge_compute(lanes, compute_stage, deliveries, ledger)
    return Attribution(
        ledger=ledger,
        ready_ns=ready_ns,
        work=lambda: ChargedWork.joined(own.work(), pool.work()),
    )


def _charge_compute(lanes: Lanes, stage: Integers, deliveries: Deliveries, ledger: Ledger) -> None:
    """Give what the loop did itself, outside of its waits, to the deliveries it was done after."""
    pieces = leaf_pieces(lanes.compute, np.zeros(len(lanes.compute), dtype=np.int64))
    stage = stage[pieces.span]
    first = pieces.first
    np.add.at(ledger.n_computed, (deliveries.at(pieces.start_ns[first]), stage[first]), 1)
    timed = pieces.duration_ns > 0
    delivery, piece, length = pieces_inside(
        pieces.start_ns[timed],
        pieces.end_ns[timed],
        deliveries.delivered_ns,
        deliveries.until_ns,
    )
    np.add.at(ledger.compute_ns, (delivery, stage[timed][piece]), length)
    until_ns = _forward_ns(lanes, deliveries)
    known = np.flatnonzero(until_ns >= 0)
    delivery, _, length = pieces_inside(
        pieces.start_ns[timed],
        pieces.end_ns[timed],
        deliveries.delivered_ns[known],
        until_ns[known],
    )
    ledger.between_ns[known] = until_ns[known] - deliveries.delivered_ns[known]
    np.subtract.at(ledger.between_ns, known[delivery], length)
    ends = union(*(lanes.ends[name].astype(np.int64) for name in ("start_ns", "end_ns")))
    delivery, _, length = pieces_inside(*ends, deliveries.delivered_ns[known], until_ns[known])
    np.add.at(ledger.ending_ns, known[delivery], length)
    ledger.between_ns[known] -= ledger.ending_ns[known]


def _forward_ns(lanes: Lanes, deliveries: Deliveries) -> Integers:
    """Return until when each delivery's share is before a forward pass; -1 where it is not known.

    The pass may follow further deliveries, of its step, in the same round.
    """
    result = np.full(len(deliveries), -1, dtype=np.int64)
    used = lanes.compute[is_one_of(lanes.compute["kind"], USES | {Kind.EVALUATE})]
    used = used[np.argsort(used["start_ns"], kind="stable")]
    at = np.searchsorted(used["start_ns"], deliveries.delivered_ns)
    known = (at < len(used)) & ((deliveries.batch >= 0) | deliveries.reads)
    known &= np.array([each is not None for each in deliveries.generator], dtype=bool)
    rows = np.flatnonzero(known)
    start_ns = used["start_ns"].astype(np.int64)[at[rows]]
    place = deliveries.at(start_ns)
    is_forward = (used["kind"][at[rows]] == Kind.FORWARD) & (place >= 0)
    is_forward &= deliveries.round[place] == deliveries.round[rows]
    result[rows] = np.where(is_forward, np.minimum(start_ns, deliveries.until_ns[rows]), -1)
    return result


def _ready(deliveries: Deliveries, pool: _Pool) -> tuple[Integers, NDArray[np.bool_]]:
    """Charge the waits for batches that were not ready, in order; return when each was ready."""
    ready_ns = np.full(len(deliveries), -1, dtype=np.int64)
    created = np.zeros(len(deliveries), dtype=bool)
    overtaken = deliveries.overtaken
    rows = np.flatnonzero(deliveries.batch >= 0)
    for delivery, batch, requested, delivered in zip(
        rows.tolist(),
        deliveries.batch[rows].tolist(),
        deliveries.requested_ns[rows].tolist(),
        deliveries.delivered_ns[rows].tolist(),
        strict=True,
    ):
        if deliveries.maker[delivery] == SERIAL:
            continue
        ready = pool.walker.ready(batch, delivered)
        if ready is not None:
            if ready[1] > requested:
                others = pool.others_at(delivery, *ready) if overtaken[delivery] else []
                pool.charge(delivery, requested, [pool.walker.walk(*e) for e in (ready, *others)])
            ready_ns[delivery] = ready[1]
            created[delivery] = True
    return ready_ns, created


def _stages_of_rest(
    deliveries: Deliveries, created: NDArray[np.bool_], stages: StageTable, own: _Own
) -> Integers:
    """Return the stage of what of each wait neither loading threads nor the loop explain."""
    maker = np.array([*deliveries.maker, ""], dtype=object)[:-1]
    in_loop = (maker == SERIAL) | np.isin(deliveries.batch, [*own.batches])
    unseen = ~created & ~in_loop
    known = (deliveries.workers > 0) | (maker == IN_THREADS)
    rest = np.full(len(deliveries), stages[Kind.HANDOVER], dtype=np.int64)
    rest[unseen & known] = stages[Kind.UNKNOWN]
    rest[unseen & ~known & deliveries.numbered] = stages[Kind.OPAQUE]
    for marks, kind in (
        (deliveries.starts, Kind.STARTUP),
        (deliveries.failed, Kind.UNKNOWN),
        (deliveries.ends_round, Kind.SHUTDOWN),
    ):
        rest[marks] = stages[kind]
    return rest


class _Own:
    """The training loop's own thread: each instant of a wait belongs to its innermost span."""

    def __init__(
        self,
        lanes: Lanes,
        stage: Integers,
        stages: StageTable,
        deliveries: Deliveries,
        ledger: Ledger,
    ) -> None:
        spans = lanes.own
        pieces = leaf_pieces(spans, np.zeros(len(spans), dtype=np.int64))
        timed = pieces.duration_ns > 0
        self.start_ns, self.end_ns = pieces.start_ns[timed], pieces.end_ns[timed]
        self.stage, self.row = stage[pieces.span[timed]], lanes.own_row[pieces.span[timed]]
        self.deliveries, self.ledger = deliveries, ledger
        self.opaque = stages[Kind.OPAQUE]
        work = is_one_of(spans["kind"], WORKER_KINDS)
        self.batches = set(np.unique(spans["batch"][work & (spans["batch"] >= 0)]).tolist())
        # Outside the waits the thread computes; there its pieces are no part of loading.
        delivery = deliveries.waiting_at(pieces.start_ns)
        ledger.count(spans, pieces, stage[pieces.span], delivery)

    def _inside(self, rows: Integers, low_ns: Integers) -> tuple[Integers, Integers, Integers]:
        """Return who waited during what was done from ``low_ns`` on, its pieces and lengths."""
        high_ns = self.deliveries.delivered_ns[rows]
        of, piece, length = pieces_inside(self.start_ns, self.end_ns, low_ns, high_ns)
        return rows[of], piece, length

    def charge(self, low_ns: Integers, rest: Integers) -> None:
        """Expose each wait from ``low_ns`` on: to the loop's spans, the rest to a stage."""
        deliveries, ledger = self.deliveries, self.ledger
        at = np.flatnonzero(~deliveries.ends_round)
        delivery, piece, length = self._inside(at, deliveries.requested_ns[at])
        np.add.at(ledger.busy_ns, (delivery, self.stage[piece]), length)
        delivery, piece, length = self._inside(at, low_ns[at])
        np.add.at(ledger.exposed_ns, (delivery, self.stage[piece]), length)
        covered = np.zeros(len(deliveries), dtype=np.int64)
        np.add.at(covered, delivery, length)
        uncovered = deliveries.delivered_ns - low_ns - covered
        rows = np.arange(len(deliveries))
        ledger.exposed_ns[rows, rest] += uncovered
        # Of work that nobody saw no more is known than what was waited for.
        opaque = rows[rest == self.opaque]
        ledger.busy_ns[opaque, self.opaque] += uncovered[opaque]

    def work(self) -> ChargedWork:
        """Return what of each span was in whose wait; the rest of it in none."""
        at = np.flatnonzero(~self.deliveries.ends_round)
        delivery, piece, length = self._inside(at, self.deliveries.requested_ns[at])
        left = self.end_ns - self.start_ns
        np.subtract.at(left, piece, length)
        return ChargedWork(
            row=np.concatenate((self.row[piece], self.row)),
            stage=np.concatenate((self.stage[piece], self.stage)),
            delivery=np.concatenate((delivery, np.full(len(left), NOBODY))),
            length_ns=np.concatenate((length, left)),
        )


class _Pool:
    """The loading threads: turns, their stages, and the paths of the batches waited for."""

    def __init__(
        self,
        lanes: Lanes,
        stage: Integers,
        stages: StageTable,
        deliveries: Deliveries,
        ledger: Ledger,
        lossy: NDArray[np.bool_],
    ) -> None:
        self.pieces: Pieces = leaf_pieces(lanes.pool, lanes.pool_lane)
        # Threads of the training process may have waited before each item they worked on.
        in_threads = lanes.lane_process[self.pieces.lane] == deliveries.process
        of_piece = lanes.pool[self.pieces.span]
        one_item = in_threads & (
            ((of_piece["flags"] & Flag.SUMMED) == 0) | (of_piece["pieces"] < 2)
        )
        self.turns: Turns = make_turns(
            self.pieces,
            np.where(in_threads, self.pieces.span, -1),
            np.where(one_item, of_piece["sample"], -1),
        )
        self.spans, self.stages, self.ledger = lanes.pool, stages, ledger
        self.stage, self.row = stage[self.pieces.span], lanes.pool_row[self.pieces.span]
        # Parts of turns on the path of a delivery: (turn, from, to, delivery).
        self.on_paths: list[tuple[int, int, int, int]] = []
        self.process = lanes.lane_process[self.turns.lane]
        self.consumer = deliveries.process
        self.lossy = lossy
        self.workers, self.rounds = deliveries.workers, deliveries.round
        self.submitted = _earliest(lanes.submissions["batch"], lanes.submissions["start_ns"])
        self.started = _earliest(lanes.startups["process"], -lanes.startups["end_ns"])
        self.released = releases_by_turn(lanes.releases, self.turns)
        self.walker = Walker(self.turns, self.submitted, self.released)
        self.first_batch: dict[int, int] = {}  # of each process
        for turn in np.argsort(self.turns.start_ns, kind="stable").tolist():
            if self.turns.batch[turn] >= 0:
                process = int(self.process[turn])
                self.first_batch.setdefault(process, int(self.turns.batch[turn]))
        delivery_of = {
            batch: delivery
            for delivery, batch in enumerate(deliveries.batch.tolist())
            if batch >= 0
        }
        # Each turn's delivery: that of its own batch, and in the end that of its path.
        own = [delivery_of.get(batch, NOBODY) for batch in self.turns.batch.tolist()]
        self.delivery = np.array(own, dtype=np.int64)
        self.owner = self.delivery.copy()
        # Work of each turn by stage, and its time without work.
        n_pieces = np.diff(self.turns.piece)
        self.turn_of_piece = np.repeat(np.arange(len(self.turns)), n_pieces)
        self.work_ns = np.zeros((len(self.turns), len(stages)), dtype=np.int64)
        place = self.turn_of_piece * len(stages) + self.stage
        np.add.at(self.work_ns.reshape(-1), place, self.pieces.duration_ns)
        np.add.at(ledger.busy_ns, self.delivery, self.work_ns)

    def others_at(self, delivery: int, turn: int, ready_ns: int) -> list[tuple[int, int]]:
        """Return what other workers of a loader are at as a batch is ready: (turn, time) of each.

        Where batches are taken as they come, any of these could have come earlier.
        """
        rounds, own, turns = self.rounds, self.process[turn], self.walker.under_way(ready_ns)
        return [
            (each, ready_ns)
            for each in turns
            if self.process[each] not in (own, self.consumer)
            and self.delivery[each] >= 0
            and rounds[self.delivery[each]] == rounds[delivery]
        ]

    def charge(self, delivery: int, requested_ns: int, paths: Sequence[Path]) -> None:
        """Give the wait before a batch was ready to what lies on its path (4.2, 4.3).

        Other paths share it.
        """
        exposed, path = self.ledger.exposed_ns[delivery], paths[0]
        start = max(requested_ns, min(path.start_ns, path.ready_ns))
        self._charge_before(exposed, requested_ns, start, path.begins)
        weights = np.sum([self._claimed(delivery, each) for each in paths], axis=0)
        exposed += apportion(path.ready_ns - start, weights.tolist())

    def _claimed(self, delivery: int, path: Path) -> Integers:
        """Give a delivery the work on a path; return the time of each stage in its delay."""
        weights = np.zeros(len(self.stages), dtype=np.int64)
        for stretch in path.stretches:
            work = self._work(stretch)
            weights += work
            weights[self._idle(stretch, delivery)] += stretch.high_ns - stretch.low_ns - work.sum()
            if stretch.turn >= 0:
                self.ledger.busy_ns[delivery] += work
                self.ledger.busy_ns[self.delivery[stretch.turn]] -= work
                self.owner[stretch.turn] = delivery
                self.on_paths.append((stretch.turn, stretch.low_ns, stretch.high_ns, delivery))
        for stretch in path.after_cut:
            work = self._work(stretch)
            weights -= work
            weights[self._idle(stretch, delivery)] -= stretch.high_ns - stretch.low_ns - work.sum()
        return np.maximum(weights, 0)

    def _work(self, stretch: Stretch) -> Integers:
        """Return the time of a stretch by stage, 0 between turns."""
        turn = stretch.turn
        if turn < 0:
            return np.zeros(len(self.stages), dtype=np.int64)
        low, high = stretch.low_ns, stretch.high_ns
        if low == self.turns.start_ns[turn] and high == self.turns.end_ns[turn]:
            whole: Integers = self.work_ns[turn]
            return whole
        part = slice(self.turns.piece[turn], self.turns.piece[turn + 1])
        work = np.zeros(len(self.stages), dtype=np.int64)
        starts, ends = self.pieces.start_ns[part], self.pieces.end_ns[part]
        np.add.at(work, self.stage[part], overlap_ns(starts, ends, low, high))
        return work

    def _idle(self, stretch: Stretch, delivery: int) -> int:
        """Return the stage of a stretch's time without work."""
        between = stretch.turn < 0 and self.workers[delivery] > 0
        if between and self.process[stretch.late] == self.consumer:
            return self.stages[Kind.IPC_WAIT]
        process = self.process[stretch.late if stretch.turn < 0 else stretch.turn]
        return self.stages[Kind.UNKNOWN if self.lossy[process] else Kind.WORKER_GAP]

    def _charge_before(self, exposed: Integers, low_ns: int, high_ns: int, turn: int) -> None:
        """Give the wait before the path: to start-up, to not being submitted, to the queue."""
        if high_ns <= low_ns:
            return
        process, batch = int(self.process[turn]), int(self.turns.batch[turn])
        ready = low_ns
        if turn >= 0 and (batch < 0 or self.first_batch.get(process) == batch):
            ready = min(max(-self.started.get(process, -high_ns), low_ns), high_ns)
        exposed[self.stages[Kind.STARTUP]] += ready - low_ns
        submitted = self.submitted.get(batch) if turn >= 0 else None
        if turn in self.released:
            submitted = self.released[turn][0]
        if submitted is None:
            exposed[self.stages[Kind.UNKNOWN]] += high_ns - ready
            return
        queued = min(max(submitted, ready), high_ns)
        exposed[self.stages[Kind.STARVED_SUBMIT]] += queued - ready
        exposed[self.stages[Kind.SUBMIT_QUEUE]] += high_ns - queued

    def count(self) -> None:
        """Count the spans, each for the delivery that its turn ended up with."""
        self.ledger.count(self.spans, self.pieces, self.stage, self.owner[self.turn_of_piece])

    def work(self) -> ChargedWork:
        """Return what of each span was on whose path; the rest is its own batch's."""
        paths = np.array(self.on_paths, dtype=np.int64).reshape(-1, 4)
        turn = paths[:, 0]
        first = self.turns.piece[turn]
        n_pieces = self.turns.piece[turn + 1] - first
        of = np.repeat(np.arange(len(turn)), n_pieces)
        piece = np.arange(len(of)) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces) + first[of]
        starts, ends = self.pieces.start_ns[piece], self.pieces.end_ns[piece]
        length = overlap_ns(starts, ends, paths[of, 1], paths[of, 2])
        left = self.pieces.duration_ns.copy()
        np.subtract.at(left, piece, length)
        return ChargedWork(
            row=np.concatenate((self.row[piece], self.row)),
            stage=np.concatenate((self.stage[piece], self.stage)),
            delivery=np.concatenate((paths[of, 3], self.delivery[self.turn_of_piece])),
            length_ns=np.concatenate((length, left)),
        )


def _earliest(keys: NDArray[Any], values: NDArray[Any]) -> dict[int, int]:
    """Return the least value of every key that is not negative."""
    order = np.lexsort((values, keys))
    distinct, first = np.unique(keys[order], return_index=True)
    pairs = zip(distinct.tolist(), values[order][first].tolist(), strict=True)
    return {key: value for key, value in pairs if key >= 0}


class SpanSums(msgspec.Struct, frozen=True):
    """By row of ``RunData.spans``; -1, or NaN, where a span has none or it is not known."""

    self_ns: Integers  # a loading span's own time: what lies in no span inside it
    busy_ns: Integers  # of that, what was of batches that were delivered, or on their paths
    exposed_ns: Integers  # of that, what the training loop waited for; of its waits, all
    share: NDArray[np.float64]  # exposed share of the own time, also where a summed span counts it


def unknown_sums(n_spans: int) -> SpanSums:
    """Return the sums of spans of which nothing is known."""
    unknown = [np.full(n_spans, -1, dtype=np.int64) for _ in range(3)]
    return SpanSums(unknown[0], unknown[1], unknown[2], np.full(n_spans, np.nan))


def sums_of_spans(profile: RunData, deliveries: Deliveries, attribution: Attribution) -> SpanSums:
    """Return what of each span of one training process is counted where."""
    spans, ledger, work = profile.spans, attribution.ledger, attribution.work()
    result = replace(unknown_sums(len(spans)), share=_shares(spans, ledger, work))
    loads = ~ledger.stages.waiting[work.stage]
    of_work, counted = work.row[loads], loads & (work.delivery >= 0)
    of_counted = work.row[counted]
    exposed = _parts(
        work.delivery[counted] * len(ledger.stages) + work.stage[counted],
        work.length_ns[counted],
        ledger.exposed_ns[work.delivery[counted], work.stage[counted]],
    )
    in_loop = spans["process"] == deliveries.process
    in_loop &= (spans["thread"] == deliveries.thread) & ((spans["flags"] & NOT_SUMMED) == 0)
    # Of the loop's own spans, those that took no time are not among the parts.
    loading = np.flatnonzero(in_loop & is_one_of(spans["kind"], LOADING))
    for values in (result.self_ns, result.busy_ns, result.exposed_ns):
        values[of_work] = 0
        values[loading] = 0
    np.add.at(result.self_ns, of_work, work.length_ns[loads])
    np.add.at(result.busy_ns, of_counted, work.length_ns[counted])
    np.add.at(result.exposed_ns, of_counted, exposed)
    at = np.flatnonzero(in_loop & (spans["kind"] == Kind.WAIT) & (spans["flags"] == 0))
    result.exposed_ns[at] = (spans["end_ns"] - spans["start_ns"])[at]
    return result


def _parts(group: Integers, length_ns: Integers, exposed_ns: Integers) -> Integers:
    """Split each group's exposed time over its pieces in proportion to their lengths, exactly.

    The running sums are rounded, not the parts: no part exceeds its piece, for a group's exposed
    time never exceeds its pieces' sum.
    """
    order = np.argsort(group, kind="stable")
    length, whole = length_ns[order], exposed_ns[order]
    running = np.cumsum(length)
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    number = np.cumsum(np.diff(group[order], prepend=-1) != 0) - 1
    before = (running - length)[first][number] if len(order) else running
    total = np.add.reduceat(length, first)[number] if len(order) else running
    until = _scaled(running - before, whole, total)
    since = _scaled(running - length - before, whole, total)
    parts = np.empty(len(order), dtype=np.int64)
    parts[order] = until - since
    return parts


def _scaled(amount: Integers, times: Integers, over: Integers) -> Integers:
    """Return ``amount * times // over``, exact though the product may not fit 64 bits."""
    over = np.maximum(over, 1)
    if float(amount.max(initial=0)) * float(times.max(initial=0)) < 2.0**62:
        fits: Integers = amount * times // over
        return fits
    exact = amount.astype(object) * times.astype(object) // over.astype(object)
    result: Integers = exact.astype(np.int64)
    return result


def _shares(spans: NDArray[Any], ledger: Ledger, work: ChargedWork) -> NDArray[np.float64]:
    """Return the exposed share of each span, NaN where it is not known."""
    busy_ns = ledger.busy_ns[work.delivery, work.stage]
    exposed_ns = ledger.exposed_ns[work.delivery, work.stage]
    waited_for = np.where(
        work.delivery >= 0, work.length_ns * exposed_ns / np.maximum(busy_ns, 1), 0
    )
    loads, n_spans = ~ledger.stages.waiting[work.stage], len(spans)
    own_ns: NDArray[Any] = np.bincount(work.row[loads], work.length_ns[loads], n_spans)
    waited_for_ns: NDArray[Any] = np.bincount(work.row[loads], waited_for[loads], n_spans)
    share = np.full(n_spans, np.nan)
    np.divide(waited_for_ns, own_ns, out=share, where=own_ns > 0)
    _share_of_samples(spans, own_ns, waited_for_ns, share)
    return share


def _share_of_samples(
    spans: NDArray[Any],
    own_ns: NDArray[Any],
    waited_for_ns: NDArray[Any],
    share: NDArray[np.float64],
) -> None:
    """Give samples' spans the share of the summed ones of their batch, thread and stage."""
    flags = spans["flags"]
    details = np.flatnonzero((flags & (Flag.DETAIL | Flag.DEVICE)) == Flag.DETAIL)
    sums = np.flatnonzero(((flags & Flag.SUMMED) != 0) & (own_ns > 0))
    if not len(details) or not len(sums):
        return
    names = ["process", "thread", "batch", "kind", "label"]
    keys = spans[names][np.concatenate((sums, details))]
    distinct, number = np.unique(keys, return_inverse=True)
    number = number.reshape(-1)
    of_sum, of_detail = number[: len(sums)], number[len(sums) :]
    own = np.bincount(of_sum, own_ns[sums], len(distinct))
    waited_for = np.bincount(of_sum, waited_for_ns[sums], len(distinct))
    result = own[of_detail] > 0
    share[details[result]] = waited_for[of_detail[result]] / own[of_detail[result]]
