"""Ranges of bytes of files, those that lie near each other joined; source files, here or elsewhere.

All readers of source files stand on this: what a file system has to be able to do is to say how
long a file is and to hand out bytes from the middle of it. A remote file is never copied; several
ranges of it are asked for at once.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from iobench.errors import FileFormatError, MissingFileError, StorageError
from iobench.files.memory import for_one_sample
from iobench.files.objects import (
    ObjectReader,
    fetched,
    fill_remote,
    read_objects,
    remote_sizes,
)
from iobench.files.open_files import SOURCE_FILE, OpenFile, not_opened, open_files
from iobench.files.urls import URL, as_path, is_url, range_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

F = TypeVar("F")
REMOTE_FILES = 128
"""Of which size and version are kept."""
MERGE_GAP_NBYTES = 4096
"""Extents no further apart than this are read at once: a page costs less than a system call."""
REMOTE_GAP_NBYTES = 65536
"""Behind a URL: a request costs as much as some hundred KiB, but they are sent side by side."""
ADVISED_NBYTES = 1 << 20
"""Of several stretches those shorter than this are announced first, so that the disk works on all
at once: 256 of 8 KiB, not cached, took 5 ms instead of 20; cached, 0.2 ms of 1.8 are for it."""

SHARED_NBYTES = 1 << 16
"""Stretches shorter than this are read into buffers they share."""
SHARED_BUFFER_NBYTES = 1 << 19


class FileRange(NamedTuple, Generic[F]):
    """Bytes ``offset`` to ``offset + nbytes`` of a file."""

    # its path, or what addresses it elsewhere: a string of source files, of stores a ``Path``; or
    # its number among some
    file: F
    offset: int  # the first byte
    nbytes: int  # how many

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.offset + self.nbytes


JoinedRange = tuple[FileRange[F], list[int]]
"""What is read at once, from the first byte of some ranges to their last, and which ranges it is
made of, in order of place. One that is alone is itself."""


def join_ranges(ranges: Sequence[FileRange[F]], gap_nbytes: int) -> list[JoinedRange[F]]:
    """Return ranges, by number, joined where they lie close together, in order of place."""
    joined: list[JoinedRange[F]] = []
    file: Any = None
    end = -1
    members: list[int] = []
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        next_file, offset, nbytes = ranges[number]
        if members and next_file == file and offset <= end + gap_nbytes:
            members.append(number)
            end = max(end, offset + nbytes)
            continue
        if members:
            joined.append((_whole(ranges, members, end), members))
        file, end, members = next_file, offset + nbytes, [number]
    if members:
        joined.append((_whole(ranges, members, end), members))
    return joined


def _whole(ranges: Sequence[FileRange[F]], members: Sequence[int], end: int) -> FileRange[F]:
    first = ranges[members[0]]
    return first if len(members) == 1 else FileRange(first[0], first[1], end - first[1])


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


def read_whole_files(paths: Sequence[str]) -> list[memoryview | None]:
    """Return the content of files of one folder, None for those that are not there.

    Not through the table of open files: of many thousands each is read once an epoch.
    """
    if paths and is_url(paths[0]):
        contents = read_objects([cast(URL, as_path(path)) for path in paths])
        return [each if each is None else memoryview(each) for each in contents]
    return list(map(_whole_local, paths))


def _whole_local(path: str) -> memoryview | None:
    try:
        opened = OpenFile(path, SOURCE_FILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise not_opened(path, SOURCE_FILE, error) from error
    buffer = for_one_sample(opened.nbytes).data
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


def _announce(joined: Sequence[JoinedRange[str]]) -> None:
    """Tell the kernel what will be read next, where that is scattered: of two it costs more."""
    if len(joined) < 3:
        return
    last = ""
    for (path, start, nbytes), _ in joined:
        if 0 < nbytes < ADVISED_NBYTES:
            if path != last:
                last, opened = path, open_files.opened((path, SOURCE_FILE, 0))
            opened.announce(start, nbytes)


def announce_range(path: str, start: int, nbytes: int) -> None:
    """Tell the kernel that a range of a file will be read soon; nothing of a file behind a URL."""
    if not is_url(path):
        open_files.opened((path, SOURCE_FILE, 0)).announce(start, nbytes)


def read_extents(extents: Sequence[FileRange[str]]) -> list[memoryview]:
    """Read extents, neighbours at once."""
    buffers: list[memoryview] = [memoryview(b"")] * len(extents)
    if any(is_url(path) for path in {path for path, _, _ in extents}):
        joined = join_ranges(extents, REMOTE_GAP_NBYTES)
        reads = [(path, start, for_one_sample(nbytes).data) for (path, start, nbytes), _ in joined]
        fill_remote((cast(URL, as_path(path)), start, buffer) for path, start, buffer in reads)
    else:
        joined = join_ranges(extents, MERGE_GAP_NBYTES)
        _announce(joined)
        reads = list(_read_local(joined))
    for (_, members), (_, start, buffer) in zip(joined, reads, strict=True):
        if len(members) == 1:
            buffers[members[0]] = buffer
            continue
        for number in members:
            _, offset, n_bytes = extents[number]
            buffers[number] = buffer[offset - start : offset - start + n_bytes]
    return buffers


def _read_local(
    joined: Sequence[JoinedRange[str]],
) -> Iterator[tuple[str, int, memoryview]]:
    # Hundreds of short rows make up one patch: a buffer each would cost as much as reading it.
    short = sum(nbytes for (_, _, nbytes), _ in joined if nbytes < SHARED_NBYTES)
    shared, used = memoryview(bytearray()), 0  # may be written: a stretch of no bytes is read, too
    last = ""
    for (path, start, length), _ in joined:
        if length >= SHARED_NBYTES:
            buffer = for_one_sample(length).data
        else:
            if used + length > len(shared):
                # Not all in one: memory of this size is used again, larger comes fresh by page.
                shared, used = np.empty(min(short, SHARED_BUFFER_NBYTES), dtype=np.uint8).data, 0
            buffer = shared[used : used + length]
            used += length
            short -= length
        if path != last:
            last, opened = path, open_files.opened((path, SOURCE_FILE, 0))
        opened.fill(buffer, start)
        yield path, start, buffer
