"""Uploads: bytes on their way to an object, which appears in the end and not before.

They are the library's own files, to S3 opened with ``autocommit=False``: an upload in parts, whose
completion makes the object appear. Not all file systems of fsspec keep that (its own in memory
does not), so elsewhere a file is written under another name, and renamed.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from iobench.errors import StorageError
from iobench.files.objects import objects_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.files.urls import URL

PART_NBYTES = 8 << 20
"""Of the first thousand parts; each thousand has twice what the one before had, so that the 10,000
parts of S3 hold its largest object. What is not larger than one is put as a whole."""
PARTS_OF_A_SIZE = 1000

_sealed: dict[tuple[int, str], Upload] = {}
"""Finished uploads of this process, by the path in the room that stands for them."""


class Upload:
    """Bytes on their way to an object, sent by a thread while more are made."""

    def __init__(self, target: URL, temporary: URL, begins: Callable[[], None]) -> None:
        self._objects, self._path = objects_at(target)
        self._written = self._path if self._objects.is_s3 else objects_at(temporary)[1]
        self._begins = begins
        self._held = bytearray()
        self._at: int | None = None  # where in what is held, after rewind
        self._stream: Any = None
        self._n_parts = 0
        self._sending: Future[Any] | None = None
        self._is_done = False

    def write(self, data: Any) -> None:
        """Append all of a buffer; after ``rewind`` write over the first bytes."""
        view = memoryview(data)
        if self._at is not None:
            self._held[self._at : self._at + len(view)] = view
            self._at += len(view)
            return
        while len(view):
            nbytes = PART_NBYTES << (self._n_parts // PARTS_OF_A_SIZE)
            if len(self._held) == nbytes:
                self._send()
                continue
            some = view[: nbytes - len(self._held)]
            self._held += some
            view = view[len(some) :]

    def rewind(self) -> None:
        """Go back to the first byte; raise StorageError if it has been sent."""
        if self._n_parts:
            raise StorageError(
                f"{self._objects.shown(self._path)}: what was sent cannot be rewritten there, and "
                "this format has to; choose another (--to tfrecord, zarr)"
            )
        self._at = 0

    def seal(self) -> None:
        """Send what is left; then all is there and nothing to be seen."""
        if not self._n_parts:
            return
        if self._held:
            self._send()
        with self._objects.errors(self._path):
            self._wait()
            self._stream.close()

    def complete(self) -> None:
        """Make the object appear."""
        if not self._n_parts:
            self._objects.put(self._path, bytes(self._held))
        else:
            try:
                with self._objects.errors(self._path):
                    if self._written == self._path:
                        self._stream.commit()
                    else:
                        self._objects.make_folder(self._path)
                        self._objects.fs.mv(self._written, self._path)
            except FileNotFoundError as error:
                shown = self._objects.shown(self._path)
                raise FileNotFoundError(errno.ENOENT, "its upload was dropped", shown) from error
        self._is_done = True

    def abort(self) -> None:
        """Drop it, unless it was completed."""
        if self._is_done:
            return
        self._is_done = True
        if self._sending is not None:
            wait([self._sending])  # a part that arrives later would stay
        if self._stream is None:
            return
        with self._objects.errors(self._path), suppress(FileNotFoundError):
            if self._written == self._path:
                self._stream.closed = True  # nothing more is sent
                self._stream.discard()
            else:
                self._stream.close()
                self._objects.remove([self._written])

    def held(self) -> bytearray:
        """Return what was not sent: all bytes, where they could be rewritten."""
        return self._held

    def _send(self) -> None:
        if not self._n_parts:
            self._begins()
        with self._objects.errors(self._path):
            self._wait()
            part, self._held = self._held, bytearray()
            self._n_parts += 1
            # In a thread, so that an interruption does not leave one whose answer is lost.
            self._sending = self._objects.threads.submit(self._send_now, part)

    def _send_now(self, part: bytearray) -> None:
        if self._stream is None:
            in_place = self._written == self._path
            if not in_place:
                self._objects.make_folder(self._written)
            more = {"block_size": PART_NBYTES, "autocommit": False} if in_place else {}
            self._stream = self._objects.fs.open(self._written, "wb", **more)
        self._stream.write(part)

    def _wait(self) -> None:
        if self._sending is not None:
            self._sending.result()


def keep_sealed(path: URL, upload: Upload) -> None:
    """Keep a finished upload, by the path that stands for it."""
    _sealed[os.getpid(), path.with_secrets()] = upload


def take_sealed(path: URL) -> Upload:
    """Return the finished upload of a path, to be completed or dropped by the caller."""
    upload = _sealed.pop((os.getpid(), path.with_secrets()), None)
    if upload is None:
        raise FileNotFoundError(errno.ENOENT, "no finished upload", str(path))
    return upload


def drop_sealed(folder: URL) -> None:
    """Drop the finished uploads below a folder."""
    pid, begin = os.getpid(), f"{folder.with_secrets()}/"
    for key in [key for key in list(_sealed) if key[0] == pid and key[1].startswith(begin)]:
        _sealed.pop(key).abort()
