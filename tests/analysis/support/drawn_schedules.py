"""Schedules whose batches can be drawn again: what a change gains in another run is then known.

A seed decides the shape, the loader, the stages' mean times and how they vary; a number decides
the draw of the batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import schedules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.runs.contents import RunData

SHAPES: Final = ("constant", "jitter", "heavy tail", "alternating", "slow worker", "drift")
STAGES: Final = tuple(kind.spelled for kind in schedules.STAGES)


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
