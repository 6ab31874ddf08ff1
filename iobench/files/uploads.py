"""Uploads: bytes on their way to an object, which appears in the end and not before.

obstore sends them as an upload in parts while they are written, and drops that upload when the
pieces end with an error. Of a process that was killed the parts stay, hidden, until the bucket's
rule for incomplete uploads removes them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from iobench.errors import StorageError
from iobench.files.object_requests import ask, library, store_of
from iobench.files.objects import put

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

    from iobench.files.urls import URL

PART_NBYTES = 8 << 20
"""Of each part; what is not larger is put as a whole."""
MOST_PARTS = 10_000
"""Of S3, which hold 78 GiB."""
AT_ONCE = 4
"""Parts under way, and so in memory."""

_sealed: dict[tuple[int, str], Upload] = {}
"""Finished uploads of this process, by the path in scratch that stands for them."""


class _DroppedError(Exception):
    """Ends the pieces of an upload that is dropped."""


class Upload:
    """Bytes on their way to an object, sent while more are made."""

    def __init__(self, target: URL) -> None:
        self._target = target
        self._held = bytearray()
        self._at: int | None = None  # where in what is held, after rewind
        self._parts: asyncio.Queue[bytearray | None]
        self._sending: asyncio.Task[Any] | None = None
        self._n_parts = 0
        self._is_dropped = self._is_done = False

    def write(self, data: Any) -> None:
        """Append all of a buffer; after ``rewind`` write over the first bytes."""
        view = memoryview(data).cast("B")
        if self._at is not None:
            self._held[self._at : self._at + len(view)] = view
            self._at += len(view)
            return
        while len(view):
            if len(self._held) == PART_NBYTES:
                self._n_parts += 1
                if self._n_parts == MOST_PARTS:
                    raise StorageError(
                        f"{self._target}: is longer than the {MOST_PARTS:,} parts of "
                        f"{PART_NBYTES >> 20} MiB that an upload may have; choose a smaller "
                        "--shard-size"
                    )
                part, self._held = self._held, bytearray()
                ask([self._target], [self._send(part)])
            some = view[: PART_NBYTES - len(self._held)]
            self._held += some
            view = view[len(some) :]

    def rewind(self) -> None:
        """Go back to the first byte; raise StorageError if it has been sent."""
        if self._sending is not None:
            raise StorageError(
                f"{self._target}: what was sent cannot be rewritten there, and this format has to; "
                "choose another (--to tfrecord, zarr)"
            )
        self._at = 0

    def complete(self) -> None:
        """Send what is left, and make the object appear."""
        if self._sending is None:
            put(self._target, bytes(self._held))
        else:
            ask([self._target], [self._end()])
        self._is_done = True

    def abort(self) -> None:
        """Drop it, unless it was completed."""
        if not self._is_done and self._sending is not None:
            self._is_dropped = True
            ask([self._target], [self._drop()])
        self._is_done = True

    def held(self) -> bytearray:
        """Return what was not sent: all bytes, where they could be rewritten."""
        return self._held

    async def _send(self, part: bytearray) -> None:
        import asyncio

        if self._sending is None:
            self._parts = asyncio.Queue()
            self._sending = asyncio.ensure_future(self._put())
        while self._parts.qsize() and not self._sending.done():
            await asyncio.sleep(0.002)
        if self._sending.done():
            self._sending.result()
        self._parts.put_nowait(part)

    async def _end(self) -> None:
        assert self._sending is not None
        self._parts.put_nowait(self._held)
        self._parts.put_nowait(None)
        await self._sending

    async def _drop(self) -> None:
        import asyncio

        assert self._sending is not None
        self._parts.put_nowait(None)
        await asyncio.wait([self._sending])
        self._sending.exception()

    async def _put(self) -> None:
        store, key = store_of(self._target)
        await library(self._target).put_async(
            store,
            key,
            self._pieces(),
            use_multipart=True,
            chunk_size=PART_NBYTES,
            max_concurrency=AT_ONCE,
        )

    async def _pieces(self) -> AsyncIterator[bytearray]:
        while (part := await self._parts.get()) is not None:
            if self._is_dropped:
                break
            if part:
                yield part
        if self._is_dropped:
            raise _DroppedError


def keep_sealed(path: URL, upload: Upload) -> None:
    """Keep a finished upload, by the path that stands for it."""
    _sealed[os.getpid(), path.with_secrets()] = upload


def take_sealed(path: URL) -> Upload:
    """Return the finished upload of a path, to be completed or dropped by the caller."""
    upload = _sealed.pop((os.getpid(), path.with_secrets()), None)
    if upload is None:
        raise FileNotFoundError(2, "no finished upload", str(path))
    return upload


def drop_sealed(folder: URL) -> None:
    """Drop the finished uploads below a folder."""
    pid, begin = os.getpid(), f"{folder.with_secrets()}/"
    for key in [key for key in list(_sealed) if key[0] == pid and key[1].startswith(begin)]:
        _sealed.pop(key).abort()
