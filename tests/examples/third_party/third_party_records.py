"""A library with a format of its own: a file of records, read through a mapping."""

from __future__ import annotations

import mmap
import zlib
from pathlib import Path

RECORD_NBYTES = 4096


class RecordFile:
    """A file of records of 4,096 bytes, each compressed on its own and padded."""

    def __init__(self, path: str) -> None:
        self.path = path
        with Path(path).open("rb") as file:
            self.mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def fetch(self, number: int) -> bytes:
        return self.mapped[number * RECORD_NBYTES : (number + 1) * RECORD_NBYTES]


def unpack(record: bytes) -> bytes:
    return zlib.decompressobj().decompress(record)
