"""What a change gains and how sure that is: of runs in turns, of replays, or at the most."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.advice.figures import Gain, LoadingWay
from iobench.analysis.advice.levers import Evidence
from iobench.analysis.replay import Change, Machine, RecordedRun, replay, replay_error

__all__ = [
    "UNSEEN_ERROR",
    "GainPredictor",
    "beginning_of",
    "gain_between",
    "kind_of",
    "saved_interval",
]

Floats = NDArray[np.float64]

N_STRETCHES: Final = 20
"""Batches in a row depend on each other; so stretches of them are drawn, not batches."""
N_DRAWS: Final = 1000
FEW_STRETCHES: Final = 4
LONGEST_RUN: Final = 2000
"""Batches that are replayed: more tell little more."""
UNSEEN_ERROR: Final = 0.05
"""By how much a prediction of what was not run may miss at least, however well the replay tells
what was: the goal of ``tests/benchmarks/held_out.py`` for its median."""
UNSEEN_WORKERS_ERROR: Final = 0.15
"""The same where others share CPUs, memory and storage than did: its goal for nine in ten."""
OF_ROUNDS: Final = frozenset({"startup_ns", "shutdown_ns", "opening_ns", "lead_ns"})


def kind_of(stage: str) -> str:
    """Return the sort of work of a stage, ``"read"`` of ``"read:label"``."""
    return stage.partition(":")[0]


def beginning_of(run: RecordedRun, n_batches: int = LONGEST_RUN) -> RecordedRun:
    """Return a run's first batches as a run of their own, the run itself where it has no more."""
    if len(run) <= n_batches:
        return run
    n_rounds = int(run.round[n_batches - 1]) + 1
    kept: dict[str, Any] = {
        each.name: value[: n_rounds if each.name in OF_ROUNDS else n_batches]
        for each in fields(run)
        if isinstance(value := getattr(run, each.name), np.ndarray)
    }
    share = n_batches / len(run)
    times = {name: round(getattr(run, name) * share) for name in ("wall_ns", "wait_ns")}
    return replace(run, **kept, **times)


def saved_interval(
    before: Floats, after: Floats, *, paired: bool, seed: int = 0
) -> tuple[float, float, float]:
    """Return the share of time saved, and between what it lies with 95 % (block bootstrap).

    Parameters
    ----------
    before, after : ndarray of float64, shape (n,), (m,)
        Time of each batch, or of a sample in it, in the order of delivery; not empty.
    paired : bool
        Whether both are of the same batches: then the same stretches are drawn of both.
    seed : int
        Of the draws: the same figures give the same interval.
    """
    firsts, seconds = _stretches(before), _stretches(after)
    saved = 1 - _mean(seconds) / _mean(firsts)
    if min(len(firsts), len(seconds)) < FEW_STRETCHES:
        # Of a stretch that took no time at all nothing can be saved, and no share be told.
        ends = [
            1 - (high[0] / high[1]) / (low[0] / low[1])
            for place, low in enumerate(firsts)
            for high in (seconds[place : place + 1] if paired else seconds)
            if low[0] > 0
        ]
        return saved, min([*ends, saved]), max([*ends, saved])
    draw = np.random.default_rng(seed)
    one = draw.integers(len(firsts), size=(N_DRAWS, len(firsts)))
    other = one if paired else draw.integers(len(seconds), size=(N_DRAWS, len(seconds)))
    taken, left = _means(firsts, one), _means(seconds, other)
    ratios = 1 - left[taken > 0] / taken[taken > 0]
    if not len(ratios):
        return saved, saved, saved
    low, high = np.quantile(ratios, (0.025, 0.975)).tolist()
    return saved, min(low, saved), max(high, saved)


def _mean(stretches: Floats) -> float:
    """Return the mean time of a batch over all stretches."""
    total, count = stretches.sum(axis=0).tolist()
    return float(total / count)


def _means(stretches: Floats, chosen: NDArray[np.int64]) -> Floats:
    sums = stretches[chosen].sum(axis=1)
    means: Floats = sums[:, 0] / sums[:, 1]
    return means


def _stretches(values: Floats) -> Floats:
    """Return the sum and number of values in each stretch; shape (n_stretches, 2)."""
    parts = np.array_split(values, min(N_STRETCHES, max(1, len(values) // 2)))
    return np.array([(part.sum(), len(part)) for part in parts])


def gain_between(baseline: LoadingWay, other: LoadingWay) -> Gain | None:
    """Return what another way gained where both were run in turns; None without samples."""
    before, after = _times(baseline), _times(other)
    if before is None or after is None:
        return None
    saved, low, high = saved_interval(before, after, paired=False)
    return Gain(Evidence.MEASURED, saved, low, high)


def _times(way: LoadingWay) -> Floats | None:
    """Return the wall time of a sample, batch by batch, scaled to what the whole window took."""
    run, sample_ns = way.run, way.sample_ns
    if not len(run) or not sample_ns:
        return None
    waits = np.array(way.whole.waits_ns, dtype=np.float64)
    if len(waits) != len(run):  # of several loaders
        return np.full(1, sample_ns)
    times = waits + run.compute_ns
    steady = run.steady if run.steady.any() else np.ones(len(run), dtype=bool)
    times = times[steady]
    mean = float(times.mean())
    return times * (sample_ns / mean) if mean else None


class GainPredictor:
    """Replays of one run under changes, each compared with the replay of the run as it is.

    Parameters
    ----------
    run : RecordedRun
        With a rule that can be replayed, and batches.
    machine : Machine or None
        What workers share where there are more or fewer; None for all they could use.

    Attributes
    ----------
    error_fraction : float
        Of the unmodified replay.
    """

    def __init__(self, run: RecordedRun, machine: Machine | None) -> None:
        self.run = beginning_of(run)
        self.error_fraction = replay_error(run)
        self._machine = machine
        self._before: dict[bool, Floats] = {}

    def gain(
        self, change: Change, *, instead: RecordedRun | None = None, parallel: bool = False
    ) -> Gain:
        """Return what a change gains by replay.

        Parameters
        ----------
        change : Change
        instead : RecordedRun, optional
            What to change, in place of the run itself: the same with something replaced.
        parallel : bool
            Whether the change is one of how many are at work, so that the machine counts.
        """
        shared = parallel and self._machine is not None
        if shared not in self._before:
            self._before[shared] = self._times(self.run, Change(), shared)
        before = self._before[shared]
        after = self._times(instead or self.run, change, shared)
        if not before.sum():
            return Gain(Evidence.REPLAYED, 0.0, 0.0, 0.0)
        saved, low, high = saved_interval(before, after, paired=True)
        least = UNSEEN_WORKERS_ERROR if parallel else UNSEEN_ERROR
        error = min(max(abs(self.error_fraction), least), 1.0)
        return Gain(
            Evidence.REPLAYED, saved, 1 - (1 - low) * (1 + error), 1 - (1 - high) * (1 - error)
        )

    def bound(self, change: Change, *, instead: RecordedRun | None = None) -> Gain:
        """Return what a change cannot gain more than."""
        most = max(0.0, self.gain(change, instead=instead).saved or 0.0)
        return Gain(Evidence.BOUND, None, 0.0, most)

    def _times(self, run: RecordedRun, change: Change, shared: bool) -> Floats:
        replayed = replay(run, change, self._machine if shared else None)
        times: Floats = (replayed.waits_ns + run.compute_ns).astype(np.float64)
        return times[run.steady] if run.steady.any() else times
