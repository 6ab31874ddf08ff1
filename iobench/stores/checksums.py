"""CRC-32C of buffers, and the file ``iobench.crc32c``: one checksum per extent of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from crc32c import crc32c as _crc32c

from iobench.errors import StoreError
from iobench.stores.atomic import is_local, storage_errors, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = [
    "CHECKSUMS_NAME",
    "crc32c",
    "crc32c_moved",
    "crc32c_of_file",
    "read_checksums",
    "write_checksums",
]

CHECKSUMS_NAME = "iobench.crc32c"
PIECE_NBYTES = 1 << 22
POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reversed."""


def crc32c(data: Any, value: int = 0) -> int:
    """Return the CRC-32C of any contiguous buffer, going on from ``value``; copies nothing."""
    checksum: int = _crc32c(data, value)
    return checksum


def crc32c_moved(difference: int, n_bytes: int) -> int:
    """Return how checksums of two texts differ once ``n_bytes`` more of the same follow each.

    A CRC is linear: where the first bytes of a text are replaced, its checksum is known from theirs
    alone. Appending a zero bit is a matrix over GF(2), appending many of them its power.

    Parameters
    ----------
    difference : int
        Exclusive or of the checksums of two texts of the same length.
    n_bytes : int
        What follows.
    """
    matrix = [POLYNOMIAL, *(1 << bit for bit in range(31))]
    for _ in range(3):  # of one bit, two, four: of a byte
        matrix = [_applied(matrix, column) for column in matrix]
    while n_bytes:
        if n_bytes & 1:
            difference = _applied(matrix, difference)
        n_bytes >>= 1
        matrix = [_applied(matrix, column) for column in matrix]
    return difference


def _applied(matrix: Sequence[int], vector: int) -> int:
    value = 0
    for bit, column in enumerate(matrix):
        if vector >> bit & 1:
            value ^= column
    return value


def crc32c_of_file(path: Path) -> int:
    """Return the CRC-32C of a file's bytes."""
    value = 0
    buffer = bytearray(PIECE_NBYTES)
    with storage_errors(path), path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            value = crc32c(memoryview(buffer)[:count], value)
    return value


def write_checksums(path: Path, checksums: Sequence[int]) -> None:
    """Write the checksums of a store's extents: uint32 little-endian, sample-major."""
    write_atomically(path / CHECKSUMS_NAME, np.asarray(checksums, dtype="<u4").tobytes())


def read_checksums(path: Path, n_extents: int) -> NDArray[np.uint32]:
    """Return the checksums of the ``n_extents`` extents of the store at ``path``.

    Raises
    ------
    StoreError
        If the file is missing or does not hold exactly that many.
    """
    file = path / CHECKSUMS_NAME
    expected = 4 * n_extents
    try:
        with storage_errors(file):
            nbytes = file.stat().st_size
            if nbytes == expected and is_local(file):
                return np.fromfile(file, dtype="<u4")
            if nbytes == expected:
                return np.frombuffer(file.read_bytes(), dtype="<u4")
    except FileNotFoundError as error:
        raise StoreError(f"{file} is missing; remove the store and convert again") from error
    raise StoreError(f"{file}: {nbytes} bytes, expected {expected}; convert the store again")
