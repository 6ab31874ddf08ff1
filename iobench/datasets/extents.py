"""Stretches of files, read with ``pread`` through descriptors that each process opens once."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iobench.datasets.memory import from_heap
from iobench.errors import FileFormatError, MissingFileError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Allocate", "FileExtent", "open_for_reading", "read_extents", "reopen_files"]

FileExtent = tuple[str, int, int]
"""A stretch of a file: its path, the offset of its first byte, its length."""
Allocate = Callable[[int], NDArray[np.uint8]]
"""Returns memory for so many bytes."""

MERGE_GAP_NBYTES = 4096
"""Extents no further apart than this are read at once: a page costs less than a system call."""

ADVISED_NBYTES = 1 << 20
"""Of several stretches those shorter than this are announced first, so that the disk works on all
at once: 256 of 8 KiB, not cached, took 5 ms instead of 20; cached, 0.2 ms of 1.8 are for it."""

SHARED_NBYTES = 1 << 16
"""Stretches shorter than this are read into buffers they share."""
ROOM_NBYTES = 1 << 19
OPEN_FILES = 128


class _OpenFile:
    """A descriptor that closes itself when the last reader lets go of it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


def open_for_reading(path: str | Path) -> _OpenFile:
    """Open ``path`` and return an object whose ``fd`` stays open as long as it lives.

    Raises
    ------
    MissingFileError
        If there is no such file.
    StorageError
        If it is a folder or cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: no such file") from error
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be opened: {error.strerror}; give yourself read permission"
        ) from error
    opened = _OpenFile(fd)
    if Path(path).is_dir():
        raise StorageError(f"{path}: is a folder, expected a file; name the files in it")
    return opened


# pread leaves no position behind, so a forked child may use its parent's descriptors.
_cached = lru_cache(maxsize=OPEN_FILES)(open_for_reading)


def reopen_files() -> None:
    """Forget the open files, so that a replaced file is seen."""
    _cached.cache_clear()


def pread_exactly(
    fd: int, length: int, offset: int, *, path: str, allocate: Allocate = from_heap
) -> memoryview:
    """Return ``length`` bytes at ``offset``, writable; a file that ends before is an error."""
    buffer = allocate(length).data
    pread_into(fd, buffer, offset, path=path)
    return buffer


def pread_into(fd: int, buffer: memoryview, offset: int, *, path: str) -> None:
    """Fill ``buffer`` from ``offset``; a file that ends before is an error."""
    length, done = len(buffer), 0
    while done < length:
        try:
            n_read = os.preadv(fd, [buffer[done:] if done else buffer], offset + done)
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
        if n_read == 0:
            raise FileFormatError(
                f"{path}: ends {length - done} bytes before offset {offset + length}: it is cut "
                "short or has changed since it was indexed; fetch it again"
            )
        done += n_read


class _Stretch(NamedTuple):
    """What is read at once: from the first byte of some extents to their last."""

    path: str
    start: int
    length: int
    extents: list[int]


def _stretches(extents: Sequence[FileExtent]) -> list[_Stretch]:
    """Return the extents, by number, joined where they lie close together, in order of place."""
    found: list[_Stretch] = []
    path, start, end = "", 0, -1
    members: list[int] = []
    for number in sorted(range(len(extents)), key=extents.__getitem__):
        next_path, offset, length = extents[number]
        if members and next_path == path and offset <= end + MERGE_GAP_NBYTES:
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
    if len(stretches) < 2 or not hasattr(os, "posix_fadvise"):
        return
    advise, soon = os.posix_fadvise, os.POSIX_FADV_WILLNEED
    # Advice only: where a file system refuses it, reading says what is wrong.
    with suppress(OSError):
        for path, start, length, _ in stretches:
            if 0 < length < ADVISED_NBYTES:
                opened = _cached(path)
                advise(opened.fd, start, length, soon)


def read_extents(
    extents: Sequence[FileExtent], *, allocate: Allocate = from_heap
) -> list[memoryview]:
    """Read extents, neighbours at once.

    Parameters
    ----------
    extents : sequence of (path, offset, length)
        In any order, from any number of files.
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
    stretches = _stretches(extents)
    _announce(stretches)
    # Hundreds of short rows make up one patch: a buffer each would cost as much as reading it.
    short = sum(length for _, _, length, _ in stretches if length < SHARED_NBYTES)
    room, used = memoryview(b""), 0
    for path, start, length, members in stretches:
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
        opened = _cached(path)
        pread_into(opened.fd, buffer, start, path=path)
        if len(members) == 1:
            found[members[0]] = buffer
            continue
        for number in members:
            _, offset, n_bytes = extents[number]
            found[number] = buffer[offset - start : offset - start + n_bytes]
    return found
