"""What faster stages would gain: each alone, all together, and the fewest that gain as much."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.replay.contract import Change, Payoff, Payoffs, RecordedRun
from iobench.analysis.replay.engine import replay
from iobench.analysis.replay.prediction import predicted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["MAX_STAGES", "payoffs"]

MAX_STAGES: Final = 8
REST: Final = "others"
ENOUGH: Final = 0.9
"""Of what all stages gain together: more is not worth another stage."""
IN_LOOP_FRACTION: Final = 0.05
"""From this share of the wait on, a stage of the loop itself is one that may be made faster."""


def payoffs(run: RecordedRun, factor: float = 0.8) -> Payoffs:
    """Return what a run would save if stages took ``factor`` times as long, by replay.

    Stages are tried alone, then in pairs; where no pair gains `ENOUGH` of what all do, the best
    one is added to, stage by stage. Of more than `MAX_STAGES` stages the shortest are taken
    together as ``"others"``.

    Parameters
    ----------
    run : RecordedRun
    factor : float
        Not negative; 0.8 is 20 % less time.

    Raises
    ------
    ProfileError
        If the run cannot be replayed.
    OptionError
        If the factor is negative.
    """
    in_loop = _stages_in_loop(run)
    run = _merged(run, MAX_STAGES - len(in_loop))
    asked = (*run.stages, *in_loop)
    unmodified = replay(run)
    before = unmodified.judged_ns.astype(np.float64)

    def of(chosen: Iterable[str]) -> Payoff:
        stages = tuple(sorted(chosen, key=asked.index))
        change = Change(stage_factors=dict.fromkeys(stages, factor))
        after = replay(run, change).judged_ns.astype(np.float64)
        found = predicted(before, after, epochs=run.judged_epochs)
        return Payoff(stages, round(before.sum() - after.sum()), found.low, found.high)

    alone = sorted((of([stage]) for stage in asked), key=_largest_first)
    joint = of(asked) if asked else Payoff((), 0)
    together = None
    if joint.saved_ns > 0 and alone[0].saved_ns < ENOUGH * joint.saved_ns:
        together = min((of(pair) for pair in combinations(asked, 2)), key=_largest_first)
        while together.saved_ns < ENOUGH * joint.saved_ns:
            left = [stage for stage in asked if stage not in together.stages]
            together = min((of((*together.stages, each)) for each in left), key=_largest_first)
    return Payoffs(
        error_fraction=unmodified.wall_ns / run.wall_ns - 1 if run.wall_ns else float("nan"),
        factor=factor,
        wall_ns=round(before.sum()),
        stages=tuple(alone),
        joint_ns=joint.saved_ns,
        together=together,
    )


def _largest_first(payoff: Payoff) -> tuple[int, tuple[str, ...]]:
    return -payoff.saved_ns, payoff.stages


def _stages_in_loop(run: RecordedRun) -> tuple[str, ...]:
    """Return the loop's own stages that hold a good part of the wait, two at most."""
    if run.loop_ns is None:
        return ()
    spent = run.loop_ns.sum(axis=0)
    longest = np.argsort(-spent, kind="stable")[:2].tolist()
    return tuple(
        run.loop_stages[at]
        for at in longest
        if run.loop_stages[at] not in run.stages and spent[at] > IN_LOOP_FRACTION * run.wait_ns
    )


def _merged(run: RecordedRun, most: int) -> RecordedRun:
    """Return a run with so many stages of workers at most, and none that took no time."""
    busy = run.work_ns.sum(axis=0)
    kept = np.flatnonzero(busy)
    if len(kept) <= most:
        return run if len(kept) == len(busy) else _columns(run, kept)
    longest = np.sort(np.argsort(-busy, kind="stable")[: most - 1])
    rest = np.setdiff1d(kept, longest)
    merged = _columns(run, longest)

    def joined(values: NDArray[np.int64], of: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.hstack((of, values[:, rest].sum(axis=1, keepdims=True)))

    stream = merged.stream
    if stream is not None and run.stream is not None:
        # Where most of it is done; what other groups do of it is little.
        longest_of_rest = int(rest[busy[rest].argmax()])
        stream = replace(stream, group=(*stream.group, run.stream.group[longest_of_rest]))
    unknown = (run.cpu_ns[:, rest] < 0).any(axis=1)
    cpu = joined(run.cpu_ns, merged.cpu_ns)
    cpu[unknown, -1] = -1
    beside = merged.beside_ns
    if beside is not None and run.beside_ns is not None:
        beside = joined(run.beside_ns, beside)
    return replace(
        merged,
        stages=(*merged.stages, REST),
        work_ns=joined(run.work_ns, merged.work_ns),
        cpu_ns=cpu,
        beside_ns=beside,
        stream=stream,
    )


def _columns(run: RecordedRun, columns: NDArray[np.int64]) -> RecordedRun:
    stream = run.stream
    if stream is not None:
        stream = replace(stream, group=tuple(stream.group[column] for column in columns.tolist()))
    return replace(
        run,
        stages=tuple(run.stages[column] for column in columns.tolist()),
        work_ns=run.work_ns[:, columns],
        cpu_ns=run.cpu_ns[:, columns],
        beside_ns=None if run.beside_ns is None else run.beside_ns[:, columns],
        stream=stream,
    )
