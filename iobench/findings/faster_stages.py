"""What faster stages would gain by replay: each stage alone, and all of them; in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.analysis.intervals import block_ratio, blocks_of, paired_ratio
from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import reported_loaders
from iobench.findings.contract import Finding
from iobench.json_keys import HIDDEN, figure, key
from iobench.recording.kinds import stage_title
from iobench.report import units
from iobench.report.document import Section, sentences
from iobench.report.sentences import PARTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.exposure_figures import Window
    from iobench.analysis.replay.loader_run import LoaderRun
    from iobench.analysis.run import RankRun

WORTH_FRACTION: Final = 0.01
"""Less than this share of the time is nothing to gain."""
MAX_STAGES: Final = 8
REST: Final = "others"
IN_LOOP_FRACTION: Final = 0.05
"""From this share of the wait on, a stage of the loop itself is one that may be made faster."""
FACTOR: Final = 0.5
"""What a report asks of a stage: to take half as long."""
WITHHELD_ABOVE: Final = 0.1
"""Of the replay's error: nothing that rests on it is said."""

UNSEEN_ERROR: Final = 0.05
"""By what share of its time a changed run may miss its replay beyond its own noise, since loaders
do what no span tells: the goal of ``tests/benchmarks/held_out.py`` for its median.
``tests/benchmarks/replaying.py`` prints what nine in ten predictions stay below."""
NEARLY_ALL: Final = 0.9
"""Of what all stages gain: where one gains as much, the others are not worth a word."""


class Payoff(msgspec.Struct, frozen=True):
    """What a stage would gain if it took `Payoffs.factor` times as long.

    Parameters
    ----------
    stage : str
        As reports spell it, ``"read"``.
    saved_ns : int
        Of the replayed time.
    saved_fraction : float
        The same as a share of it.
    low, high : float or None
        Share of the time that another run may save, with 95 %; None where there are too few
        batches for one.
    """

    stage: str
    saved_ns: int
    saved_fraction: float
    low: float | None = None
    high: float | None = None
    JSON_KEYS: ClassVar = {
        "saved_ns": HIDDEN,
        "low": key("low_fraction"),
        "high": key("high_fraction"),
    }

    @property
    def title(self) -> str:
        """What reports call the stage."""
        return stage_title(self.stage)


class Payoffs(msgspec.Struct, frozen=True):
    """What faster stages would gain, by replay of the loader that trains.

    Parameters
    ----------
    error_fraction : float or None
        Replayed wall time of the unmodified run over the measured one, less 1; None where it
        cannot be replayed. It shows whether the loader's rule is understood, not how far the gains
        may miss: each has that beside it.
    reason : str
        Why it cannot be replayed; empty where it can.
    window : str
        What the batches are of that gains are of, as ``window`` of the run.
    wall_ns : int
        Their replayed time, unmodified; of what cannot be replayed the measured time.
    n_batches : int
        Of what was replayed.
    factor : float or None
        How many times as long a faster stage takes; None where it cannot be replayed.
    stages : tuple of Payoff
        Each by itself, the largest first; none where the replay misses the run by more than 10 %.
    joint_ns : int or None
        Saved if all stages were faster; None as they are.
    joint_low, joint_high : float or None
        Share of the time that another run may save so, as of a `Payoff`.
    is_part : bool
        Whether later batches of the loader were left out.
    n_loaders : int
        Loaders that brought batches; one of them is replayed.
    loader : str
        Which, as a reader knows it.
    waited_for : str or None
        The stage that most of the wait falls on.
    """

    error_fraction: float | None
    reason: str
    window: Window
    wall_ns: int
    n_batches: int
    factor: float | None = None
    stages: tuple[Payoff, ...] = ()
    joint_ns: int | None = None
    joint_low: float | None = None
    joint_high: float | None = None
    is_part: bool = False
    n_loaders: int = 1
    loader: str = ""
    waited_for: str | None = None
    JSON_KEYS: ClassVar = {
        "window": HIDDEN,
        "wall_ns": HIDDEN,
        "n_batches": key("batches"),
        "factor": HIDDEN,
        "joint_ns": HIDDEN,
        "joint_low": key("joint_low_fraction"),
        "joint_high": key("joint_high_fraction"),
        "is_part": HIDDEN,
        "n_loaders": HIDDEN,
        "loader": HIDDEN,
        "waited_for": HIDDEN,
    }

    @property
    def withheld(self) -> bool:
        """Whether nothing may be said of what a change would gain."""
        return self.joint_ns is None

    @figure
    def joint_fraction(self) -> float | None:
        """Share of the time saved if all stages were faster; null where it is withheld."""
        return None if self.joint_ns is None else _share(self.joint_ns, self.wall_ns)

    @property
    def nothing_helps(self) -> bool:
        """Whether not even all stages together gain anything to speak of."""
        return (self.joint_fraction or 0.0) < WORTH_FRACTION

    @property
    def no_single_stage_helps(self) -> bool:
        """Whether stages gain something together, and none by itself."""
        best = max((each.saved_fraction for each in self.stages), default=0.0)
        return not self.nothing_helps and best < WORTH_FRACTION


def is_told(error_fraction: float | None) -> bool:
    """Return whether a replay tells the run's own time well enough to predict another."""
    return error_fraction is not None and abs(error_fraction) <= WITHHELD_ABOVE


class Prediction(msgspec.Struct, frozen=True):
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
        `LoaderRun.judged_epochs`: what varies is then how long epochs take, as in a comparison.
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


def faster_stages(run: RankRun) -> Payoffs | None:
    """Return what faster stages of a training process would gain; None without a batch.

    Of several loaders that which trains is replayed; of a job of many nothing.
    """
    runs = run.cached(reported_loaders)
    if not runs:
        return None
    stages = run.exposure.judged.stages
    return replace(
        payoffs(runs[0], FACTOR),
        n_loaders=len(runs),
        loader=runs[0].name.removeprefix(f"{run.path.name}, "),
        waited_for=stages[0].stage if stages and stages[0].exposed_ns else None,
    )


def payoffs(run: LoaderRun, factor: float = 0.8) -> Payoffs:
    """Return what a run would save if stages took ``factor`` times as long, by replay.

    Of more than `MAX_STAGES` stages the shortest are taken together as ``"others"``.

    Parameters
    ----------
    factor : float
        Not negative; 0.8 is 20 % less time.

    Raises
    ------
    OptionError
        If the factor is negative.
    """
    if not run.can_replay or run.wall_ns <= 0:
        reason = run.reason or "nothing was measured"
        return Payoffs(None, reason, run.window, run.wall_ns, len(run), is_part=run.is_part)
    in_loop = _stages_in_loop(run)
    run = _merged(run, MAX_STAGES - len(in_loop))
    requested = (*run.stages, *in_loop)
    unmodified = replay(run)
    before = unmodified.judged_ns.astype(np.float64)
    result = Payoffs(
        error_fraction=unmodified.wall_ns / run.wall_ns - 1,
        reason="",
        window=run.window,
        wall_ns=round(before.sum()),
        n_batches=len(run),
        factor=factor,
        is_part=run.is_part,
    )
    if not is_told(result.error_fraction):
        return result

    def of(*stages: str) -> tuple[int, float | None, float | None]:
        change = Change(stage_factors=dict.fromkeys(stages, factor))
        after = replay(run, change).judged_ns.astype(np.float64)
        gain = predicted(before, after, epochs=run.judged_epochs)
        return round((before - after).sum()), gain.low, gain.high

    alone = []
    for stage in requested:
        saved_ns, low, high = of(stage)
        alone.append(Payoff(stage, saved_ns, _share(saved_ns, result.wall_ns), low, high))
    alone.sort(key=lambda each: (-each.saved_ns, each.stage))
    joint_ns, low, high = of(*requested) if requested else (0, None, None)
    return replace(result, stages=tuple(alone), joint_ns=joint_ns, joint_low=low, joint_high=high)


def _share(saved_ns: int, wall_ns: int) -> float:
    return saved_ns / wall_ns if wall_ns else 0.0


def _stages_in_loop(run: LoaderRun) -> tuple[str, ...]:
    """Return the loop's own stages that hold a good part of the wait, two at most."""
    spent = run.loop_ns.sum(axis=0)
    longest = np.argsort(-spent, kind="stable")[:2].tolist()
    return tuple(
        run.loop_stages[at]
        for at in longest
        if run.loop_stages[at] not in run.stages and spent[at] > IN_LOOP_FRACTION * run.wait_ns
    )


def _merged(run: LoaderRun, most: int) -> LoaderRun:
    """Return a run with so many stages of workers at most, and none that took no time."""
    busy = run.work_ns.sum(axis=0)
    retained = np.flatnonzero(busy)
    if len(retained) <= most:
        return run if len(retained) == len(busy) else _columns(run, retained)
    longest = np.sort(np.argsort(-busy, kind="stable")[: most - 1])
    rest = np.setdiff1d(retained, longest)
    merged = _columns(run, longest)

    def joined(values: NDArray[np.int64], of: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.hstack((of, values[:, rest].sum(axis=1, keepdims=True)))

    unknown = (run.cpu_ns[:, rest] < 0).any(axis=1)
    cpu = joined(run.cpu_ns, merged.cpu_ns)
    cpu[unknown, -1] = -1
    return replace(
        merged,
        stages=(*merged.stages, REST),
        work_ns=joined(run.work_ns, merged.work_ns),
        cpu_ns=cpu,
        async_ns=joined(run.async_ns, merged.async_ns),
    )


def _columns(run: LoaderRun, columns: NDArray[np.int64]) -> LoaderRun:
    return replace(
        run,
        stages=tuple(run.stages[column] for column in columns.tolist()),
        work_ns=run.work_ns[:, columns],
        cpu_ns=run.cpu_ns[:, columns],
        async_ns=run.async_ns[:, columns],
    )


def replay_section(found: Payoffs) -> Section:
    """Return what faster stages would gain, beside the error of the replay that says so."""
    known = sentences([replay_sentence(found)])
    return Section("replay", "What faster stages would gain", known)


def replay_sentence(found: Payoffs) -> str:
    """Return what faster stages would gain, and how far that may miss.

    Where the replay misses the measured run by more than 10 %, or by how much is unknown, it says
    so and promises nothing.
    """
    if found.error_fraction is None:
        return f"Replay error unknown ({found.reason}), so no gain is predicted."
    error = units.signed_fraction(found.error_fraction)
    if found.withheld:
        return f"Replay error {error}, more than 10 % off, so no gain is predicted."
    return f"{_gain(found)}. Replay error on the unmodified run{_extent(found)}: {error}."


def _gain(found: Payoffs) -> str:
    of = f" of the {PARTS[found.window]}"
    joint = units.fraction(max(0.0, found.joint_fraction or 0.0))
    if not found.stages or found.nothing_helps:
        return f"Nothing to gain from faster stages: halving all of them would save {joint}{of}"
    best, all_of_them = found.stages[0], f"{joint}{_miss(found.joint_low, found.joint_high)}"
    if found.no_single_stage_helps:
        return (
            f"No single stage will help: the best one alone would save {_saved(best)}{of}; halving "
            f"all of them would save {all_of_them}"
        )
    text = f"Halving {best.title} would save {_saved(best)}{of}{_miss(best.low, best.high)}"
    if best.saved_ns < NEARLY_ALL * (found.joint_ns or 0):
        text += f"; halving all stages {all_of_them}"
    other = next((each for each in found.stages if each.stage == found.waited_for), None)
    if other is not None and other is not best:
        text += (
            f", though most of the wait falls on {other.title}: halving that would save "
            f"{_saved(other)}"
        )
    return text


def _saved(each: Payoff) -> str:
    return units.fraction(max(0.0, each.saved_fraction))


def _miss(low: float | None, high: float | None) -> str:
    """Return between what a saving lies in another run, whose batches vary as this one's do."""
    if low is None or high is None:
        return " (too few batches for an interval)"
    least, most = (units.fraction(max(0.0, value)) for value in (low, high))
    return f" ({least} to {most} in another run)"


def _extent(found: Payoffs) -> str:
    """Say what was replayed, where that is not all of the run."""
    text = ""
    if found.n_loaders > 1:
        text += f", only of {found.loader}, one of {units.count(found.n_loaders)} loaders"
    if found.is_part:
        text += f", over the first {units.count(found.n_batches)} batches"
    return text


FINDING: Final = Finding("replay", 60, faster_stages, replay_section)
"""What faster stages would gain, as the entry point names it."""
