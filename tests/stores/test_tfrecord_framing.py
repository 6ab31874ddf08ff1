from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import StoreError
from iobench.files.crc32c import crc32c
from iobench.stores.tfrecord import (
    frame_footer,
    frame_footers,
    frame_header,
    parse_frame_header,
    scan_frames,
)


def write_frames(path, records):
    frames = (frame_header(len(data)) + data + frame_footer(crc32c(data)) for data in records)
    path.write_bytes(b"".join(frames))
    return path


def test_mask_of_a_known_checksum():
    # CRC-32C of "123456789" is E3069283 (RFC 3720, B.4); rotated and shifted by hand.
    assert crc32c(b"123456789") == 0xE3069283
    expected = (0x2507C60D + 0xA282EAD8) & 0xFFFFFFFF
    assert frame_footer(0xE3069283) == expected.to_bytes(4, "little")


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


def test_absurd_length_with_a_right_checksum_is_refused(tmp_path):
    file = tmp_path / "a.tfrecord"
    file.write_bytes(frame_header(2**63) + b"x" * 100)
    with pytest.raises(StoreError, match="9223372036854775808 bytes is announced"):
        list(scan_frames(file))


def test_absurd_length_with_a_wrong_checksum_is_refused():
    header = struct.pack("<QI", 2**60, 0)
    with pytest.raises(StoreError, match="checksum of the record's length"):
        parse_frame_header(header, 1000, where="here")


def test_the_footers_of_many_records_are_those_of_each():
    crcs = [0, 1, 0x7FFF, 0x8000, 0xE3069283, 0xFFFFFFFF]
    found = frame_footers(np.array(crcs, dtype=np.uint32))
    assert found.tobytes() == b"".join(map(frame_footer, crcs))
