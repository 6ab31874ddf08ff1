from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import StoreError
from iobench.stores.varints import decode_varints, encode_varint, encode_varints, parse_varint

INT64S = st.lists(st.integers(-(2**63), 2**63 - 1))


@given(INT64S)
def test_many_at_once_equal_one_by_one(values):
    one_by_one = b"".join(encode_varint(value % 2**64) for value in values)
    assert encode_varints(np.array(values, dtype=np.int64)) == one_by_one


@given(INT64S)
def test_round_trip(values):
    encoded = encode_varints(np.array(values, dtype=np.int64))
    assert decode_varints(memoryview(encoded)).tolist() == values


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_one_number_ends_where_it_ends(value, rest):
    encoded = encode_varint(value)
    data = memoryview(encoded + rest)
    assert parse_varint(data, 0, len(data)) == (value, len(encoded))


@pytest.mark.parametrize("data", [b"\x80", b"\xff" * 10, b"\x80" * 11 + b"\x01", b""])
def test_number_without_an_end_is_refused(data):
    with pytest.raises(StoreError, match="does not end"):
        parse_varint(memoryview(data), 0, len(data))


@pytest.mark.parametrize("data", [b"\x01\x80", b"\x80" * 11 + b"\x01", b"\xff"])
def test_list_with_an_endless_number_is_refused(data):
    with pytest.raises(StoreError, match="does not end"):
        decode_varints(memoryview(data))
