"""What a change gains and how sure that is: of runs in turns, of replays, or at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.intervals import PARTS, ratio_of_runs
from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.replay import replay, replay_error
from iobench.analysis.replay.runs import beginning_of
from iobench.findings.advice.figures import Evidence, Gain, LoadingWay
from iobench.findings.faster_stages import UNSEEN_ERROR, predicted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.replay.loader_run import LoaderRun
    from iobench.findings.advice.figures import Circumstances

Floats = NDArray[np.float64]

LONGEST_RUN: Final = 1000
"""Batches that are replayed: more tell little more."""
PAYOFF_FACTOR: Final = 0.8
"""Of the time of a stage, what a faster one takes."""
UNSEEN_WORKERS_ERROR: Final = 0.15
"""What a changed run may miss its replay by where others share CPUs, memory and storage than did:
the goal of ``tests/benchmarks/held_out.py`` for nine in ten."""
QUIET: Final = 0.1
"""Share of the steps that tell how short a step is where nobody else has the CPUs."""


def kind_of(stage: str) -> str:
    """Return the sort of work of a stage, ``"read"`` of ``"read:label"``."""
    return stage.partition(":")[0]


def gain_between(baseline: LoadingWay, other: LoadingWay) -> Gain | None:
    """Return what another way gained, by turns where both took turns; None without samples.

    Of the first part that both runs have, as ``iobench compare`` has it.
    """
    window = next((part for part in PARTS if part in baseline.sums and part in other.sums), None)
    if window is None:
        return None
    result = ratio_of_runs(baseline.sums[window], other.sums[window], "wall", "samples")
    if result.value is None:
        return None
    low = None if result.high is None else 1 - result.high
    high = None if result.low is None else 1 - result.low
    return Gain(Evidence.MEASURED, 1 - result.value, low, high, None if low is None else low > 0)


class GainPredictor:
    """Replays of one run under changes, each compared with the replay of the run as it is.

    Parameters
    ----------
    ways : sequence of LoadingWay
        The baseline first, with a rule that can be replayed, and batches.
    circumstances : Circumstances
        With the machine that workers share where there are more or fewer.

    Attributes
    ----------
    run : LoaderRun
        The beginning of the baseline's.
    error_fraction : float
        Of the unmodified replay of all of it.
    """

    def __init__(self, ways: Sequence[LoadingWay], circumstances: Circumstances) -> None:
        self.ways, self.baseline, self.circumstances = ways, ways[0], circumstances
        self.run = beginning_of(self.baseline.run, LONGEST_RUN)
        self.error_fraction = replay_error(self.baseline.run)
        self._machine = circumstances.machine
        self._before: dict[bool, Floats] = {}

    def gain(
        self, change: Change, *, instead: LoaderRun | None = None, parallel: bool = False
    ) -> Gain:
        """Return what a change gains by replay.

        Parameters
        ----------
        instead : LoaderRun, optional
            What to change, in place of the run itself: the same with something replaced.
        parallel : bool
            Whether the change is one of how many are at work, so that the machine counts.
        """
        shared = parallel and self._machine is not None
        if shared not in self._before:
            self._before[shared] = self._times(self.run, Change(), shared)
        after = self._times(instead or self.run, change, shared)
        least = UNSEEN_WORKERS_ERROR if parallel else UNSEEN_ERROR
        error = min(max(abs(self.error_fraction), least), 1.0)
        result = predicted(self._before[shared], after, epochs=self.run.judged_epochs, error=error)
        return Gain(Evidence.REPLAYED, result.saved, result.low, result.high, result.helps)

    def without_storage(self) -> GainPredictor:
        """Return the same on a machine whose storage is never short."""
        machine = self._machine and replace(self._machine, read_nbytes_per_s=None)
        return GainPredictor(self.ways, replace(self.circumstances, machine=machine))

    def bound(self, change: Change, *, instead: LoaderRun | None = None) -> Gain:
        """Return what a change cannot gain more than, also where what it leaves is faster.

        Whoever no longer works leaves the CPUs and storage to the others, and to the training loop:
        its steps may all be as short as the shortest `QUIET` of them are now.
        """
        run = instead or self.run
        quiet = round(float(np.quantile(self.run.compute_ns, QUIET)))
        run = replace(run, compute_ns=np.minimum(run.compute_ns, quiet))
        gains = (self.gain(change, instead=run, parallel=each) for each in (False, True))
        most = max(0.0, *(gain.saved or 0.0 for gain in gains))
        wait = self.baseline.wait_fraction
        return Gain(
            Evidence.BOUND, None, 0.0, most, waiting=None if wait is None else min(most, wait)
        )

    def _times(self, run: LoaderRun, change: Change, shared: bool) -> Floats:
        replayed = replay(run, change, self._machine if shared else None)
        return replayed.judged_ns.astype(np.float64)
