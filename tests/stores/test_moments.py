"""Moments of values: what numpy says in float64, whatever parts they are merged of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.stores.moments import (
    FEW,
    N_MOMENTS,
    PIECE,
    fold_moments,
    merge_moments,
    row_moments,
)

RNG = np.random.default_rng
SIZES = [1, 2, 17, FEW - 1, FEW, PIECE - 1, PIECE + 1, 3 * PIECE + 5]


def expected(row):
    """Return what the moments of a row are, by numpy, of its finite values."""
    values = row[np.isfinite(row)].astype(np.longdouble)
    if not values.size:
        return 0, row.size, 0.0, 0.0, np.inf, -np.inf
    mean = values.mean()
    squares = ((values - mean) ** 2).sum()
    return values.size, row.size - values.size, mean, squares, values.min(), values.max()


def assert_close(found, row, *, mean, deviation):
    """Compare with numpy: the mean in deviations (or of itself), the deviation relatively."""
    n, n_missing, middle, squares, low, high = expected(row)
    assert tuple(found[[0, 1, 4, 5]]) == (n, n_missing, low, high)
    spread = float(np.sqrt(squares / max(n, 1)))
    assert abs(found[2] - float(middle)) <= mean * spread + 1e-15 * abs(float(middle))
    assert abs(np.sqrt(found[3] / max(n, 1)) - spread) <= deviation * spread


@pytest.mark.parametrize("dtype", ["f8", "i8", "i4", "u4"])
def test_double_precision_is_what_numpy_says(dtype) -> None:
    for size in SIZES:
        row = (RNG(size).normal(101325, 12, size) * (1 if dtype == "f8" else 1000)).astype(dtype)
        assert_close(row_moments(row[None])[0], row, mean=1e-10, deviation=1e-10)


@pytest.mark.parametrize("dtype", ["f2", "f4", "u1", "i2", "?"])
def test_single_precision_keeps_its_bound(dtype) -> None:
    for size in SIZES:
        values = RNG(size).normal(0, 1, size)
        row = (values * 40 + 100).clip(0, 200).astype(dtype) if dtype != "?" else values > 0
        assert_close(row_moments(row[None])[0], row, mean=7e-6, deviation=5e-5)


SHAPES = {
    "pressure with a small deviation": lambda r, n: r.normal(101325, 0.5, n),
    "rain, mostly none": lambda r, n: r.gamma(0.02, 3, n),
    "one value far off": lambda r, n: np.where(np.arange(n) == n // 2, 1e6, r.normal(0, 1, n)),
    "every sixteenth far off": lambda r, n: np.where(np.arange(n) % 16, r.normal(0, 1, n), 1e6),
    "all but every sixteenth far off": lambda r, n: np.where(np.arange(n) % 16, 1e5, 0.0),
    "a ramp": lambda r, n: np.linspace(200, 300, n),
    "so small that squares underflow": lambda r, n: r.normal(0, 1e-30, n),
    "so large that squares overflow": lambda r, n: r.normal(0, 1e30, n),
    "constant": lambda r, n: np.full(n, 273.15),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_keeps_its_bound_whatever_the_values(shape) -> None:
    row = SHAPES[shape](RNG(3), 2 * PIECE + 999).astype("f4")
    assert_close(row_moments(row[None])[0], row, mean=7e-6, deviation=5e-5)


@pytest.mark.parametrize("size", [5, FEW + 3, PIECE + 9])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_is_not_finite_is_missing(size, dtype) -> None:
    row = RNG(size).normal(280, 10, size).astype(dtype)
    row[::3], row[1] = np.nan, np.inf
    bits = row.view(f"u{row.itemsize}")
    bits[3] ^= np.array(3 << (21 if dtype == "f4" else 50), bits.dtype)  # a signalling one
    assert_close(row_moments(row[None])[0], row, mean=7e-6, deviation=5e-5)
    row[:] = np.nan
    assert row_moments(row[None])[0].tolist() == [0, size, 0, 0, np.inf, -np.inf]


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 40), rows=st.integers(1, 30))
def test_a_row_does_not_depend_on_those_beside_it(seed, size, rows) -> None:
    values = RNG(seed).normal(1e5, 1, (rows, size)).astype("f4")
    values[RNG(seed).random(values.shape) < 0.05] = np.nan
    together = row_moments(values)
    apart = np.concatenate([row_moments(row[None]) for row in values])
    assert together.tobytes() == apart.tobytes()


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    offset=st.sampled_from([0.0, 1e5, -1e9]),
)
def test_any_partition_merges_to_the_whole(seed, sizes, offset) -> None:
    parts = [RNG(seed + place).normal(offset, 1, size) for place, size in enumerate(sizes)]
    whole = np.concatenate(parts)
    moments = np.concatenate([row_moments(part[None]) for part in parts])
    folded = fold_moments(moments)
    one_by_one = moments[0]
    for each in moments[1:]:
        one_by_one = merge_moments(one_by_one, each)
    for found in (folded, one_by_one):
        assert_close(found, whole, mean=1e-6 if offset else 1e-12, deviation=1e-6)


@pytest.mark.parametrize("size", [1, 15, 4095, 4096, 70_000])
def test_moments_do_not_depend_on_where_values_lie(size) -> None:
    values = np.random.default_rng(size).normal(size=(5, size)).astype(np.float32)
    apart = np.empty((size + 16, 5), dtype=np.float32)[:size].T
    apart[...] = values
    np.testing.assert_array_equal(row_moments(apart), row_moments(values))


def test_nothing_folds_to_nothing() -> None:
    assert fold_moments(np.empty((0, 2, N_MOMENTS)))[1].tolist() == [0, 0, 0, 0, np.inf, -np.inf]
