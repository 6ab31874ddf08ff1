"""Stretches of files, read with ``pread`` through descriptors that each process opens once."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench.errors import FileFormatError, MissingFileError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FileExtent", "open_for_reading", "read_extents", "reopen_files"]

FileExtent = tuple[str, int, int]
"""A stretch of a file: its path, the offset of its first byte, its length."""

MERGE_GAP_NBYTES = 4096
"""Extents no further apart than this are read at once: a page costs less than a system call."""

ADVISED_NBYTES = 1 << 20
"""Of several stretches those shorter than this are announced first, so that the disk works on all
at once: 256 of 8 KiB, not cached, took 5 ms instead of 20; cached, 0.2 ms of 1.8 are for it."""

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


def pread_exactly(fd: int, length: int, offset: int, *, path: str) -> memoryview:
    """Return ``length`` bytes at ``offset``, writable; a file that ends before is an error."""
    buffer = np.empty(length, dtype=np.uint8).data
    done = 0
    while done < length:
        try:
            n_read = os.preadv(fd, [buffer[done:]], offset + done)
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
        if n_read == 0:
            raise FileFormatError(
                f"{path}: ends {length - done} bytes before offset {offset + length}: it is cut "
                "short or has changed since it was indexed; fetch it again"
            )
        done += n_read
    return buffer


def _runs(extents: Sequence[FileExtent]) -> list[list[int]]:
    """Return the numbers of the extents, sorted, in groups to be read at once."""
    runs: list[list[int]] = []
    path, end = "", 0
    for number in sorted(range(len(extents)), key=extents.__getitem__):
        next_path, offset, length = extents[number]
        if not runs or next_path != path or offset > end + MERGE_GAP_NBYTES:
            runs.append([])
            end = 0
        runs[-1].append(number)
        path, end = next_path, max(end, offset + length)
    return runs


def _stretch(run: Sequence[FileExtent]) -> FileExtent:
    """Return the stretch from the first byte of a run to its last."""
    path, start, _ = run[0]
    return path, start, max(offset + length for _, offset, length in run) - start


def _announce(stretches: Sequence[FileExtent]) -> None:
    """Tell the kernel what will be read next, where that is scattered."""
    if len(stretches) < 2 or not hasattr(os, "posix_fadvise"):
        return
    # Advice only: where a file system refuses it, reading says what is wrong.
    with suppress(OSError):
        for path, start, length in stretches:
            if 0 < length < ADVISED_NBYTES:
                os.posix_fadvise(_cached(path).fd, start, length, os.POSIX_FADV_WILLNEED)


def read_extents(extents: Sequence[FileExtent]) -> list[memoryview]:
    """Read extents, neighbours at once.

    Parameters
    ----------
    extents : sequence of (path, offset, length)
        In any order, from any number of files.

    Returns
    -------
    list of memoryview
        The bytes of each extent, in the order asked for.

    Raises
    ------
    FileFormatError
        If a file ends before the extent does.
    MissingFileError, StorageError
        If it cannot be opened or read.
    """
    found: list[memoryview] = [memoryview(b"")] * len(extents)
    runs = _runs(extents)
    stretches = [_stretch([extents[number] for number in run]) for run in runs]
    _announce(stretches)
    for run, (path, start, length) in zip(runs, stretches, strict=True):
        held = _cached(path)
        buffer = pread_exactly(held.fd, length, start, path=path)
        for number in run:
            offset, length = extents[number][1] - start, extents[number][2]
            found[number] = buffer[offset : offset + length]
    return found
