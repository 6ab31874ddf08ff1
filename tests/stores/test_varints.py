from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import StoreError
from iobench.stores.tfrecord import (
    decode_varint_rows,
    decode_varints,
    encode_varint,
    encode_varints,
    parse_varint,
)

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


@given(st.data(), st.integers(1, 4), st.integers(1, 24))
def test_rows_at_once_equal_row_by_row(data, count, nbytes):
    anything = st.binary(min_size=nbytes, max_size=nbytes)
    small = anything.map(lambda octets: bytes(byte & 0x7F for byte in octets))
    ended = anything.map(lambda octets: bytes(byte | 0x80 for byte in octets[:-1]) + b"\x01")
    rows = data.draw(st.lists(st.one_of(anything, small, ended), min_size=1, max_size=6))
    octets = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), nbytes)
    numbers, holds = decode_varint_rows(octets, count)
    assert numbers.shape == (len(rows), count)
    for row, one in enumerate(rows):
        try:
            alone = decode_varints(memoryview(one))
        except StoreError:
            alone = np.empty(0, dtype=np.int64)
        assert holds[row] == (len(alone) == count)
        assert numbers[row].tolist() == (alone.tolist() if holds[row] else [0] * count)
