"""What loaders did in a run, batch by batch, from its spans: what a replay starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.counters import io_counters
from iobench.analysis.deliveries import (
    EVALUATIONS,
    IN_THREADS,
    SERIAL,
    STEADY,
    by_importance,
    roles_of_loaders,
)
from iobench.analysis.intervals import MOST_BLOCKS
from iobench.analysis.loop import ONLY
from iobench.analysis.replay.batch_work import (
    BatchWork,
    LoopWork,
    find_batch_work,
    find_loop_work,
)
from iobench.analysis.replay.loader_run import LoaderRule, RecordedRun
from iobench.analysis.stage_table import find_lanes

if TYPE_CHECKING:
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.loop import TrainingLoop
    from iobench.analysis.run import RankRun
    from iobench.analysis.stage_table import Lanes
    from iobench.recording.facts import LoaderFacts
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]

REPORTED_BATCHES: Final = 10_000
"""Batches of a loader that a report replays, from the start of the run: it is made in seconds."""
UNSEEN_LIMIT: Final = 0.01
"""Share of batches nobody saw being made from which on a run cannot be replayed."""


def recorded_runs(run: RankRun, *, max_batches: int | None = None) -> tuple[RecordedRun, ...]:
    """Return what each loader of a training process did, the one that trains first.

    Parameters
    ----------
    max_batches : int, optional
        How many of each loader, from the start of the run, or of the epochs as a long training
        has them where there are such; by default all.

    Returns
    -------
    tuple of RecordedRun
        One for each loader with batches, made again for each epoch or not; what cannot be replayed
        has `LoaderRule.OPAQUE` and says why in ``reason``.
    """
    profile, loop, seen = run, run.loop, run.deliveries
    deliveries = replace(seen, loader=np.where(seen.of_main, seen.main, seen.loader))
    deliveries = replace(deliveries, loader=_evaluating_once(loop, deliveries))
    roles = roles_of_loaders(deliveries, deliveries.role)
    numbers = by_importance(deliveries, roles)
    if not numbers:
        return ()
    frames = {number: _frame(deliveries, number, max_batches) for number in numbers}
    end_ns = max(each.end_ns for each in frames.values())
    parts = _Parts(profile, loop, deliveries, seen.loader, end_ns)
    return tuple(
        replace(
            parts.run(number, frame, several=len(frames) > 1),
            evaluates=roles.get(number) in EVALUATIONS,
        )
        for number, frame in frames.items()
    )


def _evaluating_once(loop: TrainingLoop, deliveries: Deliveries) -> Integers:
    """Return the loader of each delivery; those that evaluate alike, made again each time, are one.

    Each of them has one pass.
    """
    roles, first = roles_of_loaders(deliveries, deliveries.role), dict[tuple[object, ...], int]()
    loader = deliveries.loader.copy()
    for number in np.unique(deliveries.loader[deliveries.batch >= 0]).tolist():
        rows = deliveries.loader == number
        settings = loop.loaders.get(number)
        once = len(np.unique(deliveries.round[rows & (deliveries.batch >= 0)])) == 1
        if settings is None or number == ONLY or roles.get(number) not in EVALUATIONS or not once:
            continue
        loader[rows] = first.setdefault((roles[number], *settings.kept), number)
    return loader


def reported_loaders(run: RankRun) -> tuple[RecordedRun, ...]:
    """Return what a report replays: part of each loader; nothing of one rank of many."""
    return () if run.is_one_of_many else recorded_runs(run, max_batches=REPORTED_BATCHES)


class _Frame(msgspec.Struct, frozen=True):
    """Where the batches of one loader lie among the waits, and its rounds."""

    rows: Integers
    round: Integers
    opening_ns: Integers
    lead_ns: Integers
    start_ns: Integers
    compute_ns: Integers
    shutdown_ns: Integers
    end_ns: int
    wall_ns: int
    wait_ns: int
    is_part: bool
    repeated: NDArray[np.bool_]
    weight: NDArray[np.float64] | None


def _frame(deliveries: Deliveries, loader: int, max_batches: int | None) -> _Frame:
    """Return the rounds of a loader that brought a batch; each is replayed by itself.

    Of the last of ``max_batches`` what follows it belongs to it, to the next question.
    """
    of_loader = deliveries.loader == loader
    with_batch = deliveries.batch >= 0
    brought = np.flatnonzero(of_loader & with_batch)
    is_part, weight, left_out = False, None, np.zeros(len(deliveries), dtype=bool)
    if max_batches is not None and len(brought) > max_batches:
        is_part = True
        repeated = of_loader & with_batch & deliveries.repeated
        if repeated.any():
            kept, weight = part_of_epochs(
                deliveries.round, repeated, deliveries.phase == STEADY, max_batches
            )
            of_loader &= np.isin(deliveries.round, deliveries.round[kept])
            left_out = of_loader & with_batch
            left_out[kept] = False
        else:
            of_loader[brought[max_batches] :] = False
    rounds = np.unique(deliveries.round[of_loader & (deliveries.batch >= 0)])
    n_rounds = len(rounds)
    opening, lead, start, shutdown = (np.zeros(n_rounds, dtype=np.int64) for _ in range(4))
    rows, compute, of_round = [], [], []
    wall_ns = wait_ns = ends_ns = 0
    asked, delivered = deliveries.asked_ns, deliveries.delivered_ns
    order = np.argsort(deliveries.round, kind="stable")
    edges = np.searchsorted(deliveries.round[order], [rounds, rounds + 1])
    for number, (low, high) in enumerate(edges.T.tolist()):
        waits = order[low:high]
        waits = waits[of_loader[waits]]
        more, waits = waits[left_out[waits]], waits[~left_out[waits]]
        more = more[more > waits[-1]]
        batches = waits[deliveries.batch[waits] >= 0]
        before, after = waits[waits < batches[0]], waits[waits > batches[-1]]
        start[number] = asked[waits[0]]
        opening[number] = (delivered - asked)[before].sum()
        lead[number] = asked[batches[0]] - start[number] - opening[number]
        next_one = more if len(more) else after
        end = asked[next_one[0]] if len(next_one) else _end(deliveries, waits[-1])
        ends_ns = max(ends_ns, end)
        shutdown[number] = (delivered - asked)[after].sum()
        rows.append(batches)
        compute.append(np.append(asked[batches[1:]], end) - delivered[batches])
        of_round.append(np.full(len(batches), number))
        wall_ns += int(end - start[number] + shutdown[number])
        wait_ns += int((delivered - asked)[waits].sum())
    return _Frame(
        rows=np.concatenate(rows),
        round=np.concatenate(of_round).astype(np.int64),
        opening_ns=opening,
        lead_ns=lead,
        start_ns=start,
        compute_ns=np.concatenate(compute),
        shutdown_ns=shutdown,
        end_ns=int(ends_ns),
        wall_ns=wall_ns,
        wait_ns=wait_ns,
        is_part=is_part,
        repeated=np.isin(rounds, deliveries.round[deliveries.repeated]),
        weight=weight,
    )


def part_of_epochs(
    round: Integers, chosen: Marks, steady: Marks, n_batches: int
) -> tuple[Integers, NDArray[np.float64] | None]:
    """Return the rows of the first chosen rounds that have so many batches at most together.

    Where fewer fit than tell how rounds vary, the first batches of each of that many, with how many
    each then stands for: those of the steady state for all that were left out.
    """
    rows = np.flatnonzero(chosen)
    rounds, counts = np.unique(round[rows], return_counts=True)
    fits = np.cumsum(counts) <= n_batches
    if fits[:MOST_BLOCKS].all():
        return rows[np.isin(round[rows], rounds[fits])], None
    found = [rows[round[rows] == number] for number in rounds[:MOST_BLOCKS]]
    if not all(steady[of[: n_batches // len(found)]].any() for of in found if steady[of].any()):
        found = found[:1]
    kept = [of[: n_batches // len(found)] for of in found]
    weight = []
    for of, first in zip(found, kept, strict=True):
        stands_for = steady[of].sum() / max(steady[first].sum(), 1)
        weight.append(np.where(steady[first], stands_for, 1.0))
    return np.concatenate(kept), np.concatenate(weight)


def _end(deliveries: Deliveries, row: int) -> int:
    """Return until when a round's last wait has the wall time, where nothing was asked again."""
    return max(int(deliveries.until_ns[row]), int(deliveries.delivered_ns[row]))


class _Parts:
    """Everything that the runs of one training loop are made of."""

    def __init__(
        self,
        profile: RunData,
        loop: TrainingLoop,
        deliveries: Deliveries,
        numbers: Integers,
        end_ns: int,
    ) -> None:
        begun = profile.spans["start_ns"] < end_ns
        if not begun.all():
            profile = msgspec.structs.replace(profile, spans=profile.spans[begun])
        self.profile, self.loop, self.deliveries = profile, loop, deliveries
        self.numbers = numbers
        self.lanes: Lanes = find_lanes(profile, loop)
        self.looked_at, self.looked_nbytes, _ = io_counters(loop.spans_of(profile), deliveries)

    def run(self, loader: int, frame: _Frame, *, several: bool) -> RecordedRun:
        """Return what one loader did."""
        settings = self.loop.loaders.get(loader, self.loop.loaders[ONLY])
        if settings.workers:
            settings = replace(settings, worker_pids=self._worker_pids(frame))
        rule = self._rule(settings, frame)
        times = find_batch_work(
            self.lanes,
            self.profile,
            self.deliveries,
            frame.rows,
            frame.round,
            frame.start_ns,
            rule=rule,
            batches_ahead=max(settings.prefetch, 1),
        )
        reason = self._reason(rule, settings, times)
        name = self.profile.path.name
        if several:
            of = f" ({settings.name})" if settings.name else ""
            name = f"{name}, loader {loader}{of}"
        return self._recorded(name, rule, reason, settings, frame, times)

    def _worker_pids(self, frame: _Frame) -> list[int]:
        """Return whose workers made these batches: of one loader, or of it made again each time."""
        numbers = np.unique(self.numbers[frame.rows]).tolist()
        told = (self.loop.loaders.get(number, self.loop.loaders[ONLY]) for number in numbers)
        return [pid for each in told for pid in each.worker_pids]

    def _rule(self, settings: LoaderFacts, frame: _Frame) -> LoaderRule:
        """Return by what rule a loader worked, by who it says made its batches."""
        makers = {self.deliveries.made_by[row] for row in frame.rows.tolist()}
        framework = settings.framework or (self.profile.run_facts.framework or "")
        if settings.workers and not makers & {IN_THREADS, SERIAL}:
            return LoaderRule.POOL
        if makers == {SERIAL}:
            return LoaderRule.SERIAL
        if makers == {IN_THREADS}:
            return LoaderRule.STREAM if framework in ("", "stream") else LoaderRule.THREADS
        return LoaderRule.OPAQUE

    def _reason(self, rule: LoaderRule, settings: LoaderFacts, times: BatchWork) -> str:
        """Return why a run cannot be replayed, ``""`` if it can."""
        if settings.unreplayed:
            return settings.unreplayed
        if rule is LoaderRule.OPAQUE:
            return "the loader does not report which workers make its batches"
        n_unseen = int((~times.seen).sum())
        if n_unseen > UNSEEN_LIMIT * len(times.seen):
            return f"{n_unseen} of {len(times.seen)} batches were not seen being made"
        if rule is LoaderRule.STREAM and times.stream is None:
            return "how the threads of its stream depend on each other was not seen"
        return ""

    def _recorded(
        self,
        name: str,
        rule: LoaderRule,
        reason: str,
        settings: LoaderFacts,
        frame: _Frame,
        times: BatchWork,
    ) -> RecordedRun:
        deliveries, rows = self.deliveries, frame.rows
        asked, delivered = deliveries.asked_ns[rows], deliveries.delivered_ns[rows]
        if rule is LoaderRule.SERIAL:
            pickup = delivered - asked - times.work_ns.sum(axis=1) - times.gap_ns
            way = np.zeros_like(pickup)
            loop_work = LoopWork((), np.zeros((len(rows), 0), dtype=np.int64))
        else:
            there = np.maximum(asked, times.ready_ns)
            loop_work = find_loop_work(self.lanes, self.profile.strings, there, delivered)
            pickup, way = _pick_up(asked, delivered, times, loop_work.work_ns.sum(axis=1))
        batch = deliveries.batch[rows]
        in_order = bool((np.diff(batch)[np.diff(frame.round) == 0] > 0).all())
        workers, prefetch = settings.workers, max(settings.prefetch, 1)
        if rule is LoaderRule.THREADS:
            workers = settings.threads or times.n_makers
            prefetch = times.ahead or max(settings.prefetch, workers)
        if rule is LoaderRule.SERIAL:
            workers = prefetch = 0
        return RecordedRun(
            name=name,
            rule=LoaderRule.OPAQUE if reason else rule,
            in_order=in_order,
            workers=workers,
            prefetch=prefetch,
            batch_size=settings.batch_size or self.loop.loaders[ONLY].batch_size,
            stages=times.stages,
            round=frame.round,
            work_ns=times.work_ns,
            cpu_ns=times.cpu_ns,
            read_nbytes=self._read_nbytes(rows, times),
            gap_ns=times.gap_ns,
            submit_ns=times.submit_ns,
            transit_ns=times.transit_ns + way,
            pickup_ns=np.maximum(pickup, 0),
            compute_ns=frame.compute_ns,
            startup_ns=times.startup_ns,
            shutdown_ns=frame.shutdown_ns,
            wall_ns=frame.wall_ns,
            wait_ns=frame.wait_ns,
            steady=deliveries.phase[rows] == STEADY,
            reason=reason,
            beside_ns=times.beside_ns,
            maker=times.maker,
            batch=batch,
            opening_ns=frame.opening_ns,
            lead_ns=frame.lead_ns,
            is_part=frame.is_part,
            repeated=frame.repeated,
            restarts=settings.restarts,
            anew=len(np.unique(self.numbers[rows])) > 1,
            weight=frame.weight,
            stream=times.stream,
            loop_stages=loop_work.stages,
            loop_ns=loop_work.work_ns,
        )

    def _read_nbytes(self, rows: Integers, times: BatchWork) -> Integers:
        """Return the bytes read for each batch: as its reads tell, else as the system counted."""
        counted = np.full(len(self.deliveries) + 1, -1, dtype=np.int64)
        counted[self.looked_at] = self.looked_nbytes
        return np.where(times.read_nbytes >= 0, times.read_nbytes, counted[rows])


def _pick_up(
    asked: Integers, delivered: Integers, times: BatchWork, known_ns: Integers
) -> tuple[Integers, Integers]:
    """Return what picking each batch up took, and how long it was on its way before.

    Of a batch that was waited for, both are one stretch. ``known_ns`` of it the loop spent on
    stages of its own. What else it needs is told by batches that had lain ready; the rest was the
    pipe, which takes its time during compute as well.
    """
    ready = times.ready_ns
    rest = delivered - np.maximum(asked, ready) - known_ns
    way = np.zeros_like(rest)
    had_lain = times.seen & (ready < asked)
    if not had_lain.any():
        return rest + known_ns, way
    usual = int(np.median(rest[had_lain]))
    waited = times.seen & ~had_lain
    way[waited] = np.maximum(rest[waited] - usual, 0)
    typical = int(np.median(way[waited])) if waited.any() else 0
    # One that had lain ready was slow to be picked up, if it was; it was not longer on its way.
    way[had_lain] = np.minimum(typical, (asked - ready)[had_lain])
    return np.where(waited, np.minimum(rest, usual), rest) + known_ns, way
