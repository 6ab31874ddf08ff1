"""Writing one file of a shard: buffers in, name, size and checksum out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.files.atomic import new_file
from iobench.files.crc32c import crc32c, crc32c_of_file
from iobench.stores.manifest import ShardFile

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ShardFileWriter"]

SMALL_NBYTES = 1 << 16
BUFFER_NBYTES = 1 << 20


class ShardFileWriter:
    """One file of a shard, under a temporary name until ``commit``.

    Parameters
    ----------
    path : Path
        Where it shall appear.
    below : Path, optional
        The store's folder, where ``path`` is in a folder of it: what the manifest lists is the
        path from there. By default the file lies in the store's folder itself.

    Attributes
    ----------
    nbytes : int
        Bytes written so far.
    """

    def __init__(self, path: Path, *, below: Path | None = None) -> None:
        self._file = new_file(path, resumable=True, folder=below)
        self._path = path
        self._name = path.relative_to(below or path.parent).as_posix()
        self._small = memoryview(bytearray(BUFFER_NBYTES))  # one for all: fresh pages cost time
        self._n_small = 0
        self._crc32c = 0
        self._is_rewritten = False
        self.nbytes = 0

    def write(self, *pieces: Any) -> None:
        """Append buffers of bytes; raise StorageError, resumable, when the file system refuses."""
        for piece in pieces:
            nbytes = len(piece)
            end = self._n_small + nbytes
            if nbytes >= SMALL_NBYTES or end > BUFFER_NBYTES:
                self._flush()
                end = nbytes
            if nbytes >= SMALL_NBYTES:
                self._put(piece)
            else:
                self._small[self._n_small : end] = piece
                self._n_small = end
            self.nbytes += nbytes

    def rewrite_start(self, data: bytes) -> None:
        """Replace the first bytes, for headers that hold what only the end of a shard knows."""
        self._flush()
        self._file.rewind()
        self._file.write(data)
        self._is_rewritten = True

    def commit(self) -> ShardFile:
        """Sync to disk, rename into place and return what the manifest lists."""
        self._flush()
        self._file.commit()
        if self._is_rewritten:
            kept = self._file.kept()
            self._crc32c = crc32c_of_file(self._path) if kept is None else crc32c(kept)
        return ShardFile(self._name, self.nbytes, self._crc32c)

    def abort(self) -> None:
        """Drop the file."""
        self._file.abort()

    def _flush(self) -> None:
        if self._n_small:
            self._put(self._small[: self._n_small])
            self._n_small = 0

    def _put(self, data: Any) -> None:
        self._file.write(data)
        self._crc32c = crc32c(data, self._crc32c)
