"""What faster stages would gain: each alone, each one's fair share, and all together."""

from __future__ import annotations

from dataclasses import replace
from math import factorial
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.replay.contract import Change, Payoff, Payoffs, RecordedRun
from iobench.analysis.replay.engine import replay

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MAX_STAGES", "payoffs"]

MAX_STAGES: Final = 8
REST: Final = "others"
IN_LOOP_FRACTION: Final = 0.05
"""From this share of the wait on, a stage of the loop itself is one that may be made faster."""


def payoffs(run: RecordedRun, factor: float = 0.8) -> Payoffs:
    """Return what a run would save if stages took ``factor`` times as long, by replay.

    With m stages that are 2^m replays: the Shapley value of a stage is what it adds to what others
    save, over all orders in which they could be made faster. Of more than `MAX_STAGES` stages the
    shortest are taken together as ``"others"``.

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
    unmodified = replay(run).wall_ns
    walls = np.array(
        [
            replay(run, Change(stage_factors=_chosen(asked, subset, factor))).wall_ns
            if subset
            else unmodified
            for subset in range(1 << len(asked))
        ],
        dtype=np.int64,
    )
    saved = unmodified - walls
    shares = _shapley(saved, len(asked))
    stages = [
        Payoff(stage, int(saved[1 << number]), float(shares[number]))
        for number, stage in enumerate(asked)
    ]
    stages.sort(key=lambda each: (-each.saved_ns, -each.shapley_ns, each.stage))
    return Payoffs(
        error_fraction=unmodified / run.wall_ns - 1 if run.wall_ns else float("nan"),
        factor=factor,
        stages=tuple(stages),
        joint_ns=int(saved[-1]),
    )


def _chosen(stages: tuple[str, ...], subset: int, factor: float) -> dict[str, float]:
    return {stage: factor for number, stage in enumerate(stages) if subset >> number & 1}


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


def _shapley(saved: NDArray[np.int64], n_stages: int) -> NDArray[np.float64]:
    """Return each stage's mean addition, over all orders, to what a set of stages saves."""
    subsets = np.arange(len(saved))
    sizes = np.array([int(subset).bit_count() for subset in subsets])
    shares = np.zeros(n_stages)
    orders = factorial(n_stages)
    weights = np.array(
        [factorial(size) * factorial(n_stages - size - 1) / orders for size in range(n_stages)]
    )
    for stage in range(n_stages):
        without = subsets[(subsets >> stage & 1) == 0]
        added = saved[without | 1 << stage] - saved[without]
        shares[stage] = (weights[sizes[without]] * added).sum()
    return shares
