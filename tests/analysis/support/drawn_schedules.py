"""Schedules whose batches can be drawn again: what a change gains in another run is then known.

A seed decides the shape, the loader, the stages' mean times and how they vary; a number decides
the draw of the batches. A change is held against a run of other batches with the change made,
simulated by `simulator`, which is not the code under test: nothing in a replay of the first run
knows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from simulator import Schedule, simulated_run

from iobench.analysis.intervals import Interval, blocks_of, paired_ratio
from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.replay import replay as replayed
from iobench.analysis.replay.runs import recorded_runs
from iobench.findings.faster_stages import Prediction, predicted
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.run import Run

__all__ = ["SHAPES", "STAGES", "Held", "held"]

SHAPES: Final = (
    "constant",
    "jitter",
    "heavy tail",
    "alternating",
    "stream",
    "slow worker",
    "contended",
    "drift",
)
KINDS: Final = (Kind.READ, Kind.DECODE, Kind.PREPROCESS, Kind.COLLATE)
STAGES: Final = tuple(kind.spelled for kind in KINDS)
LITTLE: Final = 0.1


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
        """Whether the interval that is printed holds what was obtained, as printed: rounded."""
        low, high = self.predicted.low, self.predicted.high
        return low is not None and high is not None and low <= self.obtained <= high


def held(seed: int, changes: Sequence[Sequence[str]], *, n_batches: int) -> list[Held]:
    """Return what halving each set of stages was predicted to gain, and did in another run.

    Nothing of a run that is not replayed.
    """
    shape = _Shape(seed, n_batches)
    first = simulated_run(shape.draw(0, ())).open()
    (run,) = recorded_runs(first.of_rank())
    if not run.can_replay:
        return []
    before = replayed(run).judged_ns
    now = _batch_ns(first)
    found = []
    for number, stages in enumerate(changes, start=1):
        change = Change(stage_factors=dict.fromkeys(stages, 0.5))
        after = replayed(run, change).judged_ns
        told = predicted(before, after)
        obtained = 1 - _batch_ns(simulated_run(shape.draw(number, stages)).open()) / now
        same = paired_ratio(blocks_of(before), blocks_of(after))
        found.append(Held(shape.name, told, obtained, same))
    return found


def _batch_ns(run: Run) -> float:
    figures = run.of_rank().exposure
    window = figures.steady or figures.whole
    return window.wall_ns / window.n_batches


class _Shape:
    """What a seed decides."""

    def __init__(self, seed: int, n_batches: int) -> None:
        rng = np.random.default_rng([77, seed])
        self.seed, self.n_batches = seed, n_batches
        self.name = SHAPES[seed % len(SHAPES)]
        self.workers, self.prefetch = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        self.means = np.exp(rng.uniform(np.log(1e6), np.log(50e6), len(KINDS)))
        varied = self.name in ("jitter", "heavy tail", "stream", "drift")
        spread = rng.uniform(0.02, 0.5, len(KINDS))
        self.spread = spread if varied else np.full(len(KINDS), LITTLE)
        self.load = rng.uniform(0.1, 1.2)
        self.first, self.second = rng.choice(len(KINDS), 2, replace=False).tolist()
        self.factor, self.tail = rng.uniform(2, 10), rng.uniform(0.005, 0.03)
        self.slow, self.who = rng.uniform(2, 5), int(rng.integers(self.workers))
        self.capacity, self.drift = float(rng.integers(1, 5)), rng.uniform(0.5, 2)

    def draw(self, number: int, halved: Sequence[str]) -> Schedule:
        """Return batches drawn anew, with some stages half as long."""
        rng = np.random.default_rng([78, self.seed, number])
        n, name = self.n_batches, self.name
        work = np.tile(self.means, (n, 1))
        slowness = capacity = None
        if name != "constant":
            work *= np.exp(self.spread * rng.normal(size=work.shape))
        if name == "heavy tail":
            work[:, 0] *= np.where(rng.random(n) < self.tail, rng.uniform(20, 40, n), 1)
        if name == "alternating":
            work[:, self.second] = work[:, self.first]
            work[::2, self.first] *= self.factor
            work[1::2, self.first] /= self.factor
            work[::2, self.second] /= self.factor
            work[1::2, self.second] *= self.factor
        if name == "slow worker":
            slowness = np.ones((self.workers, len(KINDS)))
            slowness[self.who] = self.slow
        if name == "contended":
            capacity = self.capacity
        if name == "drift":
            work *= np.linspace(1, self.drift, n)[:, None]
        stream = name == "stream"
        needed = self.means.max() if stream else self.means.sum() / self.workers
        step = needed * self.load * (1 + 0.05 * rng.normal(size=n))
        for stage in halved:
            work[:, STAGES.index(stage)] *= 0.5
        return Schedule(
            stages=KINDS,
            work_ns=np.rint(work),
            compute_ns=np.rint(np.maximum(step, 0)).astype(np.int64),
            workers=len(KINDS) if stream else self.workers,
            prefetch=self.prefetch,
            in_order=bool(self.seed // len(SHAPES) % 3),
            stream=stream,
            slowness=slowness,
            disk=capacity,
            cores=capacity,
            serialise_ns=20_000,
            unpickle_ns=20_000,
        )
