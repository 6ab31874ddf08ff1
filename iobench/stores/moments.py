"""Count, mean, squared deviations, lowest and highest of many values, merged from parts.

Parts are merged by the update of Chan, Golub and LeVeque (1983, The American Statistician 37, 242,
doi 10.1080/00031305.1983.10483115), which loses nothing where deviations are far below the mean.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

N, N_MISSING, MEAN, SQUARES, LOW, HIGH = range(6)
N_MOMENTS: Final = 6
EMPTY: Final = (0.0, 0.0, 0.0, 0.0, np.inf, -np.inf)
"""The moments of no value, in the order of the last axis of all arrays of moments here."""

PIECE: Final = 1 << 16
"""Values summed at a time: with what is in between they stay in a processor's cache."""
FEW: Final = 1 << 12
"""Rows of fewer values are taken many at once, as float64."""
FEW_AT_ONCE: Final = 1 << 15
"""Values of these, so that all that is in between stays in a cache."""
STRIDE: Final = 16
"""One value in so many tells about where a piece's mean is."""
NARROWEST: Final = 1e-12
"""A range below which squares of single precision could underflow."""


def merge_means(one: tuple[Any, Any, Any], two: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return count, mean and squared deviations of the values of two parts.

    Numbers or arrays. Source: Chan, Golub and LeVeque 1983, as above.
    """
    (count, mean, squares), (added, added_mean, added_squares) = one, two
    difference = added_mean - mean
    total = count + added
    some = total + (total == 0)  # nothing and nothing: no mean, and no division by 0
    return (
        total,
        mean + difference * (added / some),
        squares + added_squares + difference**2 * (count * added / some),
    )


def merge_moments(one: NDArray[np.float64], two: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the moments of the values of two parts; any shape, moments along the last axis."""
    merged = np.empty(np.broadcast_shapes(one.shape, two.shape))
    with np.errstate(over="ignore", invalid="ignore"):
        parts = ([part[..., place] for place in (N, MEAN, SQUARES)] for part in (one, two))
        (n, mean, squares), (added, added_mean, added_squares) = parts
        means = merge_means((n, mean, squares), (added, added_mean, added_squares))
    merged[..., N], merged[..., MEAN], merged[..., SQUARES] = means
    merged[..., N_MISSING] = one[..., N_MISSING] + two[..., N_MISSING]
    merged[..., LOW] = np.minimum(one[..., LOW], two[..., LOW])
    merged[..., HIGH] = np.maximum(one[..., HIGH], two[..., HIGH])
    return merged


def fold_moments(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the moments of all parts along the first axis: neighbours, then pairs of these.

    The order is a matter of how many there are alone, so that the result is, to the bit.
    """
    if not len(parts):
        return np.broadcast_to(np.array(EMPTY), parts.shape[1:]).copy()
    folded: NDArray[np.float64] = parts
    while len(folded) > 1:
        even = len(folded) // 2 * 2
        merged = merge_moments(folded[0:even:2], folded[1:even:2])
        folded = np.concatenate((merged, folded[even:]))
    first: NDArray[np.float64] = folded[0]
    return first


def row_moments(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the moments of each row of real numbers: (rows, values) to (rows, moments).

    NaN and infinity count as missing. What a row gives does not depend on the others. Sums over at
    most `PIECE` values are of the numbers' own precision, at least single, around a value near
    their mean, pairwise; all else is float64. Of float32 that leaves, with u = 2**-24, at most 27 u
    of a sum of absolute values (9 levels of pairs over runs of 128 in 8 lanes: 27 additions on the
    way of a value at most). The value near the mean is the mean of one value in 16, so that the
    squares around it are at most 16 times those around the mean: deviations are good to 5e-5 of
    themselves and means to 7e-6 deviations, whatever the values; of weather data they are a hundred
    times better. Lowest and highest are exact.
    """
    moments = np.empty((len(rows), N_MOMENTS))
    if rows.shape[1] < FEW:
        step = max(1, FEW_AT_ONCE // max(1, rows.shape[1]))
        for start in range(0, len(rows), step):
            moments[start : start + step] = _many_small(rows[start : start + step])
        return moments
    rows = np.ascontiguousarray(rows)  # the order of sums is that of memory
    scratch = np.empty(min(PIECE, rows.shape[1]), dtype=_summed(rows.dtype))
    for place, row in enumerate(rows):
        parts = [
            piece_moments(row[start : start + PIECE], scratch)
            for start in range(0, len(row), PIECE)
        ]
        moments[place] = fold_moments(np.array(parts)) if len(parts) > 1 else parts[0]
    return moments


def _summed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the precision that sums of so many bits are made in, which holds each number."""
    return np.result_type(dtype, np.float32)


def piece_moments(values: NDArray[Any], scratch: NDArray[Any]) -> tuple[float, ...]:
    """Return the moments of a vector of at most `PIECE` numbers, as `row_moments` those of a row.

    ``scratch`` is of its length at least, and of the precision that sums are made in: single, or
    double for numbers that single does not hold. It is overwritten.
    """
    n = values.size
    values = values.astype(scratch.dtype, copy=False)
    low, high = float(np.minimum.reduce(values)), float(np.maximum.reduce(values))
    if not (math.isfinite(low) and math.isfinite(high)):  # a NaN is the lowest and the highest
        values = values[np.isfinite(values)]
        if not values.size:
            return 0.0, n, *EMPTY[MEAN:]
        low, high = float(np.minimum.reduce(values)), float(np.maximum.reduce(values))
    mean, squares = low, 0.0
    if low != high:
        mean, squares = _mean_and_squares(values, scratch[: values.size])
        is_single = values.dtype.itemsize < 8
        if is_single and not (math.isfinite(squares) and high - low > NARROWEST):
            mean, squares = _mean_and_squares(values.astype(np.float64), np.empty(values.size))
    return values.size, n - values.size, mean, squares, low, high


def _mean_and_squares(values: NDArray[Any], off: NDArray[Any]) -> tuple[float, float]:
    """Return mean and squared deviations of finite numbers; ``off`` is overwritten."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        some = values[::STRIDE]
        near = values.dtype.type(np.add.reduce(some) / some.size)
        np.subtract(values, near, out=off)
        total = float(np.add.reduce(off))
        np.square(off, out=off)
        squares = float(np.add.reduce(off))
    return float(near) + total / off.size, max(squares - total * (total / off.size), 0.0)


def _many_small(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the moments of rows of few values, in passes over all of them."""
    moments = np.empty((len(rows), N_MOMENTS))
    if not rows.shape[1]:
        moments[:] = EMPTY
        return moments
    there: NDArray[np.bool_] | None = None
    n: Any = rows.shape[1]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        # The order of sums is that of memory; a signalling NaN is quiet afterwards.
        exact = rows.astype(np.float64, order="C")
        low, high = np.minimum.reduce(exact, axis=1), np.maximum.reduce(exact, axis=1)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):  # a NaN is both
            there = np.isfinite(exact)
            n = there.sum(axis=1)
            low = np.minimum.reduce(np.where(there, exact, np.inf), axis=1)
            high = np.maximum.reduce(np.where(there, exact, -np.inf), axis=1)
            np.copyto(exact, 0.0, where=~there)
        some = np.maximum(n, 1)
        mean = np.add.reduce(exact, axis=1) / some
        off = np.subtract(exact, mean[:, None], out=exact)
        if there is not None:
            np.copyto(off, 0.0, where=~there)
        total = np.add.reduce(off, axis=1)
        squares = np.einsum("ij,ij->i", off, off) - total * total / some
        mean = mean + total / some
    moments[:, LOW], moments[:, HIGH] = low, high
    moments[:, N], moments[:, N_MISSING] = n, rows.shape[1] - n
    is_constant = low == high
    moments[:, MEAN] = np.where(is_constant, low, mean)
    moments[:, SQUARES] = np.where(is_constant, 0.0, np.maximum(squares, 0.0))
    if there is not None:
        moments[n == 0, MEAN] = 0.0
    return moments
