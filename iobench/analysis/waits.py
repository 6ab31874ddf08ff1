"""Times per step: their statistics, and of waits the few long waits that a median hides."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.deliveries import FILL, FIRST_EPOCH, STARTUP
from iobench.analysis.exposure_figures import LongWaits, StepStatistics

if TYPE_CHECKING:
    from iobench.analysis.attribution import Attribution
    from iobench.analysis.deliveries import Deliveries

Marks = NDArray[np.bool_]

EXCESS_FRACTION: Final = 0.1
"""From this share of the run on, long waits are worth a sentence."""
HELD_FRACTION: Final = 0.9
"""The long waits are the fewest that hold this share of the time above the median,"""
ALIKE_FRACTION: Final = 0.5
"""and all that are at least this long beside the shortest of them."""
REGULAR_FRACTION: Final = 2 / 3
"""At least this share of the distances between long waits is the same, or there is no period."""
EXPLAINED_FRACTION: Final = 0.2
"""Something coincides with long waits if it marks this share of their time,"""
LIFT: Final = 1.5
"""and marks them this much more often than steps in general."""


def step_statistics(times_ns: NDArray[np.int64]) -> StepStatistics | None:
    """Return the statistics of one time per step; None of none."""
    if not len(times_ns):
        return None
    return StepStatistics(
        n_steps=len(times_ns),
        min_ns=int(times_ns.min()),
        mean_ns=round(int(times_ns.sum()) / len(times_ns)),
        median_ns=round(float(np.median(times_ns))),
        max_ns=int(times_ns.max()),
        stdev_ns=round(float(np.std(times_ns, ddof=1))) if len(times_ns) > 1 else None,
    )


def find_long_waits(deliveries: Deliveries, attribution: Attribution) -> LongWaits | None:
    """Return the waits that hold much of the run, None unless (mean - median) x steps > 10 %."""
    steps = np.flatnonzero(deliveries.batch >= 0)
    wall_ns = int(deliveries.wall_ns.sum())
    if not len(steps) or not wall_ns:
        return None
    waits = deliveries.wait_ns[steps]
    median = statistics.median(waits.tolist())
    excess = int(waits.sum()) - median * len(steps)
    if excess <= EXCESS_FRACTION * wall_ns:
        return None
    above = np.maximum(waits - median, 0)
    descending = np.sort(above)[::-1]
    held = np.cumsum(descending)
    shortest = descending[np.searchsorted(held, HELD_FRACTION * held[-1])]
    long = np.flatnonzero(above >= ALIKE_FRACTION * shortest)
    return LongWaits(
        n_waits=len(long),
        wait_ns=int(waits[long].sum()),
        typical_ns=round(statistics.median(waits[long].tolist())),
        period_steps=_period(long),
        coincides_with=_coincidence(
            {
                "round start": deliveries.position[steps] == 0,
                "worker start": attribution.worker_start[steps],
                "fill": np.isin(deliveries.phase[steps], (STARTUP, FILL)),
                "first epoch": deliveries.phase[steps] == FIRST_EPOCH,
            },
            long,
            above,
        ),
    )


def _period(long: NDArray[np.int64]) -> int | None:
    """Return the steps from one long wait to the next, if most distances are that."""
    distances = np.diff(long)
    if len(distances) < 2:
        return None
    period = int(statistics.median_low(distances.tolist()))
    regular = np.abs(distances - period) <= period // 10
    return period if period > 1 and regular.mean() >= REGULAR_FRACTION else None


def _coincidence(
    marks: dict[str, Marks], long: NDArray[np.int64], above: NDArray[np.float64]
) -> str | None:
    """Return what marks most time of long waits, and other steps clearly less often."""
    result: tuple[float, int, str] | None = None
    for name, marked in marks.items():
        n_long, n_steps = int(marked[long].sum()), int(marked.sum())
        share = float(above[long][marked[long]].sum() / above[long].sum())
        lift = n_long * len(marked) / (n_steps * len(long)) if n_steps else 0.0
        if share >= EXPLAINED_FRACTION and lift >= LIFT:
            result = min(result or (0.0, 0, ""), (-share, n_steps, name))
    return result and result[2]
