"""All of a batch asked for at once, where it has to come from the disk.

Reading extent by extent waits for each. Told before what will be read, the system has several of
them under way. It reads no more at a time for such a call than for its own read-ahead, so long
extents are asked for in pieces.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet
    from iobench.stores.extents import ExtentTable

PIECE_NBYTES: Final = 512 << 10
NEAR_NBYTES: Final = 64 << 10
"""What lies between two extents that are asked for together."""


def is_cached(table: ExtentTable, samples: NDArray[np.int64], number: int, files: FileSet) -> bool:
    """Return whether the first bytes of samples' extents are in the page cache.

    Where that cannot be told, they are taken to be.
    """
    file, offset = table.file[samples, number].tolist(), table.offset[samples, number].tolist()
    return are_cached(zip(file, offset, strict=True), files)


def are_cached(places: Iterable[tuple[int, int]], files: FileSet) -> bool:
    """Return whether bytes of files, by number of the file and offset, are in the page cache.

    Where that cannot be told, they are taken to be.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    buffer = bytearray(1)
    for number, offset in places:
        try:
            file = files.opened(number)
            os.preadv(file.descriptor, [buffer], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:  # a file system without it
            return True
    return True


def ask_for(table: ExtentTable, samples: NDArray[np.int64], files: FileSet) -> None:
    """Have the system read all extents of these samples, and do not wait for it."""
    file, start = table.file[samples].reshape(-1), table.offset[samples].reshape(-1)
    ask_for_ranges(file, start, start + table.length[samples].reshape(-1), files)


def ask_for_ranges(
    file: NDArray[np.integer[Any]],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    files: FileSet,
) -> None:
    """Have the system read ranges of files, by their numbers, and do not wait for it."""
    if not file.size:
        return
    # As `join_ranges`, but of the thousands of a batch while the loop may wait.
    order = np.lexsort((start, file))
    file, start, end = file[order], start[order], end[order]
    breaks = (file[1:] != file[:-1]) | (start[1:] > end[:-1] + NEAR_NBYTES)
    edges = np.flatnonzero(breaks) + 1
    firsts, lasts = np.concatenate(([0], edges)), np.concatenate((edges, [len(file)])) - 1
    for number, first, last in zip(
        file[firsts].tolist(), start[firsts].tolist(), end[lasts].tolist(), strict=True
    ):
        opened = files.opened(number)
        for at in range(first, last, PIECE_NBYTES):
            nbytes = min(PIECE_NBYTES, last - at)
            os.posix_fadvise(opened.descriptor, at, nbytes, os.POSIX_FADV_WILLNEED)
