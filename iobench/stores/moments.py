"""Count, mean, squared deviations, lowest and highest of many values, merged from parts.

Parts are merged by the update of Chan, Golub and LeVeque (1983, The American Statistician 37, 242,
doi 10.1080/00031305.1983.10483115), which loses nothing where deviations are far below the mean.
All sums are of float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

N, N_MISSING, MEAN, SQUARES, LOW, HIGH = range(6)
N_MOMENTS: Final = 6
EMPTY: Final = (0.0, 0.0, 0.0, 0.0, np.inf, -np.inf)
"""The moments of no value, in the order of the last axis of all arrays of moments here."""

PIECE: Final = 1 << 15
"""Values summed at a time: with what is in between they stay in a processor's cache."""
LEAST_COLUMNS: Final = 256
STRIDE: Final = 16
"""One value in so many tells about where the mean of a piece is."""


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
        means = merge_means(
            (one[..., N], one[..., MEAN], one[..., SQUARES]),
            (two[..., N], two[..., MEAN], two[..., SQUARES]),
        )
    merged[..., N], merged[..., MEAN], merged[..., SQUARES] = means
    merged[..., N_MISSING] = one[..., N_MISSING] + two[..., N_MISSING]
    merged[..., LOW] = np.minimum(one[..., LOW], two[..., LOW])
    merged[..., HIGH] = np.maximum(one[..., HIGH], two[..., HIGH])
    return merged


def no_moments(n_groups: int) -> NDArray[np.float64]:
    """Return the moments of groups without values."""
    return np.tile(EMPTY, (n_groups, 1))


def group_moments(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the moments of each group of real numbers: (rows, groups, columns) to (groups, 6).

    NaN and infinity count as missing. Lowest and highest are exact.
    """
    n_rows, n_groups, n_columns = values.shape
    if not values.size:
        return no_moments(n_groups)
    columns = min(n_columns, max(LEAST_COLUMNS, PIECE // n_groups))
    rows = max(1, PIECE // (n_groups * columns))
    every = []
    # A signalling NaN is quiet afterwards.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for start in range(0, n_rows, rows):
            for first in range(0, n_columns, columns):
                piece = values[start : start + rows, :, first : first + columns].swapaxes(0, 1)
                every.append(_piece_moments(np.ascontiguousarray(piece).reshape(n_groups, -1)))
    parts = np.stack(every)
    while len(parts) > 1:  # neighbours, all pairs at once
        merged = merge_moments(parts[: len(parts) // 2 * 2 : 2], parts[1::2])
        parts = np.concatenate([merged, parts[len(merged) * 2 :]])
    found: NDArray[np.float64] = parts[0]
    return found


def _piece_moments(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the moments of each row."""
    moments = np.empty((len(values), N_MOMENTS))
    low = np.minimum.reduce(values, axis=1).astype(np.float64)
    high = np.maximum.reduce(values, axis=1).astype(np.float64)
    n: Any = values.shape[1]
    there: NDArray[np.bool_] | None = None
    if not (np.isfinite(low).all() and np.isfinite(high).all()):  # a NaN is both
        there = np.isfinite(values)
        n = there.sum(axis=1)
        low = np.minimum.reduce(np.where(there, values, np.inf), axis=1)
        high = np.maximum.reduce(np.where(there, values, -np.inf), axis=1)
    # Around the mean of one value in 16 squares are at most 17 times those around the mean.
    if there is None:
        some_values = values[:, ::STRIDE]
        near = np.add.reduce(some_values, axis=1, dtype=np.float64) / some_values.shape[1]
    else:
        near = np.add.reduce(np.where(there, values, 0.0), axis=1, dtype=np.float64)
        near /= np.maximum(n, 1)
    exact = values.astype(np.float64)
    np.subtract(exact, near[:, None], out=exact)
    if there is not None:
        np.copyto(exact, 0.0, where=~there)
    off = np.add.reduce(exact, axis=1) / np.maximum(n, 1)
    # Not by BLAS or einsum: their order of sums depends on the processor.
    squares = np.add.reduce(np.square(exact, out=exact), axis=1) - off * off * n
    is_constant = (low == high) | (n == 0)
    moments[:, N], moments[:, N_MISSING] = n, values.shape[1] - n
    moments[:, MEAN] = np.where(is_constant, np.where(n == 0, 0.0, low), near + off)
    moments[:, SQUARES] = np.where(is_constant, 0.0, np.maximum(squares, 0.0))
    moments[:, LOW], moments[:, HIGH] = low, high
    return moments
