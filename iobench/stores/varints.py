"""Protocol-buffer varints, many at once: seven bits a byte, least significant first.

Format: https://protobuf.dev/programming-guides/encoding (section "Base 128 Varints").
"""

from __future__ import annotations

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
    octets = np.frombuffer(data, dtype=np.uint8)
    if not octets.size or octets.max() < SHORT:
        return octets.astype(np.int64)
    ends = np.flatnonzero(octets < SHORT)
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    if not ends.size or ends[-1] != octets.size - 1 or lengths.max() > MAX_NBYTES:
        raise StoreError("a list of numbers in a record is damaged: one of them does not end")
    numbers = np.zeros(ends.size, dtype=np.uint64)
    for step in range(int(lengths.max())):
        longer = np.flatnonzero(lengths > step)
        septet = octets[starts[longer] + step].astype(np.uint64) & np.uint64(0x7F)
        numbers[longer] |= septet << np.uint64(7 * step)
    return numbers.view(np.int64)


def decode_varint_rows(
    octets: NDArray[np.uint8], count: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the numbers of rows of varints, all in one go, and which rows held as many."""
    numbers = np.zeros((len(octets), count), dtype=np.int64)
    is_end = octets < SHORT
    holds = is_end[:, -1] & (np.count_nonzero(is_end, axis=1) == count)
    ends = np.flatnonzero(is_end)
    own = ends // octets.shape[1]
    before = np.concatenate(([-1], ends[:-1]))
    lengths = ends - np.maximum(before, own * octets.shape[1] - 1)
    holds[own[lengths > MAX_NBYTES]] = False
    chosen = octets if holds.all() else octets[holds]
    found = decode_varints(np.ascontiguousarray(chosen).reshape(-1).data)
    numbers[holds] = found.reshape(-1, count)
    return numbers, holds
