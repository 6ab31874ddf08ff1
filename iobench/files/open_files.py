"""Files of this machine, and the one table of descriptors of this process.

They stay open as long as there is room for them. Stores and source files, reading threads and
mappings share the table, so that it is as large as the process may have it. A file that somebody
reads from is closed once they let go of it.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import resource
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np

from iobench.errors import (
    FileFormatError,
    IobenchError,
    MissingFileError,
    StorageError,
    StoreError,
)
from iobench.json_files import open_regular

T = TypeVar("T")
MAX_VIEWS: Final = 1024
"""What ``preadv`` takes at once (``IOV_MAX`` of Linux)."""
SHARE: Final = 1 / 2
"""Of the descriptors that this process may have; the training script needs some as well."""
MAX_DESCRIPTORS: Final = 1 << 15
"""Linux allows a process 65,530 mappings."""
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class FileKind(msgspec.Struct, frozen=True, eq=False):
    """Whose files they are, and so what is said where one is not as expected."""

    owner: str  # ``"store"`` or ``"dataset"``
    missing: type[IobenchError]
    damaged: type[IobenchError]
    if_missing: str
    mend: str  # what to do
    is_dated: bool  # whether a file that was modified is another one; a store has checksums


_AGAIN: Final = "convert to a new folder, or stage its copy again"
STORE_FILE: Final = FileKind(
    owner="store",
    missing=StoreError,
    damaged=StoreError,
    if_missing=f" is missing, its store's manifest lists it; {_AGAIN}",
    mend=_AGAIN,
    is_dated=False,
)
SOURCE_FILE: Final = FileKind(
    owner="dataset",
    missing=MissingFileError,
    damaged=FileFormatError,
    if_missing=": no such file",
    mend="it was changed or cut short; open the dataset again, or fetch it again",
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
    def identity(self) -> FileIdentity:
        """Its size, and when it was modified, in ns."""
        return self.nbytes, self.version

    def check(self) -> None:
        """Check that the file is as it was: one that shrinks under a mapping ends the process."""
        status = os.fstat(self.descriptor)
        kind = self.kind
        if status.st_size != self.nbytes:
            how = f"{status.st_size} bytes, its {kind.owner} was opened with {self.nbytes}"
            raise kind.damaged(f"{self.path}: {how}; {kind.mend}")
        if not status.st_nlink:
            how = "was replaced" if os.path.lexists(self.path) else "was removed"
        elif kind.is_dated and status.st_mtime_ns != self.version:
            how = "was modified"
        else:
            return
        raise kind.damaged(f"{self.path} {how} after its {kind.owner} was opened; open it again")

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
            f"{self.kind.mend}"
        )

    def announce(self, offset: int, nbytes: int) -> None:
        """Tell the kernel what will be read next, where it takes advice."""
        with suppress(OSError):  # where a file system refuses it, reading says what is wrong
            os.posix_fadvise(self.descriptor, offset, nbytes, os.POSIX_FADV_WILLNEED)


def refused(path: str, error: OSError, what: str = "read") -> StorageError:
    """Return the error for a file that cannot be read, in one line."""
    refusal = StorageError(f"{path}: cannot be {what}: {error.strerror or error}")
    refusal.errno = error.errno
    return refusal


def not_opened(path: str, kind: FileKind, error: OSError) -> IobenchError:
    """Return the error for a file that cannot be opened, in one line."""
    if isinstance(error, FileNotFoundError):
        return kind.missing(f"{path}{kind.if_missing}")
    if isinstance(error, IsADirectoryError):
        return StorageError(f"{path}: is a folder, expected a file; name the files in it")
    if error.errno == errno.EINVAL:
        return StorageError(f"{path}: {error.strerror}; name a file")
    if error.errno in NO_DESCRIPTORS:
        error.strerror = f"{error.strerror}; allow this process more files (ulimit -n)"
    return refused(path, error, "opened")


def read_into(descriptor: int, views: Sequence[memoryview], offset: int, end: int) -> int:
    """Read bytes ``offset`` to ``end`` of a file into memory, view after view; return how far."""
    while offset < end:
        count = os.preadv(descriptor, views[:MAX_VIEWS], offset)
        offset += count
        if count == 0:
            break
        if offset < end:
            _, views = cut_views(views, count)
    return offset


def cut_views(
    views: Sequence[memoryview], nbytes: int
) -> tuple[Sequence[memoryview], Sequence[memoryview]]:
    """Return the first bytes of views, and the others."""
    left = nbytes
    for number, view in enumerate(views):
        if left < len(view):
            return [*views[:number], view[:left]], [view[left:], *views[number + 1 :]]
        left -= len(view)
    return views, []


FileIdentity = tuple[int, int]
"""Size in bytes, and when the file was modified, in ns."""
FileKey = tuple[str, FileKind, int]
"""Path, kind, and number of the set that the file is of, 0 without one: two stores that lay at the
same place one after the other have nothing in common."""


def descriptor_limit() -> int:
    """Return how many descriptors the table may hold: a share of ``ulimit -n``, as it is now."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = MAX_DESCRIPTORS if limit == resource.RLIM_INFINITY else int(limit * SHARE)
    return max(2, min(MAX_DESCRIPTORS, most))


class OpenFiles:
    """Files by path; those opened longest ago are closed when there is no room for another one.

    For threads and forked children: ``preadv`` moves no position.
    """

    def __init__(self) -> None:
        # Looked up without the lock; whoever finds a file holds it by that.
        self._files: dict[FileKey, OpenFile] = {}
        self.find = self._files.get
        self._mapped: set[FileKey] = set()
        self._expected: dict[FileKey, FileIdentity] = {}
        self._lock = threading.RLock()  # a finalizer may close files in a thread that holds it

    def opened(self, key: FileKey, nbytes: int | None = None) -> OpenFile:
        """Return a file as it was when it was first opened, or as is expected of it."""
        file = self._files.get(key)
        if file is None:
            fresh = self._with_descriptor(key, lambda: OpenFile(key[0], key[1]))
            with self._lock:
                file = self._files.setdefault(key, fresh)  # another thread may have been faster
                if file is fresh:
                    file.nbytes, file.version = self._expected.get(key, file.identity)
                    file.nbytes = file.nbytes if nbytes is None else nbytes
        file.check()
        return file

    def mapped(self, key: FileKey, nbytes: int | None = None) -> mmap.mmap:
        """Return a file's mapping, which holds a descriptor of its own; raise as `opened` does."""
        file = self.opened(key, nbytes)
        if file.mapping is None:
            fresh = self._with_descriptor(
                key, lambda: mmap.mmap(file.descriptor, file.nbytes, prot=mmap.PROT_READ)
            )
            with self._lock:
                file.mapping = file.mapping or fresh
                if self._files.get(key) is file:
                    self._mapped.add(key)
        return file.mapping

    def _with_descriptor(self, key: FileKey, make: Callable[[], T]) -> T:
        """Return what takes a descriptor, for which others are closed."""
        self.keep(descriptor_limit() - 1)
        try:
            try:
                return make()
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                self.keep(0)  # others hold more than their part of the limit
                return make()
        except OSError as error:
            raise not_opened(key[0], key[1], error) from error

    def keep(self, n_left: int) -> None:
        """Close the oldest files but so many; it is expected that they stay what they were."""
        old = []  # let go once the lock is free again: closing may take a while
        with self._lock:
            for key in list(self._files):
                if len(self._files) + len(self._mapped) <= n_left:
                    break
                old.append(self._close(key))

    def _close(self, key: FileKey) -> OpenFile | None:
        file = self._files.pop(key, None)
        self._mapped.discard(key)
        if file is not None:
            self._expected.setdefault(key, file.identity)
        return file

    def close(self, keys: Iterable[FileKey]) -> None:
        """Close files, and expect nothing of them any more."""
        with self._lock:
            for key in keys:
                self._close(key)
                self._expected.pop(key, None)

    def expect(self, identities: Mapping[str, FileIdentity]) -> None:
        """Hold source files to what they were when they were looked into."""
        with self._lock:
            for path, identity in identities.items():
                key = (path, SOURCE_FILE, 0)
                file = self._files.get(key)
                if file and (file.identity != identity or not os.fstat(file.descriptor).st_nlink):
                    self._close(key)
                self._expected[key] = identity

    def expected(self) -> dict[str, FileIdentity]:
        """Return what source files were when they were looked into, or first read."""
        with self._lock:
            opened = {key: file.identity for key, file in self._files.items()}
            known = {**opened, **self._expected}
            return {path: each for (path, kind, _), each in known.items() if kind is SOURCE_FILE}

    def forget(self, paths: Iterable[str] | None = None) -> None:
        """Close source files and expect nothing of them: these and what is in these, or all."""
        chosen = None if paths is None else set(paths)
        with self._lock:
            keys = [key for key in {**self._files, **self._expected} if key[1] is SOURCE_FILE]
        self.close([key for key in keys if chosen is None or _is_in(key[0], chosen)])


def _is_in(path: str, chosen: set[str]) -> bool:
    while path and path not in chosen:
        path = path.rpartition("/")[0]
    return bool(path)


open_files: Final = OpenFiles()
os.register_at_fork(
    before=open_files._lock.acquire,  # the table is whole in the child
    after_in_parent=open_files._lock.release,
    after_in_child=open_files._lock.release,
)


class FileIdentities:
    """What source files were when they were looked into, for processes that are started anew.

    An object that holds one and is sent there brings it along.
    """

    def __reduce__(self) -> tuple[Callable[..., FileIdentities], tuple[object]]:
        return _expecting, (open_files.expected(),)


def _expecting(identities: dict[str, FileIdentity]) -> FileIdentities:
    open_files.expect(identities)
    return FileIdentities()


class FileSet:
    """The files of a store by number, opened when they are needed; for any number of threads."""

    _counted = itertools.count(1)

    def __init__(self, paths: Sequence[Path], nbytes: Mapping[Path, int]) -> None:
        one_set = next(self._counted)
        self._numbers = {path: number for number, path in enumerate(paths)}
        self._keys = [(str(path), STORE_FILE, one_set) for path in paths]
        self._nbytes = [nbytes.get(path) for path in paths]

    def opened(self, number: int) -> OpenFile:
        """Return a file, which is as it was; raise as `OpenFiles.opened`."""
        key = self._keys[number]
        file = open_files.find(key)  # as `OpenFiles.opened`, without a call more for each use
        if file is None:
            return open_files.opened(key, self._nbytes[number])
        file.check()
        return file

    def mapped(self, number: int) -> mmap.mmap:
        """Return a file's mapping; raise as `OpenFiles.opened`."""
        mapping = self.opened(number).mapping
        if mapping is None:
            return open_files.mapped(self._keys[number], self._nbytes[number])
        return mapping

    def read(self, ranges: Sequence[tuple[Path, int, int]]) -> list[memoryview]:
        """Return the bytes of ranges of the files, in buffers of their own."""
        buffers = []
        last, file = None, None
        for path, offset, nbytes in ranges:
            # numpy, not bytearray: large arrays get huge pages, a third of the time of small ones.
            view = np.empty(nbytes, dtype=np.uint8).data
            if file is None or path is not last:
                last, file = path, self.opened(self._numbers[path])
            file.fill(view, offset)
            buffers.append(view)
        return buffers

    def close(self) -> None:
        """Close them, once no thread reads from them any more."""
        open_files.close(self._keys)

    def __del__(self, close: Callable[[Iterable[FileKey]], None] = open_files.close) -> None:
        close(self._keys)
