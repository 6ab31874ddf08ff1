"""The one table of descriptors of this process: files stay open as long as there is room for them.

Stores and source files, reading threads and mappings share it, so that it is as large as the
process may have it. A file that somebody reads from is closed once they let go of it.
"""

from __future__ import annotations

import itertools
import mmap
import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from iobench.files.open_file import (
    NO_DESCRIPTORS,
    SOURCE_FILE,
    STORE_FILE,
    FileKind,
    OpenFile,
    not_opened,
)

if TYPE_CHECKING:
    from iobench.files.ranges import FileRange

T = TypeVar("T")
SHARE: Final = 1 / 2
"""Of the descriptors that this process may have; the training script needs some as well."""
MAX_DESCRIPTORS: Final = 1 << 15
"""Linux allows a process 65,530 mappings."""

FileIdentity = tuple[int, int]
"""Size in bytes, and when the file was modified, in ns."""

FileKey = tuple[str, FileKind, int]
"""Path, kind, and number of the set that the file is of, 0 without one: two stores that lay at the
same place one after the other have nothing in common."""


def descriptor_limit() -> int:
    """Return how many descriptors the table may hold: a share of ``ulimit -n``, as it is now."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return MAX_DESCRIPTORS
    return max(2, min(MAX_DESCRIPTORS, int(limit * SHARE)))


class OpenFiles:
    """Files by path; those opened longest ago are closed when there is no room for another one.

    Safe from several threads, and after a fork: ``preadv`` moves no position, so that a child reads
    from what its parent opened.
    """

    def __init__(self) -> None:
        # Looked up without the lock; whoever finds a file holds it by that.
        self._files: dict[FileKey, OpenFile] = {}
        self.find = self._files.get
        self._mapped: set[FileKey] = set()
        self._expected: dict[FileKey, FileIdentity] = {}
        self._closing: deque[Iterable[FileKey]] = deque()
        self._lock = threading.Lock()

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
            fresh = self._with_descriptor(key, lambda: _mapping(file))
            with self._lock:
                if file.mapping is None:
                    file.mapping = fresh
                if self._files.get(key) is file:
                    self._mapped.add(key)
        return file.mapping

    def _with_descriptor(self, key: FileKey, make: Callable[[], T]) -> T:
        """Return what takes a descriptor, for which others are closed."""
        path, kind, _ = key
        old = []  # let go once the lock is free again: closing may take a while
        with self._lock:
            self._close_given()
            while self._files and len(self._files) + len(self._mapped) >= descriptor_limit():
                oldest = next(iter(self._files))
                old.append(self._pop(oldest))
        try:
            try:
                return make()
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                self.let_go()  # others hold more than their part of the limit
                return make()
        except OSError as error:
            raise not_opened(path, kind, error) from error

    def _pop(self, key: FileKey) -> OpenFile:
        """Take a file out of the table, of which it is expected that it stays what it was."""
        file = self._files.pop(key)
        self._mapped.discard(key)
        self._expected.setdefault(key, file.identity)
        return file

    def let_go(self) -> None:
        """Close all files that nobody reads from, so that there are descriptors for others."""
        with self._lock:
            for key in list(self._files):
                self._pop(key)

    def close(self, keys: Iterable[FileKey]) -> None:
        """Close files, and expect nothing of them any more.

        For finalizers too, which Python may call in a thread that is at work here: then the files
        are closed a little later.
        """
        self._closing.append(keys)
        if self._lock.acquire(blocking=False):
            try:
                self._close_given()
            finally:
                self._lock.release()

    def _close_given(self) -> None:
        while self._closing:
            for key in self._closing.popleft():
                self._files.pop(key, None)
                self._mapped.discard(key)
                self._expected.pop(key, None)

    def expect(self, identities: Mapping[str, FileIdentity]) -> None:
        """Hold source files to what they were when they were looked into."""
        with self._lock:
            for path, identity in identities.items():
                key = (path, SOURCE_FILE, 0)
                file = self._files.get(key)
                if file and (file.identity != identity or not os.fstat(file.descriptor).st_nlink):
                    self._pop(key)
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

    def before_fork(self) -> None:
        """Let the table be whole in the child."""
        self._lock.acquire()

    def after_fork(self) -> None:
        """Go on in the parent, and in the child."""
        self._lock.release()


def _is_in(path: str, chosen: set[str]) -> bool:
    while path and path not in chosen:
        path = path.rpartition("/")[0]
    return bool(path)


def _mapping(file: OpenFile) -> mmap.mmap:
    return mmap.mmap(file.descriptor, file.nbytes, prot=mmap.PROT_READ)


open_files: Final = OpenFiles()
os.register_at_fork(
    before=open_files.before_fork,
    after_in_parent=open_files.after_fork,
    after_in_child=open_files.after_fork,
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

    def read(self, ranges: Sequence[FileRange[Path]]) -> list[memoryview]:
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
