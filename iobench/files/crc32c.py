"""CRC-32C of buffers, of many that lie side by side, and of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from crc32c import crc32c as _crc32c

from iobench.files.atomic import storage_errors

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

PIECE_NBYTES = 1 << 22
_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's, bits reversed."""
_N_BITS: Final = 32
_BITS: Final = np.arange(_N_BITS, dtype=np.uint32)


def crc32c(data: Any, value: int = 0) -> int:
    """Return the CRC-32C of any contiguous buffer, going on from ``value``; copies nothing."""
    checksum: int = _crc32c(data, value)
    return checksum


def crc32c_of_file(path: Path) -> int:
    """Return the CRC-32C of a file's bytes."""
    value = 0
    buffer = bytearray(PIECE_NBYTES)
    with storage_errors(path), path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            value = crc32c(memoryview(buffer)[:count], value)
    return value


def crc32c_of_rows(
    rows: NDArray[np.uint8], start: int = 0, stop: int | None = None
) -> NDArray[np.uint32]:
    """Return the CRC-32C of bytes ``start`` to ``stop`` of each row; rows lie side by side."""
    return np.fromiter(map(_crc32c, rows[:, start:stop]), dtype=np.uint32, count=len(rows))


class JoinedChecksum:
    """CRC-32C of rows of one length that lie one after another, from that of each.

    A CRC is linear: that of two texts one after another is that of the first, moved by the length
    of the second, exclusive-or that of the second (as ``crc32_combine`` of zlib has it).
    """

    def __init__(self, nbytes: int) -> None:
        # Column k of the matrix that moves a checksum by j rows, at [j, k]; and by as many rows as
        # there are matrices. One value: threads share it, each knows the same or more.
        self._known = (np.uint32(1) << _BITS).reshape(1, _N_BITS), _moves(nbytes)

    def of(self, checksums: NDArray[np.uint32]) -> int:
        """Return the checksum of all rows from that of each."""
        count = len(checksums)
        powers, step = self._known
        while len(powers) < count:
            powers = np.concatenate([powers, _applied(step, powers)])
            step = _applied(step, step)
            self._known = powers, step
        has = (checksums[:, None] >> _BITS) & np.uint32(1)
        moved = has * powers[count - 1 :: -1] if count else has
        return int(np.bitwise_xor.reduce(moved, axis=None))


def _moves(nbytes: int) -> NDArray[np.uint32]:
    """Return the matrix, by columns, that moves a checksum by so many bytes."""
    matrix = np.array([_POLYNOMIAL, *(1 << bit for bit in range(_N_BITS - 1))], dtype=np.uint32)
    for _ in range(3):  # of one bit, two, four: of a byte
        matrix = _applied(matrix, matrix)
    result = np.uint32(1) << _BITS
    while nbytes:
        if nbytes & 1:
            result = _applied(matrix, result)
        nbytes >>= 1
        matrix = _applied(matrix, matrix)
    return result


def _applied(matrix: NDArray[np.uint32], vectors: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the product of a matrix over GF(2), by columns, and each of these vectors."""
    product = np.zeros_like(vectors)
    for bit in range(_N_BITS):
        product ^= ((vectors >> np.uint32(bit)) & np.uint32(1)) * matrix[bit]
    return product
