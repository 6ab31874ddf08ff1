"""TFRecord files and ``tf.train.Example`` messages: frames, features, varints."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import StoreError
from iobench.files.crc32c import crc32c
from iobench.stores.tfrecord import (
    FeatureKind,
    decode_varint_rows,
    decode_varints,
    encode_example,
    encode_varint,
    encode_varints,
    frame_footer,
    frame_footers,
    frame_header,
    parse_example,
    parse_frame_header,
    parse_varint,
    scan_frames,
)

# ---- frames


def write_frames(path, records):
    frames = (frame_header(len(data)) + data + frame_footer(crc32c(data)) for data in records)
    path.write_bytes(b"".join(frames))
    return path


def test_mask_of_a_known_checksum():
    # CRC-32C of "123456789" is E3069283 (RFC 3720, B.4); rotated and shifted by hand.
    assert crc32c(b"123456789") == 0xE3069283
    expected = (0x2507C60D + 0xA282EAD8) & 0xFFFFFFFF
    assert frame_footer(0xE3069283) == expected.to_bytes(4, "little")
    crcs = [0, 1, 0x7FFF, 0x8000, 0xE3069283, 0xFFFFFFFF]
    found = frame_footers(np.array(crcs, dtype=np.uint32))
    assert found.tobytes() == b"".join(map(frame_footer, crcs))


@given(records=st.lists(st.binary(max_size=50), max_size=5))
def test_scan_finds_every_record(tmp_path_factory, records):
    file = write_frames(tmp_path_factory.mktemp("frames") / "a.tfrecord", records)
    content = file.read_bytes()
    assert [content[at : at + nbytes] for at, nbytes in scan_frames(file)] == records


@pytest.mark.parametrize("cut", [1, 4, 10, 15, 17])
def test_truncated_file_is_named(tmp_path, cut):
    file = write_frames(tmp_path / "a.tfrecord", [b"one", b"three"])
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(StoreError, match=r"a\.tfrecord at byte 19"):
        list(scan_frames(file))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (frame_header(2**63), "9223372036854775808 bytes is announced"),
        (struct.pack("<QI", 2**60, 0), "checksum of the record's length"),
    ],
)
def test_absurd_length_is_refused(header, said):
    with pytest.raises(StoreError, match=said):
        parse_frame_header(header, 1000, where="here")


# ---- examples


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
    data = np.frombuffer(b"".join(encode_example([("x", FeatureKind.FLOAT, values)])), np.uint8)
    found = parse(data.data)["x"].floats()
    assert found.tobytes() == values.tobytes()
    assert np.shares_memory(found, data) or not bits
    turned = np.arange(12, dtype="<f4").reshape(3, 4).T  # is written in C order
    data = b"".join(encode_example([("x", FeatureKind.FLOAT, turned)]))
    assert parse(data)["x"].floats().tolist() == turned.ravel().tolist()


@given(st.lists(st.tuples(st.booleans(), st.lists(st.floats(width=32), max_size=70))))
def test_packed_and_unpacked_floats_follow_each_other(pieces):
    body, expected = b"", []
    for is_packed, values in pieces:
        expected += values
        raw = [struct.pack("<f", value) for value in values]
        body += delimited(1, b"".join(raw)) if is_packed else b"".join(b"\x0d" + e for e in raw)
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
    data = example(b=(1, delimited(1, b"b")), a=(1, delimited(1, b"a")))
    data += example(b=(1, delimited(1, b"later")))
    found = {name: bytes(each.values()[0]) for name, each in parse(data).items()}
    assert found == {"a": b"a", "b": b"later"}


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
        for feature in parse(data).values():
            feature.values(), feature.floats(), feature.int64s()
    except StoreError as error:
        assert "record" in str(error)  # noqa: PT017


# ---- varints


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.binary(max_size=3))
def test_many_numbers_are_written_and_read_as_one_by_one(values, rest):
    encoded = [encode_varint(value % 2**64) for value in values]
    assert encode_varints(np.array(values, dtype=np.int64)) == b"".join(encoded)
    assert decode_varints(memoryview(b"".join(encoded))).tolist() == values
    for value, each in zip(values, encoded, strict=True):
        data = memoryview(each + rest)
        assert parse_varint(data, 0, len(data)) == (value % 2**64, len(each))


@pytest.mark.parametrize("data", [b"\x80", b"\xff" * 10, b"\x80" * 11 + b"\x01", b"\xff"])
def test_number_without_an_end_is_refused(data):
    with pytest.raises(StoreError, match="does not end"):
        parse_varint(memoryview(data), 0, len(data))
    with pytest.raises(StoreError, match="does not end"):
        decode_varints(memoryview(b"\x01" + data))


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
