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
from iobench.analysis.replay.batch_times import loader_run
from iobench.analysis.replay.loader_run import LoaderRule, LoaderRun
from iobench.analysis.stage_table import find_lanes
from iobench.analysis.time_intervals import places_of
from iobench.recording.kinds import RETAINS, Kind

if TYPE_CHECKING:
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.run import RankRun
    from iobench.recording.facts import LoaderFacts
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]

REPORTED_BATCHES: Final = 10_000
"""Batches of a loader that a report replays, from the start of the run: it is made in seconds."""
UNSEEN_LIMIT: Final = 0.01
"""Share of batches nobody saw being made from which on a run cannot be replayed."""


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
    if n_unseen > UNSEEN_LIMIT * len(run):
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
