"""The bytes of one source file, on this machine or behind a URL: size, version, any stretch.

All readers of source files stand on this: what a file system has to be able to do is to say how
long a file is and to hand out bytes from the middle of it. A remote file is never copied; several
stretches of it are asked for at once.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from iobench.datasets.memory import from_heap
from iobench.errors import MissingFileError, StorageError
from iobench.files.reading import read_into
from iobench.files.remote_ranges import (
    ends_early,
    fetched,
    fill_remote,
    read_whole_remote,
    remote_sizes,
)
from iobench.files.urls import URL, as_path, is_url, range_file
from iobench.json_files import open_regular
from iobench.stores.extents import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "LocalBytes",
    "SourceBytes",
    "cached_source_file",
    "file_nbytes",
    "open_source_file",
    "read_whole_files",
]

OPEN_FILES = 128


class SourceBytes(Protocol):
    """An open source file."""

    @property
    def nbytes(self) -> int:
        """Its size, now for a local file, when it was opened for a remote one."""
        ...

    @property
    def version(self) -> int | str:
        """Changes when the file is written anew: when it was modified (ns), or its ETag."""
        ...

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return some bytes; fewer where the file ends.

        Raises
        ------
        StorageError
            If they cannot be read.
        """
        ...

    def read_each(self, offsets: Sequence[int], nbytes: int) -> list[bytes]:
        """Return ``nbytes`` from each of some places, fewer where the file ends."""
        ...

    def fill(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from ``offset``.

        Raises
        ------
        FileFormatError
            If the file ends before.
        StorageError
            If it cannot be read.
        """
        ...


class LocalBytes:
    """A local file; its descriptor closes itself when the last reader lets go of it."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path, self.fd = path, fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)  # bound early: where Python ends, modules are emptied before the cache is

    @property
    def nbytes(self) -> int:
        """Its size."""
        return os.fstat(self.fd).st_size

    @property
    def version(self) -> int:
        """When it was modified, in nanoseconds."""
        return os.fstat(self.fd).st_mtime_ns

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return some bytes; fewer where the file ends."""
        try:
            return os.pread(self.fd, nbytes, offset)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be read: {error.strerror}") from error

    def read_each(self, offsets: Sequence[int], nbytes: int) -> list[bytes]:
        """Return ``nbytes`` from each of some places, fewer where the file ends."""
        return [self.read_at(offset, nbytes) for offset in offsets]

    def fill(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from ``offset``; a file that ends before is an error."""
        end = offset + len(buffer)
        try:
            at = read_into(self.fd, [buffer], offset, end)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be read: {error.strerror}") from error
        if at < end:
            raise ends_early(self.path, end - at, end)

    def announce(self, offset: int, nbytes: int) -> None:
        """Tell the kernel what will be read next, where there is a way to."""
        if hasattr(os, "posix_fadvise"):
            # Advice only: where a file system refuses it, reading says what is wrong.
            with suppress(OSError):
                os.posix_fadvise(self.fd, offset, nbytes, os.POSIX_FADV_WILLNEED)


class RemoteBytes:
    """A file behind a URL; size and version are those of when it was opened.

    It holds no connection: those are each process's own (`iobench.files.filesystems`).
    """

    __slots__ = ("nbytes", "path", "version")

    def __init__(self, path: URL) -> None:
        self.path = range_file(path)
        self.nbytes = path.stat().st_size
        self.version = path.version()

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return some bytes; fewer where the file ends."""
        return self.read_each([offset], nbytes)[0]

    def read_each(self, offsets: Sequence[int], nbytes: int) -> list[bytes]:
        """Return ``nbytes`` from each of some places, fewer where the file ends; all at once."""
        wanted = [
            (self.path, offset, max(0, min(nbytes, self.nbytes - offset))) for offset in offsets
        ]
        return fetched(wanted)

    def fill(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from ``offset``; a file that ends before is an error."""
        fill_remote([(self.path, offset, buffer)])


def open_source_file(path: str | Path) -> LocalBytes | RemoteBytes:
    """Open a source file by its path or URL.

    Raises
    ------
    MissingFileError
        If there is no such file.
    StorageError
        If it is a folder or cannot be read.
    """
    path = as_path(path)
    if isinstance(path, URL):
        return _open_remote(path)
    spelled = str(path)
    try:
        return LocalBytes(spelled, open_regular(spelled))
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise StorageError(f"{path}: is a folder, expected a file; name the files in it") from error
    except OSError as error:
        raise _not_opened(path, error) from error


def _not_opened(path: str | Path, error: OSError) -> StorageError:
    if error.errno == errno.EINVAL:
        return StorageError(f"{path}: {error.strerror}; name a file")
    return StorageError(
        f"{path}: cannot be opened: {error.strerror}; give yourself read permission"
    )


def _open_remote(url: URL) -> RemoteBytes:
    try:
        path = url.looked_up()
        if path.is_dir():
            raise StorageError(f"{path}: is a folder, expected a file; name the files in it")
        return RemoteBytes(path)
    except FileNotFoundError as error:
        raise MissingFileError(f"{url}: no such file") from error


# pread leaves no position behind, so a forked child may use its parent's descriptors.
cached_source_file = lru_cache(maxsize=descriptors(1 / 8, OPEN_FILES))(open_source_file)


def read_whole_files(
    paths: Sequence[str], *, allocate: Callable[[int], NDArray[np.uint8]] = from_heap
) -> list[memoryview | None]:
    """Return the content of files of one folder, None for those that are not there.

    Not through the cache of open files: of many thousands each is read once an epoch.

    Raises
    ------
    StorageError
        If one is there and cannot be read.
    """
    if paths and is_url(paths[0]):
        return read_whole_remote(paths, allocate)
    return [_whole_local(path, allocate) for path in paths]


def _whole_local(path: str, allocate: Callable[[int], NDArray[np.uint8]]) -> memoryview | None:
    try:
        opened = LocalBytes(path, open_regular(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _not_opened(path, error) from error
    buffer = allocate(opened.nbytes).data
    opened.fill(buffer, 0)
    return buffer


def file_nbytes(folder: str, name: str) -> int:
    """Return the size of a file below a folder, 0 if it is not there.

    A remote folder is listed once: for a plan, not to be sure.
    """
    if isinstance(folder, URL):
        return remote_sizes(folder).get(name, 0)
    path = Path(folder, name)
    return path.stat().st_size if path.exists() else 0
