from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.samples import Packed
from iobench.stores.rounding import (
    PIECE,
    largest_errors,
    pack_linearly,
    scale_and_offset,
    unpack,
)

FLOATS32 = st.floats(width=32)


@given(FLOATS32.filter(math.isfinite), FLOATS32.filter(math.isfinite), st.floats(0, 1))
def test_packing_is_off_by_half_a_step(one, other, part):
    low, high = sorted((one, other))
    packed = Packed("<f8", *scale_and_offset(low, high))
    value = min(max(low + part * (high - low), low), high)
    found = float(unpack(pack_linearly(np.array([value]), packed), packed)[0])
    rounding = 4 * np.finfo(np.float64).eps * max(abs(low), abs(high))
    assert abs(found - value) <= packed.scale / 2 * (1 + 1e-9) * (low != high) + rounding


def test_packing_reaches_both_ends():
    packed = Packed("<f4", *scale_and_offset(200.0, 320.0))
    numbers = pack_linearly(np.array([200, 260, 320], "<f4"), packed)
    assert numbers.tolist() == [-32767, 0, 32767]
    assert unpack(numbers, packed).tolist() == [200, 260, 320]


def test_unpacked_values_are_those_of_cf_attributes():
    xarray = pytest.importorskip("xarray", reason="reads scale_factor and add_offset")
    packed = Packed("<f4", *scale_and_offset(-12.3, 45.6))
    numbers = np.arange(-32768, 32768, dtype="<i2")
    attributes = {"scale_factor": packed.scale, "add_offset": packed.offset}
    one = xarray.Dataset({"v": ("n", numbers, attributes)})
    theirs = xarray.decode_cf(one)["v"].values
    assert unpack(numbers, packed).tobytes() == theirs.astype("<f4").tobytes()


def test_large_arrays_are_taken_piece_by_piece():
    values = np.linspace(0, 1, 2 * PIECE + 8, dtype="<f4").reshape(3, -1)
    packed = Packed("<f4", *scale_and_offset(0.0, 1.0))
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
