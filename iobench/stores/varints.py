"""Protocol-buffer varints, many at once: seven bits a byte, least significant first.

Format: https://protobuf.dev/programming-guides/encoding (section "Base 128 Varints").
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import StoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_NBYTES = 10
SHORT = 0x80


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
    for step in range(min(MAX_NBYTES, end - position)):
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
    for step in range(1, MAX_NBYTES):
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
    if not ends.size or ends[-1] != each.size - 1 or (ends - starts).max() >= MAX_NBYTES:
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
