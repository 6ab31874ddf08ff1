"""Figures with intervals of 95 %: what is compared, advised, gated and shown rests on these alone.

A figure of a run is a quotient of two sums: time over steps, time over samples, wait over time.
Steps that follow each other go together, so that the run is cut into few long blocks of them (or
whole epochs, turns, runs), and how these differ tells how far the figure may be off. Commands that
were timed in rounds have one number each, and now and then a round that something else disturbed:
theirs is the median, whose interval one such round does not move.

Where there are too few blocks or rounds for an interval there is None: it is unknown, not empty.
"""

from __future__ import annotations

import statistics
from math import comb, exp, fsum, inf, log, sqrt
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np

from iobench.json_keys import figure, key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FEWEST_BLOCKS: Final = 2
BLOCKS: Final = ((96, 8), (48, 6))
"""From so many steps on, so many blocks of them."""
MOST_BLOCKS: Final = 8
FEWEST_EPOCHS: Final = 4
"""From so many epochs on each may be a block, however short: they are repetitions by themselves."""
LEAST_ROUNDS: Final = 6
"""Below that a median has no interval of 95 %."""
STUDENT: Final = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
"""97.5 % of Student's t lie below, by degrees of freedom from 1."""


class Blocks(msgspec.Struct, frozen=True):
    """A quotient's two sums, in parts.

    Parameters
    ----------
    amounts, weights : ndarray of float64, shape (n_blocks,)
        The figure is the sum of the amounts over that of the weights.
    """

    amounts: NDArray[np.float64]
    weights: NDArray[np.float64]

    @property
    def value(self) -> float | None:
        """The figure; None without a weight."""
        weight = float(self.weights.sum())
        return float(self.amounts.sum()) / weight if weight > 0 else None


class Interval(msgspec.Struct, frozen=True):
    """A figure, and between what it may lie.

    Parameters
    ----------
    value : float or None
        None where it is unknown; of a ratio also where one of both is 0.
    low, high : float or None
        The interval at 95 %; None where there are too few blocks.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    JSON_KEYS: ClassVar = {
        "value": key("ratio"),
    }

    @figure
    def differs(self) -> bool | None:
        """Whether 1 lies outside the interval of a ratio; None without one."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1.0 <= self.high


def n_blocks_of(n_steps: int) -> int:
    """Return into how many blocks a run is cut; 1 where it is too short for an interval.

    Few and long ones: waits of neighbouring steps depend on each other, and what a block hands
    on to the next makes intervals too short.
    """
    return next((n for least, n in BLOCKS if n_steps >= least), 1)


def block_of_each(
    n_steps: int, epochs: NDArray[np.int64] | None = None, n_blocks: int | None = None
) -> tuple[NDArray[np.int64], int]:
    """Return in which block each of a run's steps is, and how many blocks there are.

    Blocks are of neighbouring steps. Where ``epochs`` tells of which epoch each step is, with what
    it starts and ends with, they are of whole epochs: blocks that cut these would have a start or
    none.

    Parameters
    ----------
    epochs : ndarray of int64, shape (n_steps,), optional
        Not decreasing.
    n_blocks : int, optional
        By default as many as may be separated.
    """
    place, n_places, most = np.arange(n_steps), n_steps, n_blocks_of(n_steps)
    if epochs is not None:
        found, place = np.unique(epochs, return_inverse=True)
        place, n_places = place.reshape(-1), len(found)
        most = MOST_BLOCKS if n_places >= FEWEST_EPOCHS else most
    if n_blocks is None:
        n_blocks = max(1, min(most, n_places))
    return place * n_blocks // max(n_places, 1), n_blocks


def blocks_of(times: NDArray[np.float64], epochs: NDArray[np.int64] | None = None) -> Blocks:
    """Return what each of a run's steps takes, in order, in the blocks of `block_of_each`."""
    block, n_blocks = block_of_each(len(times), epochs)
    amounts, weights = (
        np.bincount(block, each, n_blocks).astype(np.float64)
        for each in (times, np.ones_like(times))
    )
    return Blocks(amounts, weights)


def quotient(blocks: Blocks) -> Interval:
    """Return a run's figure itself, as `block_ratio` has it, but symmetric: a share may be 0."""
    value = blocks.value
    if value is None or len(blocks.amounts) < FEWEST_BLOCKS:
        return Interval(value)
    variance = _variance(_influence(blocks, value), in_order=True)
    half = student(len(blocks.amounts) - 1) * sqrt(variance)
    return Interval(value, value - half, value + half)


def dropped(n: int, drop: int) -> int:
    """Return how many lowest and highest of ``n`` repeats are dropped; none if none were left."""
    return drop if n > 2 * drop else 0


def trimmed_mean(values: Sequence[float], drop: int) -> Interval:
    """Return the mean of repeats without the lowest and the highest ``drop`` of them.

    Its interval is that of Tukey and McLaughlin (Sankhya A 25, 1963): what was dropped counts for
    the variance as the nearest that was kept, since what is left over differs less than repeats
    do. Of fewer than that none is dropped; of none the mean is unknown, of a single one its
    interval is. What was never below 0, as times and rates are not, has no interval that is.
    """
    mean, variance, n_kept = _trimmed(values, drop)
    if mean is None or n_kept < FEWEST_BLOCKS:
        return Interval(mean)
    half = student(n_kept - 1) * sqrt(variance)
    low = mean - half
    return Interval(mean, max(low, 0.0) if min(values) >= 0 else low, mean + half)


def _trimmed(values: Sequence[float], drop: int) -> tuple[float | None, float, int]:
    """Return a trimmed mean, its variance and how many values are in it."""
    drop = dropped(len(values), drop)
    n_kept = len(values) - 2 * drop
    if n_kept < 1:
        return None, 0.0, 0
    ordered = sorted(values)
    kept = ordered[drop : drop + n_kept]
    mean = fsum(kept) / n_kept
    if n_kept < FEWEST_BLOCKS:
        return mean, 0.0, n_kept
    winsorized = [*[kept[0]] * drop, *kept, *[kept[-1]] * drop]
    middle = fsum(winsorized) / len(winsorized)
    squares = fsum((each - middle) ** 2 for each in winsorized)
    return mean, squares / (n_kept * (n_kept - 1)), n_kept


def difference(a: Blocks, b: Blocks) -> Interval:
    """Return the figure of ``b`` less that of ``a``, two runs that have nothing in common."""
    values = a.value, b.value
    if values[0] is None or values[1] is None:
        return Interval(None)
    found = values[1] - values[0]
    if min(len(a.amounts), len(b.amounts)) < FEWEST_BLOCKS:
        return Interval(found)
    var_a = _variance(_influence(a, values[0]), in_order=True)
    var_b = _variance(_influence(b, values[1]), in_order=True)
    free = _degrees_of_freedom(var_a, len(a.amounts), var_b, len(b.amounts))
    half = student(free) * sqrt(var_a + var_b)
    return Interval(found, found - half, found + half)


def block_ratio(a: Blocks, b: Blocks, *, in_order: bool = True) -> Interval:
    """Return the ratio of ``b`` to ``a``, two runs that have nothing to do with each other.

    The interval is symmetric on the logarithm, so that it is inverted exactly where the runs are
    swapped. The variance of each logarithm is that of the blocks' influence on it (the delta
    method for a ratio of sums: Cochran, Sampling Techniques, 1977, chapter 6, of means over
    batches of a stationary series: Law and Carson, Operations Research 27, 1979), with Student's t
    for as many degrees of freedom as Welch and Satterthwaite give (Welch, Biometrika 34, 1947).
    Where neighbouring blocks go together, twice their covariance is added (Newey and West,
    Econometrica 55, 1987, of one lag), which is never taken off. How often such intervals hold the
    true ratio: ``tests/benchmarks/comparison_coverage.py``.

    Parameters
    ----------
    in_order : bool
        Whether blocks follow each other in time; runs of a group do not.
    """
    values = _ratio_of(a, b)
    if values is None:
        return Interval(None)
    ratio = values[1] / values[0]
    if min(len(a.amounts), len(b.amounts)) < FEWEST_BLOCKS:
        return Interval(ratio)
    var_a, var_b = (
        _variance(_influence(each, value) / value, in_order=in_order)
        for each, value in zip((a, b), values, strict=True)
    )
    free = _degrees_of_freedom(var_a, len(a.amounts), var_b, len(b.amounts))
    return _around(ratio, var_a + var_b, free)


def paired_ratio(a: Blocks, b: Blocks) -> Interval:
    """Return the ratio of ``b`` to ``a`` whose blocks are of the same turns, one by one.

    As `block_ratio`, of the differences of both runs' influences: what a turn does to both alike
    is in neither end of the interval.

    Raises
    ------
    ValueError
        If they have not equally many blocks.
    """
    if len(a.amounts) != len(b.amounts):
        raise ValueError("expected equally many blocks of both runs, one of each turn")
    values = _ratio_of(a, b)
    if values is None:
        return Interval(None)
    ratio = values[1] / values[0]
    if len(a.amounts) < FEWEST_BLOCKS:
        return Interval(ratio)
    moved = _influence(b, values[1]) / values[1] - _influence(a, values[0]) / values[0]
    return _around(ratio, _variance(moved, in_order=True), len(a.amounts) - 1)


def student(free: float) -> float:
    """Return what Student's t stays below in 97.5 %.

    Degrees of freedom are rounded down, above 30 to 30, so that intervals are rather too long.
    """
    return STUDENT[min(max(int(free + 1e-9), 1), len(STUDENT)) - 1]


def _ratio_of(a: Blocks, b: Blocks) -> tuple[float, float] | None:
    """Return both figures; None where their ratio means nothing."""
    first, second = a.value, b.value
    if first is None or second is None or first <= 0 or second <= 0:
        return None
    return (first, second) if 0 < second / first < inf else None


def _influence(blocks: Blocks, value: float) -> NDArray[np.float64]:
    """Return by how much each block moves the figure, times their number; the mean is 0."""
    n_blocks, total = len(blocks.amounts), blocks.weights.sum()
    moved: NDArray[np.float64] = n_blocks * (blocks.amounts - value * blocks.weights) / total
    return moved


def _variance(influence: NDArray[np.float64], *, in_order: bool) -> float:
    """Return the variance of the mean influence."""
    squares = float((influence**2).sum())
    shared = float((influence[1:] * influence[:-1]).sum()) if in_order else 0.0
    n_blocks = len(influence)
    return (squares + 2 * max(shared, 0.0)) / (n_blocks * (n_blocks - 1))


def _degrees_of_freedom(var_a: float, n_a: int, var_b: float, n_b: int) -> float:
    """Return those of the sum of two variances (Welch and Satterthwaite)."""
    squares = var_a**2 / (n_a - 1) + var_b**2 / (n_b - 1)
    return (var_a + var_b) ** 2 / squares if squares else 1.0


def _around(ratio: float, variance: float, free: float) -> Interval:
    """Return the interval that is symmetric on the logarithm."""
    if not variance:
        return Interval(ratio, ratio, ratio)
    half = student(free) * sqrt(variance)
    middle = log(ratio)
    low, high = middle - half, middle + half
    # Beyond a factor of 10**300 it is no interval but the whole axis.
    return Interval(ratio, exp(max(low, -690.0)), exp(min(high, 690.0)))


class RoundRatio(msgspec.Struct, frozen=True):
    """Two things timed in rounds of turns, and one of them beside itself (A/A).

    Parameters
    ----------
    ratio : float
        Median of b over a within a round.
    low, high : float or None
        Its interval of at least 95 % (order statistics); None below `LEAST_ROUNDS`.
    band_low, band_high : float or None
        The interval of a second a over the first: what the machine does without any change.
    """

    n_rounds: int
    ratio: float
    low: float | None
    high: float | None
    band_low: float | None
    band_high: float | None

    @property
    def slower(self) -> bool | None:
        """Whether b takes longer than noise explains: both intervals are apart."""
        if self.low is None or self.band_high is None:
            return None
        return self.low > max(1.0, self.band_high)

    @property
    def faster(self) -> bool | None:
        """Whether b takes less time than noise explains."""
        if self.high is None or self.band_low is None:
            return None
        return self.high < min(1.0, self.band_low)


def round_ratio(a: Sequence[float], b: Sequence[float], again: Sequence[float]) -> RoundRatio:
    """Return the ratio of ``b`` to ``a`` and of ``again`` to ``a``, round by round.

    Raises
    ------
    ValueError
        If they are not equally many, or none, or a time is not above 0.
    """
    if not a or not len(a) == len(b) == len(again) or min(*a, *b, *again) <= 0:
        raise ValueError("expected equally many times above 0 of a, b and a again")
    ratio, low, high = _median([one / other for one, other in zip(b, a, strict=True)])
    _, band_low, band_high = _median([one / other for one, other in zip(again, a, strict=True)])
    return RoundRatio(len(a), ratio, low, high, band_low, band_high)


def _median(values: list[float]) -> tuple[float, float | None, float | None]:
    """Return the median and its distribution-free interval of at least 95 % (David, Nagaraja)."""
    if len(values) < LEAST_ROUNDS:
        return statistics.median(values), None, None
    values = sorted(values)
    edge = _median_edge(len(values))
    return statistics.median(values), values[edge], values[-1 - edge]


def _median_edge(n: int) -> int:
    """Return how many of ``n`` sorted values lie outside the median's interval on either side."""
    outside, rank = 0.0, 0
    # The interval from the r-th smallest to the r-th largest misses the median with probability
    # 2 * sum_{i<r} C(n, i) / 2^n.
    while rank < n // 2:
        more = outside + 2 * comb(n, rank) / 2**n
        if more > 0.05:
            break
        outside, rank = more, rank + 1
    return max(rank - 1, 0)
