"""Schedules whose batches can be drawn again: what a change gains in another run is then known.

A seed decides the shape, the loader, the stages' mean times and how they vary; a number decides
the draw of the batches. A change is held against a run of other batches with the change made, of
which nothing in a replay of the first run knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import schedules

from iobench.analysis.intervals import Interval, blocks_of, paired_ratio
from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.replay import replay
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run, exposure
from iobench.findings.faster_stages import Prediction, predicted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.runs.contents import RunData

SHAPES: Final = ("constant", "jitter", "heavy tail", "alternating", "slow worker", "drift")
STAGES: Final = tuple(kind.spelled for kind in schedules.STAGES)


@dataclass(frozen=True, slots=True)
class Held:
    """A prediction, and what another run obtained; shares of the first run's time of a batch.

    ``same`` is the ratio of both replays batch by batch, which knows nothing of other batches.
    """

    shape: str
    predicted: Prediction
    obtained: float
    same: Interval

    @property
    def holds(self) -> bool:
        """Whether the interval that is printed holds what was obtained."""
        low, high = self.predicted.low, self.predicted.high
        return low is not None and high is not None and low <= self.obtained <= high


def held(seed: int, changes: Sequence[Sequence[str]], *, n_batches: int) -> list[Held]:
    """Return what halving each set of stages was predicted to gain, and did in another run."""
    shape, first = SHAPES[seed % len(SHAPES)], drawn(seed, 0, (), n_batches)
    (run,) = recorded_runs(Run(first).of_rank())
    before, now = replay(run).judged_ns, _batch_ns(first)
    result = []
    for number, stages in enumerate(changes, start=1):
        after = replay(run, Change(stage_factors=dict.fromkeys(stages, 0.5))).judged_ns
        obtained = 1 - _batch_ns(drawn(seed, number, stages, n_batches)) / now
        same = paired_ratio(blocks_of(before), blocks_of(after))
        result.append(Held(shape, predicted(before, after), obtained, same))
    return result


def _batch_ns(profile: RunData) -> float:
    part = exposure(profile).judged
    return part.wall_ns / part.n_batches


def drawn(seed: int, number: int, halved: Sequence[str], n: int) -> RunData:
    """Return a run of batches drawn anew, with some stages half as long."""
    shape, rng = SHAPES[seed % len(SHAPES)], np.random.default_rng([77, seed])
    workers, prefetch = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    means = np.exp(rng.uniform(np.log(1e6), np.log(50e6), len(STAGES)))
    spread = rng.uniform(0.02, 0.5, len(STAGES))
    load, factor, tail = rng.uniform(0.1, 1.2), rng.uniform(2, 10), rng.uniform(0.005, 0.03)
    slow, who, drift = rng.uniform(2, 5), int(rng.integers(workers)), rng.uniform(0.5, 2)
    rng = np.random.default_rng([78, seed, number])
    work = np.tile(means, (n, 1))
    if shape != "constant":
        spread = spread if shape in ("jitter", "heavy tail", "drift") else 0.1
        work *= np.exp(spread * rng.normal(size=work.shape))
    if shape == "heavy tail":
        work[:, 0] *= np.where(rng.random(n) < tail, rng.uniform(20, 40, n), 1)
    elif shape == "alternating":
        work[:, 1] = work[:, 0]
        work[::2] *= (factor, 1 / factor, 1)
        work[1::2] *= (1 / factor, factor, 1)
    elif shape == "slow worker":
        work[who::workers] *= slow
    elif shape == "drift":
        work *= np.linspace(1, drift, n)[:, None]
    work[:, [STAGES.index(stage) for stage in halved]] *= 0.5
    step_ns = round(means.sum() / workers * load)
    durations = np.rint(work).astype(int).tolist()
    return schedules.pool(durations, workers=workers, prefetch=prefetch, step_ns=step_ns).data()
