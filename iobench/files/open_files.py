"""Files of this machine: opened once, as long as this process has descriptors for them.

A file that somebody reads from is closed once they let go of it.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from iobench.errors import (
    FileFormatError,
    IobenchError,
    MissingFileError,
    StorageError,
    StoreError,
)
from iobench.json_files import open_regular

MAX_VIEWS: Final = 1024
"""What ``preadv`` takes at once (``IOV_MAX`` of Linux)."""
SHARE: Final = 3 / 8
"""Of the descriptors that this process may have, and as many mappings: a script needs some, too."""
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

    __slots__ = ("_mapping", "descriptor", "kind", "nbytes", "path", "version")

    def __init__(self, path: str, kind: FileKind) -> None:
        self.descriptor = -1
        self.path, self.kind = path, kind
        self._mapping: mmap.mmap | None = None
        self.descriptor = open_regular(path)
        status = os.fstat(self.descriptor)
        self.nbytes, self.version = status.st_size, status.st_mtime_ns

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Bound early: where Python ends, modules are emptied before the table is.
        if self.descriptor >= 0:
            close(self.descriptor)

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

    def mapped(self) -> mmap.mmap:
        """Return a mapping of the file, which holds a descriptor of its own."""
        if self._mapping is None:
            try:
                self._mapping = mmap.mmap(self.descriptor, self.nbytes, prot=mmap.PROT_READ)
            except OSError as error:
                raise not_opened(self.path, self.kind, error) from error
        return self._mapping

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
_expected: Final[dict[FileKey, FileIdentity]] = {}


def _open(path: str, kind: FileKind, number: int) -> OpenFile:
    """Open a file, which is held to what it was when it was first opened."""
    file = OpenFile(path, kind)
    identity = _expected.setdefault((path, kind, number), (file.nbytes, file.version))
    file.nbytes, file.version = identity
    return file


def _descriptor_limit() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_DESCRIPTORS if limit == resource.RLIM_INFINITY else int(limit * SHARE)


_opened = lru_cache(maxsize=max(1, min(MAX_DESCRIPTORS, _descriptor_limit())))(_open)


def open_file(path: str, kind: FileKind = SOURCE_FILE, number: int = 0) -> OpenFile:
    """Return a file as it was when it was first opened, or as is expected of it."""
    try:
        try:
            file = _opened(path, kind, number)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            close_files()  # others hold more than their part of the limit
            file = _opened(path, kind, number)
    except OSError as error:
        raise not_opened(path, kind, error) from error
    file.check()
    return file


def close_files() -> None:
    """Close all files that nobody is reading; it is expected that they stay what they were."""
    _opened.cache_clear()


def expect_files(identities: Mapping[str, FileIdentity]) -> None:
    """Hold source files to what they were when they were looked into."""
    for path, identity in identities.items():
        key = (path, SOURCE_FILE, 0)
        if _expected.get(key, identity) != identity:
            close_files()
        _expected[key] = identity


def expected_files() -> dict[str, FileIdentity]:
    """Return what source files were when they were looked into, or first read."""
    return {path: each for (path, kind, _), each in [*_expected.items()] if kind is SOURCE_FILE}


def forget_files(paths: Iterable[str] | None = None) -> None:
    """Expect nothing of source files any more: of these and what is in these, or of all."""
    chosen = None if paths is None else set(paths)
    for path in expected_files():
        if chosen is None or not chosen.isdisjoint([path, *map(str, Path(path).parents)]):
            _expected.pop((path, SOURCE_FILE, 0), None)
    close_files()


class FileIdentities:
    """What source files were when they were looked into, for processes that are started anew.

    An object that holds one and is sent there brings it along.
    """

    def __reduce__(self) -> tuple[Callable[..., FileIdentities], tuple[object]]:
        return _expecting, (expected_files(),)


def _expecting(identities: dict[str, FileIdentity]) -> FileIdentities:
    expect_files(identities)
    return FileIdentities()


class FileSet:
    """The files of a store by number, opened when they are needed; for any number of threads."""

    _counted = itertools.count(1)

    def __init__(self, paths: Sequence[Path], nbytes: Mapping[Path, int]) -> None:
        one_set = next(self._counted)
        self._numbers = {path: number for number, path in enumerate(paths)}
        self._keys = [(str(path), STORE_FILE, one_set) for path in paths]
        for path, key in zip(paths, self._keys, strict=True):
            if path in nbytes:
                _expected[key] = (nbytes[path], 0)

    def opened(self, number: int) -> OpenFile:
        """Return a file, which is as it was and as the store's manifest has it."""
        return open_file(*self._keys[number])

    def mapped(self, number: int) -> mmap.mmap:
        """Return a file's mapping."""
        return self.opened(number).mapped()

    def at(self, path: Path) -> OpenFile:
        """Return a file by its path."""
        return self.opened(self._numbers[path])

    def close(self) -> None:
        """Close them, once no thread reads from them any more."""
        close_files()

    def __del__(self, expected: Any = _expected, close: Any = _opened.cache_clear) -> None:
        for key in self._keys:  # bound early, as the descriptors' closing is
            expected.pop(key, None)
        close()
