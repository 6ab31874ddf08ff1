"""Bits that tell of the next point: of fields whose last bits are known to be noise."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from iobench.coordinates import Meteorology
from iobench.samples import SampleSpec, Variable
from iobench.stores.real_information import BitPairs, bits_worth_keeping

RNG = np.random.default_rng
Y, X = np.mgrid[:120, :200]
SMOOTH = 1.5 + 0.4 * np.sin(Y / 20) * np.cos(X / 25)
UINT = {"<f2": ("<u2", 10), "<f4": ("<u4", 23), "<f8": ("<u8", 52)}


def with_noise_below(n_bits, dtype="<f4"):
    """Return a smooth field all of whose mantissa but ``n_bits`` bits is random."""
    whole, n_mantissa = UINT[dtype]
    bits = SMOOTH.astype(dtype).view(whole)
    below = np.dtype(whole).type((1 << (n_mantissa - n_bits)) - 1)
    noise = RNG(1).integers(0, 1 << 16, bits.shape).astype(whole)
    if n_mantissa > 16:
        noise = RNG(1).integers(0, 1 << 63, bits.shape, dtype=np.uint64).astype(whole)
    return ((bits & ~below) | (noise & below)).view(dtype)


def naive(field):
    """Return the mutual information of each bit and that of the next point, by counting."""
    n_bits = 8 * field.itemsize
    whole = field.view(f"<u{field.itemsize}")
    found = []
    for bit in range(n_bits):
        ones = (whole >> whole.dtype.type(n_bits - 1 - bit)) & whole.dtype.type(1)
        pairs = Counter(
            zip(ones[:, :-1].ravel().tolist(), ones[:, 1:].ravel().tolist(), strict=True)
        )
        n = sum(pairs.values())
        first, second = Counter(), Counter()
        for (one, two), count in pairs.items():
            first[one] += count
            second[two] += count
        found.append(
            sum(
                count / n * math.log2(count * n / (first[one] * second[two]))
                for (one, two), count in pairs.items()
            )
        )
    return found


def counted(*fields, dtype="<f4"):
    pairs = BitPairs(dtype)
    for field in fields:
        pairs.add(field)
    return pairs


@pytest.mark.parametrize("dtype", UINT)
def test_information_is_that_of_the_formula(dtype) -> None:
    field = with_noise_below(4, dtype)
    expected = np.array(naive(field))
    found = counted(field, dtype=dtype).information()
    np.testing.assert_allclose(found[found > 0], expected[found > 0], rtol=1e-9)
    assert expected[found == 0].max() < 1e-3  # what chance shows of 24,000 pairs
    assert found[9 if dtype == "<f4" else -UINT[dtype][1]] > 0.5


@pytest.mark.parametrize("dtype", UINT)
@pytest.mark.parametrize("n_bits", [1, 2, 3, 4])
def test_no_random_bit_is_kept(dtype, n_bits) -> None:
    assert counted(with_noise_below(n_bits, dtype), dtype=dtype).bits_to_keep() == n_bits


def test_more_noise_needs_fewer_bits() -> None:
    kept = [
        counted((280 + 10 * SMOOTH + RNG(2).normal(0, level, SMOOTH.shape)).astype("f4"))
        for level in (0.001, 0.1, 1.0)
    ]
    bits = [pairs.bits_to_keep() for pairs in kept]
    assert bits == sorted(bits, reverse=True)
    assert bits[0] > bits[-1]


def test_where_nothing_is_told_nothing_is_suggested() -> None:
    assert counted(RNG(0).normal(size=(120, 200)).astype("f4")).bits_to_keep() is None
    assert counted(np.ones((120, 200), "f4")).bits_to_keep() is None
    assert counted(np.full((120, 200), np.nan, "f4")).bits_to_keep() is None
    assert counted(SMOOTH[:20, :20].astype("f4")).bits_to_keep() is None  # too few pairs


def test_missing_values_are_left_out() -> None:
    field = with_noise_below(3)
    field[:, ::7] = np.nan
    assert counted(field).bits_to_keep() == 3


def test_variables_on_a_grid_are_told_of() -> None:
    spec = SampleSpec(
        (
            Variable("t", (3, 120, 200), "<f4", ("level", "y", "x")),
            Variable("n", (120, 200), "<i4", ("y", "x")),
            Variable("column", (24000,), "<f4", ("z",)),
        )
    )
    field = with_noise_below(4)
    sample = {
        "t": np.stack([field] * 3),
        "n": np.zeros((120, 200), "i4"),
        "column": field.reshape(-1),
    }
    assert bits_worth_keeping(spec, [sample, sample], Meteorology()) == {"t": 4}
