"""The page cache: how much of a file it holds, filling it, and emptying it for a cold run.

A folder, as a Zarr store is, stands for all files below it. Linux only; elsewhere the answers are
"unknown" (None) and eviction is refused with the reason.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.errors import OptionError, StorageError
from iobench.remote import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["evict", "resident_fraction", "warm_up"]

READ_NBYTES = 8 << 20


def evict(files: Sequence[Path]) -> None:
    """Write back and drop the cached pages of the files (``posix_fadvise``, DONTNEED).

    Pages that some process has mapped stay: look at `resident_fraction` afterwards.

    Raises
    ------
    OptionError
        If this system has no ``posix_fadvise``, or a file is not on it.
    StorageError
        If a file cannot be opened.
    """
    if not hasattr(os, "posix_fadvise"):
        raise OptionError("--cache cold: this system cannot drop cached pages; take as-is or warm")
    _refuse_remote(files, "cold")
    for file in _whole(files):
        fd = _open(file)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def warm_up(files: Sequence[Path]) -> None:
    """Read every byte of the files once, so that the page cache holds what fits.

    Raises
    ------
    OptionError
        If a file is not on this system.
    StorageError
        If a file cannot be read.
    """
    _refuse_remote(files, "warm")
    buffer = bytearray(READ_NBYTES)
    for file in _whole(files):
        fd = _open(file)
        try:
            while os.readv(fd, [buffer]):
                pass
        except OSError as error:
            raise StorageError(f"{file}: cannot be read: {error.strerror}") from error
        finally:
            os.close(fd)


def resident_fraction(files: Sequence[Path]) -> float | None:
    """Return the share of the files' pages that the page cache holds; None where it cannot be told.

    Asked of the kernel by ``mincore`` on a mapping, which loads nothing.
    """
    if any(map(is_url, map(str, files))):
        return None
    pages = resident = 0
    for file in _whole(files):
        counted = _resident_pages(file)
        if counted is None:
            return None
        resident += counted[0]
        pages += counted[1]
    return resident / pages if pages else None


def _refuse_remote(files: Sequence[Path], cache: str) -> None:
    remote = [file for file in files if is_url(str(file))]
    if remote:
        raise OptionError(
            f"--cache {cache}: no page cache holds {remote[0]}, which is read over the network; "
            "take as-is"
        )


def _whole(files: Sequence[Path]) -> Iterator[Path]:
    """Yield the files, and in place of a folder those below it."""
    for file in files:
        if file.is_dir():
            yield from sorted(below for below in file.rglob("*") if below.is_file())
        else:
            yield file


def _resident_pages(file: Path) -> tuple[int, int] | None:
    if not Path("/proc/self").exists():
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    fd = _open(file)
    try:
        nbytes = os.fstat(fd).st_size
        if nbytes == 0:
            return 0, 0
        # Private and writable only because ctypes wants a writable buffer; nothing is written.
        with mmap.mmap(fd, nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapping:
            pages = -(-nbytes // mmap.PAGESIZE)
            vector = (ctypes.c_ubyte * pages)()
            start = ctypes.c_char.from_buffer(mapping)
            failed = libc.mincore(ctypes.byref(start), ctypes.c_size_t(nbytes), vector)
            del start
    finally:
        os.close(fd)
    if failed:
        return None
    return sum(page & 1 for page in bytes(vector)), pages


def _open(file: Path) -> int:
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"{file}: cannot be opened: {error.strerror}") from error
