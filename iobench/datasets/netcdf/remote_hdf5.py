"""HDF5 files behind a URL, as h5py opens them: metadata in small blocks, and no numbers."""

from __future__ import annotations

import gc
import io
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from iobench.datasets.source_bytes import open_source_file
from iobench.remote_paths import RemotePath

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iobench.datasets.source_bytes import SourceBytes

__all__ = ["BlockReader", "hdf5_source"]

BLOCK_NBYTES = 1 << 16
N_BLOCKS = 128


class BlockReader(io.RawIOBase):
    """A file for reading that keeps the blocks read last.

    HDF5 asks for headers of some hundred bytes and nodes of some KiB, many of them side by side.

    Parameters
    ----------
    opened : SourceBytes
        The file.
    """

    def __init__(self, opened: SourceBytes) -> None:
        self._opened = opened
        self._place = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._opened.nbytes}
        self._place = start[whence] + offset
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from here on, as far as the file goes; return how many bytes that is."""
        length = max(0, min(len(buffer), self._opened.nbytes - self._place))
        if length > BLOCK_NBYTES:  # numbers, asked for by whoever reads through h5py
            self._opened.fill(memoryview(buffer)[:length], self._place)
        done = length if length > BLOCK_NBYTES else 0
        while done < length:
            number, start = divmod(self._place + done, BLOCK_NBYTES)
            part = self._block(number)[start : start + length - done]
            buffer[done : done + len(part)] = part
            done += len(part)
        self._place += length
        return length

    def _block(self, number: int) -> bytes:
        block = self._blocks.pop(number, None)
        if block is None:
            block = self._opened.read_at(number * BLOCK_NBYTES, BLOCK_NBYTES)
            if len(self._blocks) >= N_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks[number] = block
        return block


@contextmanager
def hdf5_source(path: Path) -> Iterator[Any]:
    """Yield what `h5py.File` opens: the path of a local file, a file object for a remote one.

    Until it is done no garbage is collected. h5py holds its lock while it reads, and reading waits
    for fsspec's thread: were that thread to collect an object of h5py's, it would wait for the lock
    for ever.
    """
    if not isinstance(path, RemotePath):
        yield path
        return
    collects = gc.isenabled()
    gc.disable()
    try:
        yield BlockReader(open_source_file(path))
    finally:
        if collects:
            gc.enable()
