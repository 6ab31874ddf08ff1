from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import StoreError
from iobench.stores.tfrecord import FeatureKind, encode_example, encode_varint, parse_example


def delimited(number, data):
    return encode_varint(number << 3 | 2) + encode_varint(len(data)) + data


def example(**lists):
    """An example whose features are these bodies of (kind, list message)."""
    entries = (
        delimited(1, delimited(1, name.encode()) + delimited(2, delimited(kind, body)))
        for name, (kind, body) in lists.items()
    )
    return delimited(1, b"".join(entries))


def parse(data):
    return parse_example(memoryview(data))


FLOATS = np.array([np.nan, -0.0, 1e-45, np.inf, 1.5], dtype="<f4")


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_floats_round_trip_bit_for_bit(bits):
    values = np.array(bits, dtype="<u4").view("<f4")
    data = b"".join(encode_example([("x", FeatureKind.FLOAT, values)]))
    assert parse(data)["x"].floats().tobytes() == values.tobytes()


def test_packed_floats_are_a_view_of_the_record():
    data = np.frombuffer(b"".join(encode_example([("x", FeatureKind.FLOAT, FLOATS)])), np.uint8)
    assert np.shares_memory(parse(data.data)["x"].floats(), data)


def test_strided_array_is_written_in_c_order():
    values = np.arange(12, dtype="<f4").reshape(3, 4).T
    data = b"".join(encode_example([("x", FeatureKind.FLOAT, values)]))
    assert parse(data)["x"].floats().tolist() == values.ravel().tolist()


@pytest.mark.parametrize("n_values", [1, 63, 64, 65, 5000])
def test_unpacked_floats_are_read(n_values):
    values = np.arange(n_values, dtype="<f4")
    body = b"".join(b"\x0d" + struct.pack("<f", value) for value in values)
    assert parse(example(x=(2, body)))["x"].floats().tolist() == values.tolist()


def test_packed_and_unpacked_floats_follow_each_other():
    packed, single = delimited(1, FLOATS.tobytes()), b"\x0d" + FLOATS[4:].tobytes()
    body = single + packed + single + single + packed
    expected = [*FLOATS[4:], *FLOATS, *FLOATS[4:], *FLOATS[4:], *FLOATS]
    found = parse(example(x=(2, body)))["x"].floats()
    assert found.tobytes() == np.array(expected, dtype="<f4").tobytes()


def test_unpacked_int64s_are_read():
    body = b"".join(b"\x08" + encode_varint(value % 2**64) for value in (3, -1, 300))
    assert parse(example(x=(3, body)))["x"].int64s().tolist() == [3, -1, 300]


def test_unknown_fields_are_passed_over():
    unknown = b"\x78\x05" + delimited(9, b"later version") + b"\x51" + b"8 bytes!"
    body = delimited(1, FLOATS.tobytes()) + unknown
    data = unknown + example(x=(2, body)) + unknown
    assert parse(data)["x"].floats().size == FLOATS.size


def test_features_in_any_order_and_the_last_of_a_name():
    data = example(b=(1, delimited(1, b"b")), a=(1, delimited(1, b"a"))) + example(
        b=(1, delimited(1, b"later"))
    )
    assert {name: bytes(f.values()[0]) for name, f in parse(data).items()} == {
        "a": b"a",
        "b": b"later",
    }


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a length of 2**63
        b"\x0a\x05ab",  # a length beyond the end
        b"\x0b",  # a group
        b"\x02\x00",  # field 0
        b"\x0d\x01",  # half a fixed32
        delimited(1, delimited(1, delimited(1, b"\xff\xfe"))),  # a name that is not UTF-8
    ],
)
def test_damaged_message_is_refused(data):
    with pytest.raises(StoreError, match="record"):
        parse(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_features_or_a_store_error(data):
    try:
        features = parse(data)
        for feature in features.values():
            feature.values(), feature.floats(), feature.int64s()
    except StoreError as error:
        assert "record" in str(error)  # noqa: PT017
