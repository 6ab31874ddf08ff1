"""The framing of TFRecord files: length, masked CRC-32C of the length, data, masked CRC of it.

Format: https://www.tensorflow.org/tutorials/load_data/tfrecord (section "TFRecords format
details"), all numbers little-endian.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import FileFormatError, StoreError
from iobench.files.atomic import storage_errors
from iobench.files.crc32c import crc32c
from iobench.stores.example import encode_example, parse_example

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.stores.example import FeatureKind

HEADER_NBYTES = 12
FOOTER_NBYTES = 4
FRAME_NBYTES = HEADER_NBYTES + FOOTER_NBYTES
"""Bytes a frame adds to its data."""
_MASK_DELTA = 0xA282EAD8


def frame_header(nbytes: int) -> bytes:
    """Return the 12 bytes before a record of ``nbytes`` bytes."""
    length = struct.pack("<Q", nbytes)
    return length + frame_footer(crc32c(length))


def frame_footer(crc: int) -> bytes:
    """Return the 4 bytes after data with this CRC-32C, rotated by 15 bits, plus a constant."""
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF)


def frame_footers(crcs: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Return `frame_footer` of many records: an array of shape (records, 4)."""
    masked = ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK_DELTA)
    return masked.astype("<u4").view(np.uint8).reshape(-1, FOOTER_NBYTES)


def parse_frame_header(header: bytes, available: int, *, where: str) -> int:
    """Return the length of the record that follows a frame header."""
    if len(header) != HEADER_NBYTES:
        raise StoreError(f"{where}: the file ends inside a record header; convert to a new folder")
    nbytes = int.from_bytes(header[:8], "little")
    if header != frame_header(nbytes):
        raise StoreError(f"{where}: checksum of the record's length is wrong; not a TFRecord file")
    if nbytes > available - FOOTER_NBYTES:
        raise StoreError(
            f"{where}: a record of {nbytes} bytes is announced, {max(available - 4, 0)} are left "
            "in the file; it is cut short or damaged"
        )
    return nbytes


def frame_pieces(pieces: Sequence[Any]) -> tuple[list[Any], int]:
    """Return the buffers of a record with its frame, and the CRC-32C of the record."""
    crc = 0
    for piece in pieces:
        crc = crc32c(piece, crc)
    return [frame_header(sum(map(len, pieces))), *pieces, frame_footer(crc)], crc


def frame_example(features: Sequence[tuple[str, FeatureKind, NDArray[Any]]]) -> list[Any]:
    """Return the buffers that, one after the other, are an example with its frame."""
    return frame_pieces(encode_example(features))[0]


def frame_data(frame: memoryview, where: str) -> memoryview:
    """Return the data of a record's frame; raise FileFormatError where a checksum is wrong."""
    data = frame[HEADER_NBYTES:-FOOTER_NBYTES]
    if frame[:HEADER_NBYTES] != frame_header(len(data)):
        part = "length or checksum of the length"
    elif frame[-FOOTER_NBYTES:] != frame_footer(crc32c(data)):
        part = "checksum of the example's data"
    else:
        return data
    raise FileFormatError(f"{where}: {part} is wrong; fetch the file again")


def scan_frames(path: Path) -> Iterator[tuple[int, int]]:
    """Yield ``(offset, length)`` of the data of every record, from the headers alone."""
    with storage_errors(path), path.open("rb", buffering=0) as stream:
        size = stream.seek(0, os.SEEK_END)
        offset = 0
        while offset < size:
            stream.seek(offset)
            header = stream.read(HEADER_NBYTES)
            available = size - offset - HEADER_NBYTES
            nbytes = parse_frame_header(header, available, where=f"{path} at byte {offset}")
            yield offset + HEADER_NBYTES, nbytes
            offset += nbytes + FRAME_NBYTES


def feature_kinds(files: Sequence[Path], names: Iterable[str]) -> dict[str, FeatureKind]:
    """Return which list each feature of a store's first example is."""
    for path in files:
        for offset, nbytes in scan_frames(path):
            with storage_errors(path), path.open("rb") as stream:
                stream.seek(offset)
                example = parse_example(memoryview(stream.read(nbytes)))
            missing = [name for name in names if name not in example]
            if missing:
                raise StoreError(f"{path}: examples lack {missing[0]!r}; convert to a new folder")
            return {name: feature.kind for name, feature in example.items()}
    raise StoreError(f"{files[0] if files else 'the store'}: no sample; convert to a new folder")
