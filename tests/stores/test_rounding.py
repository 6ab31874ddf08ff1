from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.samples import Packed
from iobench.stores.rounding import (
    MANTISSA_BITS,
    PIECE,
    largest_errors,
    pack_linearly,
    round_mantissa,
    scale_and_offset,
    to_bfloat16,
    unpack,
)

BFLOAT16 = Packed("bfloat16")
FLOATS32 = st.floats(width=32)


def any_bits(dtype, count=2000, seed=0):
    """Random bit patterns: NaN payloads, infinities, subnormals, both zeros, and all between."""
    raw = np.random.default_rng(seed).integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan]
    info = np.finfo(dtype)
    special += [info.max, info.min, info.tiny, info.smallest_subnormal, -info.smallest_subnormal]
    return np.concatenate([raw.view(dtype), np.array(special, dtype)])


def rounded_exactly(value, keep_bits, lowest_exponent):
    """Round to nearest, ties to even, with whole numbers: what `round_mantissa` must give."""
    if value == 0 or not math.isfinite(value):
        return value
    exponent = max(math.frexp(value)[1] - 1, lowest_exponent)
    quantum = Fraction(2) ** (exponent - keep_bits)
    return round(Fraction(value) / quantum) * quantum


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
@pytest.mark.parametrize("part", [0.1, 0.4, 0.7, 1])
def test_mantissa_is_rounded_to_the_nearest_even(dtype, part):
    keep_bits = round(part * (MANTISSA_BITS[dtype] - 1))
    info = np.finfo(dtype)
    values = any_bits(dtype)
    rounded = round_mantissa(values, keep_bits)
    assert rounded.dtype == np.dtype(dtype)
    for value, found in zip(values.tolist(), rounded.tolist(), strict=True):
        if not math.isfinite(value):
            continue
        # A subnormal has no leading one: its last kept bit is where that of the smallest normal
        # number is.
        expected = rounded_exactly(value, keep_bits, int(info.minexp))
        largest = Fraction(float(info.max))
        assert found == (expected if abs(expected) <= largest else math.copysign(math.inf, value))
        assert math.copysign(1, found) == math.copysign(1, value)


def test_without_a_mantissa_the_nearest_power_of_two_is_left():
    values = np.array([1.1, 1.49, 1.51, 1.9, 3.1], "<f4")
    assert round_mantissa(values, 0).tolist() == [1, 1, 2, 2, 4]
    # The last kept bit is one of the exponent, so what is half way goes to an even exponent.
    assert set(round_mantissa(np.array([1.5, 3.0], "<f4"), 0).tolist()) <= {1, 2, 4}


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_what_is_not_finite_keeps_every_bit(dtype):
    values = any_bits(dtype)
    values = values[~np.isfinite(values)]
    assert round_mantissa(values, 3).tobytes() == values.tobytes()


def test_rounding_twice_changes_nothing_and_drops_the_bits():
    once = round_mantissa(any_bits("<f4"), 7)
    assert round_mantissa(once, 7).tobytes() == once.tobytes()
    finite = once[np.isfinite(once)]
    assert not (finite.view("<u4") & 0xFFFF).any()


def test_rounding_is_that_of_numcodecs():
    numcodecs = pytest.importorskip("numcodecs", reason="its BitRound is the formula's other home")
    values = any_bits("<f4")
    values = values[np.isfinite(values)]
    for keep_bits in (1, 7, 10, 22):
        theirs = numcodecs.BitRound(keepbits=keep_bits).encode(values).view("<f4")
        assert round_mantissa(values, keep_bits).tobytes() == theirs.tobytes()


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_bfloat16_is_that_of_everybody(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="another bfloat16 to compare with")
    values = any_bits(dtype)
    found = unpack(to_bfloat16(values), BFLOAT16)
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype("<f4")
    if dtype == "<f8":  # theirs rounds twice; only where that is the same
        same = np.isnan(values) | (single == values)
        found, single = found[same], single[same]
    with np.errstate(over="ignore", invalid="ignore"):
        theirs = single.astype(ml_dtypes.bfloat16).astype("<f4")
    np.testing.assert_array_equal(found, theirs)


def test_bfloat16_of_float64_is_rounded_once():
    tie = 1 + 2.0**-8  # half way between two bfloat16 numbers
    just_above = tie + 2.0**-40  # float32 holds the tie, and would go down to the even one
    assert unpack(to_bfloat16(np.array([tie, just_above, -just_above])), BFLOAT16).tolist() == [
        1.0,
        1 + 2.0**-7,
        -1 - 2.0**-7,
    ]


@pytest.mark.parametrize("bits", [0x7F800001, 0xFF80FFFF, 0x7FC00000])
def test_bfloat16_of_nan_is_nan(bits):
    value = np.array([bits], "<u4").view("<f4")
    assert np.isnan(unpack(to_bfloat16(value), BFLOAT16)).all()


@given(FLOATS32.filter(math.isfinite), FLOATS32.filter(math.isfinite), st.floats(0, 1))
def test_packing_is_off_by_half_a_step(one, other, part):
    low, high = sorted((one, other))
    packed = Packed("scaled", "<f8", *scale_and_offset(low, high))
    value = min(max(low + part * (high - low), low), high)
    found = float(unpack(pack_linearly(np.array([value]), packed), packed)[0])
    rounding = 4 * np.finfo(np.float64).eps * max(abs(low), abs(high))
    assert abs(found - value) <= packed.scale / 2 * (1 + 1e-9) * (low != high) + rounding


def test_packing_reaches_both_ends():
    packed = Packed("scaled", "<f4", *scale_and_offset(200.0, 320.0))
    numbers = pack_linearly(np.array([200, 260, 320], "<f4"), packed)
    assert numbers.tolist() == [-32767, 0, 32767]
    assert unpack(numbers, packed).tolist() == [200, 260, 320]


def test_unpacked_values_are_those_of_cf_attributes():
    xarray = pytest.importorskip("xarray", reason="reads scale_factor and add_offset")
    packed = Packed("scaled", "<f4", *scale_and_offset(-12.3, 45.6))
    numbers = np.arange(-32768, 32768, dtype="<i2")
    attributes = {"scale_factor": packed.scale, "add_offset": packed.offset}
    one = xarray.Dataset({"v": ("n", numbers, attributes)})
    theirs = xarray.decode_cf(one)["v"].values
    assert unpack(numbers, packed).tobytes() == theirs.astype("<f4").tobytes()


def test_large_arrays_are_taken_piece_by_piece():
    values = np.linspace(0, 1, 2 * PIECE + 8, dtype="<f4").reshape(3, -1)
    packed = Packed("scaled", "<f4", *scale_and_offset(0.0, 1.0))
    found = unpack(pack_linearly(values, packed), packed)
    assert found.shape == values.shape
    off = np.abs(values.astype("f8") - found.astype("f8"))
    nonzero = values != 0
    expected = off.max(), (off[nonzero] / values[nonzero].astype("f8")).max()
    assert largest_errors(values, found) == expected


@settings(max_examples=5 * settings().max_examples)
@given(st.lists(st.tuples(FLOATS32, FLOATS32), max_size=8))
def test_largest_errors_are_those_of_each_value(pairs):
    values = np.array([one for one, _ in pairs], "<f4")
    stored = np.array([other for _, other in pairs], "<f4")
    absolute = relative = 0.0
    for one, other in pairs:
        if one == other or (math.isnan(one) and math.isnan(other)):
            continue
        off = abs(one - other) if math.isfinite(one) and math.isfinite(other) else math.inf
        absolute = max(absolute, off)
        if one != 0:
            ratio = off / abs(one) if not math.isnan(one) else math.inf
            ratio = math.inf if math.isnan(ratio) else ratio
            relative = max(relative, min(ratio, float(np.finfo("f8").max)))
    assert largest_errors(values, stored) == (absolute, relative)


def test_errors_beyond_float64_are_its_largest_number():
    tiny = np.array([np.finfo("f8").smallest_subnormal])
    absolute, relative = largest_errors(tiny, np.array([1e10]))
    assert (absolute, relative) == (1e10, float(np.finfo("f8").max))
