"""Moments of values: what numpy says in extended precision, whatever parts they are merged of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.stores.value_statistics import (
    LEAST_COLUMNS,
    N_MOMENTS,
    PIECE,
    group_moments,
    merge_moments,
    no_moments,
)

RNG = np.random.default_rng
SIZES = [1, 2, 17, LEAST_COLUMNS + 1, PIECE - 1, PIECE + 1, 3 * PIECE + 5]


def moments(values):
    """Return the moments of one group of values."""
    return group_moments(np.asarray(values).reshape(1, 1, -1))[0]


def assert_close(found, values, within=1e-12):
    """Compare with numpy: the mean in deviations, or of itself; the deviation relatively."""
    values = values.ravel()
    finite = values[np.isfinite(values)].astype(np.longdouble)
    n = finite.size
    assert found[:2].tolist() == [n, values.size - n]
    if not n:
        assert found[2:].tolist() == [0, 0, np.inf, -np.inf]
        return
    assert found[4:].tolist() == [finite.min(), finite.max()]
    mean, spread = float(finite.mean()), float(finite.std())
    assert abs(found[2] - mean) <= within * spread + 1e-14 * abs(mean)
    assert abs(np.sqrt(found[3] / n) - spread) <= within * spread


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1", "i2", "i8", "?"])
@pytest.mark.parametrize("size", SIZES)
def test_they_are_what_numpy_says(dtype, size) -> None:
    values = RNG(size).normal(0, 1, size)
    row = (values * 40 + 100).clip(0, 200).astype(dtype) if dtype != "?" else values > 0
    assert_close(moments(row), row)


SHAPES = {
    "pressure with a small deviation": lambda r, n: r.normal(101325, 0.5, n),
    "rain, mostly none": lambda r, n: r.gamma(0.02, 3, n),
    "one value far off": lambda r, n: np.where(np.arange(n) == n // 2, 1e6, r.normal(0, 1, n)),
    "every sixteenth far off": lambda r, n: np.where(np.arange(n) % 16, r.normal(0, 1, n), 1e6),
    "a ramp": lambda r, n: np.linspace(200, 300, n),
    "so small that squares of single precision underflow": lambda r, n: r.normal(0, 1e-30, n),
    "so large that squares of single precision overflow": lambda r, n: r.normal(0, 1e30, n),
    "constant": lambda r, n: np.full(n, 273.15),
    "missing in parts": lambda r, n: np.where(np.arange(n) % 3, r.normal(280, 9, n), np.nan),
    "not finite at all": lambda r, n: np.where(np.arange(n) % 2, np.inf, np.nan),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_whatever_the_values(shape) -> None:
    row = SHAPES[shape](RNG(3), 2 * PIECE + 999).astype("f4")
    assert_close(moments(row), row, within=1e-9)


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 40),
    groups=st.integers(1, 9),
    columns=st.integers(0, 600),
)
def test_each_group_is_what_it_is_alone(seed, rows, groups, columns) -> None:
    values = RNG(seed).normal(1e5, 1, (rows, groups, columns)).astype("f4")
    values[RNG(seed).random(values.shape) < 0.02] = np.nan
    found = group_moments(values)
    for group in range(groups):
        assert_close(found[group], values[:, group])


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    offset=st.sampled_from([0.0, 1e5, -1e9]),
)
def test_any_partition_merges_to_the_whole(seed, sizes, offset) -> None:
    parts = [RNG(seed + place).normal(offset, 1, size) for place, size in enumerate(sizes)]
    merged = no_moments(1)[0]
    for part in parts:
        merged = merge_moments(merged, moments(part))
    assert_close(merged, np.concatenate(parts), within=1e-6 if offset else 1e-12)


def test_nothing_has_no_moments() -> None:
    assert no_moments(2).shape == (2, N_MOMENTS)
    assert no_moments(2)[1].tolist() == [0, 0, 0, 0, np.inf, -np.inf]
