"""Where a series of few values changed, drifted or had one that stands alone.

Every stretch of 4 to 24 neighbouring values is explained by its mean and one thing more: another
mean from some value on, one value apart from the others, or a line. Student's t holds what that
explains against what it leaves, which is how far suites differ without a reason, and at least as
far as their own runs let them (``noise``). The most telling of all stretches is taken, its chance
times their number (Bonferroni), and both sides of it are looked through again at the same level.
So a step does not hide another one, as it would where noise is that of the whole series.

Of many series some are unlike by chance: the level is such that of all series named one in twenty
is expected to be named wrongly, and where nothing changed one history in twenty names any
(Benjamini and Hochberg, J. R. Statist. Soc. B 57, 1995). Values are taken to be independent and
normal, which is held by simulation in ``tests/suites/test_change_points.py``.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import exp, inf, lgamma, log, log1p, sqrt
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from iobench.analysis.intervals import student
from iobench.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

FEWEST: Final = 4
"""Of values; fewer leave nothing to hold a difference against."""
LONGEST: Final = 24
RATE: Final = 0.05
LEAST_NOISE: Final = 1e-6
"""Values that are closer are the same: bytes that are counted have no noise at all."""
EXACT: Final = 1e-12
"""Relative: what is left of sums of squares beyond that is rounding."""

What = Literal["change", "outlier", "drift", "newest", "first"]
"""``newest`` and ``first`` stand alone at an end: one value is no level, and may be an outlier."""


@frozen
class Series:
    """Values in order, and how far each may be off by what is known of itself.

    Parameters
    ----------
    values : ndarray of float64, shape (n,)
    noise : ndarray of float64, shape (n,)
        Standard deviations; 0 where unknown.
    """

    values: NDArray[np.float64]
    noise: NDArray[np.float64]


@frozen
class Finding:
    """One thing that a series shows.

    Parameters
    ----------
    at : int
        The first value of the other mean, the one that stands alone, or where the drift begins.
    start, stop : int
        The stretch it is told from, a half-open range of places in the series.
    difference, half : float
        Of the means, of a drift between its ends; and half of its interval of 95 %.
    chance : float
        That values without it show one so clear, all stretches counted.
    """

    what: What
    at: int
    start: int
    stop: int
    difference: float
    half: float
    chance: float


def find_changes(series: Sequence[Series]) -> tuple[tuple[Finding, ...], ...]:
    """Return the findings of each series, in order; all are judged together."""
    places = [np.arange(len(each.values)) for each in series]
    first = [_clearest(each, at) for each, at in zip(series, places, strict=True)]
    level = _level([log(1.0) if one is None else one.log_chance for one in first])
    return tuple(
        tuple(sorted(_findings(each, at, level), key=lambda found: found.at))
        for each, at in zip(series, places, strict=True)
    )


def _level(log_chances: Sequence[float]) -> float:
    """Return up to which chance (its logarithm) findings are named, of all series together."""
    n = len(log_chances)
    ranked = enumerate(sorted(log_chances), 1)
    levels = (log(RATE * rank / n) for rank, found in ranked if found <= log(RATE * rank / n))
    return max(levels, default=-inf)


def least_step(n: int, n_series: int) -> float:
    """Return how large a step amid ``n`` values has to be to be named, over their spread.

    Where it is the only one in so many series; in half of the cases a smaller one is enough.
    """
    n = min(n, LONGEST)
    level = log(RATE / n_series) - log(_n_stretches(n))
    low, high = 0.0, 1e6
    for _ in range(60):
        middle = sqrt(max(low, 1e-3) * high)
        low, high = (low, middle) if log_tail(middle**2, n - 2) < level else (middle, high)
    return high * sqrt(1 / (n // 2) + 1 / (n - n // 2))


@frozen
class _Candidate:
    what: What
    start: int
    at: int
    stop: int
    log_chance: float


def _findings(
    series: Series,
    places: NDArray[np.int64],
    level: float,
    n_whole: int | None = None,
    *,
    lines: bool = True,
) -> Iterator[Finding]:
    """Yield what the values at some places show, one finding after the other."""
    n_whole = len(places) if n_whole is None else n_whole
    found = _clearest(series, places, n_whole, lines=lines)
    if found is None or found.log_chance > level:
        return
    told = [_told(series, places, found)]
    parts = [places[: found.at], places[found.at :]]
    if found.what == "outlier":
        parts = [np.delete(places, found.at)]
    elif found.what == "drift":
        parts = [places[: found.start + 1], places[found.stop - 1 :]]
        # Steps of one sign look like a line from afar.
        within = places[found.start : found.stop]
        steps = list(_findings(series, within, level, n_whole, lines=False))
        if steps and _steps_cost(series, within, steps) < _line_cost(series, within):
            told = steps
    yield from told
    for part in parts:
        yield from _findings(series, part, level, n_whole, lines=lines)


def _steps_cost(series: Series, places: NDArray[np.int64], steps: Sequence[Finding]) -> float:
    """Return what steps leave and need, by Schwarz's criterion; each has a place and a mean."""
    alone = [each.at for each in steps if each.what == "outlier"]
    edges = sorted(each.at for each in steps if each.what != "outlier")
    kept = places[~np.isin(places, alone)]
    parts = np.split(series.values[kept], np.searchsorted(kept, edges))
    left = sum(float(((part - part.mean()) ** 2).sum()) for part in parts if len(part))
    return _cost(left, len(places), 1 + 2 * len(steps))


def _line_cost(series: Series, places: NDArray[np.int64]) -> float:
    values, at = series.values[places], np.arange(len(places))
    left = values - np.polyval(np.polyfit(at, values, 1), at)
    return _cost(float((left**2).sum()), len(places), 2)


def _cost(left: float, n: int, n_parameters: int) -> float:
    return n * log(max(left / n, LEAST_NOISE**2)) + n_parameters * log(n)


def _clearest(
    series: Series,
    places: NDArray[np.int64],
    n_whole: int | None = None,
    *,
    lines: bool = True,
) -> _Candidate | None:
    """Return the least likely candidate; None where there are too few values, or all are equal."""
    n = len(places)
    if n < FEWEST:
        return None
    values = series.values[places]
    values = values - values.mean()
    variances = np.maximum(series.noise[places], LEAST_NOISE) ** 2
    sums, squares, moments, floors = (
        np.concatenate(([0.0], np.cumsum(each)))
        for each in (values, values**2, values * np.arange(n), variances)
    )
    start, at, stop, kinds, length = _stretches(n)
    total = sums[stop] - sums[start]
    around = squares[stop] - squares[start] - total**2 / length
    before, after = at - start, stop - at
    gain = np.zeros(len(start))
    split, alone, line = (kinds == kind for kind in range(3))
    means = (sums[at] - sums[start]) / np.maximum(before, 1), (sums[stop] - sums[at]) / after
    effect = means[1] - means[0]
    gain[split] = (effect**2 * before * after / length)[split]
    others = (total - values[np.minimum(at, n - 1)]) / (length - 1)
    apart = values[np.minimum(at, n - 1)] - others
    effect[alone] = apart[alone]
    gain[alone] = (apart**2 * (length - 1) / length)[alone]
    crossed = moments[stop] - moments[start] - total * (start + stop - 1) / 2
    spread = length * (length**2 - 1) / 12
    effect[line] = (crossed / spread * (length - 1))[line]
    gain[line] = (crossed**2 / spread)[line]
    left = np.maximum(around - gain, EXACT * around) / (length - 2)
    # Differences of running sums lose what is small beside something huge.
    noise = np.maximum(np.maximum(left, (floors[stop] - floors[start]) / length), LEAST_NOISE**2)
    # A difference within the spread of single values matters to nobody.
    squared = np.where(np.abs(effect) > np.sqrt(noise), gain / noise, 0.0)
    if not lines:
        squared[line] = 0.0
    return _least_likely(squared, start, at, stop, kinds, n if n_whole is None else n_whole)


def _least_likely(
    squared: NDArray[np.float64],
    start: NDArray[np.int64],
    at: NDArray[np.int64],
    stop: NDArray[np.int64],
    kinds: NDArray[np.int64],
    n_whole: int,
) -> _Candidate | None:
    best: _Candidate | None = None
    factor = log(_n_stretches(n_whole))
    for first, last, length in _runs_of_length(len(squared), int(stop[-1])):
        place = first + int(np.argmax(squared[first:last]))
        if not squared[place]:
            continue
        chance = min(0.0, log_tail(float(squared[place]), length - 2) + factor)
        if best is None or chance < best.log_chance:
            where = int(start[place]), int(at[place]), int(stop[place])
            what: What = ("change", "outlier", "drift")[int(kinds[place])]
            best = _Candidate(what, *where, chance)
    return best


@cache
def _n_stretches(n: int) -> int:
    return len(_stretches(n)[0])


@cache
def _stretches(n: int) -> tuple[NDArray[np.int64], ...]:
    """Return start, place, stop, kind and length of all candidates, the short ones first."""
    rows = [
        (start, at, start + length, kind, length)
        for length in range(FEWEST, min(n, LONGEST) + 1)
        for start in range(n - length + 1)
        for kind, places in enumerate(
            (
                range(start + 1, start + length),
                range(start + 1, start + length - 1),
                (start,),
            )
        )
        for at in places
    ]
    return tuple(np.array(rows, dtype=np.int64).T)


@cache
def _runs_of_length(n_rows: int, n: int) -> tuple[tuple[int, int, int], ...]:
    lengths = _stretches(n)[4]
    edges = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), n_rows]
    return tuple((first, last, int(lengths[first])) for first, last in pairwise(edges))


def _told(series: Series, places: NDArray[np.int64], found: _Candidate) -> Finding:
    """Return a candidate with its size, at its places in the whole series."""
    of = places[found.start : found.stop]
    values, at = series.values[of], found.at - found.start
    n = len(of)
    if found.what == "outlier":
        fitted = np.full(n, np.delete(values, at).mean())
        fitted[at] = values[at]
        difference, share = values[at] - fitted[at - 1], 1 + 1 / (n - 1)
    elif found.what == "drift":
        steps = np.arange(n) - (n - 1) / 2
        slope = float((values * steps).sum() / (steps**2).sum())
        fitted = values.mean() + slope * steps
        difference, share = slope * (n - 1), (n - 1) ** 2 / float((steps**2).sum())
    else:
        fitted = np.repeat((values[:at].mean(), values[at:].mean()), (at, n - at))
        difference, share = fitted[-1] - fitted[0], 1 / at + 1 / (n - at)
    left = float(((values - fitted) ** 2).sum()) / (n - 2)
    floor = float((np.maximum(series.noise[of], LEAST_NOISE) ** 2).mean())
    what, place = found.what, int(of[at])
    if what == "change" and place == len(series.values) - 1:
        what = "newest"
    elif what == "change" and place == 1 and of[0] == 0:
        what = "first"
    half = student(n - 2) * sqrt(max(left, floor) * share)
    return Finding(
        what, place, int(of[0]), int(of[-1]) + 1, float(difference), half, exp(found.log_chance)
    )


def log_tail(squared: float, free: int) -> float:
    """Return the logarithm of the chance that Student's t is as far from 0, on either side.

    It is the incomplete beta function (Abramowitz and Stegun, 26.5.27) by its power series, which
    keeps its digits where the chance is small; where it is large, 1 will do.
    """
    x = free / (free + squared)
    if x > 0.9:
        return 0.0
    a = free / 2
    term, total, k = 1.0, 1 / a, 0
    while term > 1e-12:
        k += 1
        term *= x * (k - 0.5) / k
        total += term / (a + k)
    beta = lgamma(a) + lgamma(0.5) - lgamma(a + 0.5)
    return a * -log1p(squared / free) - beta + log(total)
