"""What changes of a run gain: as measured in turns, by replay, or no more than."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.intervals import PARTS, ratio_of_runs
from iobench.analysis.replay.changes import Change, changed
from iobench.analysis.replay.loader_run import LoaderRule, LoaderRun
from iobench.analysis.replay.replay import replay, replay_error
from iobench.analysis.replay.runs import beginning_of
from iobench.findings.advice.proposals import Evidence, Gain
from iobench.findings.faster_stages import UNSEEN_ERROR, predicted

if TYPE_CHECKING:
    from iobench.analysis.replay.replay import Machine
    from iobench.findings.advice.loading import Loading

Floats: TypeAlias = NDArray[np.float64]

LONGEST_RUN: Final = 1000  # batches that are replayed: more show little more
UNSEEN_WORKERS_ERROR: Final = 0.15
"""What a changed run may miss its replay by where others share CPUs, memory and storage than did:
the goal of ``tests/benchmarks/held_out.py`` for nine in ten."""
QUIET: Final = 0.1  # share of the steps that are short since nobody else has the CPUs
LOOKS_AHEAD: Final = 64  # batches that a bound lets threads be ahead: more than any ring has


class GainPredictor:
    """Replays of other runs, each compared with the replay of the baseline, the first way."""

    def __init__(self, ways: Sequence[Loading]) -> None:
        self.ways, self.baseline = ways, ways[0]
        loader = self.baseline.loader
        self.run = beginning_of(loader, LONGEST_RUN)
        self.error_fraction = replay_error(loader) if loader.can_replay else None
        self._before: dict[Machine | None, Floats] = {}

    def gain(self, run: LoaderRun, machine: Machine | None = None) -> Gain:
        """Return what is gained where it ran so; a ``machine`` caps how many are at work."""
        if machine not in self._before:
            self._before[machine] = _times(self.run, machine)
        least = UNSEEN_ERROR if machine is None else UNSEEN_WORKERS_ERROR
        error = min(max(abs(self.error_fraction or 0.0), least), 1.0)
        epochs, after = self.run.judged_epochs, _times(run, machine)
        by = predicted(self._before[machine], after, epochs=epochs, error=error)
        return Gain(Evidence.REPLAYED, by.saved, by.low, by.high, by.helps)

    def bound(self, run: LoaderRun) -> Gain:
        """Return what a change cannot gain more than, also where what it leaves is faster.

        Whoever no longer works leaves the CPUs and storage to the others, and to the training loop:
        its steps may all be as short as the shortest `QUIET` of them are now.
        """
        quiet = round(float(np.quantile(self.run.compute_ns, QUIET)))
        run = replace(run, compute_ns=np.minimum(run.compute_ns, quiet))
        gains = (self.gain(run, machine) for machine in {None, self.baseline.machine})
        most = max(0.0, *(each.saved_fraction or 0.0 for each in gains))
        wait = self.baseline.wait_fraction
        waiting = None if wait is None else min(most, wait)
        return Gain(Evidence.BOUND, None, 0.0, most, waiting_fraction=waiting)


def _times(run: LoaderRun, machine: Machine | None) -> Floats:
    return replay(run, None, machine).judged_ns.astype(np.float64)


def measured_gain(baseline: Loading, other: Loading) -> Gain | None:
    """Return what another way gained, over the first part that both have; by turns they took."""
    part = next((each for each in PARTS if each in baseline.sums and each in other.sums), None)
    if part is None:
        return None
    ratio = ratio_of_runs(baseline.sums[part], other.sums[part], "wall", "samples")
    if ratio.value is None:
        return None
    low = None if ratio.high is None else 1 - ratio.high
    high = None if ratio.low is None else 1 - ratio.low
    return Gain(Evidence.MEASURED, 1 - ratio.value, low, high, None if low is None else low > 0)


def is_one_of(run: LoaderRun, kinds: Sequence[str]) -> NDArray[np.bool_]:
    """Return which stages of a run are of some kinds, as ``"read:label"`` is of ``"read"``."""
    return np.array([stage.partition(":")[0] in kinds for stage in run.stages], dtype=bool)


def shortened(run: LoaderRun, of_kinds: Mapping[str, float]) -> LoaderRun:
    """Return a run whose stages of some kinds take a share of their time."""
    kinds = {stage: stage.partition(":")[0] for stage in run.stages}
    factors = {stage: of_kinds[kind] for stage, kind in kinds.items() if kind in of_kinds}
    return changed(run, Change(stage_factors=factors))


def on_cpu(run: LoaderRun, kinds: Sequence[str]) -> LoaderRun:
    """Return a run that takes of some kinds what is on a CPU; nothing where unknown."""
    factors = {}
    for kind in kinds:
        of_kind = is_one_of(run, [kind])
        work, cpu = run.work_ns[:, of_kind], run.cpu_ns[:, of_kind]
        busy_ns = int(work[cpu >= 0].sum())
        factors[kind] = min(1.0, int(cpu[cpu >= 0].sum()) / busy_ns) if busy_ns else 0.0
    return shortened(run, factors)


def without_rest(run: LoaderRun) -> LoaderRun:
    """Return a run whose batches take nothing but their stages, and whose end takes nothing."""
    names = ("gap_ns", "submit_ns", "transit_ns", "pickup_ns", "loop_ns", "shutdown_ns")
    return replace(run, **{name: np.zeros_like(getattr(run, name)) for name in names})


def in_place(run: LoaderRun, cpus: int | None) -> LoaderRun:
    """Return a run whose batches are made in place, by threads that are there all the time.

    Nothing is copied, sent or picked up. Of the making what computes is left, on all CPUs: threads
    may be as many as wait for storage. What is not known to compute may wait.
    """
    run = changed(run, Change(keep_workers=True))
    copies = is_one_of(run, ("collate", "serialise"))
    work_ns = np.where(copies, 0, np.clip(run.cpu_ns, 0, run.work_ns))
    workers = max(run.workers, cpus or 1)
    run = replace(run, rule=LoaderRule.THREADS, workers=workers, prefetch=LOOKS_AHEAD)
    nothing = np.zeros_like(work_ns)
    return replace(without_rest(run), work_ns=work_ns, cpu_ns=work_ns, async_ns=nothing)
