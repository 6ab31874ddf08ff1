"""The page cache: how much of a file it holds, filling it, and emptying it for a cold run.

A folder, as a Zarr store is, stands for all files below it. Linux only; elsewhere the answers are
"unknown" (None) and eviction is refused with the reason.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.errors import OptionError, StorageError
from iobench.remote import is_url
from iobench.storage.file_systems import file_system_of
from iobench.storage.resident_pages import pages_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Residency", "evict", "files_nbytes", "residency", "resident_fraction", "warm_up"]

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


@dataclass(frozen=True, slots=True)
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
    if any(map(is_url, map(str, files))):
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


def resident_fraction(files: Sequence[Path]) -> float | None:
    """Return the share of the files' pages that the page cache holds; None where it cannot be told.

    `residency` says as well by which means it is known.
    """
    return residency(files).fraction


def files_nbytes(files: Sequence[Path]) -> int | None:
    """Return how many bytes the files hold in all; None of URLs, and where one cannot be asked."""
    if any(map(is_url, map(str, files))):
        return None
    try:
        return sum(file.stat().st_size for file in _whole(files))
    except OSError:
        return None


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


def _open(file: Path) -> int:
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"{file}: cannot be opened: {error.strerror}") from error
