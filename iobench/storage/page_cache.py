"""The page cache: which pages of a file it holds, filling it, and emptying it for a cold run.

A folder, as a Zarr store is, stands for all files below it. ``mincore`` counts pages, on a mapping.
Since Linux 5.2 it says "all of them" of a file that the caller neither owns nor may write
(CVE-2019-5489): of such a file, and elsewhere than on Linux, the answer is "unknown" (None).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.errors import OptionError, StorageError
from iobench.files.urls import is_url
from iobench.storage.file_systems import file_system_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

READ_NBYTES = 8 << 20


def evict(files: Sequence[Path]) -> None:
    """Write back and drop the cached pages of the files; those that a process has mapped stay."""
    _refuse_remote(files, "cold")
    for _, fd in _opened(files):
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def warm_up(files: Sequence[Path]) -> None:
    """Read every byte of the files once, so that the page cache holds what fits."""
    _refuse_remote(files, "warm")
    buffer = bytearray(READ_NBYTES)
    for file, fd in _opened(files):
        try:
            while os.readv(fd, [buffer]):
                pass
        except OSError as error:
            raise StorageError(f"{file}: cannot be read: {error.strerror}") from error


def residency(files: Sequence[Path]) -> float | None:
    """Return what share of the files' pages the page cache holds.

    None for URLs, for file systems with a cache of their own, and where this system does not tell.
    """
    if any(map(is_url, files)):
        return None
    n_pages = resident = 0
    in_page_cache: dict[int, bool] = {}
    for file, fd in _opened(files):
        device = os.fstat(fd).st_dev
        if device not in in_page_cache:
            in_page_cache[device] = file_system_of(file).in_page_cache
        result = pages_of(fd) if in_page_cache[device] else None
        if result is None:
            return None
        resident += result[0]
        n_pages += result[1]
    return resident / n_pages if n_pages else None


def files_nbytes(files: Sequence[Path]) -> int | None:
    """Return how many bytes the files hold in all; None of URLs, and where one cannot be asked."""
    if any(map(is_url, files)):
        return None
    try:
        return sum(file.stat().st_size for file in _whole(files))
    except OSError:
        return None


def _refuse_remote(files: Sequence[Path], cache: str) -> None:
    remote = [file for file in files if is_url(file)]
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


def _opened(files: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    """Yield each file with a descriptor that is open until the next one is taken."""
    for file in _whole(files):
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"{file}: cannot be opened: {error.strerror}") from error
        try:
            yield file, fd
        finally:
            os.close(fd)


AT_ONCE: Final = 128 << 20
"""Length of the mappings that are looked at: ``mincore`` writes one byte a page."""


def pages_of(fd: int) -> tuple[int, int] | None:
    """Return how many pages of an open file the page cache holds, and it has; None if unknown."""
    end = os.fstat(fd).st_size
    if not _may_query_pages(fd):
        return None
    libc = ctypes.CDLL(None)
    resident = n = 0
    for start in range(0, end, AT_ONCE):
        length = min(AT_ONCE, end - start)
        try:
            # Private and writable only because ctypes wants a writable buffer; nothing is written.
            mapping = mmap.mmap(
                fd, length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=start
            )
        except OSError:
            return None
        with mapping:
            held = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
            address = ctypes.c_char.from_buffer(mapping)
            failed = libc.mincore(ctypes.byref(address), ctypes.c_size_t(length), held)
            del address
        if failed:
            return None
        resident += sum(page & 1 for page in bytes(held))
        n += len(held)
    return resident, n


def _may_query_pages(fd: int) -> bool:
    """Return whether the kernel tells this process the truth: it owns the file or may write it."""
    status = os.fstat(fd)
    return os.geteuid() in (0, status.st_uid) or os.access(
        f"/proc/self/fd/{fd}", os.W_OK, effective_ids=os.access in os.supports_effective_ids
    )
