"""The share of its steady state that a run waited, with an interval: for gates."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.deliveries import STEADY, find_deliveries
from iobench.analysis.loop import find_loop
from iobench.analysis.windows import exposure, profile_of_loop
from iobench.recording import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.profiles import Profile

__all__ = ["ExposedShare", "exposed_share"]

STRETCHES: Final = ((60, 20, 2.093), (20, 10, 2.262))
"""From so many steps on, so many stretches of them; 97.5 % of Student's t below the last."""


@dataclass(frozen=True, slots=True)
class ExposedShare:
    """How much of its steady state a training process waited.

    Parameters
    ----------
    n_steps, n_samples : int, int or None
    wall_ns, wait_ns : int
    unknown_ns : int
        The part of the wait of which no cause is known.
    lost_spans : int
        With any, waits may be missing.
    low_ns, high_ns : int or None
        The interval of ``wait_ns``, at 95 %: from stretches of the run, left out one by one. None
        below 20 steps. What differs from one run to the next is not in it.
    """

    n_steps: int
    n_samples: int | None
    wall_ns: int
    wait_ns: int
    unknown_ns: int
    lost_spans: int
    low_ns: float | None
    high_ns: float | None

    @property
    def share(self) -> float | None:
        """Wait over wall; None without a steady state."""
        return self.wait_ns / self.wall_ns if self.wall_ns else None

    @property
    def low(self) -> float | None:
        """The interval's lower end, as a share."""
        return None if self.low_ns is None else self.low_ns / self.wall_ns

    @property
    def high(self) -> float | None:
        """The interval's upper end, as a share."""
        return None if self.high_ns is None else self.high_ns / self.wall_ns


def exposed_share(profile: Profile, *, rank: int | None = None) -> ExposedShare:
    """Return how much of its steady state a training process waited; errors as `exposure`."""
    profile = profile_of_loop(profile, rank)
    figures = exposure(profile, rank=rank)
    steady = figures.steady
    if steady is None:
        return ExposedShare(0, None, 0, 0, 0, figures.lost_spans, None, None)
    loop = find_loop(profile, rank=figures.rank)
    deliveries = find_deliveries(profile, loop)
    rows = deliveries.phase == STEADY
    half_ns = _half_interval(deliveries.wait_ns[rows], deliveries.wall_ns[rows])
    unknown = [row.exposed_ns for row in steady.stages if row.kind == Kind.UNKNOWN]
    return ExposedShare(
        n_steps=steady.n_batches,
        n_samples=steady.n_samples,
        wall_ns=steady.wall_ns,
        wait_ns=steady.wait_ns,
        unknown_ns=sum(unknown),
        lost_spans=figures.lost_spans,
        low_ns=None if half_ns is None else max(steady.wait_ns - half_ns, 0.0),
        high_ns=None if half_ns is None else min(steady.wait_ns + half_ns, float(steady.wall_ns)),
    )


def _half_interval(wait_ns: NDArray[np.int64], wall_ns: NDArray[np.int64]) -> float | None:
    """Return by how much the wait may be off, by a jackknife over stretches of the run.

    Stretches and not steps: waits of neighbours depend on each other.
    """
    n_steps = len(wait_ns)
    found = next((each for each in STRETCHES if n_steps >= each[0]), None)
    if found is None or not wall_ns.sum():
        return None
    _, n_parts, student = found
    edges = np.linspace(0, n_steps, n_parts + 1).astype(np.int64)[:-1]
    waits, walls = np.add.reduceat(wait_ns, edges), np.add.reduceat(wall_ns, edges)
    left_out = (waits.sum() - waits) / np.maximum(walls.sum() - walls, 1)
    variance = (n_parts - 1) / n_parts * ((left_out - left_out.mean()) ** 2).sum()
    return float(student * sqrt(variance) * wall_ns.sum())
