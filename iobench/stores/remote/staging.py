"""Rooms: where the files of a shard are until they appear, which for objects is an upload.

The journal gives whoever writes a shard a room of its own, ``iobench.journal/shard-N/TOKEN``. A
file in it is written there under the name it will have, and moved into place at the end. Of an
object the room holds no bytes, only a note of the same name: before an upload to ``STORE/NAME``
is begun, the object ``ROOM/NAME`` is put, so that whoever clears up after a killed process finds
out what it may have left, by the names of a listing.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iobench.errors import StorageError
from iobench.stores.atomic import EXIT_RESUMABLE
from iobench.stores.remote.addresses import StoreAddress
from iobench.stores.remote.objects import objects_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from iobench.stores.remote.objects import Upload

__all__ = ["RemoteFile", "clear_room", "open_room", "remove_below", "take_sealed"]

_rooms: dict[tuple[int, str], StoreAddress] = {}
"""The store of each room of this process."""
_uploads: dict[tuple[int, str], Upload] = {}
"""Finished uploads, by the path in the room that stands for them."""


def open_room(room: StoreAddress, store: StoreAddress) -> None:
    """Take files of a store from now on that are written into a room."""
    _rooms[os.getpid(), room.url] = store


def clear_room(room: StoreAddress, store: StoreAddress) -> None:
    """Drop all that was begun in a room, by this process or by one that ended."""
    pid = os.getpid()
    _rooms.pop((pid, room.url), None)
    for key in [key for key in list(_uploads) if key[0] == pid and _is_below(key[1], room)]:
        _uploads.pop(key).abort()
    objects, path = objects_at(store.url)
    for name in room.below():
        objects.abort_uploads(f"{path}/{name}")
    remove_below(room)


def remove_below(place: StoreAddress) -> None:
    """Remove all objects below an address."""
    objects, path = objects_at(place.url)
    objects.remove(list(objects.find(f"{path}/")))


def take_sealed(path: StoreAddress) -> Upload:
    """Return the finished upload of a file in a room, to be completed by the caller.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    upload = _uploads.pop((os.getpid(), path.url), None)
    if upload is None:
        raise FileNotFoundError(errno.ENOENT, "no finished upload", str(path))
    return upload


class RemoteFile:
    """An object that only ``commit`` makes appear; in a room, moving it into place does.

    It has the face of `iobench.stores.atomic.AtomicFile`.
    """

    def __init__(self, path: StoreAddress) -> None:
        self.path = path
        target, room = path, None
        for (pid, url), store in list(_rooms.items()):
            if pid == os.getpid() and _is_below(path.url, StoreAddress(url)):
                target, room = store / path.relative_to(StoreAddress(url)), path
        self._is_in_room = room is not None
        objects, key = objects_at(target.url)
        beside = None if room is None else objects_at(room.url)[1]
        self._upload = objects.upload(key, beside, self._note)

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
            _uploads[os.getpid(), self.path.url] = self._upload

    def abort(self) -> None:
        """Drop it; nothing appears."""
        _uploads.pop((os.getpid(), self.path.url), None)
        self._upload.abort()

    def crc32c(self, before: int) -> int:
        """Return the CRC-32C of all bytes, given what it was before the first were rewritten."""
        return self._upload.crc32c(before)

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


def _is_below(url: str, room: StoreAddress) -> bool:
    return url.startswith(f"{room.url}/")
