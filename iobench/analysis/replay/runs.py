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
from iobench.analysis.partition import leaf_pieces, pieces_inside
from iobench.analysis.replay.loader_run import LoaderRule, LoaderRun
from iobench.analysis.stage_table import StageTable, find_lanes
from iobench.analysis.time_intervals import places_of
from iobench.recording.kinds import (
    HANDOVER_KINDS,
    RETAINS,
    WORKER_KINDS,
    Kind,
    is_one_of,
    stage_name,
    stages_of,
)

if TYPE_CHECKING:
    from iobench.analysis.deliveries import Deliveries
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
USUAL_FRACTION: Final = 0.05
"""Of batches of busy workers, from how many others their delays are known."""
HANDED: Final = HANDOVER_KINDS | {Kind.CPU_WAIT}
UNKNOWN: Final = int(np.iinfo(np.int64).min)
"""A time that was not recorded."""
NEVER: Final = int(np.iinfo(np.int64).max)


def recorded_runs(
    run: RankRun, *, max_batches: int | None = None, evaluations: bool = False
) -> tuple[LoaderRun, ...]:
    """Return what each loader of a training process did, the one that trains first.

    With ``evaluations`` only those that evaluate; what is made anew for each pass is one.
    """
    deliveries, loaders = run.deliveries, run.loop.loaders
    own = deliveries.loader
    deliveries = replace(deliveries, loader=np.where(deliveries.of_main, deliveries.main, own))
    if evaluations:
        firsts: dict[tuple[str | int | None, ...], int] = {}
        numbers = np.unique(own[deliveries.evaluates]).tolist()
        same = {n: firsts.setdefault(loaders.get(n, loaders[ONLY]).identity, n) for n in numbers}
        first = [same.get(n, n) for n in own.tolist()]
        loader = np.where(deliveries.evaluates, first, deliveries.loader)
        deliveries = replace(deliveries, loader=loader)
    roles = roles_of_loaders(deliveries, deliveries.role)
    numbers = by_importance(deliveries, roles)
    evaluating = [each for each in numbers if roles.get(each) in EVALUATIONS]
    if evaluations:
        numbers = evaluating
    else:
        numbers = [each for each in numbers if each not in evaluating] or list(numbers)
    batches = {number: LoaderBatches(deliveries, number, max_batches) for number in numbers}
    if not batches:
        return ()
    data: RunData = run
    loop = run.loop
    begun = data.spans["start_ns"] < max(each.end_ns for each in batches.values())
    if not begun.all():
        data = replace(data, spans=data.spans[begun])
    lanes = find_lanes(data, loop)
    marks = run.spans[run.spans["kind"] == Kind.OTHER]["label"]
    retains = bool(np.any(marks == run.string_number(RETAINS)))
    rows, counted, _ = io_counters(loop.spans_of(data), deliveries)
    counted_nbytes = np.full(len(deliveries), -1, dtype=np.int64)
    counted_nbytes[rows] = counted
    runs = []
    for number, each in batches.items():
        settings = loop.loaders.get(number, loop.loaders[ONLY])
        same = np.unique(own[each.rows]).tolist()  # itself, or each of it created again
        pids = (loop.loaders.get(one, loop.loaders[ONLY]).worker_pids for one in same)
        settings = replace(settings, worker_pids=[pid for of in pids for pid in of])
        name = data.path.name
        if len(batches) > 1:
            of = f" ({settings.name})" if settings.name else ""
            name = f"{name}, loader {number}{of}"
        framework = settings.framework or data.run_facts.framework or ""
        rule, reason = _rule(settings, framework, {deliveries.maker[row] for row in each.rows})
        timed = loader_run(lanes, data, deliveries, each, rule)
        reason = reason or _why_not(timed)
        workers, prefetch = settings.workers, max(settings.prefetch, 1)
        if rule is LoaderRule.THREADS:
            workers = settings.threads or timed.workers
            prefetch = timed.prefetch or max(settings.prefetch, workers)
        elif rule is LoaderRule.SERIAL:
            workers = prefetch = 0
        nbytes = timed.read_nbytes
        runs.append(
            replace(
                timed,
                name=name,
                rule=LoaderRule.OPAQUE if reason else rule,
                reason=reason,
                workers=workers,
                prefetch=prefetch,
                batch_size=settings.batch_size or loop.loaders[ONLY].batch_size,
                read_nbytes=np.where(nbytes >= 0, nbytes, counted_nbytes[each.rows]),
                restarts=settings.restarts,
                iterable=settings.iterable,
                retains=retains,
                shuffles=settings.shuffles,
            )
        )
    return tuple(runs)


def reported_loaders(run: RankRun) -> tuple[LoaderRun, ...]:
    """Return what a report replays: part of each loader; nothing of one rank of many."""
    return () if run.is_one_of_many else recorded_runs(run, max_batches=REPORTED_BATCHES)


def _rule(settings: LoaderFacts, framework: str, makers: set[str]) -> tuple[LoaderRule, str]:
    """Return by what rule a loader worked, by what made its batches, or why none is known."""
    if settings.unreplayed:
        return LoaderRule.OPAQUE, settings.unreplayed
    if settings.workers and not makers & {IN_THREADS, SERIAL}:
        return LoaderRule.POOL, ""
    if makers == {SERIAL}:
        return LoaderRule.SERIAL, ""
    if makers != {IN_THREADS}:
        return LoaderRule.OPAQUE, "the loader does not report which workers make its batches"
    if framework in ("", "stream"):
        return LoaderRule.OPAQUE, "only loaders whose threads make whole batches are replayed"
    return LoaderRule.THREADS, ""


def _why_not(run: LoaderRun) -> str:
    """Return why a loader of its rule cannot be replayed, ``""`` if it can."""
    n_unseen = int((run.worker < 0).sum())
    if n_unseen > max(1, UNSEEN_LIMIT * len(run)):
        return f"{n_unseen} of {len(run)} batches were not seen being made"
    in_order = (np.diff(run.number)[np.diff(run.round) == 0] > 0).all()
    if run.rule is LoaderRule.POOL and not in_order:
        return "its batches were taken as they came, not in order"
    return ""


class LoaderBatches:
    """The batches of one loader among the waits, and its rounds; each is replayed by itself."""

    def __init__(self, deliveries: Deliveries, loader: int, max_batches: int | None) -> None:
        of_loader, with_batch = deliveries.loader == loader, deliveries.batch >= 0
        every = np.flatnonzero(of_loader & with_batch)
        self.is_part = max_batches is not None and len(every) > max_batches
        self.weight: NDArray[np.float64] | None = None
        left_out = np.zeros(len(deliveries), dtype=bool)
        if max_batches is not None and self.is_part:
            repeated = of_loader & with_batch & deliveries.repeated
            if repeated.any():
                steady = deliveries.phase == STEADY
                rows, self.weight = part_of_epochs(deliveries.round, repeated, steady, max_batches)
                of_loader &= np.isin(deliveries.round, deliveries.round[rows])
                left_out = of_loader & with_batch
                left_out[rows] = False
            else:
                of_loader[every[max_batches] :] = False
        rounds = np.unique(deliveries.round[of_loader & with_batch])
        self.iter_ns, self.before_first_ns, self.start_ns, self.shutdown_ns = (
            np.zeros(len(rounds), dtype=np.int64) for _ in range(4)
        )
        self.repeated = np.isin(rounds, deliveries.round[deliveries.repeated])
        brought_rows, compute, of_round = [], [], []
        self.wall_ns = self.wait_ns = self.end_ns = 0
        requested, delivered = deliveries.requested_ns, deliveries.delivered_ns
        order = np.argsort(deliveries.round, kind="stable")
        edges = np.searchsorted(deliveries.round[order], [rounds, rounds + 1])
        for number, (low, high) in enumerate(edges.T.tolist()):
            waits = order[low:high]
            waits = waits[of_loader[waits]]
            more, waits = waits[left_out[waits]], waits[~left_out[waits]]
            brought = waits[with_batch[waits]]
            before, after = waits[waits < brought[0]], waits[waits > brought[-1]]
            start, opening = requested[waits[0]], (delivered - requested)[before].sum()
            following = np.append(more[more > waits[-1]], after)
            last = waits[-1]
            end = int(max(deliveries.until_ns[last], delivered[last]))
            if len(following):
                end = int(requested[following[0]])
            self.start_ns[number], self.iter_ns[number] = start, opening
            self.before_first_ns[number] = requested[brought[0]] - start - opening
            self.shutdown_ns[number] = (delivered - requested)[after].sum()
            brought_rows.append(brought)
            between = np.append(requested[brought[1:]], end) - delivered[brought]
            own = np.minimum(deliveries.own_ns[brought], between)
            compute.append(between - own)
            of_round.append(np.full(len(brought), number, dtype=np.int64))
            self.wall_ns += int(end - start + self.shutdown_ns[number] - own.sum())
            self.wait_ns += int((delivered - requested)[waits].sum())
            self.end_ns = max(self.end_ns, end)
        self.rows, self.round = np.concatenate(brought_rows), np.concatenate(of_round)
        self.compute_ns = np.concatenate(compute)
        self.number = deliveries.batch[self.rows]
        self.requested_ns, self.delivered_ns = requested[self.rows], delivered[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def place_of(self, number: Integers) -> Integers:
        """Return the place of each batch number among these, -1 where it is none of them."""
        return places_of(number, self.number)


def part_of_epochs(
    round: Integers, chosen: Marks, steady: Marks, n_batches: int
) -> tuple[Integers, NDArray[np.float64] | None]:
    """Return the rows of the first chosen rounds that have so many batches at most together."""
    rows = np.flatnonzero(chosen)
    rounds, counts = np.unique(round[rows], return_counts=True)
    fits = np.cumsum(counts) <= n_batches
    if fits[:MOST_BLOCKS].all():
        return rows[np.isin(round[rows], rounds[fits])], None
    every = [rows[round[rows] == number] for number in rounds[:MOST_BLOCKS]]
    if not all(steady[of[: n_batches // len(every)]].any() for of in every if steady[of].any()):
        every = every[:1]
    parts = [of[: n_batches // len(every)] for of in every]
    weight = []
    for of, first in zip(every, parts, strict=True):
        stands_for = steady[of].sum() / max(steady[first].sum(), 1)
        weight.append(np.where(steady[first], stands_for, 1.0))
    return np.concatenate(parts), np.concatenate(weight)


def beginning_of(run: LoaderRun, n_batches: int) -> LoaderRun:
    """Return a run's first batches as a run of their own, the run itself where it has no more."""
    if len(run) <= n_batches:
        return run
    rows = np.arange(n_batches)
    weight = None if run.weight is None else run.weight[:n_batches]
    if run.recurs:
        rows, weight = part_of_epochs(run.round, run.repeated[run.round], run.steady, n_batches)
    rounds, number = np.unique(run.round[rows], return_inverse=True)
    of_rounds = {"startup_ns", "shutdown_ns", "iter_ns", "before_first_ns", "repeated"}
    part = {
        name: value[rounds if name in of_rounds else rows]
        for name in run.__struct_fields__
        if isinstance(value := getattr(run, name), np.ndarray)
    }
    part |= {"round": number.reshape(-1).astype(np.int64)}
    share = len(rows) / len(run)
    times = {name: round(getattr(run, name) * share) for name in ("wall_ns", "wait_ns")}
    return msgspec.structs.replace(run, **{**part, **times, "weight": weight})


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
    # Where hardly any waited for a submission, theirs are not usual.
    busy, usual = known & ~idle, submit[idle & ~first]
    typical = int(np.median(usual)) if len(usual) > USUAL_FRACTION * busy.sum() else 0
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
