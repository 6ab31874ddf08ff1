"""The page cache: which pages of a file it holds, filling it, and emptying it for a cold run.

A folder, as a Zarr store is, stands for all files below it. Linux only; elsewhere the answers are
"unknown" (None) and eviction is refused with the reason. The kernel is asked by the best of three
means:

- ``cachestat`` (Linux 6.5) counts exactly, of any range, loading nothing;
- ``mincore`` counts exactly, on a mapping. Since Linux 5.2 it says "all of them" of a file that the
  caller neither owns nor may write (CVE-2019-5489), so it is asked of no other;
- ``preadv2`` with ``RWF_NOWAIT`` (Linux 4.14) reads a byte, or refuses to wait for it: asked of
  pages spread over the file, each of which the kernel begins to load when it refuses. Storage that
  answers before the refusal (memory behind a block device) gives cold pages too, so that what is
  found by this means alone is a bound from above there.

``cachestat`` is refused of files of others as well (CVE-2025-21691); the third means is not.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import OptionError, StorageError
from iobench.files.urls import is_url
from iobench.frozen import frozen
from iobench.storage.file_systems import file_system_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

READ_NBYTES = 8 << 20


def evict(files: Sequence[Path]) -> None:
    """Write back and drop the cached pages of the files (``posix_fadvise``, DONTNEED).

    Pages that some process has mapped stay: look at `residency` afterwards.

    Raises
    ------
    OptionError
        If a file is not on this system.
    StorageError
        If a file cannot be opened.
    """
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


@frozen
class Residency:
    """What share of some files the page cache holds, and how that is known.

    Parameters
    ----------
    fraction : float or None
        Of their pages; None where it cannot be told.
    method : str
        ``"cachestat"``, ``"mincore"`` or ``"preadv2"`` (tried on a sample of the pages); several
        with ``+``; ``""`` where it cannot be told.
    """

    fraction: float | None = None
    method: str = ""


def residency(files: Sequence[Path]) -> Residency:
    """Return what share of the files' pages the page cache holds, by the best means there is.

    Unknown for URLs, for file systems with a cache of their own, and where this system does not
    tell. The sampled share of a file counts by the file's size.
    """
    if any(map(is_url, files)):
        return Residency()
    n_pages = resident = 0.0
    methods = set()
    can_be_asked: dict[int, bool] = {}
    for file in _whole(files):
        fd = _open(file)
        try:
            status = os.fstat(fd)
            if status.st_dev not in can_be_asked:
                can_be_asked[status.st_dev] = file_system_of(file).in_page_cache
            found = pages_of(fd) if can_be_asked[status.st_dev] else None
        finally:
            os.close(fd)
        if found is None:
            return Residency()
        if found.n:
            n = -(-status.st_size // mmap.PAGESIZE)
            n_pages += n
            resident += n * found.resident / found.n
            methods.add(found.method)
    if not n_pages:
        return Residency()
    return Residency(resident / n_pages, "+".join(sorted(methods)))


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


def _open(file: Path) -> int:
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"{file}: cannot be opened: {error.strerror}") from error


CACHESTAT: Final = 451
"""Its number on all architectures; those of Alpha are 110 higher (``syscalls/syscall.tbl``)."""
SPREAD, STRIDE = 64, 16
"""Where only trying tells, at most so many pages of a range are tried, one of so many at most:
what is tried and cold is loaded."""
LOADED_AT_ONCE: Final = 128 << 20
"""Length of the mappings that are asked by ``mincore``: one byte a page is kept."""


@frozen
class Pages:
    """How many pages were asked about, how many the page cache holds, and by which means.

    ``method`` is ``"cachestat"``, ``"mincore"`` or ``"preadv2"``; the last is of a sample.
    """

    resident: int
    n: int
    method: str


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("nbytes", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    """``struct cachestat``: of all pages in the range."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("held", "dirty", "writeback", "evicted", "recently_evicted")
    )


def pages_of(
    fd: int, offset: int = 0, nbytes: int | None = None, *, tries: bool = True
) -> Pages | None:
    """Return what the page cache holds of a range of an open file; None where nothing tells.

    Parameters
    ----------
    fd : int
        Open for reading.
    offset, nbytes : int
        The range, cut at the end of the file; to its end where ``nbytes`` is None.
    tries : bool
        Whether pages may be tried, which loads those that are cold.
    """
    size = os.fstat(fd).st_size
    end = size if nbytes is None else min(size, offset + nbytes)
    first = offset // mmap.PAGESIZE * mmap.PAGESIZE
    if end <= first:
        return Pages(0, 0, "")
    found = _by_cachestat(fd, first, end - first)
    if found is not None and found.resident:
        return found
    # Of a file on an overlay cachestat finds nothing: the pages are those of the layer's file,
    # which a mapping leads to.
    mapped = _by_mincore(fd, first, end - first)
    if mapped is not None and (found is None or mapped.resident):
        return mapped
    if found is not None or not tries:
        return found
    return _by_trying(fd, first, end - first)


def _n_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE)


def _by_cachestat(fd: int, offset: int, nbytes: int) -> Pages | None:
    libc = _libc()
    if libc is None or os.uname().machine == "alpha":
        return None
    counts = _Counts()
    failed = libc.syscall(
        ctypes.c_long(CACHESTAT),
        ctypes.c_int(fd),
        ctypes.byref(_Range(offset, nbytes)),
        ctypes.byref(counts),
        ctypes.c_uint(0),
    )
    if failed:  # not known to the kernel, barred by a sandbox, a file of somebody else
        return None
    n = _n_pages(nbytes)
    return Pages(min(int(counts.held), n), n, "cachestat")


def _by_mincore(fd: int, offset: int, nbytes: int) -> Pages | None:
    libc = _libc()
    if libc is None or not _may_ask_mincore(fd):
        return None
    resident = 0
    for start, length in _pieces(offset, nbytes, LOADED_AT_ONCE):
        try:
            # Private and writable only because ctypes wants a writable buffer; nothing is written.
            mapping = mmap.mmap(
                fd, length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=start
            )
        except OSError:
            return None
        with mapping:
            held = (ctypes.c_ubyte * _n_pages(length))()
            address = ctypes.c_char.from_buffer(mapping)
            failed = libc.mincore(ctypes.byref(address), ctypes.c_size_t(length), held)
            del address
        if failed:
            return None
        resident += sum(page & 1 for page in bytes(held))
    return Pages(resident, _n_pages(nbytes), "mincore")


def _may_ask_mincore(fd: int) -> bool:
    """Return whether the kernel tells this process the truth: it owns the file or may write it."""
    status = os.fstat(fd)
    return os.geteuid() in (0, status.st_uid) or os.access(
        f"/proc/self/fd/{fd}", os.W_OK, effective_ids=os.access in os.supports_effective_ids
    )


def _by_trying(fd: int, offset: int, nbytes: int) -> Pages | None:
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    # Opened once more, to be told that reads are random: else a page that was refused is loaded
    # with those after it, and these are found in the cache.
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.posix_fadvise(own, 0, 0, os.POSIX_FADV_RANDOM)
        return _tried(own, offset, _n_pages(nbytes))
    except OSError:  # this file system cannot refuse to wait
        return None
    finally:
        os.close(own)


def _tried(fd: int, offset: int, n: int) -> Pages:
    tried = max(1, min(n // STRIDE, SPREAD))
    byte = bytearray(1)
    resident = 0
    for number in reversed(range(tried)):
        # Others each time: those that were refused a moment ago have been loaded since.
        page = random.randrange(number * n // tried, (number + 1) * n // tried)
        try:
            position = offset + page * mmap.PAGESIZE
            resident += os.preadv(fd, [byte], position, os.RWF_NOWAIT) > 0
        except BlockingIOError:
            continue
    return Pages(resident, tried, "preadv2")


def _pieces(offset: int, nbytes: int, length: int) -> Iterator[tuple[int, int]]:
    for start in range(offset, offset + nbytes, length):
        yield start, min(length, offset + nbytes - start)


@cache
def _libc() -> Any:
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None
