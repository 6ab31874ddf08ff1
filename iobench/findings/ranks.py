"""What a job of several training processes waited for, step by step and rank by rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.loop import ONLY
from iobench.analysis.time_intervals import covered
from iobench.findings.contract import Finding
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.report import units
from iobench.report.document import Column, Quantity, Section, Table, sentences

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.run import RankRun
    from iobench.recording.facts import ProcessFacts
    from iobench.recording.span_reader import Anchor

Integers = NDArray[np.int64]
PassName = tuple[str, str, str, int, int]
"""Framework, class and name of a loader, which of those alike, and which of its passes."""

MOST_RANKS: Final = 16
MOST_RANGES: Final = 6


class RankFigures(msgspec.Struct, frozen=True):
    """One training process of a job.

    ``wait_ns`` is its whole wait, None without a loader that iobench sees; ``exposed_ns`` that in
    the steps in which it was last while all others had their batch. ``comm_held_ns`` is how long
    collective operations held its loop, waiting for other ranks included; None without any.
    """

    rank: int
    host: str
    wait_ns: int | None
    comm_held_ns: int | None
    exposed_ns: int = 0
    steps_last: int = 0


class JobFigures(msgspec.Struct, frozen=True):
    """What a job waited for. A step is the same place in the same pass of a loader on all ranks.

    ``missing`` has the ranks that did not start, left nothing, or did not end as they should, by
    what happened. ``steps_wall_ns`` is from the first rank's first wait to the end of the last
    one's last step; ``wait_ns`` what the last rank of each step waited, ``exposed_ns`` what of it
    while all others had their batch; ``imbalance`` the largest wait of a rank over the mean.
    """

    world_size: int
    ranks: tuple[RankFigures, ...]
    missing: dict[str, tuple[int, ...]]
    steps: int
    steps_wall_ns: int
    wait_ns: int
    exposed_ns: int
    imbalance: float | None


class RankSteps(msgspec.Struct, frozen=True):
    """Steps and waits of one rank, on its own machine's clock; ``in_pass`` points into ``passes``.

    A batch is waited for from ``requested_ns``: the end of the pass before, and the start of its
    own, belong to that wait.
    """

    figures: RankFigures  # without what only a comparison shows
    world_size: int
    boot_id: str
    anchors: tuple[Anchor, ...]
    facts: tuple[ProcessFacts, ...]
    is_open: bool
    passes: tuple[PassName, ...]
    in_pass: Integers
    position: Integers
    delivered_ns: Integers
    step_wait_ns: Integers
    since_ns: int  # from the first wait
    until_ns: int  # to the end of the last that brought a batch


def steps_of_rank(run: RankRun) -> RankSteps | None:
    """Return what a comparison needs of one rank; None where there is no job."""
    if run.job_size < 2:
        return None
    loop, deliveries = run.loop, run.deliveries
    rows = np.flatnonzero(deliveries.batch >= 0)
    first = np.append(0, rows[:-1] + 1) if len(rows) else rows
    waited = np.append(0, np.cumsum(deliveries.wait_ns))
    passes, in_pass = _passes(run)
    processes = [each for each in run.processes if each.rank == loop.rank]
    own = run.processes[loop.process] if loop.process >= 0 else next(iter(processes), None)
    wait_ns = int(waited[-1]) if len(rows) else None
    host = own.host if own else ""
    return RankSteps(
        figures=RankFigures(loop.rank, host, wait_ns, _communication(run)),
        world_size=run.job_size,
        boot_id=(own.boot_id or own.host) if own else "",
        anchors=tuple(anchor for each in processes for anchor in each.anchors),
        facts=run.facts,
        is_open=any(not each.closed and each.role == "consumer" for each in run.all_processes),
        passes=passes,
        in_pass=in_pass[rows],
        position=deliveries.position[rows],
        delivered_ns=deliveries.delivered_ns[rows],
        step_wait_ns=waited[rows + 1] - waited[first],
        since_ns=int(deliveries.requested_ns[:1].sum()),
        until_ns=int(deliveries.until_ns[~deliveries.failed].max(initial=0)),
    )


def _passes(run: RankRun) -> tuple[tuple[PassName, ...], Integers]:
    """Return a name for each pass that other ranks use as well, and each delivery's pass."""
    alike: Counter[tuple[str, str, str]] = Counter()
    names: dict[int, tuple[str, str, str, int]] = {}
    for number, each in sorted(run.loop.loaders.items()):
        name = ("", "", "") if number == ONLY else (each.framework, each.kind, each.name)
        names[number] = (*name, alike[name])
        alike[name] += 1
    n_passes: Counter[int] = Counter()
    passes: list[PassName] = []
    numbers, first = np.unique(run.deliveries.round, return_index=True)
    for loader in run.deliveries.loader[first].tolist():
        passes.append((*names.get(loader, ("", "", "", loader)), n_passes[loader]))
        n_passes[loader] += 1
    return tuple(passes), np.searchsorted(numbers, run.deliveries.round)


def _communication(run: RankRun) -> int | None:
    """Return how long collective operations held the loop; None where none was recorded."""
    deliveries, spans = run.deliveries, run.spans
    if not len(deliveries):
        return None
    comm = spans[
        (spans["kind"] == Kind.COMM)
        & (spans["process"] == run.loop.process)
        & (spans["thread"] == run.loop.thread)
        & ((spans["flags"] & (Flag.DETAIL | Flag.IO)) == 0)
        & (spans["start_ns"] >= deliveries.from_ns[0])
        & (spans["start_ns"] < deliveries.until_ns[-1])
    ]
    if not len(comm):
        return None
    return covered(comm["start_ns"].astype(np.int64), comm["end_ns"].astype(np.int64))


def compare_ranks(ranks: Sequence[RankSteps]) -> JobFigures:
    """Return what a job waited for."""
    ranks = sorted(ranks, key=lambda each: each.figures.rank)
    pairs = [*zip(ranks, _clock_shifts(ranks), strict=True)]
    rank = np.repeat(np.arange(len(ranks)), [len(each.position) for each in ranks])
    delivered = _joined([each.delivered_ns + by for each, by in pairs])
    step, n_steps = _steps(ranks)
    last, before = _last_two(step, delivered)
    wait_ns = _joined([each.step_wait_ns for each in ranks])[last]
    alone_ns = np.minimum(wait_ns, delivered[last] - delivered[before])
    exposed_ns = np.bincount(rank[last], alone_ns, minlength=len(ranks)).astype(np.int64)
    steps_last = np.bincount(rank[last], minlength=len(ranks))
    begin = min((each.since_ns + by for each, by in pairs if each.until_ns), default=0)
    end = max((each.until_ns + by for each, by in pairs if each.until_ns), default=0)
    figures = tuple(
        replace(each.figures, exposed_ns=exposed, steps_last=n_last)
        for each, exposed, n_last in zip(
            ranks, exposed_ns.tolist(), steps_last.tolist(), strict=True
        )
    )
    waits = [each.wait_ns for each in figures if each.wait_ns is not None]
    all_ns: int = sum(waits)
    return JobFigures(
        world_size=ranks[0].world_size,
        ranks=figures,
        missing=_missing(ranks),
        steps=n_steps,
        steps_wall_ns=int(end - begin),
        wait_ns=int(wait_ns.sum()),
        exposed_ns=int(alone_ns.sum()),
        imbalance=max(waits) * len(waits) / all_ns if len(waits) > 1 and all_ns else None,
    )


def _missing(ranks: Sequence[RankSteps]) -> dict[str, tuple[int, ...]]:
    """Return the ranks that did not start, left nothing, or did not end as they should."""
    facts = {each.rank: each for each in ranks[0].facts if each.role == "consumer"}
    is_open = {each.figures.rank: each.is_open for each in ranks}
    missing: dict[str, list[int]] = defaultdict(list)
    for rank in range(ranks[0].world_size):
        ended = facts[rank].ended if rank in facts else None
        if ended not in (None, "closed"):
            missing[f"ended with {ended}"].append(rank)
        elif rank not in is_open:
            missing["left no spans" if rank in facts else "never started"].append(rank)
        elif is_open[rank]:
            missing["killed, left by os._exit, or still running"].append(rank)
    return {what: tuple(each) for what, each in missing.items()}


def _joined(parts: Sequence[Integers]) -> Integers:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _clock_shifts(ranks: Sequence[RankSteps]) -> list[int]:
    """Return what to add to each rank's times.

    A machine's monotonic clock is set against wall time by the pairs that its processes noted.
    """
    pairs: dict[str, list[int]] = {}
    for each in ranks:
        of = pairs.setdefault(each.boot_id, [])
        of.extend(anchor.wall_ns - anchor.monotonic_ns for anchor in each.anchors)
    middle = {name: median_low(of or [0]) for name, of in pairs.items()}
    return [middle[each.boot_id] - middle[ranks[0].boot_id] for each in ranks]


def _steps(ranks: Sequence[RankSteps]) -> tuple[Integers, int]:
    """Return the step of each delivery, and how many steps several ranks took."""
    numbers: dict[PassName, int] = {}
    keys = []
    for each in ranks:
        known = [numbers.setdefault(name, len(numbers)) for name in each.passes]
        keys.append(np.array(known, dtype=np.int64)[each.in_pass] << 40 | each.position)
    _, step, n_ranks = np.unique(_joined(keys), return_inverse=True, return_counts=True)
    return step.reshape(-1), int((n_ranks > 1).sum())


def _last_two(step: Integers, delivered: Integers) -> tuple[Integers, Integers]:
    """Return the last and the second last delivery of every step that several ranks took."""
    order = np.lexsort((delivered, step))
    ends = np.flatnonzero(np.diff(step[order], append=-1) != 0)
    several = ends[np.diff(ends, prepend=-1) > 1]
    return order[several], order[several - 1]


def ranks_section(job: JobFigures) -> Section:
    """Return what a job waited for, rank by rank."""
    missing = (
        f"{len(ranks)} of {units.count(job.world_size)} ranks ({_ranges(ranks)}): {what}."
        for what, ranks in job.missing.items()
    )
    texts = *sentences(_lines(job)), *sentences(missing, "caution")
    return Section("job", "All training processes", (*texts, _rank_table(job)))


def _lines(job: JobFigures) -> Iterator[str]:
    if job.steps:
        share = units.fraction(job.wait_ns / job.steps_wall_ns if job.steps_wall_ns else None)
        yield (
            "From the first wait to the end of the last step, the job waits "
            f"{share} of the time for the last rank ({units.duration(job.wait_ns)} of "
            f"{units.duration(job.steps_wall_ns)}, {units.count(job.steps)} steps). For "
            f"{units.duration(job.exposed_ns)} of that, all other ranks had their batch."
        )
    if job.imbalance is not None:
        yield f"The largest wait of a rank is {units.ratio(job.imbalance)} times the mean."


def _ranges(ranks: Sequence[int]) -> str:
    """Return ranks in words, consecutive ones as a range; of many ranges the first."""
    parts = np.split(np.array(ranks), np.flatnonzero(np.diff(ranks) != 1) + 1)
    words = [f"{each[0]} to {each[-1]}" if len(each) > 1 else f"{each[0]}" for each in parts]
    n_more = sum(map(len, parts[MOST_RANGES:]))
    return ", ".join(words[:MOST_RANGES]) + f" and {n_more} more" * bool(n_more)


def _rank_table(job: JobFigures) -> Table:
    shown = sorted(job.ranks, key=lambda each: (-(each.wait_ns or 0), each.rank))[:MOST_RANKS]
    more = f", the {len(shown)} of {len(job.ranks)} that wait longest"
    times = ("wait", "alone", "in collectives")
    return Table(
        f"Ranks{more if len(shown) < len(job.ranks) else ''}",
        (
            *map(Column, ("rank", "host", "last in steps")),
            *(Column(name, "time") for name in times),
        ),
        tuple(
            (
                *(str(each.rank), each.host or units.UNKNOWN, Quantity(each.steps_last, "count")),
                *(Quantity(ns, "ns") for ns in (each.wait_ns, each.exposed_ns, each.comm_held_ns)),
            )
            for each in shown
        ),
    )


FINDING: Final[Finding[Any]] = Finding(
    "ranks", 50, JobFigures, steps_of_rank, ranks_section, together=compare_ranks, of_job=True
)
