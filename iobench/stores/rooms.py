"""Rooms: where the files of a shard are until they appear, which for objects is an upload.

The journal gives whoever writes a shard a room of its own, ``iobench.journal/shard-N/TOKEN``. A
file in it is written there under the name it will have, and moved into place at the end. Of an
object the room holds no bytes, only a note of the same name: before an upload to ``STORE/NAME``
is begun, the object ``ROOM/NAME`` is put, so that whoever clears up after a killed process finds
out what it may have left, by the names of a listing.
"""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iobench.errors import StorageError
from iobench.files.objects import objects_at
from iobench.files.uploads import Upload, drop_sealed, keep_sealed
from iobench.stores.atomic import EXIT_RESUMABLE, TEMPORARY_SUFFIX
from iobench.stores.checksums import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from iobench.files.urls import URL

__all__ = ["RemoteFile", "clear_room", "open_room", "remove_below"]

_rooms: dict[tuple[int, URL], URL] = {}
"""The store of each room of this process."""


def open_room(room: URL, store: URL) -> None:
    """Take files of a store from now on that are written into a room."""
    _rooms[os.getpid(), room] = store


def clear_room(room: URL, store: URL) -> None:
    """Drop all that was begun in a room, by this process or by one that ended."""
    _rooms.pop((os.getpid(), room), None)
    drop_sealed(room)
    objects, path = objects_at(store)
    for name in room.below():
        objects.drop_uploads(f"{path}/{name}")
    remove_below(room)


def remove_below(place: URL) -> None:
    """Remove all objects below a URL."""
    objects, path = objects_at(place)
    objects.remove(list(objects.find(f"{path}/")))


class RemoteFile:
    """An object that only ``commit`` makes appear; in a room, moving it into place does.

    It has the face of `iobench.stores.atomic.AtomicFile`.
    """

    def __init__(self, path: URL) -> None:
        self.path = path
        self._is_in_room = False
        target = path
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
        for (pid, room), store in list(_rooms.items()):
            if pid == os.getpid() and path.is_relative_to(room):
                target, temporary = store / path.relative_to(room), path
                self._is_in_room = True
        self._upload = Upload(target, temporary, self._note)

    def write(self, data: Any) -> None:
        """Append all of a buffer; after ``rewind`` write over the first bytes."""
        with _resumable():
            self._upload.write(data)

    def rewind(self) -> None:
        """Go back to the first byte."""
        self._upload.rewind()

    def commit(self) -> None:
        """Send all, and make it appear unless it is in a room."""
        try:
            with _resumable():
                self._upload.seal()
            if not self._is_in_room:
                self._upload.complete()
        except BaseException:
            self.abort()
            raise
        if self._is_in_room:
            keep_sealed(self.path, self._upload)

    def abort(self) -> None:
        """Drop it; nothing appears."""
        self._upload.abort()

    def crc32c(self, before: int) -> int:
        """Return the CRC-32C of all bytes, of which none was sent before the first changed."""
        return crc32c(self._upload.held())

    def _note(self) -> None:
        if self._is_in_room:
            self.path.write_bytes(b"")


@contextmanager
def _resumable() -> Iterator[None]:
    """Say with what the store of objects refuses that the same command goes on."""
    try:
        yield
    except StorageError as error:
        again = StorageError(f"{error}; what is finished is kept, the same command continues")
        again.errno, again.exit_code = error.errno, EXIT_RESUMABLE
        raise again from error
