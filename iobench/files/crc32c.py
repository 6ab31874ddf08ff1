"""CRC-32C of buffers, of many that lie side by side, and of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from crc32c import crc32c as _crc32c

from iobench.files.atomic import storage_errors

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

PIECE_NBYTES = 1 << 22


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
