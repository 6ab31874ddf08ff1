"""The schedules that attribution rules are scored on, and the truth. FROZEN: scores would not
compare otherwise.

*Schedules.* Class and seed (0 to 199) decide everything. 160 batches in one round; 1 to 16 workers,
prefetch 1 to 4; even seeds deliver in order, odd ones out of order. Four stages, whose mean times
are log-uniform in 1 to 50 ms. The training loop takes 0.1 to 1.2 times what the loader needs for a
batch, so about one schedule in eight hardly waits. All times are whole microseconds.

    constant           every batch alike
    jitter             each stage of each batch times exp(s z), s of the stage 0.1 to 0.6
    heavy tail         s = 0.15, and 0.5 to 3 % of the reads take 20 to 40 times as long
    pipeline-parallel  one thread for each stage, prefetch for each queue; s 0.05 to 0.4
    alternating        two stages of about the same mean trade a factor of 2 to 10: one has it in
                       even batches and lacks it in odd ones, the other the reverse
    contended          s = 0.1; reads share a disk that serves 1 to 4 at full speed, the other
                       stages 1 to 4 cores
    slow worker        s = 0.1; one worker takes 2 to 5 times as long, for one stage or for all
    bursty sampler     s = 0.1; the training loop's sampler takes a fraction of a batch's time, and
                       every 8 to 32 batches that of 1 to 6 batches; it stands for `preprocess`

*Truth.* The schedule is simulated once more with each stage 20 % faster; what that takes off the
wall time is the stage's gain. The best stage has the largest one.

*Right* is a stage whose gain is within 1 % of the best stage's. *Payoff kept* is the gain of the
stage a rule names over the best one, not below 0. *Shapley*: each stage's share of what all four
faster ones gain, averaged over the orders in which they could be made faster: 2^4 simulations.

*Nothing to gain.* Where the best gain is under 1 % of the wall time no stage is right. Such
schedules are left out of the scores above and counted; there a rule should say "nothing": what it
predicts for its top stage is under 1 % of the wall time. A rule that gives times to stages predicts
20 % of the stage's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray
from simulator import Schedule, simulate

from iobench.recording.kinds import Kind

__all__ = [
    "CLASSES",
    "FASTER",
    "LEAST_GAIN",
    "SEEDS",
    "TIE",
    "Truth",
    "schedule",
    "truth",
]

CLASSES: Final = (
    "constant",
    "jitter",
    "heavy tail",
    "pipeline-parallel",
    "alternating",
    "contended",
    "slow worker",
    "bursty sampler",
)
SEEDS: Final = range(200)
N_BATCHES: Final = 160
FASTER: Final = 0.8
TIE: Final = 0.01
LEAST_GAIN: Final = 0.01
STAGES: Final = (Kind.READ, Kind.DECODE, Kind.PREPROCESS, Kind.COLLATE)
SAMPLED: Final = (Kind.READ, Kind.DECODE, Kind.COLLATE, Kind.SAMPLER)
Floats = NDArray[np.float64]


class _Dice:
    """Uniform numbers only, and what is made of them: no other stream of NumPy's is as stable."""

    def __init__(self, name: str, seed: int) -> None:
        self._rng = np.random.default_rng([CLASSES.index(name), seed])

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * float(self._rng.random())

    def log_between(self, low: float, high: float) -> float:
        return math.exp(self.between(math.log(low), math.log(high)))

    def whole(self, low: int, high: int) -> int:
        """Return a whole number in [low, high]."""
        return low + int((high - low + 1) * self._rng.random())

    def happens(self, probability: float, *shape: int) -> NDArray[np.bool_]:
        return self._rng.random(shape) < probability

    def many_between(self, low: float, high: float, *shape: int) -> Floats:
        return low + (high - low) * self._rng.random(shape)

    def spread(self, *shape: int) -> Floats:
        """Return numbers of mean 0 and standard deviation 1, about normal, at most 6."""
        total: Floats = self._rng.random((12, *shape)).sum(axis=0) - 6.0
        return total


def schedule(name: str, seed: int) -> Schedule:
    """Return the schedule of a class and a seed.

    Parameters
    ----------
    name : str
        One of `CLASSES`.
    seed : int
        0 or more; the scores are over `SEEDS`.
    """
    dice = _Dice(name, seed)
    workers, prefetch = dice.whole(1, 16), dice.whole(1, 4)
    stream = name == "pipeline-parallel"
    workers = len(STAGES) if stream else workers
    means = np.array([dice.log_between(1e6, 50e6) for _ in STAGES])
    n_stages = len(means)
    work = np.tile(means, (N_BATCHES, 1))
    slowness = disk = cores = None
    if name == "jitter":
        work *= np.exp(dice.many_between(0.1, 0.6, n_stages) * dice.spread(N_BATCHES, n_stages))
    elif stream:
        work *= np.exp(dice.many_between(0.05, 0.4, n_stages) * dice.spread(N_BATCHES, n_stages))
    elif name == "heavy tail":
        work *= np.exp(0.15 * dice.spread(N_BATCHES, n_stages))
        slow = dice.happens(dice.between(0.005, 0.03), N_BATCHES)
        work[:, 0] *= np.where(slow, dice.many_between(20, 40, N_BATCHES), 1)
    elif name == "alternating":
        first = dice.whole(0, n_stages - 1)
        second = (first + dice.whole(1, n_stages - 1)) % n_stages
        work[:, second] = work[:, first] * dice.between(0.8, 1.25)
        factor = dice.between(2, 10)
        work[::2, first] *= factor
        work[1::2, first] /= factor
        work[::2, second] /= factor
        work[1::2, second] *= factor
    elif name != "constant":
        work *= np.exp(0.1 * dice.spread(N_BATCHES, n_stages))
    if name == "contended":
        disk, cores = float(dice.whole(1, 4)), float(dice.whole(1, 4))
    if name == "slow worker":
        slow_stage, factor = dice.whole(0, 2 * n_stages - 1), dice.between(2, 5)
        which = slow_stage if slow_stage < n_stages else slice(None)
        slowness = np.ones((workers, n_stages))
        slowness[dice.whole(0, workers - 1), which] = factor
    per_batch = work[:, :3].sum(axis=1).mean() if name == "bursty sampler" else work.sum(1).mean()
    needed = per_batch / workers
    if stream:
        needed = work.mean(axis=0).max()
    if disk is not None and cores is not None:
        reads = work[:, 0].mean()
        needed = max(needed, reads / disk, (per_batch - reads) / cores)
    if name == "bursty sampler":
        work[:, 3] = needed * dice.between(0.05, 0.4) * np.exp(0.1 * dice.spread(N_BATCHES))
        every = dice.whole(8, 32)
        work[every - 1 :: every, 3] = needed * dice.many_between(
            1, 6, len(work[every - 1 :: every])
        )
    compute = np.full(N_BATCHES, needed * dice.between(0.1, 1.2))
    if name != "constant":
        compute *= np.exp(0.05 * dice.spread(N_BATCHES))
    return Schedule(
        stages=SAMPLED if name == "bursty sampler" else STAGES,
        work_ns=_whole_us(work),
        compute_ns=_whole_us(compute),
        workers=workers,
        prefetch=prefetch,
        in_order=stream or seed % 2 == 0,
        stream=stream,
        slowness=slowness,
        serialise_ns=1000 * dice.whole(20, 400),
        unpickle_ns=1000 * dice.whole(20, 400),
        disk=disk,
        cores=cores,
    )


def _whole_us(ns: Floats) -> NDArray[np.int64]:
    return 1000 * np.rint(ns / 1000).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Truth:
    """What faster stages really gain; times in ns.

    Parameters
    ----------
    stages : tuple of str
        As reports spell them.
    wall_ns : float
    gains_ns, shapley_ns : tuple of float
        Of each stage alone, and its share of what all together gain.
    joint_ns : float
        What all together gain.
    """

    stages: tuple[str, ...]
    wall_ns: float
    gains_ns: tuple[float, ...]
    shapley_ns: tuple[float, ...]
    joint_ns: float

    @property
    def nothing(self) -> bool:
        """Whether no stage is worth a change."""
        return max(self.gains_ns) < LEAST_GAIN * self.wall_ns

    def is_right(self, stage: str | None) -> bool:
        """Tell whether a stage is the best one, or as good."""
        gain = self.gain(stage)
        return gain > 0 and gain >= (1 - TIE) * max(self.gains_ns)

    def kept(self, stage: str | None) -> float:
        """Return how much of the best gain a stage has."""
        return max(self.gain(stage), 0.0) / max(self.gains_ns)

    def gain(self, stage: str | None) -> float:
        """Return what a stage gains; 0 for one that is none of them."""
        return self.gains_ns[self.stages.index(stage)] if stage in self.stages else 0.0


def truth(one: Schedule) -> Truth:
    """Return the gains of a schedule's stages, by 2^4 simulations."""
    n = len(one.stages)
    wall = {
        chosen: simulate(one, [FASTER if faster else 1.0 for faster in chosen])[0]
        for chosen in product((False, True), repeat=n)
    }
    none, everything = (False,) * n, (True,) * n
    shapley = [0.0] * n
    for chosen in wall:
        size = sum(chosen)
        for stage in range(n):
            if not chosen[stage]:
                more = (*chosen[:stage], True, *chosen[stage + 1 :])
                weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
                shapley[stage] += weight * (wall[chosen] - wall[more])
    single = [tuple(place == stage for place in range(n)) for stage in range(n)]
    return Truth(
        stages=tuple(kind.spelled for kind in one.stages),
        wall_ns=wall[none],
        gains_ns=tuple(wall[none] - wall[chosen] for chosen in single),
        shapley_ns=tuple(shapley),
        joint_ns=wall[none] - wall[everything],
    )
