"""The bytes of one source file, on this machine or behind a URL: size, version, any stretch.

All readers of source files stand on this: what a file system has to be able to do is to say how
long a file is and to hand out bytes from the middle of it. A remote file is never copied; several
stretches of it are asked for at once.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from iobench.errors import FileFormatError, MissingFileError, StorageError
from iobench.files.memory import for_one_sample
from iobench.files.objects import (
    ObjectReader,
    fetched,
    fill_remote,
    read_whole_remote,
    remote_sizes,
)
from iobench.files.open_file import SOURCE_FILE, OpenFile, not_opened
from iobench.files.open_files import open_files
from iobench.files.urls import URL, as_path, is_url, range_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

REMOTE_FILES = 128
"""Of which size and version are kept."""


class RemoteBytes:
    """A file behind a URL; size and version are those of when the URL was looked up."""

    __slots__ = ("_url", "nbytes", "path", "version")

    def __init__(self, path: URL) -> None:
        self._url = path
        self.path = range_file(path)
        self.nbytes = path.stat().st_size
        self.version = path.version()

    def check(self) -> None:
        """Ask whether the file is as it was when it was opened."""
        try:
            now = self._url.looked_up()
        except FileNotFoundError as error:
            raise MissingFileError(f"{self._url}: no such file any more") from error
        if (now.stat().st_size, now.version()) != (self.nbytes, self.version):
            raise FileFormatError(
                f"{self._url}: changed while it was indexed; try again once it is complete"
            )

    def reader(self) -> ObjectReader:
        """Return a stream of its bytes that keeps pages of them."""
        return ObjectReader(self._url, self.nbytes)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return some bytes; fewer where the file ends."""
        return self.read_each([offset], nbytes)[0]

    def read_each(self, offsets: Sequence[int], nbytes: int) -> list[bytes]:
        """Return ``nbytes`` from each of some places, fewer where the file ends; all at once."""
        ends = [min(offset + nbytes, self.nbytes) for offset in offsets]
        places = zip(offsets, ends, strict=True)
        return fetched([(self._url, start, max(0, end - start)) for start, end in places])

    def fill(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from ``offset``; a file that ends before is an error."""
        fill_remote([(self._url, offset, buffer)])


SourceBytes = OpenFile | RemoteBytes
"""An open source file: ``nbytes`` and ``version`` as they were when it was opened."""


def open_source_file(path: str | Path) -> SourceBytes:
    """Open a source file by its path or URL; of one that was looked up nothing is asked for."""
    path = as_path(path)
    if isinstance(path, URL):
        return _open_remote(path)
    spelled = str(path)
    try:
        return OpenFile(spelled, SOURCE_FILE)
    except OSError as error:
        raise not_opened(spelled, SOURCE_FILE, error) from error


def _open_remote(url: URL) -> RemoteBytes:
    try:
        path = url if url.is_looked_up else url.looked_up()
        if path.is_dir():
            raise StorageError(f"{path}: is a folder, expected a file; name the files in it")
        return RemoteBytes(path)
    except FileNotFoundError as error:
        raise MissingFileError(f"{url}: no such file") from error


_cached_remote = lru_cache(maxsize=REMOTE_FILES)(_open_remote)


def cached_source_file(path: str) -> SourceBytes:
    """Return a source file as it was when it was looked into; opened once, if there is room."""
    if is_url(path):
        return _cached_remote(cast(URL, as_path(path)))
    return open_files.opened((path, SOURCE_FILE, 0))


def forget_source_files(below: str = "") -> None:
    """Forget what files were, those of a folder or all, so that a replaced one is seen."""
    open_files.forget([below] if below else None)
    _cached_remote.cache_clear()


def read_whole_files(
    paths: Sequence[str], *, allocate: Callable[[int], NDArray[np.uint8]] = for_one_sample
) -> list[memoryview | None]:
    """Return the content of files of one folder, None for those that are not there.

    Not through the cache of open files: of many thousands each is read once an epoch.
    """
    if paths and is_url(paths[0]):
        return read_whole_remote([cast(URL, as_path(path)) for path in paths], allocate)
    return [_whole_local(path, allocate) for path in paths]


def _whole_local(path: str, allocate: Callable[[int], NDArray[np.uint8]]) -> memoryview | None:
    try:
        opened = OpenFile(path, SOURCE_FILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise not_opened(path, SOURCE_FILE, error) from error
    buffer = allocate(opened.nbytes).data
    opened.fill(buffer, 0)
    return buffer


def file_nbytes(folder: str, name: str) -> int:
    """Return the size of a file below a folder, 0 if it is not there.

    A remote folder is listed once: for a plan, not to be sure.
    """
    if isinstance(folder, URL):
        return remote_sizes(folder).get(name, 0)
    path = Path(folder, name)
    return path.stat().st_size if path.exists() else 0
