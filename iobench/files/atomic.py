"""Files that appear complete or not at all, and file system refusals as one kind of error."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from iobench.errors import IobenchError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator


TEMPORARY_SUFFIX = ".iobench-tmp"
"""How an unfinished file ends; nothing with this ending is ever read."""
EXIT_RESUMABLE = 75
OTHER_FOLDER = "choose another folder"
FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}
STEP_NBYTES = 1 << 20
"""As soon as this much is new, the kernel is told to write it, so that fsync finds little to do."""
BEHIND_NBYTES = 8 << 20
"""What is this far behind has been written, as a rule, and is let go."""


def is_local(path: Path) -> bool:
    """Tell a path of this machine from an address (`URL`)."""
    return isinstance(path, Path)


@contextmanager
def storage_errors(path: Path, *, resumable: bool = False) -> Iterator[None]:
    """Turn what the file system refuses about ``path`` into a StorageError of one line.

    A missing file stays a FileNotFoundError: what it means depends on the caller. ``resumable``
    says in the message, and in the exit code, that the same command goes on where this one ended.
    """
    try:
        yield
    except (FileNotFoundError, IobenchError):
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            reason = f"{_full(path)} or {OTHER_FOLDER}"
        elif error.errno == errno.EDQUOT:
            reason = f"your quota there (bytes or files) is used up; remove some or {OTHER_FOLDER}"
        elif error.errno in _REFUSED:
            reason = f"{error.strerror}; make it writable or {OTHER_FOLDER}"
        else:
            reason = error.strerror or str(error)
        again = "; what is finished is kept, the same command continues" if resumable else ""
        refused = StorageError(f"{path}: {reason}{again}")
        refused.errno = error.errno
        if resumable:
            refused.exit_code = EXIT_RESUMABLE
        raise refused from error


def _full(path: Path) -> str:
    """Return what a file system that is full lacks, bytes or files it could make, and a remedy."""
    with suppress(OSError, AttributeError):  # an address has no folders
        folder = next(each for each in (path, *path.absolute().parents) if each.is_dir())
        status = os.statvfs(folder)
        if status.f_files and not status.f_favail and status.f_bavail:
            return "no more files can be made there (inodes); remove some"
    return "the disk is full; free some space"


def free_nbytes(folder: Path) -> int | None:
    """Return the bytes free where a folder is; None where nobody tells, as of object stores."""
    if not is_local(folder):
        return None
    with storage_errors(folder):
        return shutil.disk_usage(folder).free


def sync_directory(path: Path) -> None:
    """Make the names in a folder survive a power cut, where the file system can."""
    if not is_local(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems refuse fsync of a folder
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class AtomicFile:
    """A file written under a temporary name of its own; only ``commit`` makes it appear."""

    def __init__(self, path: Path, *, resumable: bool = False, folder: Path | None = None) -> None:
        self.path = path
        self._resumable = resumable
        self._folder = folder or path.parent
        name = f".{path.name[:80]}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
        self._temporary = self._folder / name
        with storage_errors(path, resumable=resumable):
            # Unbuffered: a BufferedWriter takes large arrays at a tenth of the disk's speed.
            self._stream = self._temporary.open("xb", buffering=0)
        self._n_written = self._n_advised = 0

    def write(self, data: Any) -> None:
        """Write all of a buffer at the current position."""
        view = memoryview(data)
        self._n_written += len(view)
        with storage_errors(self.path, resumable=self._resumable):
            while len(view):
                view = view[self._stream.write(view) :]
        if self._n_written - self._n_advised >= STEP_NBYTES:
            # Linux begins to write pages that it is told are not needed, and drops those it has
            # written; the first call is for the new ones, the second one for the old ones.
            self._advise(self._n_advised, self._n_written)
            self._advise(0, self._n_written - BEHIND_NBYTES)
            self._n_advised = self._n_written

    def _advise(self, start: int, stop: int) -> None:
        if stop > start:
            with suppress(OSError):  # what a file system makes of it changes nothing in the file
                descriptor = self._stream.fileno()
                os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)

    @property
    def closed(self) -> bool:
        """Whether it takes no more data; writers of Arrow look at it."""
        return self._stream.closed

    def rewind(self) -> None:
        """Go back to the first byte."""
        self._stream.seek(0)

    def commit(self) -> None:
        """Sync to disk and rename into place; the temporary file is gone either way."""
        try:
            with storage_errors(self.path, resumable=self._resumable):
                os.fsync(self._stream.fileno())
                self._stream.close()
                # Where the folder it lies in was removed, nothing brings that back.
                if not self.path.parent.is_dir() and self._folder.is_dir():
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    sync_directory(self._folder)
                self._temporary.replace(self.path)
        except OSError:
            self.abort()
            raise
        sync_directory(self.path.parent)

    def abort(self) -> None:
        """Drop the file; nothing appears."""
        with suppress(OSError):
            self._stream.close()
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes | str, *, resumable: bool = False) -> None:
    """Write a small file, text as UTF-8, so that it appears complete or not at all.

    ``resumable`` is that of `AtomicFile`.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "backslashreplace")
    if not is_local(path):
        path.write_bytes(data)
        return
    with whole_file(path, resumable=resumable) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path, *, resumable: bool = False) -> Iterator[BinaryIO]:
    """Open a file to write in parts that appears complete at the end, or not at all.

    A pipe or a device, as ``/dev/stdout``, is written as it is. A missing folder is a StorageError,
    but for a file that is ``resumable``: what it means depends on the caller.
    """
    if not resumable and not path.parent.is_dir():
        raise StorageError(f"{path}: its folder does not exist; make it or {OTHER_FOLDER}")
    with storage_errors(path, resumable=resumable):
        if path.exists() and not path.is_file():
            with path.open("wb") as pipe:
                yield pipe
            return
        file = AtomicFile(path, resumable=resumable)
        try:
            yield cast("BinaryIO", file)  # writers need no more than it has
        except BaseException:
            file.abort()
            raise
        file.commit()
