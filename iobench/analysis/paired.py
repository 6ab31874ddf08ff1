"""Two things timed in turns, next to one of them timed twice: whether they differ."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from math import comb

__all__ = ["PairedRatio", "median_edge", "paired_ratio"]


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """Ratio of paired measurements, and the same of a thing beside itself (A/A).

    Parameters
    ----------
    n_rounds : int
    ratio, low, high : float
        Median of b over a within a round, and its interval of at least 95 % (order statistics);
        the interval is the range where there are too few rounds for one (under 6).
    band_low, band_high : float
        The interval of a second a over the first: what the machine does without any change.
    """

    n_rounds: int
    ratio: float
    low: float
    high: float
    band_low: float
    band_high: float

    @property
    def slower(self) -> bool:
        """Whether b takes longer than noise explains: both intervals are apart."""
        return self.low > max(1.0, self.band_high)

    @property
    def faster(self) -> bool:
        """Whether b takes less time than noise explains."""
        return self.high < min(1.0, self.band_low)


def paired_ratio(a: list[float], b: list[float], again: list[float]) -> PairedRatio:
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
    return PairedRatio(len(a), ratio, low, high, band_low, band_high)


def _median(values: list[float]) -> tuple[float, float, float]:
    """Return the median and its distribution-free interval of at least 95 % (David, Nagaraja)."""
    values = sorted(values)
    edge = median_edge(len(values))
    return statistics.median(values), values[edge], values[-1 - edge]


def median_edge(n: int) -> int:
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
