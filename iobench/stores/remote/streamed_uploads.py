"""Uploads to whatever fsspec opens: written under another name, renamed in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.errors import StorageError
from iobench.stores.checksums import crc32c
from iobench.stores.remote.objects import FIRST_NBYTES

if TYPE_CHECKING:
    from iobench.stores.remote.objects import Objects

__all__ = ["StreamedUpload"]


class StreamedUpload:
    """An upload under a temporary name that is renamed; of any file system.

    The first bytes can be rewritten as long as nothing was sent.
    """

    def __init__(self, objects: Objects, path: str, temporary: str) -> None:
        self._objects = objects
        self._path = path
        self._temporary = temporary
        self._first = bytearray()
        self._at: int | None = None  # where in the first bytes, after rewind
        self._stream: Any = None
        self._is_done = False

    def write(self, data: Any) -> None:
        """Append all of a buffer; after ``rewind`` write over the first bytes."""
        with self._objects.errors(self._path):
            if self._at is not None:
                self._first[self._at : self._at + len(data)] = data
                self._at += len(data)
            elif self._stream is not None:
                self._stream.write(data)
            else:
                self._first += data
                if len(self._first) >= FIRST_NBYTES:
                    self._send()

    def rewind(self) -> None:
        """Go back to the first byte."""
        if self._stream is not None:
            raise StorageError(
                f"{self._objects.shown(self._path)}: what was sent cannot be rewritten there, and "
                "this format has to; choose another (--to tfrecord, zarr) or s3://"
            )
        self._at = 0

    def seal(self) -> None:
        """Send what is left; then all is there and nothing to be seen."""
        with self._objects.errors(self._path):
            if self._stream is None:
                self._send()
            self._stream.close()

    def complete(self) -> None:
        """Make the object appear."""
        with self._objects.errors(self._path):
            self._objects.fs.makedirs(self._path.rpartition("/")[0], exist_ok=True)
            self._objects.fs.mv(self._temporary, self._path)
        self._is_done = True

    def abort(self) -> None:
        """Drop it, unless it was completed."""
        if not self._is_done and self._stream is not None:
            self._stream.close()
            self._objects.remove([self._temporary])
        self._is_done = True

    def crc32c(self, before: int) -> int:
        """Return the CRC-32C of all bytes; nothing was sent before the first were rewritten."""
        return before if self._at is None else crc32c(self._first)

    def _send(self) -> None:
        self._objects.fs.makedirs(self._temporary.rpartition("/")[0], exist_ok=True)
        self._stream = self._objects.fs.open(self._temporary, "wb")
        self._stream.write(bytes(self._first))
