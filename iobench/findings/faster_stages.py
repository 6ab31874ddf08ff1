"""What faster stages would gain by replay: each stage alone, and all of them; in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.analysis.intervals import block_ratio, blocks_of, paired_ratio
from iobench.analysis.replay.loader_run import CPU_WAIT, Change
from iobench.analysis.replay.replay import FACTOR, is_trusted, replay
from iobench.analysis.replay.runs import reported_loaders
from iobench.findings.contract import Finding
from iobench.findings.free_data import FreeData, free_data_of
from iobench.recording.kinds import stage_title
from iobench.report import units
from iobench.report.document import Section, sentences

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.replay.loader_run import LoaderRun
    from iobench.analysis.run import RankRun

WORTH_FRACTION: Final = 0.01
"""Less than this share of the time is nothing to gain."""
ALL: Final = "all"
IN_LOOP_FRACTION: Final = 0.05
"""From this share of the wait on, a stage of the loop itself is one that may be made faster."""
UNSEEN_ERROR: Final = 0.05
"""By what share of its time a changed run may miss its replay beyond its own noise, since loaders
do what no span shows. ``tests/benchmarks/replaying.py`` of commit 0672765c measures it."""


class Payoff(msgspec.Struct, frozen=True):
    """What a faster stage would save of the time, and its interval of 95 % in another run."""

    saved_fraction: float
    low_fraction: float | None  # None where there are too few batches
    high_fraction: float | None


class Payoffs(msgspec.Struct, frozen=True):
    """What faster stages would gain, by replay of the loader that trains."""

    error_fraction: float | None  # of the replayed wall time of the unmodified run; None: a reason
    reason: str | None = None
    # By stage, the largest first, and "all" together; none where the error is above 10 %
    gains: dict[str, Payoff] = {}
    no_upper_bound: bool = False  # of these gains: loading takes time of CPUs that have none left
    free_data: FreeData | None = None  # of a run with free data, or that was tried so


def predicted(
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    *,
    epochs: NDArray[np.int64] | None = None,
    error: float = UNSEEN_ERROR,
) -> tuple[Payoff, bool | None]:
    """Return what a change saves, from what each batch takes without it and with it.

    The interval is that of two runs apart (other batches vary as well), widened by ``error``. With
    ``epochs`` (of `LoaderRun.judged_epochs`) what varies is how long epochs take. And whether these
    batches would have taken less time: False where what they save is within what a replay may miss,
    None where they are too few or too unlike.
    """
    if not before.sum():
        return Payoff(0.0, None, None), None
    saved = 1.0 - float(after.sum()) / float(before.sum())
    within = False if (1.0 - saved) * (1.0 + error) >= 1.0 else None
    a, b = blocks_of(before, epochs), blocks_of(after, epochs)
    same, apart = paired_ratio(a, b), block_ratio(a, b)
    if same.high is None or apart.low is None or apart.high is None:
        return Payoff(saved, None, None), within
    low, high = 1.0 - apart.high * (1.0 + error), 1.0 - apart.low * (1.0 - error)
    return Payoff(saved, low, high), True if same.high * (1.0 + error) < 1.0 else within


def faster_stages(run: RankRun) -> Payoffs | None:
    """Return what faster stages of a training process would gain; None without a batch."""
    runs, cost = run.cached(reported_loaders), run.exposure.cpus
    if not runs:
        return None
    result = replace(payoffs(runs[0]), free_data=free_data_of(run))
    if cost is None or not cost.slows_steps:
        return result
    # Contention costs computing more than CPU seconds say.
    gains = {name: replace(each, high_fraction=None) for name, each in result.gains.items()}
    return replace(result, gains=gains, no_upper_bound=True)


def payoffs(run: LoaderRun) -> Payoffs:
    """Return what a run would save if stages took half as long, by replay."""
    if not run.can_replay or run.wall_ns <= 0:
        return Payoffs(None, run.reason or "nothing was measured")
    unmodified = replay(run)
    before = unmodified.judged_ns.astype(np.float64)
    error = unmodified.wall_ns / run.wall_ns - 1
    if not is_trusted(error):
        return Payoffs(error)

    def saved(*stages: str) -> Payoff:
        change = Change(stage_factors=dict.fromkeys(stages, FACTOR))
        after = replay(run, change).judged_ns.astype(np.float64)
        return predicted(before, after, epochs=run.judged_epochs)[0]

    # The stages of workers, and those of the loop itself that hold a good part of the wait.
    work, in_loop = run.work_ns.sum(axis=0).tolist(), run.loop_ns.sum(axis=0).tolist()
    stages = [name for name, ns in zip(run.stages, work, strict=True) if ns and name != CPU_WAIT]
    stages += [
        stage
        for stage, ns in zip(run.loop_stages, in_loop, strict=True)
        if stage not in (*run.stages, CPU_WAIT) and ns > IN_LOOP_FRACTION * run.wait_ns
    ]
    alone = {each: saved(each) for each in stages}
    every = saved(*stages)
    if run.is_locked:  # what one holds for a shorter time, the others wait less for
        alone = {name: replace(each, high_fraction=None) for name, each in alone.items()}
        every = replace(every, high_fraction=None)
    order = sorted(alone, key=lambda stage: (-alone[stage].saved_fraction, stage))
    return Payoffs(error, None, {**{each: alone[each] for each in order}, ALL: every})


def replay_section(of: Payoffs) -> Section:
    """Return what faster stages would gain, and how far the replay misses the measured run."""
    return Section("replay", "What faster stages would gain", sentences([_sentence(of)]))


def _sentence(of: Payoffs) -> str:
    if of.error_fraction is None:
        return f"Replay error unknown ({of.reason}), so no gain is predicted."
    error = units.signed_fraction(of.error_fraction)
    if not of.gains:
        return f"Replay error {error}, more than 10 % off, so no gain is predicted."
    return f"{_gain(of)}. Replay error on the unmodified run: {error}."


def _gain(of: Payoffs) -> str:
    alone = dict(of.gains)
    joint = alone.pop(ALL)
    if of.no_upper_bound:
        least = joint.low_fraction or 0.0
        more = f"{_share(least)} or more" if least > WORTH_FRACTION else "an unknown share"
        return (
            "To be tried, as steps may become shorter too on CPUs without time left: halving all "
            f"stages would save {more} of the loader's time"
        )
    if joint.saved_fraction < WORTH_FRACTION:
        return (
            "Nothing to gain from faster stages: halving all of them would save "
            f"{_share(joint.saved_fraction)} of the loader's time"
        )
    everything = f"halving all of them would save {_share(joint.saved_fraction)}{_between(joint)}"
    stage, best = next(iter(alone.items()))
    saved = f"{_share(best.saved_fraction)} of the loader's time"
    if best.saved_fraction < WORTH_FRACTION:
        return f"No single stage will help: the best one alone would save {saved}; {everything}"
    return f"Halving {stage_title(stage)} would save {saved}{_between(best)}; {everything}"


def _share(fraction: float) -> str:
    return units.fraction(max(0.0, fraction))


def _between(each: Payoff) -> str:
    """Return between what a saving lies in another run, whose batches vary as this one's do."""
    if each.low_fraction is None:
        return " (too few batches for an interval)"
    if each.high_fraction is None:
        return f" ({_share(each.low_fraction)} or more in another run)"
    return f" ({_share(each.low_fraction)} to {_share(each.high_fraction)} in another run)"


FINDING: Final = Finding("replay", 60, Payoffs, faster_stages, replay_section)
"""What faster stages would gain, as the entry point names it."""
