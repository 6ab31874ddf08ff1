"""Ranges of source files, neighbours at once, here or behind URLs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from iobench.files.memory import for_one_sample
from iobench.files.objects import fill_remote
from iobench.files.open_file import SOURCE_FILE
from iobench.files.open_files import open_files
from iobench.files.ranges import FileRange, JoinedRange, join_ranges
from iobench.files.urls import URL, as_path, is_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Allocate = Callable[[int], NDArray[np.uint8]]
"""Returns memory for so many bytes."""

MERGE_GAP_NBYTES = 4096
"""Extents no further apart than this are read at once: a page costs less than a system call."""

REMOTE_GAP_NBYTES = 65536
"""Behind a URL: a request costs as much as some hundred KiB, but they are sent side by side."""

ADVISED_NBYTES = 1 << 20
"""Of several stretches those shorter than this are announced first, so that the disk works on all
at once: 256 of 8 KiB, not cached, took 5 ms instead of 20; cached, 0.2 ms of 1.8 are for it."""

SHARED_NBYTES = 1 << 16
"""Stretches shorter than this are read into buffers they share."""
ROOM_NBYTES = 1 << 19


def _announce(joined: Sequence[JoinedRange[str]]) -> None:
    """Tell the kernel what will be read next, where that is scattered."""
    if len(joined) < 2:
        return
    last = ""
    for (path, start, nbytes), _ in joined:
        if 0 < nbytes < ADVISED_NBYTES:
            if path != last:
                last, opened = path, open_files.opened((path, SOURCE_FILE, 0))
            opened.announce(start, nbytes)


def announce_range(path: str, start: int, nbytes: int) -> None:
    """Tell the kernel that a range of a file will be read soon; nothing of a file behind a URL."""
    if not is_url(path):
        open_files.opened((path, SOURCE_FILE, 0)).announce(start, nbytes)


def read_extents(
    extents: Sequence[FileRange[str]], *, allocate: Allocate = for_one_sample
) -> list[memoryview]:
    """Read extents, neighbours at once."""
    buffers: list[memoryview] = [memoryview(b"")] * len(extents)
    if any(is_url(path) for path in {path for path, _, _ in extents}):
        joined = join_ranges(extents, REMOTE_GAP_NBYTES)
        reads = [(path, start, allocate(nbytes).data) for (path, start, nbytes), _ in joined]
        fill_remote((cast(URL, as_path(path)), start, buffer) for path, start, buffer in reads)
    else:
        joined = join_ranges(extents, MERGE_GAP_NBYTES)
        _announce(joined)
        reads = list(_read_local(joined, allocate))
    for (_, members), (_, start, buffer) in zip(joined, reads, strict=True):
        if len(members) == 1:
            buffers[members[0]] = buffer
            continue
        for number in members:
            _, offset, n_bytes = extents[number]
            buffers[number] = buffer[offset - start : offset - start + n_bytes]
    return buffers


def _read_local(
    joined: Sequence[JoinedRange[str]], allocate: Allocate
) -> Iterator[tuple[str, int, memoryview]]:
    # Hundreds of short rows make up one patch: a buffer each would cost as much as reading it.
    short = sum(nbytes for (_, _, nbytes), _ in joined if nbytes < SHARED_NBYTES)
    shared, used = memoryview(bytearray()), 0  # may be written: a stretch of no bytes is read, too
    last = ""
    for (path, start, length), _ in joined:
        if length >= SHARED_NBYTES:
            buffer = allocate(length).data
        else:
            if used + length > len(shared):
                # Not all in one: memory of this size is used again, larger comes fresh by page.
                shared, used = np.empty(min(short, ROOM_NBYTES), dtype=np.uint8).data, 0
            buffer = shared[used : used + length]
            used += length
            short -= length
        if path != last:
            last, opened = path, open_files.opened((path, SOURCE_FILE, 0))
        opened.fill(buffer, start)
        yield path, start, buffer
