"""Stretches of files, neighbours at once, through descriptors that each process opens once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iobench.datasets.decoded_chunks import forget_decoded
from iobench.datasets.memory import from_heap
from iobench.datasets.remote_bytes import fill_remote
from iobench.datasets.source_bytes import LocalBytes, cached_source_file
from iobench.datasets.used_bytes import note_used
from iobench.remote import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Allocate", "FileExtent", "read_extents", "reopen_files"]

FileExtent = tuple[str, int, int]
"""A stretch of a file: its path or URL, the offset of its first byte, its length."""
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


def reopen_files() -> None:
    """Forget the open files, so that a replaced file is seen."""
    cached_source_file.cache_clear()
    forget_decoded()


class _Stretch(NamedTuple):
    """What is read at once: from the first byte of some extents to their last."""

    path: str
    start: int
    length: int
    extents: list[int]


def _stretches(extents: Sequence[FileExtent], gap_nbytes: int) -> list[_Stretch]:
    """Return the extents, by number, joined where they lie close together, in order of place."""
    found: list[_Stretch] = []
    path, start, end = "", 0, -1
    members: list[int] = []
    for number in sorted(range(len(extents)), key=extents.__getitem__):
        next_path, offset, length = extents[number]
        if members and next_path == path and offset <= end + gap_nbytes:
            members.append(number)
            end = max(end, offset + length)
            continue
        if members:
            found.append(_Stretch(path, start, end - start, members))
        path, start, end, members = next_path, offset, offset + length, [number]
    if members:
        found.append(_Stretch(path, start, end - start, members))
    return found


def _announce(stretches: Sequence[_Stretch]) -> None:
    """Tell the kernel what will be read next, where that is scattered."""
    if len(stretches) < 2:
        return
    for path, start, length, _ in stretches:
        if 0 < length < ADVISED_NBYTES:
            opened = cached_source_file(path)
            if isinstance(opened, LocalBytes):
                opened.announce(start, length)


def read_extents(
    extents: Sequence[FileExtent], *, allocate: Allocate = from_heap
) -> list[memoryview]:
    """Read extents, neighbours at once.

    Parameters
    ----------
    extents : sequence of (path, offset, length)
        In any order, from any number of files, here or behind URLs.
    allocate : callable
        Returns the memory for so many bytes, of stretches that are not short.

    Returns
    -------
    list of memoryview
        The bytes of each extent, in the order asked for. Short ones share their memory.

    Raises
    ------
    FileFormatError
        If a file ends before the extent does.
    MissingFileError, StorageError
        If it cannot be opened or read.
    """
    found: list[memoryview] = [memoryview(b"")] * len(extents)
    buffers: Iterable[memoryview]
    if any(is_url(path) for path in {path for path, _, _ in extents}):
        stretches = _stretches(extents, REMOTE_GAP_NBYTES)
        buffers = rooms = [allocate(length).data for _, _, length, _ in stretches]
        wanted = [(s.path, s.start, room) for s, room in zip(stretches, rooms, strict=True)]
        fill_remote(wanted)
        note_used(wanted)
    else:
        stretches = _stretches(extents, MERGE_GAP_NBYTES)
        _announce(stretches)
        buffers = _read_local(stretches, allocate)
    for (_, start, _, members), buffer in zip(stretches, buffers, strict=True):
        if len(members) == 1:
            found[members[0]] = buffer
            continue
        for number in members:
            _, offset, n_bytes = extents[number]
            found[number] = buffer[offset - start : offset - start + n_bytes]
    return found


def _read_local(stretches: Sequence[_Stretch], allocate: Allocate) -> Iterator[memoryview]:
    # Hundreds of short rows make up one patch: a buffer each would cost as much as reading it.
    short = sum(length for _, _, length, _ in stretches if length < SHARED_NBYTES)
    room, used = memoryview(b""), 0
    for path, start, length, _ in stretches:
        if length >= SHARED_NBYTES:
            buffer = allocate(length).data
        else:
            if used + length > len(room):
                # Not all in one: memory of this size is used again, larger comes fresh by page.
                room, used = np.empty(min(short, ROOM_NBYTES), dtype=np.uint8).data, 0
            buffer = room[used : used + length]
            used += length
            short -= length
        # Held while it is read: of two threads that open a file at once, one is not in the cache.
        opened = cached_source_file(path)
        opened.fill(buffer, start)
        note_used(((path, start, buffer),))
        yield buffer
