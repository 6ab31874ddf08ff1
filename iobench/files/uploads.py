"""Objects that are written piece by piece, and appear in the end and not before; scratch.

The journal gives whoever writes a shard a folder of its own, ``iobench.journal/shard-N/TOKEN``, its
scratch. Of an object nothing lies there: it is an upload in parts to ``STORE/NAME``, which moving
the file out of that folder completes. Of a process that was killed the parts stay, hidden, until
the bucket's rule for incomplete uploads removes them.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from iobench.errors import StorageError
from iobench.files.atomic import EXIT_RESUMABLE, TEMPORARY_SUFFIX, AtomicFile, storage_errors
from iobench.files.memory import for_one_sample
from iobench.files.object_requests import ask, library, store_of
from iobench.files.objects import put, remove, sealed
from iobench.files.urls import URL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PART_NBYTES = 8 << 20
"""Of each part; what is not larger is put as a whole."""
MOST_PARTS = 10_000
"""Of S3, which hold 78 GiB."""
AT_ONCE = 4
"""Parts under way, and so in memory."""

_stores: dict[URL, URL] = {}
"""The store of each scratch folder of this process."""


class Upload:
    """An object that only ``commit`` makes appear; in scratch, moving it into place does.

    It has the face of `iobench.files.atomic.AtomicFile`.
    """

    def __init__(self, path: URL) -> None:
        self.path = self._target = path
        for folder, store in list(_stores.items()):
            if path.is_relative_to(folder):
                self._target = store / path.relative_to(folder)
        self._part = for_one_sample(PART_NBYTES).data
        self._n_held = 0
        self._rewind_at: int | None = None
        self._writer: Any = None
        self._n_parts = 0

    def write(self, data: Any) -> None:
        """Append all of a buffer; after ``rewind`` write over the first bytes."""
        view = memoryview(data).cast("B")
        if self._rewind_at is not None:
            end = self._rewind_at + len(view)
            self._part[self._rewind_at : end] = view
            self._rewind_at = end
            return
        while len(view):
            if self._n_held == PART_NBYTES:
                self._send_part()
            some = view[: PART_NBYTES - self._n_held]
            self._part[self._n_held : self._n_held + len(some)] = some
            self._n_held += len(some)
            view = view[len(some) :]

    def _send_part(self) -> None:
        self._n_parts += 1
        if self._n_parts == MOST_PARTS:
            raise StorageError(
                f"{self._target}: is longer than the {MOST_PARTS:,} parts of {PART_NBYTES >> 20} "
                "MiB that an upload may have; choose a smaller --shard-size"
            )
        with _resumable():
            ask([self._target], self._send)
        # The part is held as long as it is on its way: that memory serves a later one.
        self._part, self._n_held = for_one_sample(PART_NBYTES).data, 0

    async def _send(self, url: URL) -> None:
        if self._writer is None:
            store, key = store_of(url)
            self._writer = library(url).open_writer_async(
                store, key, buffer_size=PART_NBYTES, max_concurrency=AT_ONCE
            )
        await self._writer.write(self.kept())

    def rewind(self) -> None:
        """Go back to the first byte; raise StorageError if it has been sent."""
        if self._writer is not None:
            raise StorageError(
                f"{self._target}: what was sent cannot be rewritten there, and this format has to; "
                "choose another (--to tfrecord, zarr)"
            )
        self._rewind_at = 0

    def kept(self) -> memoryview:
        """Return what was not sent: all bytes, where the first ones were rewritten."""
        return self._part[: self._n_held]

    def commit(self) -> None:
        """Make it appear unless it is in scratch."""
        if self._target != self.path:
            sealed[self.path] = self
            return
        try:
            with _resumable():
                self.complete()
        except BaseException:
            self.abort()
            raise

    def complete(self) -> None:
        """Send what is left, and make the object appear."""
        if self._writer is None:
            put(self._target, self.kept())
        else:
            ask([self._target], self._end)
            self._writer = None

    async def _end(self, _: URL) -> None:
        await self._writer.write(self.kept())
        await self._writer.close()

    def abort(self) -> None:
        """Drop it, unless it appeared."""
        if self._writer is not None:
            ask([self._target], self._drop)
            self._writer = None

    async def _drop(self, url: URL) -> None:
        with suppress(library(url).exceptions.BaseError, OSError):
            await self._writer.__aexit__(StorageError, StorageError("dropped"), None)


@contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        again = StorageError(f"{error}; what is finished is kept, the same command continues")
        again.errno, again.exit_code = error.errno, EXIT_RESUMABLE
        raise again from error


def new_file(path: Path, *, folder: Path | None = None) -> AtomicFile | Upload:
    """Return a file that only ``commit`` makes appear; ``folder`` is that of `AtomicFile`."""
    if isinstance(path, URL):
        return Upload(path)
    return AtomicFile(path, resumable=True, folder=folder)


def open_scratch(folder: Path, store: Path) -> None:
    """Make a new folder for files that will be moved into a store."""
    if isinstance(folder, URL):
        assert isinstance(store, URL)
        _stores[folder] = store
        return
    with storage_errors(folder, resumable=True):
        folder.mkdir()


def clear_scratch(folder: Path) -> None:
    """Remove a folder of files that were not moved into a store, and what was sent of them."""
    if isinstance(folder, URL):
        _stores.pop(folder, None)
        for path in [path for path in list(sealed) if path.is_relative_to(folder)]:
            sealed.pop(path).abort()
    remove_tree(folder)


def remove_tree(folder: Path) -> None:
    """Remove a folder and all in it, as far as that can be done."""
    if isinstance(folder, URL):
        remove([folder / name for name in folder.below()])
    else:
        shutil.rmtree(folder, ignore_errors=True)


def list_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder; none where it is not there."""
    if isinstance(folder, URL):
        deeper = {name.partition("/")[0] for name in folder.below() if "/" in name}
        return [folder / name for name in sorted(deeper)]
    with storage_errors(folder):
        return [each for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []


def remove_leftovers(store: Path) -> None:
    """Remove what was begun of files of a store and not finished; nobody else is writing it."""
    if isinstance(store, URL):
        left = [name for name in store.below() if name.endswith(TEMPORARY_SUFFIX)]
        remove([store / name for name in left if "/" not in name])
        return
    for folder in (store, *list_folders(store)):  # Zarr has a folder for each array
        for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
            leftover.unlink(missing_ok=True)
