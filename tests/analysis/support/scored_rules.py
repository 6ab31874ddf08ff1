"""Rules that say which stage a loop waited for: ours and four others, each from a profile alone.

The others are what tools and papers do, written from their descriptions:

*instant*  what was being done for the batch waited for at each instant of the wait, or, where
           nothing was, by the thread that it waited for.
*rescale*  all waiting time, shared out by the stages' busy time (XProf's input pipeline analysis).
*aggregate*  a stage's total time less the total computing time, at least 0 (DFAnalyzer, time_sum).
*busy*  the stages' total time.

And ours:

*path*  `exposure`.
*replay*  `iobench.analysis.replay`: each stage made faster in a replay; its shares are the Shapley
          values of replays of all sets of stages. Where it does not replay, or misses the run by
          more than 10 %, advice is withheld, and it says what *path* says.
"""

from __future__ import annotations

import bisect
import dataclasses
from dataclasses import dataclass, field
from itertools import chain, combinations
from math import factorial
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.replay import replay as replay_run
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.recording.kinds import LOOP_KINDS, WORKER_KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from iobench.runs.contents import RunData

__all__ = ["RULES", "Blame"]

READ: Final = Kind.READ.spelled
WITHHELD_FRACTION: Final = 0.1
LOADING: Final = WORKER_KINDS | {Kind.SERIALISE}


@dataclass(frozen=True, slots=True)
class Blame:
    """What a rule says of a run; times in ns.

    Parameters
    ----------
    given_ns : dict of str to float
        By label.
    stage : str or None
        Which stage to make faster; None where it blames none.
    predicted_ns : float
        What it says that gains, at a given factor.
    wait_ns : int
        Of the run.
    withheld : bool
        Whether a replay was not to be trusted.
    """

    given_ns: Mapping[str, float]
    stage: str | None
    predicted_ns: float
    wait_ns: int
    withheld: bool = False


def _blame(given: Mapping[str, float], stages: Sequence[str], factor: float, wait_ns: int) -> Blame:
    top = max(stages, key=lambda stage: given.get(stage, 0.0))
    most = given.get(top, 0.0)
    return Blame(dict(given), top if most > 0 else None, (1 - factor) * most, wait_ns)


@dataclass
class _Times:
    """The spans of a profile by thread and by batch: (start, end, stage)."""

    threads: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    batches: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    wait_ns: int = 0
    compute_ns: int = 0
    busy_ns: dict[str, float] = field(default_factory=dict)


LOOP_THREAD: Final = 0


def _times(profile: RunData, stages: Sequence[str]) -> _Times:
    times = _Times()
    spans = profile.spans[np.argsort(profile.spans["start_ns"], kind="stable")]
    columns = (spans[name].tolist() for name in
               ("kind", "process", "thread", "start_ns", "end_ns", "batch"))  # fmt: skip
    wall_ns = 0
    for number, process, thread, start, end, batch in zip(*columns, strict=True):
        kind, lane = Kind(number), process << 32 | thread
        if kind is Kind.WAIT:
            times.wait_ns += end - start
            if batch >= 0:
                times.waits.append((start, end, batch))
        elif kind is Kind.OTHER:
            wall_ns += end - start
        elif kind not in LOOP_KINDS | {Kind.WAIT} and kind is not Kind.SUBMIT_QUEUE:
            times.threads.setdefault(lane, []).append((start, end, kind.spelled))
            if kind in LOADING:
                times.batches.setdefault(batch, []).append((start, end, lane))
            if kind.spelled in stages:
                busy = times.busy_ns.get(kind.spelled, 0)
                times.busy_ns[kind.spelled] = busy + end - start
    times.compute_ns = wall_ns - times.wait_ns
    return times


def path(profile: RunData, stages: Sequence[str], factor: float) -> Blame:
    """Return what the path rule says."""
    window = exposure(profile).whole
    return _blame(window.exposed_ns, stages, factor, window.wait_ns)


def replay(profile: RunData, stages: Sequence[str], factor: float) -> Blame:
    """Return what a replay says."""
    (run,) = recorded_runs(Run(profile).of_rank())
    if not run.can_replay:
        return dataclasses.replace(path(profile, stages, factor), withheld=True)
    walls = {}
    for chosen in (frozenset(some) for some in _subsets(stages)):
        there = dict.fromkeys(chosen & {*run.stages, *run.loop_stages}, factor)
        walls[chosen] = replay_run(run, Change(stage_factors=there)).wall_ns
    return _of_replays(profile, stages, factor, walls)


def _of_replays(
    profile: RunData, stages: Sequence[str], factor: float, walls: Mapping[frozenset[str], int]
) -> Blame:
    """Return what replays of all sets of faster stages say: shares are Shapley values."""
    (run,) = recorded_runs(Run(profile).of_rank())
    now = walls[frozenset()]
    if abs(now / run.wall_ns - 1) > WITHHELD_FRACTION:
        return dataclasses.replace(path(profile, stages, factor), withheld=True)
    saved = {stage: float(now - walls[frozenset({stage})]) for stage in stages}
    given = dict.fromkeys(stages, 0.0)
    for chosen, wall in walls.items():
        for stage in set(stages) - chosen:
            orders = factorial(len(chosen)) * factorial(len(stages) - len(chosen) - 1)
            given[stage] += orders / factorial(len(stages)) * (wall - walls[chosen | {stage}])
    best = max(saved, key=lambda stage: saved[stage])
    return Blame(given, best if saved[best] > 0 else None, saved[best], run.wait_ns)


def _subsets(stages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(stages, n) for n in range(len(stages) + 1))


def instant(profile: RunData, stages: Sequence[str], factor: float) -> Blame:
    """Return what was being done at each instant of the waits."""
    times = _times(profile, stages)
    loop = profile.spans["process"][profile.spans["kind"] == Kind.WAIT][0] << 32 | LOOP_THREAD
    given: dict[str, float] = {}
    for asked, held, batch in times.waits:
        cursor = asked
        for start, end, lane in times.batches.get(batch, ()):
            if start > cursor:
                _give_during(given, times, lane, cursor, min(start, held))
            # Its own work: from wherever the wait has got to.
            _give_during(given, times, lane, max(cursor, start), min(end, held))
            cursor = min(max(cursor, end), held)
        _give_during(given, times, loop, cursor, held)
    return _blame(given, stages, factor, times.wait_ns)


def _give_during(given: dict[str, float], times: _Times, lane: int, low: int, high: int) -> None:
    """Give a stretch of a wait to what a thread did then; the rest is a gap."""
    if high <= low:
        return
    spans = times.threads.get(lane, [])
    place = max(bisect.bisect_right(spans, (low, low, "")) - 1, 0)
    left = high - low
    while place < len(spans) and spans[place][0] < high:
        start, end, stage = spans[place]
        inside = min(end, high) - max(start, low)
        if inside > 0:
            given[stage] = given.get(stage, 0) + inside
            left -= inside
        place += 1
    if left:
        given["worker_gap"] = given.get("worker_gap", 0) + left


def rescale(profile: RunData, stages: Sequence[str], factor: float) -> Blame:
    """Return the waiting time in the proportions of busy time."""
    times = _times(profile, stages)
    total = sum(times.busy_ns.values())
    given = {stage: times.wait_ns * ns / total for stage, ns in times.busy_ns.items()}
    return _blame(given, stages, factor, times.wait_ns)


def aggregate(profile: RunData, stages: Sequence[str], factor: float) -> Blame:
    """Return each stage's total time less that of computing."""
    times = _times(profile, stages)
    given = {stage: max(ns - times.compute_ns, 0) for stage, ns in times.busy_ns.items()}
    return _blame(given, stages, factor, times.wait_ns)


def busy(profile: RunData, stages: Sequence[str], factor: float) -> Blame:
    """Return each stage's total time."""
    times = _times(profile, stages)
    return _blame(times.busy_ns, stages, factor, times.wait_ns)


RULES: Final[dict[str, Callable[[RunData, Sequence[str], float], Blame]]] = {
    "replay": replay,
    "path": path,
    "instant": instant,
    "rescale": rescale,
    "aggregate": aggregate,
    "busy": busy,
}
