"""What faster stages would gain by replay: alone, together, and the fewest that gain as much."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.intervals import block_ratio, blocks_of, paired_ratio
from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.replay.simulated_run import can_replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from iobench.analysis.figures import Window
    from iobench.analysis.replay.loader_run import RecordedRun
    from iobench.analysis.run import RankRun
    from iobench.profiles.contents import Profile

__all__ = [
    "JUDGED_BATCHES",
    "MAX_STAGES",
    "UNSEEN_ERROR",
    "Payoff",
    "Payoffs",
    "Prediction",
    "ReplayJudgement",
    "judge_by_replay",
    "judge_runs",
    "payoffs",
    "predicted",
]

WORTH_FRACTION: Final = 0.01
"""Less than this share of the time is nothing to gain."""
MAX_STAGES: Final = 8
REST: Final = "others"
ENOUGH: Final = 0.9
"""Of what all stages gain together: more is not worth another stage."""
IN_LOOP_FRACTION: Final = 0.05
"""From this share of the wait on, a stage of the loop itself is one that may be made faster."""

JUDGED_BATCHES: Final = 10_000
"""Batches of a run that a report replays, from its start: it is made in seconds."""
JUDGED_FACTOR: Final = 0.5
"""What a report asks of a stage: to take half as long."""

UNSEEN_ERROR: Final = 0.05
"""By what share of its time a changed run may miss its replay beyond its own noise, since loaders
do what no span tells: the goal of ``tests/benchmarks/held_out.py`` for its median.
``tests/benchmarks/replaying.py`` prints what nine in ten predictions stay below."""


@dataclass(frozen=True, slots=True)
class Payoff:
    """What some stages would gain if they took ``factor`` times as long.

    Parameters
    ----------
    stages : tuple of str
        Those that are faster, together.
    saved_ns : int
        Of `Payoffs.wall_ns`.
    low, high : float or None
        Share of the time that another run may save, with 95 %; None where there are too few
        batches to tell.
    """

    stages: tuple[str, ...]
    saved_ns: int
    low: float | None = None
    high: float | None = None

    @property
    def stage(self) -> str:
        """Their names, ``"read"`` or ``"read and decode"``."""
        *first, last = self.stages
        return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True, slots=True)
class Payoffs:
    """What faster stages would gain, by replay.

    Parameters
    ----------
    error_fraction : float
        Replayed wall time of the unmodified run over the measured one, less 1. It tells whether
        the loader's rule is understood, not how far the gains may miss: each has that beside it.
    factor : float
    wall_ns : int
        Replayed time of the batches that gains are of, unmodified: those of the steady state,
        where there is one.
    stages : tuple of Payoff
        Each by itself, the largest first.
    joint_ns : int
        Saved if all stages took ``factor`` times as long.
    together : Payoff or None
        The fewest stages that gain nearly all of that; None where one by itself does.
    """

    error_fraction: float
    factor: float
    wall_ns: int
    stages: tuple[Payoff, ...]
    joint_ns: int
    together: Payoff | None = None

    @property
    def withheld(self) -> bool:
        """Whether the replay misses the measured run by more than 10 %: no advice follows."""
        return abs(self.error_fraction) > 0.1

    def fraction(self, saved_ns: float) -> float:
        """Return savings as a share of the time they are of."""
        return saved_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def nothing_helps(self) -> bool:
        """Whether not even all stages together gain anything to speak of."""
        return self.fraction(self.joint_ns) < WORTH_FRACTION

    @property
    def no_single_stage_helps(self) -> bool:
        """Whether stages gain something together, and none of them does by itself."""
        best = max((each.saved_ns for each in self.stages), default=0)
        return not self.nothing_helps and self.fraction(best) < WORTH_FRACTION


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a change saves, as shares of the time of a batch now.

    Parameters
    ----------
    saved : float
        Of the batches that were replayed.
    low, high : float or None
        Between which it lies with 95 % in another run as long as this one, whose batches vary as
        these do; None where there are too few batches to tell how they vary.
    helps : bool or None
        Whether the batches of this run would have taken less time: False where what they save is
        within what a replay may miss, None where they are too few or too unlike to tell.
    """

    saved: float
    low: float | None
    high: float | None
    helps: bool | None


def predicted(
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    *,
    epochs: NDArray[np.int64] | None = None,
    error: float = UNSEEN_ERROR,
) -> Prediction:
    """Return what a change saves, from what each batch takes without it and with it.

    The interval is that of two runs which have nothing to do with each other, as ``iobench
    compare`` has it, widened by what a replay may miss: that both replays are of the same batches
    tells whether these gain, but not what other batches will.

    Parameters
    ----------
    before, after : ndarray of float64, shape (n_batches,)
        Of the same batches, by two replays.
    epochs : ndarray of int64, shape (n_batches,), optional
        `RecordedRun.judged_epochs`: what varies is then how long epochs take, as in a comparison.
    error : float
        Share of its time by which a changed run may miss its replay.
    """
    if not before.sum():
        return Prediction(0.0, None, None, None)
    saved = 1.0 - float(after.sum()) / float(before.sum())
    within = False if (1.0 - saved) * (1.0 + error) >= 1.0 else None
    a, b = blocks_of(before, epochs), blocks_of(after, epochs)
    same, apart = paired_ratio(a, b), block_ratio(a, b)
    if same.high is None or apart.low is None or apart.high is None:
        return Prediction(saved, None, None, within)
    return Prediction(
        saved,
        1.0 - apart.high * (1.0 + error),
        1.0 - apart.low * (1.0 - error),
        True if same.high * (1.0 + error) < 1.0 else within,
    )


@dataclass(frozen=True, slots=True)
class ReplayJudgement:
    """What would help a run, by replay of the loader that trains, as far as that is known.

    Parameters
    ----------
    payoffs : Payoffs or None
        None where it cannot be replayed.
    reason : str
        Why not; ``""`` where it can.
    wall_ns : int
        What savings are a share of: the replayed time of the batches that gains are of; of what
        cannot be replayed, the measured time.
    window : str
        What these batches are of, as `Exposure` calls it.
    n_batches : int
        Of what was replayed.
    is_part : bool
        Whether that is less than all of the loader's.
    n_loaders : int
        Loaders that brought batches; one of them is replayed.
    loader : str
        Which, as a reader knows it.
    """

    payoffs: Payoffs | None
    reason: str
    wall_ns: int
    n_batches: int
    is_part: bool = False
    n_loaders: int = 1
    window: Window = "steady"
    loader: str = ""

    @property
    def error_fraction(self) -> float | None:
        """Replayed over measured wall time, less 1; None where it is not known."""
        return None if self.payoffs is None else self.payoffs.error_fraction

    @property
    def is_told(self) -> bool:
        """Whether anything may be said of what a change would gain."""
        return self.payoffs is not None and not self.payoffs.withheld

    @property
    def best(self) -> Payoff | None:
        """The stage that gains most by itself; None where nothing is told."""
        if self.payoffs is None or not self.is_told or not self.payoffs.stages:
            return None
        return self.payoffs.stages[0]


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


def judge_by_replay(run: RankRun, *, factor: float = JUDGED_FACTOR) -> ReplayJudgement | None:
    """Return what a replay says of a training process; None where no batch was delivered.

    Parameters
    ----------
    run : RankRun
    factor : float
        What the time of a stage is multiplied by.
    """
    return judge_runs(run.profile, recorded_runs(run, max_batches=JUDGED_BATCHES), factor)


def judge_runs(
    profile: Profile, runs: Sequence[RecordedRun], factor: float = JUDGED_FACTOR
) -> ReplayJudgement | None:
    """Return what a replay says of the first loader, the one that trains; None without any."""
    if not runs:
        return None
    run = runs[0]
    found = payoffs(run, factor) if can_replay(run) and run.wall_ns > 0 else None
    return ReplayJudgement(
        payoffs=found,
        reason="" if found else run.reason or "nothing was measured",
        wall_ns=found.wall_ns if found else run.wall_ns,
        n_batches=len(run),
        is_part=run.is_part,
        n_loaders=len(runs),
        window=run.window,
        loader=run.name.removeprefix(f"{profile.path.name}, "),
    )
