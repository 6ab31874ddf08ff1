"""Ratios of two runs' figures, with intervals: what varies within runs, between turns, or runs.

A figure is a quotient of sums: time over steps, over samples, wait over time. The run is cut into
cells (stretches of neighbouring steps, rounds, or whole runs), each with its part of both sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "FEWEST_CELLS",
    "MOST_CELLS",
    "Cells",
    "RatioInterval",
    "cell_of_each",
    "cells_of",
    "n_stretches",
    "paired_cell_ratio",
    "ratio_of_cells",
    "student",
]

FEWEST_CELLS: Final = 2
STRETCHES: Final = ((96, 8), (48, 6))
"""From so many steps on, so many stretches of them."""
MOST_CELLS: Final = 8
FEWEST_EPOCHS: Final = 4
"""From so many epochs on each may be a cell, however short: they are repetitions by themselves."""
STUDENT: Final = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
"""97.5 % of Student's t lie below, by degrees of freedom from 1."""


@dataclass(frozen=True, slots=True)
class Cells:
    """A quotient's two sums, in parts.

    Parameters
    ----------
    amounts, weights : ndarray of float64, shape (n_cells,)
        The figure is the sum of the amounts over that of the weights.
    """

    amounts: NDArray[np.float64]
    weights: NDArray[np.float64]

    @property
    def value(self) -> float | None:
        """The figure; None without a weight."""
        weight = float(self.weights.sum())
        return float(self.amounts.sum()) / weight if weight > 0 else None


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """A run's figure over another's, and between what it may lie.

    Parameters
    ----------
    ratio : float or None
        None where one of them is unknown or the other is 0.
    low, high : float or None
        The interval at 95 %; None where there are too few cells.
    """

    ratio: float | None
    low: float | None = None
    high: float | None = None

    @property
    def differs(self) -> bool | None:
        """Whether 1 lies outside the interval; None without one."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1.0 <= self.high


def n_stretches(n_steps: int) -> int:
    """Return into how many stretches a run is cut; 1 where it is too short for an interval.

    Few and long ones: waits of neighbouring steps depend on each other, and what a stretch hands
    on to the next makes intervals too short.
    """
    return next((n for least, n in STRETCHES if n_steps >= least), 1)


def cell_of_each(
    n_steps: int, epochs: NDArray[np.int64] | None = None, n_cells: int | None = None
) -> tuple[NDArray[np.int64], int]:
    """Return in which cell each of a run's steps is, and how many cells there are.

    Cells are stretches of neighbouring steps. Where ``epochs`` tells of which epoch each step is,
    with what it starts and ends with, they are of whole epochs: stretches that cut these would have
    a start or none.

    Parameters
    ----------
    n_steps : int
    epochs : ndarray of int64, shape (n_steps,), optional
        Not decreasing.
    n_cells : int, optional
        By default as many as may be told apart.
    """
    place, n_places, most = np.arange(n_steps), n_steps, n_stretches(n_steps)
    if epochs is not None:
        found, place = np.unique(epochs, return_inverse=True)
        place, n_places = place.reshape(-1), len(found)
        most = MOST_CELLS if n_places >= FEWEST_EPOCHS else most
    if n_cells is None:
        n_cells = max(1, min(most, n_places))
    return place * n_cells // max(n_places, 1), n_cells


def cells_of(times: NDArray[np.float64], epochs: NDArray[np.int64] | None = None) -> Cells:
    """Return what each of a run's steps takes, in order, in the cells of `cell_of_each`."""
    cell, n_cells = cell_of_each(len(times), epochs)
    amounts, weights = (
        np.bincount(cell, each, n_cells).astype(np.float64) for each in (times, np.ones_like(times))
    )
    return Cells(amounts, weights)


def ratio_of_cells(a: Cells, b: Cells, *, in_order: bool = True) -> RatioInterval:
    """Return the ratio of ``b`` to ``a``, two runs that have nothing to do with each other.

    The interval is symmetric on the logarithm, so that it is inverted exactly where the runs are
    swapped. The variance of each logarithm is that of the cells' influence on it (the delta
    method for a ratio of sums: Cochran, Sampling Techniques, 1977, chapter 6, of means over
    batches of a stationary series: Law and Carson, Operations Research 27, 1979), with Student's t
    for as many degrees of freedom as Welch and Satterthwaite give (Welch, Biometrika 34, 1947).
    Where neighbouring cells go together, twice their covariance is added (Newey and West,
    Econometrica 55, 1987, of one lag), which is never taken off. How often such intervals hold the
    true ratio: ``tests/benchmarks/comparison_coverage.py``.

    Parameters
    ----------
    a, b : Cells
    in_order : bool
        Whether cells follow each other in time; runs of a group do not.
    """
    ratio = _ratio(a, b)
    if ratio is None or min(len(a.amounts), len(b.amounts)) < FEWEST_CELLS:
        return RatioInterval(ratio)
    var_a, var_b = (_variance(_influence(each), in_order=in_order) for each in (a, b))
    free_a, free_b = len(a.amounts) - 1, len(b.amounts) - 1
    variance = var_a + var_b
    if not variance:
        return RatioInterval(ratio, ratio, ratio)
    free = variance**2 / (var_a**2 / free_a + var_b**2 / free_b)
    return _interval(ratio, variance, free)


def paired_cell_ratio(a: Cells, b: Cells) -> RatioInterval:
    """Return the ratio of ``b`` to ``a`` whose cells are of the same turns, one by one.

    As `ratio_of_cells`, of the differences of both runs' influences: what a turn does to both
    alike is in neither end of the interval.

    Raises
    ------
    ValueError
        If they have not equally many cells.
    """
    if len(a.amounts) != len(b.amounts):
        raise ValueError("expected equally many cells of both runs, one of each turn")
    ratio = _ratio(a, b)
    if ratio is None or len(a.amounts) < FEWEST_CELLS:
        return RatioInterval(ratio)
    variance = _variance(_influence(b) - _influence(a), in_order=True)
    return _interval(ratio, variance, len(a.amounts) - 1)


def student(free: float) -> float:
    """Return what Student's t stays below in 97.5 %.

    Degrees of freedom are rounded down, above 30 to 30, so that intervals are rather too long.
    """
    return STUDENT[min(max(int(free + 1e-9), 1), len(STUDENT)) - 1]


def _ratio(a: Cells, b: Cells) -> float | None:
    first, second = a.value, b.value
    if first is None or second is None or first <= 0 or second <= 0:
        return None
    ratio = second / first
    return ratio if 0 < ratio < inf else None


def _influence(cells: Cells) -> NDArray[np.float64]:
    """Return by how much each cell moves the logarithm of the figure; the mean is 0."""
    n_cells = len(cells.amounts)
    shares = cells.amounts / cells.amounts.sum() - cells.weights / cells.weights.sum()
    moved: NDArray[np.float64] = n_cells * shares
    return moved


def _variance(influence: NDArray[np.float64], *, in_order: bool) -> float:
    """Return the variance of the mean influence."""
    squares = float((influence**2).sum())
    shared = float((influence[1:] * influence[:-1]).sum()) if in_order else 0.0
    n_cells = len(influence)
    return (squares + 2 * max(shared, 0.0)) / (n_cells * (n_cells - 1))


def _interval(ratio: float, variance: float, free: float) -> RatioInterval:
    half = student(free) * sqrt(variance)
    middle = log(ratio)
    low, high = middle - half, middle + half
    # Beyond a factor of 10**300 it is no interval but the whole axis.
    return RatioInterval(ratio, exp(max(low, -690.0)), exp(min(high, 690.0)))
