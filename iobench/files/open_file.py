"""One file of this machine, open: what it was when it was opened, its bytes, and its errors.

Which files are open, and for how long, is in `open_files`.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from iobench.errors import (
    FileFormatError,
    IobenchError,
    MissingFileError,
    StorageError,
    StoreError,
)
from iobench.files.ranges import read_into
from iobench.json_files import open_regular

NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class FileKind(msgspec.Struct, frozen=True, eq=False):
    """Whose files they are, and so what is said where one is not as expected."""

    owner: str  # ``"store"`` or ``"dataset"``
    # what is raised of a file that is not there, and of one that is not as it was
    missing: type[IobenchError]
    damaged: type[IobenchError]
    # what is said then; what to do about another size, an early end, a removal
    if_missing: str
    if_changed: str
    if_cut: str
    if_removed: str
    is_dated: bool  # whether a file that was modified is another one; a store has checksums


MADE_AGAIN: Final = "convert to a new folder, or stage its copy again"
STORE_FILE: Final = FileKind(
    "store",
    StoreError,
    StoreError,
    f" is missing, its store's manifest lists it; {MADE_AGAIN}",
    MADE_AGAIN,
    MADE_AGAIN,
    MADE_AGAIN,
    is_dated=False,
)
SOURCE_FILE: Final = FileKind(
    "dataset",
    MissingFileError,
    FileFormatError,
    ": no such file",
    "open the dataset again",
    "it is cut short or has changed since it was indexed; fetch it again",
    "fetch it again, or stage its copy again",
    is_dated=True,
)


class OpenFile:
    """A file of this machine; its descriptor closes when nobody holds it any more."""

    __slots__ = ("descriptor", "kind", "mapping", "nbytes", "path", "version")

    def __init__(self, path: str, kind: FileKind) -> None:
        self.descriptor = -1
        self.path, self.kind = path, kind
        self.mapping: mmap.mmap | None = None
        self.descriptor = open_regular(path)
        status = os.fstat(self.descriptor)
        self.nbytes, self.version = status.st_size, status.st_mtime_ns

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Bound early: where Python ends, modules are emptied before the table is.
        if self.descriptor >= 0:
            close(self.descriptor)

    @property
    def identity(self) -> tuple[int, int]:
        """Its size, and when it was modified, in ns."""
        return self.nbytes, self.version

    def check(self) -> None:
        """Look whether the file is as it was.

        One that shrinks under a mapping ends the process with SIGBUS, and what is known of a file
        does not hold for another one.
        """
        status = os.fstat(self.descriptor)
        if (
            status.st_size != self.nbytes
            or not status.st_nlink
            or (self.kind.is_dated and status.st_mtime_ns != self.version)
        ):
            raise self._changed(status)

    def _changed(self, status: os.stat_result) -> IobenchError:
        owner = self.kind.owner
        if status.st_size != self.nbytes:
            how = f"{status.st_size} bytes, its {owner} was opened with {self.nbytes}"
            return self.kind.damaged(f"{self.path}: {how}; {self.kind.if_changed}")
        what = "open it again"
        if status.st_nlink:
            how = f"was modified after its {owner} was opened"
        elif os.path.lexists(self.path):
            how = f"was replaced while its {owner} was read"
        else:
            how, what = f"was removed while its {owner} was read", self.kind.if_removed
        return self.kind.damaged(f"{self.path} {how}; {what}")

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return some bytes; fewer where the file ends."""
        try:
            return os.pread(self.descriptor, nbytes, offset)
        except OSError as error:
            raise refused(self.path, error) from error

    def read_each(self, offsets: Sequence[int], nbytes: int) -> list[bytes]:
        """Return ``nbytes`` from each of some places, fewer where the file ends."""
        return [self.read_at(offset, nbytes) for offset in offsets]

    def fill(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer from ``offset``."""
        if buffer:  # one of no bytes may be no memory to write to
            self.fill_views((buffer,), offset, offset + len(buffer))

    def fill_views(self, views: Sequence[memoryview], offset: int, end: int) -> None:
        """Read bytes ``offset`` to ``end`` into memory, view after view."""
        try:
            at = read_into(self.descriptor, views, offset, end)
        except OSError as error:
            raise refused(self.path, error) from error
        if at < end:
            raise self.ends_early(at, end)

    def ends_early(self, at: int, end: int) -> IobenchError:
        """Return the error for a file that ends at byte ``at``, before ``end``."""
        return self.kind.damaged(
            f"{self.path}: the file ends at byte {at}, {end - at} bytes more were expected; "
            f"{self.kind.if_cut}"
        )

    def announce(self, offset: int, nbytes: int) -> None:
        """Tell the kernel what will be read next, where it takes advice."""
        with suppress(OSError):  # where a file system refuses it, reading says what is wrong
            os.posix_fadvise(self.descriptor, offset, nbytes, os.POSIX_FADV_WILLNEED)


def refused(path: str, error: OSError) -> StorageError:
    """Return the error for a file that cannot be read, in one line."""
    return _storage_error(f"{path}: cannot be read: {error.strerror or error}", error)


def not_opened(path: str, kind: FileKind, error: OSError) -> IobenchError:
    """Return the error for a file that cannot be opened, in one line."""
    if isinstance(error, FileNotFoundError):
        return kind.missing(f"{path}{kind.if_missing}")
    if isinstance(error, IsADirectoryError):
        return StorageError(f"{path}: is a folder, expected a file; name the files in it")
    if error.errno == errno.EINVAL:
        return _storage_error(f"{path}: {error.strerror}; name a file", error)
    what = ""
    if isinstance(error, PermissionError):
        what = "; give yourself read permission"
    elif error.errno in NO_DESCRIPTORS:
        what = "; allow this process more files (ulimit -n), or close some"
    return _storage_error(f"{path}: cannot be opened: {error.strerror or error}{what}", error)


def _storage_error(text: str, error: OSError) -> StorageError:
    refusal = StorageError(text)
    refusal.errno = error.errno
    return refusal
