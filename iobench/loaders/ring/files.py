"""Files of a store that threads read from, checked before each use."""

from __future__ import annotations

import mmap
import os
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from iobench.errors import StorageError, StoreError
from iobench.files.atomic import storage_errors
from iobench.files.reading import read_into
from iobench.loaders.ring.fork_lock import ForkLock
from iobench.stores.extents import descriptors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["MappedFiles", "OpenFiles"]

MAX_OPEN_FILES: Final = 64
"""Of one thread."""
MAX_MAPPED_FILES: Final = 1 << 15
"""Of one store; Linux allows a process 65,530 mappings."""
OPEN_SHARE: Final = 1 / 4
MAPPED_SHARE: Final = 1 / 4
"""Of the descriptors that the process may have, for all tables of a kind; a mapping holds two."""


class _StoreFile:
    """A file that has to stay as long as it was; closes when nobody holds it any more."""

    __slots__ = ("_descriptor", "mapped", "nbytes", "path")

    def __init__(self, path: Path, nbytes: int | None, flags: int = 0) -> None:
        self._descriptor = -1
        self.mapped: mmap.mmap | None = None
        self.path = path
        try:
            with storage_errors(path):
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
                self.nbytes = os.fstat(self._descriptor).st_size if nbytes is None else nbytes
        except FileNotFoundError as error:
            raise StoreError(
                f"{path} is missing, its store's manifest lists it; convert the store again"
            ) from error

    def checked(self) -> int:
        """Return the descriptor, after a look at the file.

        A file that shrinks under a mapping ends the process with SIGBUS, and one that is written
        anew is another store.
        """
        status = os.fstat(self._descriptor)
        if status.st_size != self.nbytes:
            raise StoreError(
                f"{self.path}: {status.st_size} bytes, its store was opened with {self.nbytes}; "
                "convert the store again"
            )
        if not status.st_nlink:
            raise StoreError(
                f"{self.path} was removed or replaced while its store was read; open it again"
            )
        return self._descriptor

    def __del__(self) -> None:
        try:
            if self._descriptor >= 0:
                os.close(self._descriptor)
        except (OSError, AttributeError):  # where Python ends, os may be gone already
            pass


_open_tables: weakref.WeakSet[OpenFiles] = weakref.WeakSet()
_mapped_tables: weakref.WeakSet[MappedFiles] = weakref.WeakSet()


class OpenFiles:
    """The files one thread reads from, opened when first needed; the last few stay open.

    Parameters
    ----------
    paths : sequence of Path
        The files, by number.
    nbytes : mapping of Path to int
        How long they are, where that is known; else what they are when first opened.
    flags : int
        More flags to open them with.
    """

    def __init__(self, paths: Sequence[Path], nbytes: Mapping[Path, int], flags: int = 0) -> None:
        self.paths = paths
        self.nbytes = nbytes
        self._flags = flags
        self._open: OrderedDict[int, _StoreFile] = OrderedDict()
        _open_tables.add(self)

    def descriptor(self, number: int) -> int:
        """Return the descriptor of a file, which is as it was.

        Raises
        ------
        StoreError
            If it is missing, was replaced, or has another length than at first.
        """
        file = self._open.get(number)
        if file is None:
            limit = descriptors(OPEN_SHARE / len(_open_tables), MAX_OPEN_FILES)
            while len(self._open) >= limit:
                self._open.popitem(last=False)
            file = self._open[number] = self._opened(self.paths[number])
        return file.checked()

    def _opened(self, path: Path) -> _StoreFile:
        try:
            return _StoreFile(path, self.nbytes.get(path), self._flags)
        except StorageError:  # others may hold more descriptors than their share
            self._open.clear()
            for table in list(_mapped_tables):
                table.let_go()
            return _StoreFile(path, self.nbytes.get(path), self._flags)

    def read_into(self, number: int, views: Sequence[memoryview], offset: int, end: int) -> None:
        """Fill memory that lies in pieces with bytes ``offset`` to ``end`` of a file.

        Raises
        ------
        StoreError
            As `descriptor`, and if the file ends before.
        StorageError
            If the file system refuses.
        """
        self.read_descriptor(self.descriptor(number), number, views, offset, end)

    def read_descriptor(
        self, descriptor: int, number: int, views: Sequence[memoryview], offset: int, end: int
    ) -> None:
        """Fill memory as `read_into` does, from a file whose descriptor was just asked for."""
        try:
            at = read_into(descriptor, views, offset, end)
        except OSError:
            with storage_errors(self.paths[number]):
                raise
        if at < end:
            raise StoreError(
                f"{self.paths[number]}: the file ends at byte {at}, {end - at} bytes more were "
                "expected; convert the store again"
            )

    def close(self) -> None:
        """Close them."""
        self._open.clear()


class MappedFiles:
    """Mappings of files, shared by all threads; as many are kept as there are descriptors for.

    Parameters
    ----------
    paths, nbytes
        As of `OpenFiles`.
    """

    def __init__(self, paths: Sequence[Path], nbytes: Mapping[Path, int]) -> None:
        self._paths = paths
        self._nbytes = nbytes
        self._lock = ForkLock()
        self._files: OrderedDict[int, _StoreFile] = OrderedDict()
        _mapped_tables.add(self)

    def mapped(self, number: int) -> mmap.mmap:
        """Return a file's mapping; raise StoreError as `OpenFiles.descriptor` does."""
        file = self._files.get(number)
        if file is None:
            with self._lock:
                file = self._files.get(number)
                if file is None:
                    limit = descriptors(MAPPED_SHARE / len(_mapped_tables), MAX_MAPPED_FILES)
                    while len(self._files) >= limit:  # who reads from one keeps it until then
                        self._files.popitem(last=False)
                    try:
                        file = self._mapped(self._paths[number])
                    except StorageError:  # others may hold more descriptors than their share
                        self._files.clear()
                        file = self._mapped(self._paths[number])
                    self._files[number] = file
        file.checked()
        assert file.mapped is not None
        return file.mapped

    def _mapped(self, path: Path) -> _StoreFile:
        file = _StoreFile(path, self._nbytes.get(path))
        descriptor = file.checked()
        with storage_errors(path):
            file.mapped = mmap.mmap(descriptor, file.nbytes, prot=mmap.PROT_READ)
        return file

    def let_go(self) -> None:
        """Keep no file any more; who reads from one keeps it until then."""
        with self._lock:
            self._files.clear()
