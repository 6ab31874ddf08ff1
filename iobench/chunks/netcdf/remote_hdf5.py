"""HDF5 files behind a URL, as h5py opens them: metadata in small pages, and no numbers."""

from __future__ import annotations

import gc
import io
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from iobench.files.open_file import OpenFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.files.source_files import RemoteBytes, SourceBytes

PAGE_NBYTES = 1 << 16
N_PAGES = 128


class PageReader(io.RawIOBase):
    """A file for reading that keeps the pages read last.

    HDF5 asks for headers of some hundred bytes and nodes of some KiB, many of them side by side.
    """

    def __init__(self, opened: SourceBytes) -> None:
        self._opened = opened
        self._place = 0
        self._pages: OrderedDict[int, bytes] = OrderedDict()

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
        if length > PAGE_NBYTES:  # numbers, asked for by whoever reads through h5py
            self._opened.fill(memoryview(buffer)[:length], self._place)
        done = length if length > PAGE_NBYTES else 0
        while done < length:
            number, start = divmod(self._place + done, PAGE_NBYTES)
            part = self._page(number)[start : start + length - done]
            buffer[done : done + len(part)] = part
            done += len(part)
        self._place += length
        return length

    def _page(self, number: int) -> bytes:
        page = self._pages.pop(number, None)
        if page is None:
            page = self._opened.read_at(number * PAGE_NBYTES, PAGE_NBYTES)
            if len(self._pages) >= N_PAGES:
                self._pages.popitem(last=False)
        self._pages[number] = page
        return page


@contextmanager
def hdf5_source(opened: OpenFile | RemoteBytes) -> Iterator[Any]:
    """Yield what `h5py.File` opens: the path of a local file, a file object for a remote one.

    Until it is done no garbage is collected. h5py holds its lock while it reads, and reading waits
    for the thread of requests: were that thread to collect an object of h5py's, it would wait for
    the lock for ever.
    """
    if isinstance(opened, OpenFile):
        yield opened.path
        return
    collects = gc.isenabled()
    gc.disable()
    try:
        yield PageReader(opened)
    finally:
        if collects:
            gc.enable()
