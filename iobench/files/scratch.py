"""Scratch: where the files of a shard are until they appear, which for objects is an upload.

The journal gives whoever writes a shard a folder of its own, ``iobench.journal/shard-N/TOKEN``. A
file in it is written there under the name it will have, and moved into place at the end. Of an
object nothing lies there: it is an upload to ``STORE/NAME``, which is completed at the end.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iobench.errors import StorageError
from iobench.files.atomic import EXIT_RESUMABLE, TEMPORARY_SUFFIX, is_local, storage_errors
from iobench.files.objects import remove
from iobench.files.uploads import Upload, drop_sealed, keep_sealed
from iobench.files.urls import URL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

_scratch: dict[tuple[int, URL], URL] = {}
"""The store of each scratch folder of this process, among objects."""


def free_nbytes(folder: Path) -> int | None:
    """Return the bytes free where a folder is; None where nobody tells, as of object stores."""
    if not is_local(folder):
        return None
    with storage_errors(folder):
        return shutil.disk_usage(folder).free


def free_files(folder: Path) -> int | None:
    """Return how many files can be made where a folder is; None where nothing limits or tells it.

    Like bytes these are those of the file system, and of a user's quota where it counts that in.
    """
    if not is_local(folder):
        return None
    with storage_errors(folder):
        told = os.statvfs(folder)
    return told.f_favail if told.f_files else None  # btrfs and others make inodes as they go


def list_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder; none where it is not there."""
    if isinstance(folder, URL):
        deeper = {name.partition("/")[0] for name in folder.below() if "/" in name}
        return [folder / name for name in sorted(deeper)]
    with storage_errors(folder):
        try:
            with os.scandir(folder) as entries:
                return [folder / entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            return []


def remove_tree(folder: Path) -> None:
    """Remove a folder and all in it, as far as that can be done."""
    if isinstance(folder, URL):
        remove([folder / name for name in folder.below()])
    else:
        shutil.rmtree(folder, ignore_errors=True)


def open_scratch(folder: Path, store: Path) -> None:
    """Make a new folder for files that will be moved into a store."""
    if isinstance(folder, URL):
        assert isinstance(store, URL)
        _scratch[os.getpid(), folder] = store
        return
    with storage_errors(folder, resumable=True):
        folder.mkdir()


def clear_scratch(folder: Path, store: Path) -> None:
    """Remove a folder of files that were not moved into a store, and what was sent of them.

    Whether this process began them or one that ended.
    """
    if not isinstance(folder, URL):
        shutil.rmtree(folder, ignore_errors=True)
        return
    _scratch.pop((os.getpid(), folder), None)
    drop_sealed(folder)
    remove_tree(folder)


def remove_leftovers(store: Path) -> None:
    """Remove what was begun of files of a store and not finished; nobody else is writing it."""
    if isinstance(store, URL):
        left = [name for name in store.below() if name.endswith(TEMPORARY_SUFFIX)]
        remove([store / name for name in left if "/" not in name])
        return
    for folder in (store, *list_folders(store)):  # Zarr has a folder for each array
        for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
            leftover.unlink(missing_ok=True)


class RemoteFile:
    """An object that only ``commit`` makes appear; in scratch, moving it into place does.

    It has the face of `iobench.files.atomic.AtomicFile`.
    """

    def __init__(self, path: URL) -> None:
        self.path = path
        self._is_in_scratch = False
        target = path
        for (pid, folder), store in list(_scratch.items()):
            if pid == os.getpid() and path.is_relative_to(folder):
                target = store / path.relative_to(folder)
                self._is_in_scratch = True
        self._upload = Upload(target)

    def write(self, data: Any) -> None:
        """Append all of a buffer; after ``rewind`` write over the first bytes."""
        with _resumable():
            self._upload.write(data)

    def rewind(self) -> None:
        """Go back to the first byte."""
        self._upload.rewind()

    def commit(self) -> None:
        """Send all, and make it appear unless it is in scratch."""
        try:
            if not self._is_in_scratch:
                with _resumable():
                    self._upload.complete()
        except BaseException:
            self.abort()
            raise
        if self._is_in_scratch:
            keep_sealed(self.path, self._upload)

    def abort(self) -> None:
        """Drop it; nothing appears."""
        self._upload.abort()

    def kept(self) -> bytearray:
        """Return all bytes of an object whose first ones were rewritten: none was sent before."""
        return self._upload.held()


@contextmanager
def _resumable() -> Iterator[None]:
    """Say with what the store of objects refuses that the same command goes on."""
    try:
        yield
    except StorageError as error:
        again = StorageError(f"{error}; what is finished is kept, the same command continues")
        again.errno, again.exit_code = error.errno, EXIT_RESUMABLE
        raise again from error
