"""CRC-32C of buffers and of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crc32c import crc32c as _crc32c

from iobench.files.atomic import storage_errors

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["crc32c", "crc32c_of_file"]

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
