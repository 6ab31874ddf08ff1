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
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.files.open_file import (
    NO_DESCRIPTORS,
    SOURCE_FILE,
    STORE_FILE,
    FileKind,
    OpenFile,
    not_opened,
    refused,
)

if TYPE_CHECKING:
    from iobench.files.ranges import FileRange


SHARE: Final = 1 / 2
"""Of the descriptors that this process may have; the training script needs some as well."""
MAX_DESCRIPTORS: Final = 1 << 15
"""Linux allows a process 65,530 mappings."""

_Identity = tuple[int, int]
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
    """Files by path; those used longest ago are closed when there is no room for another one.

    Safe from several threads, and after a fork: ``preadv`` moves no position, so that a child reads
    from what its parent opened.
    """

    def __init__(self) -> None:
        # Looked up without the lock; whoever finds a file holds it by that.
        self._files: OrderedDict[FileKey, OpenFile] = OrderedDict()
        self.find = self._files.get
        self._mapped: set[FileKey] = set()
        self._expected: dict[FileKey, _Identity] = {}
        self._left: deque[Sequence[FileKey]] = deque()
        self._lock = threading.Lock()

    def opened(self, key: FileKey, nbytes: int | None = None, flags: int = 0) -> OpenFile:
        """Return a file as it was when it was first opened, or as is expected of it."""
        file = self._files.get(key)
        if file is None:
            file = self._open(key, nbytes, flags)
        else:
            file.is_recent = True
        file.check()
        return file

    def _open(self, key: FileKey, nbytes: int | None, flags: int) -> OpenFile:
        path, kind, _ = key
        self._make_room()
        try:
            file = OpenFile(path, kind, flags)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise not_opened(path, kind, error) from error
            self.let_go()  # others hold more than their part of the limit
            try:
                file = OpenFile(path, kind, flags)
            except OSError as again:
                raise not_opened(path, kind, again) from again
        with self._lock:
            held = self._files.get(key)
            if held is not None:  # of two threads that open it at once, one lets go of its own
                return held
            file.nbytes, file.version = self._expected.get(key, (file.nbytes, file.version))
            if nbytes is not None:
                file.nbytes = nbytes
            self._files[key] = file
        return file

    def mapped(self, key: FileKey, nbytes: int | None = None) -> mmap.mmap:
        """Return a file's mapping; raise as `opened` does."""
        file = self.opened(key, nbytes)
        if file.mapping is None:
            self._make_room()  # a mapping holds a descriptor of its own
            try:
                mapping = _mapping(file)
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise refused(file.path, error) from error
                self.let_go()
                try:
                    mapping = _mapping(file)
                except OSError as again:
                    raise refused(file.path, again) from again
            with self._lock:
                if file.mapping is None:
                    file.mapping = mapping
                if self._files.get(key) is file:
                    self._mapped.add(key)
        return file.mapping

    def _make_room(self) -> None:
        """Close files until one descriptor more may be held."""
        closing = []  # after the lock is free again: closing may take a while
        with self._lock:
            self._close_left()
            limit = descriptor_limit()
            n_spared = 0
            while self._files and len(self._files) + len(self._mapped) >= limit:
                key, file = self._files.popitem(last=False)
                if file.is_recent and n_spared <= len(self._files):  # used since it was last here
                    file.is_recent = False
                    self._files[key] = file
                    n_spared += 1
                    continue
                self._note_closed(key, file)
                closing.append(file)

    def _note_closed(self, key: FileKey, file: OpenFile) -> None:
        self._mapped.discard(key)
        self._expected.setdefault(key, (file.nbytes, file.version))

    def let_go(self) -> None:
        """Close all files that nobody reads from, so that there are descriptors for others."""
        with self._lock:
            every = list(self._files.items())
            self._files.clear()
            for key, file in every:
                self._note_closed(key, file)

    def close(self, keys: Sequence[FileKey]) -> None:
        """Close files, and expect nothing of them any more.

        For finalizers too, which Python may call in a thread that is at work here: then the files
        are closed a little later.
        """
        self._left.append(keys)
        if self._lock.acquire(blocking=False):
            try:
                self._close_left()
            finally:
                self._lock.release()

    def _close_left(self) -> None:
        while self._left:
            for key in self._left.popleft():
                self._files.pop(key, None)
                self._mapped.discard(key)
                self._expected.pop(key, None)

    def expect(self, identities: Mapping[str, _Identity]) -> None:
        """Hold source files to what they were when they were looked into."""
        with self._lock:
            for path, identity in identities.items():
                key = (path, SOURCE_FILE, 0)
                held = self._files.get(key)
                if held is not None and not (
                    (held.nbytes, held.version) == identity and os.fstat(held.descriptor).st_nlink
                ):
                    del self._files[key]
                    self._mapped.discard(key)
                self._expected[key] = identity

    def expected(self) -> dict[str, _Identity]:
        """Return what `expect` was told, and what source files were that were read since."""
        with self._lock:
            found = {
                path: (file.nbytes, file.version)
                for (path, kind, _), file in self._files.items()
                if kind is SOURCE_FILE
            }
            told = {p: each for (p, kind, _), each in self._expected.items() if kind is SOURCE_FILE}
        return {**found, **told}

    def renew(self, paths: Iterable[str]) -> None:
        """Forget what was known of source files that have changed."""
        chosen = set(paths)
        with self._lock:
            known = [key for key in {**self._files, **self._expected} if key[1] is SOURCE_FILE]
        changed = []
        for key in known:
            if key[0] in chosen or any(str(above) in chosen for above in PurePath(key[0]).parents):
                with suppress(OSError):
                    status = Path(key[0]).stat()
                    if self._identity(key) == (status.st_size, status.st_mtime_ns):
                        continue
                changed.append(key)
        self.close(changed)

    def _identity(self, key: FileKey) -> _Identity | None:
        """Return what a file has to be: as it was told, or when it was opened."""
        held = self._files.get(key)
        return self._expected.get(key) if held is None else (held.nbytes, held.version)

    def forget(self, below: str = "") -> None:
        """Close source files and expect nothing of them: those of a folder, or all."""
        with self._lock:
            keys = {*self._files, *self._expected}
        folder = f"{below.rstrip('/')}/" if below else ""
        self.close([key for key in keys if key[1] is SOURCE_FILE and key[0].startswith(folder)])

    def before_fork(self) -> None:
        """Let the table be whole in the child."""
        self._lock.acquire()

    def after_fork(self) -> None:
        """Go on in the parent, and in the child."""
        self._lock.release()


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

    def __reduce__(self) -> tuple[Callable[[dict[str, _Identity]], FileIdentities], tuple[object]]:
        return _expecting, (open_files.expected(),)


def _expecting(identities: dict[str, _Identity]) -> FileIdentities:
    open_files.expect(identities)
    return FileIdentities()


class FileSet:
    """The files of a store by number, opened when they are needed; for any number of threads."""

    _counted = itertools.count(1)

    def __init__(self, paths: Sequence[Path], nbytes: Mapping[Path, int], flags: int = 0) -> None:
        one_set = next(self._counted)
        self._numbers = {path: number for number, path in enumerate(paths)}
        self._keys = [(str(path), STORE_FILE, one_set) for path in paths]
        self._nbytes = [nbytes.get(path) for path in paths]
        self._flags = flags

    def opened(self, number: int) -> OpenFile:
        """Return a file, which is as it was; raise as `OpenFiles.opened`."""
        key = self._keys[number]
        file = open_files.find(key)  # as `OpenFiles.opened`, without a call more for each use
        if file is None:
            return open_files.opened(key, self._nbytes[number], self._flags)
        file.is_recent = True
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
        found = []
        last, file = None, None
        for path, offset, nbytes in ranges:
            # numpy, not bytearray: large arrays get huge pages, a third of the time of small ones.
            view = np.empty(nbytes, dtype=np.uint8).data
            if file is None or path is not last:
                last, file = path, self.opened(self._numbers[path])
            file.fill(view, offset)
            found.append(view)
        return found

    def close(self) -> None:
        """Close them, once no thread reads from them any more."""
        open_files.close(self._keys)

    def __del__(self, close: Callable[[Sequence[FileKey]], None] = open_files.close) -> None:
        close(self._keys)
