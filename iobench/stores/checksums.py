"""The file ``iobench.crc32c``: one checksum per extent of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.errors import StoreError
from iobench.files.atomic import is_local, storage_errors, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = [
    "CHECKSUMS_NAME",
    "read_checksums",
    "write_checksums",
]

CHECKSUMS_NAME = "iobench.crc32c"


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
