"""The share of its time that a training loop waited, with an interval: for gates."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.deliveries import STEADY
from iobench.analysis.epoch_numbers import epoch_of_deliveries
from iobench.analysis.intervals import FEWEST_BLOCKS, block_of_each, student
from iobench.analysis.windows import measure_rank, profile_of_loop
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.figures import Window
    from iobench.profiles.contents import Profile

__all__ = ["ExposedShare", "exposed_share"]

STRETCHES: Final = ((60, 20), (20, 10))
"""From so many steps of steady state on, so many stretches of them."""


@dataclass(frozen=True, slots=True)
class ExposedShare:
    """How much of its time a training process waited, over what a long training sees.

    Parameters
    ----------
    n_steps, n_samples : int, int or None
    wall_ns, wait_ns : int
    unknown_ns : int
        The part of the wait of which no cause is known.
    lost_spans : int
        With any, waits may be missing.
    low_ns, high_ns : int or None
        The interval of ``wait_ns``, at 95 %: from stretches of the run, or of several epochs from
        these, left out one by one. None below 20 steps of steady state, or two epochs. What
        differs from one run to the next is not in it.
    window : str
        Of which part of the run, as `Exposure.window` has it; of the whole run there is no share.
    n_batches, n_folded : int
        Of the run, and those before them, of which there are sums only.
    """

    n_steps: int
    n_samples: int | None
    wall_ns: int
    wait_ns: int
    unknown_ns: int
    lost_spans: int
    low_ns: float | None
    high_ns: float | None
    window: Window = "steady"
    n_batches: int = 0
    n_folded: int = 0

    @property
    def share(self) -> float | None:
        """Wait over wall; None of a run too short for a steady state."""
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
    """Return how much of its time a training process waited; errors as `exposure`.

    Of its epochs as a long training has them, else of its steady state: `Exposure.judged`.
    """
    profile = profile_of_loop(profile, rank)
    measured = measure_rank(profile, rank=rank)
    figures, deliveries = measured.exposure, measured.deliveries
    if figures.window == "whole":
        return ExposedShare(0, None, 0, 0, 0, figures.lost_spans, None, None, "whole")
    judged, epochs = figures.judged, None
    rows = deliveries.phase == STEADY
    if figures.window == "recurring":
        rows = deliveries.repeated
        epochs = epoch_of_deliveries(measured.loop, deliveries)[rows]
    half_ns = _half_interval(deliveries.wait_ns[rows], deliveries.wall_ns[rows], epochs)
    unknown = [row.exposed_ns for row in judged.stages if row.kind == Kind.UNKNOWN]
    return ExposedShare(
        n_steps=judged.n_batches,
        n_samples=judged.n_samples,
        wall_ns=judged.wall_ns,
        wait_ns=judged.wait_ns,
        unknown_ns=sum(unknown),
        lost_spans=figures.lost_spans,
        low_ns=None if half_ns is None else max(judged.wait_ns - half_ns, 0.0),
        high_ns=None if half_ns is None else min(judged.wait_ns + half_ns, float(judged.wall_ns)),
        window=figures.window,
        n_batches=figures.whole.n_batches,
        n_folded=figures.n_folded,
    )


def _half_interval(
    wait_ns: NDArray[np.int64], wall_ns: NDArray[np.int64], epochs: NDArray[np.int64] | None
) -> float | None:
    """Return by how much the wait may be off, by a jackknife over stretches of the run.

    Stretches and not steps: waits of neighbours depend on each other. Of epochs none is cut.
    """
    n_steps = len(wait_ns)
    n_parts = None
    if epochs is None:
        n_parts = next((parts for least, parts in STRETCHES if n_steps >= least), 1)
    cell, n_parts = block_of_each(n_steps, epochs, n_parts)
    if n_parts < FEWEST_BLOCKS or not wall_ns.sum():
        return None
    waits, walls = (np.bincount(cell, each, n_parts) for each in (wait_ns, wall_ns))
    left_out = (waits.sum() - waits) / np.maximum(walls.sum() - walls, 1)
    variance = (n_parts - 1) / n_parts * ((left_out - left_out.mean()) ** 2).sum()
    return float(student(n_parts - 1) * sqrt(variance) * wall_ns.sum())
