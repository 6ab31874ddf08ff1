"""TFRecord files, and ``tf.train.Example`` messages: written as pieces, parsed as views, no copies.

Framing: length, masked CRC-32C of the length, data, masked CRC of it, all numbers little-endian
(https://www.tensorflow.org/tutorials/load_data/tfrecord, section "TFRecords format details").
Message: https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto;
encoding: https://protobuf.dev/programming-guides/encoding. Packed floats are raw little-endian
float32, so a list of them is an array where it lies; whole numbers are varints, seven bits a byte,
least significant first.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.errors import FileFormatError, StoreError
from iobench.files.atomic import storage_errors
from iobench.files.crc32c import crc32c
from iobench.stores.fields import FieldLayout
from iobench.stores.shard_writer import merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

HEADER_NBYTES = 12
FOOTER_NBYTES = 4
FRAME_NBYTES = HEADER_NBYTES + FOOTER_NBYTES
"""Bytes a frame adds to its data."""
_MASK_DELTA = 0xA282EAD8
MAX_EXAMPLE_NBYTES = (1 << 31) - 1
"""What protocol buffers allow a message, and TensorFlow refuses beyond."""

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
MAX_VARINT_NBYTES = 10
SHORT = 0x80


# ---- frames


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


# ---- examples


class FeatureKind(IntEnum):
    """The three lists a feature can be; the number is the field in ``Feature``."""

    BYTES = 1
    FLOAT = 2
    INT64 = 3


class Feature(msgspec.Struct, frozen=True):
    """One feature of an example: its kind and the body of its list message."""

    kind: FeatureKind
    body: memoryview

    def floats(self) -> NDArray[np.float32]:
        """Return a float list; a view of the record where it is packed in one piece."""
        return self._numbers(FIXED32, _floats, "<f4")

    def int64s(self) -> NDArray[np.int64]:
        """Return an int64 list."""
        return self._numbers(VARINT, decode_varints, "<i8")

    def _numbers(
        self, single: int, decode: Callable[[memoryview], NDArray[Any]], dtype: str
    ) -> NDArray[Any]:
        """Return a list of numbers, packed or one by one."""
        pieces = [
            decode(value)
            for number, wire, value in _fields(self.body)
            if number == 1 and wire in (DELIMITED, single)
        ]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=dtype)

    def packed(self) -> memoryview | None:
        """Return the bytes of a list's numbers; None where they are not packed in one piece."""
        fields = [*_fields(self.body)]
        return fields[0][2] if [each[:2] for each in fields] == [(1, DELIMITED)] else None

    def values(self) -> list[memoryview]:
        """Return the byte strings of a bytes list."""
        return [each for number, wire, each in _fields(self.body) if (number, wire) == (1, 2)]


def encode_example(features: Sequence[tuple[str, FeatureKind, NDArray[Any]]]) -> list[Any]:
    """Return the buffers that, one after the other, are the example."""
    entries = [
        (name, kind, encode_varints(array) if kind is FeatureKind.INT64 else _octets(array))
        for name, kind, array in features
    ]
    return merged(_message(entries))


def example_template(
    features: Sequence[tuple[str, int, FeatureKind]],
) -> tuple[bytes, dict[str, int]]:
    """Return an example of features of so many zero bytes, and where each of these begins."""
    data, offsets, names = b"", {}, iter(features)
    for piece in _message([(n, kind, memoryview(bytes(size))) for n, size, kind in features]):
        if isinstance(piece, memoryview):
            offsets[next(names)[0]] = len(data)
        data += piece
    return data, offsets


def _message(entries: Sequence[tuple[str, FeatureKind, Any]]) -> list[Any]:
    """Return the pieces of an example of these features' bytes, each of which is one of them."""
    pieces: list[Any] = []
    for name, kind, data in entries:
        # The three lists keep their values in field 1: packed numbers and strings look alike.
        feature = _delimited(kind, _delimited(1, [data]))
        pieces += _delimited(1, [*_delimited(1, [name.encode()]), *_delimited(2, feature)])
    return _delimited(1, pieces)


def parse_example(data: memoryview) -> dict[str, Feature]:
    """Return the features of an example by name; unknown fields are passed over."""
    features: dict[str, Feature] = {}
    for number, wire, body in _fields(data):
        if (number, wire) != (1, DELIMITED):
            continue
        for entry_number, entry_wire, entry in _fields(body):
            if (entry_number, entry_wire) == (1, DELIMITED):
                name, feature = _parse_entry(entry)
                if feature is not None:
                    features[name] = feature
    return features


def _parse_entry(entry: memoryview) -> tuple[str, Feature | None]:
    name, feature = "", None
    for number, wire, value in _fields(entry):
        if (number, wire) == (1, DELIMITED):
            try:
                name = bytes(value).decode()
            except UnicodeDecodeError as error:
                raise StoreError("a feature's name in a record is not UTF-8; damaged") from error
        elif (number, wire) == (2, DELIMITED):
            for kind, list_wire, body in _fields(value):
                if list_wire == DELIMITED and kind in (1, 2, 3):  # of a oneof the last one counts
                    feature = Feature(FeatureKind(kind), body)
    return name, feature


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yield number, wire type and bytes of the value of each field."""
    position, end = 0, len(data)
    while position < end:
        start = position
        tag, position = parse_varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            _, stop = parse_varint(data, position, end)
        elif wire == DELIMITED:
            nbytes, position = parse_varint(data, position, end)
            stop = position + nbytes
        elif wire in (FIXED32, FIXED64):
            stop = position + (4 if wire == FIXED32 else 8)
        else:
            raise StoreError(
                f"wire type {wire} at byte {start} of a record; not a tf.train.Example"
            )
        if stop > end or number == 0:
            raise StoreError(f"field {number} at byte {start} of a record ends beyond it; damaged")
        yield number, wire, data[position:stop]
        position = stop


def _floats(packed: memoryview) -> NDArray[Any]:
    if len(packed) % 4:
        raise StoreError(f"a float list of {len(packed)} bytes in a record; damaged")
    return np.frombuffer(packed, dtype="<f4")


def _octets(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _delimited(number: int, pieces: list[Any]) -> list[Any]:
    nbytes = sum(len(piece) for piece in pieces)
    return [encode_varint(number << 3 | DELIMITED) + encode_varint(nbytes), *pieces]


class ExampleLayout:
    """Where the arrays of one parsed example lie, and the bytes around them.

    Tags, names and lengths are what an example is parsed by: in another one that has the same bytes
    around its values the values lie at the same places. Nothing fits where a value was no plain
    contiguous view of the example (varints, unpacked floats).
    """

    def __init__(self, example: memoryview, arrays: Mapping[str, NDArray[Any]]) -> None:
        layout = FieldLayout.of_views([example], arrays, is_tagged=True)
        parts = () if layout is None else layout.extents[0]
        self._nbytes = -1 if layout is None else len(example)
        starts = {part.name: part.start for part in parts}
        self._where = {
            name: (array.dtype, array.size, starts.get(name, 0), array.shape)
            for name, array in arrays.items()
        }
        ends = ((part.start, part.start + part.nbytes) for part in parts if not part.name)
        self._around = [(start, end, bytes(example[start:end])) for start, end in ends]

    def fits(self, example: memoryview) -> bool:
        """Whether this example has its values at the same places."""
        return len(example) == self._nbytes and all(
            example[start:end] == data for start, end, data in self._around
        )

    def arrays(self, example: memoryview) -> dict[str, NDArray[Any]]:
        """Return the arrays of an example that fits."""
        return {
            name: np.frombuffer(example, dtype, size, start).reshape(shape)
            for name, (dtype, size, start, shape) in self._where.items()
        }


# ---- varints


def encode_varint(value: int) -> bytes:
    """Return one number of 0 .. 2**64 - 1 as a varint."""
    out = bytearray()
    while value >= SHORT:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def parse_varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Return the varint at ``position`` and the position after it."""
    value = 0
    for step in range(min(MAX_VARINT_NBYTES, end - position)):
        byte = data[position + step]
        value |= (byte & 0x7F) << (7 * step)
        if byte < SHORT:
            return value & 0xFFFFFFFFFFFFFFFF, position + step + 1
    raise StoreError(f"a number at byte {position} of a record does not end; it is damaged")


def encode_varints(values: NDArray[Any]) -> bytes:
    """Return whole numbers that fit int64 as varints of their two's complement, in order."""
    numbers = values.astype("<i8").ravel().view("<u8")
    if not numbers.size or numbers.max() < SHORT:
        return numbers.astype(np.uint8).tobytes()
    lengths = np.ones(numbers.size, dtype=np.int64)
    for step in range(1, MAX_VARINT_NBYTES):
        lengths += numbers >= np.uint64(1 << (7 * step))
    starts = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), dtype=np.uint8)
    for step in range(int(lengths.max())):
        longer = np.flatnonzero(lengths > step)
        septet = (numbers[longer] >> np.uint64(7 * step)) & np.uint64(0x7F)
        more = (lengths[longer] > step + 1).astype(np.uint64) << np.uint64(7)
        out[starts[longer] + step] = septet | more
    return out.tobytes()


def decode_varints(data: memoryview) -> NDArray[np.int64]:
    """Return the int64 numbers a run of varints holds."""
    each = np.frombuffer(data, dtype=np.uint8)
    if not each.size or each.max() < SHORT:
        return each.astype(np.int64)
    ends = np.flatnonzero(each < SHORT)
    starts = np.concatenate(([0], ends[:-1] + 1))
    if not ends.size or ends[-1] != each.size - 1 or (ends - starts).max() >= MAX_VARINT_NBYTES:
        raise StoreError("a list of numbers in a record is damaged: one of them does not end")
    numbers = np.zeros(ends.size, dtype=np.uint64)
    for step in range(int((ends - starts).max()) + 1):
        longer = np.flatnonzero(ends - starts >= step)
        septet = each[starts[longer] + step].astype(np.uint64) & np.uint64(0x7F)
        numbers[longer] |= septet << np.uint64(7 * step)
    return numbers.view(np.int64)


def decode_varint_rows(
    rows: NDArray[np.uint8], count: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the numbers of rows of varints, and which rows held as many."""
    numbers = np.zeros((len(rows), count), dtype=np.int64)
    holds = np.zeros(len(rows), dtype=np.bool_)
    for number, row in enumerate(np.ascontiguousarray(rows)):
        with suppress(StoreError):
            row_numbers = decode_varints(row.data)
            if row_numbers.size == count:
                numbers[number], holds[number] = row_numbers, True
    return numbers, holds
