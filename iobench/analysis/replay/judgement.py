"""What a replay says of a run, as far as its spans allow and in bounded time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.analysis.replay.engine import can_replay
from iobench.analysis.replay.payoffs import payoffs
from iobench.analysis.replay.runs import recorded_runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.figures import Window
    from iobench.analysis.replay.contract import Payoff, Payoffs, RecordedRun
    from iobench.analysis.run import RankRun
    from iobench.profiles.contents import Profile

__all__ = ["JUDGED_BATCHES", "ReplayJudgement", "judge_by_replay", "judge_runs"]

JUDGED_BATCHES: Final = 10_000
"""Batches of a run that a report replays, from its start: it is made in seconds."""
JUDGED_FACTOR: Final = 0.5
"""What a report asks of a stage: to take half as long."""


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
