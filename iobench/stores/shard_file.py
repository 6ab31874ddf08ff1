"""Writing one file of a shard: buffers in, name, size and checksum out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.stores.atomic import AtomicFile, storage_errors
from iobench.stores.checksums import crc32c, crc32c_of_file
from iobench.stores.manifest import ShardFile

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ShardFileWriter"]


class ShardFileWriter:
    """One file of a shard, under a temporary name until ``commit``.

    Parameters
    ----------
    path : Path
        Where it shall appear.

    Attributes
    ----------
    nbytes : int
        Bytes written so far.
    """

    def __init__(self, path: Path) -> None:
        self._file = AtomicFile(path, resumable=True)
        self._crc32c = 0
        self._rewritten = False
        self.nbytes = 0

    def write(self, *pieces: Any) -> None:
        """Append buffers; raise StorageError, resumable, when the file system refuses."""
        with storage_errors(self._file.path, resumable=True):
            for piece in pieces:
                self._file.stream.write(piece)
                self._crc32c = crc32c(piece, self._crc32c)
                self.nbytes += len(piece)

    def rewrite_start(self, data: bytes) -> None:
        """Replace the first bytes, for headers that hold what only the end of a shard knows."""
        with storage_errors(self._file.path, resumable=True):
            self._file.stream.seek(0)
            self._file.stream.write(data)
        self._rewritten = True

    def commit(self) -> ShardFile:
        """Flush to disk, rename into place and return what the manifest lists."""
        self._file.commit()
        path = self._file.path
        crc = crc32c_of_file(path) if self._rewritten else self._crc32c
        return ShardFile(path.name, self.nbytes, crc)

    def abort(self) -> None:
        """Drop the file."""
        self._file.abort()
