"""Ranges of bytes of files, those that lie near each other joined; source files, here or elsewhere.

All readers of source files stand on this: what a file system has to be able to do is to say how
long a file is and to hand out bytes from the middle of it. A remote file is never copied; several
ranges of it are asked for at once.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

import numpy as np

from iobench.errors import MissingFileError, StorageError
from iobench.files.memory import for_one_sample
from iobench.files.objects import RemoteFile, fill_remote, read_objects
from iobench.files.open_files import SOURCE_FILE, OpenFile, forget_files, not_opened, open_file
from iobench.files.urls import URL, as_path, is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

F = TypeVar("F")
REMOTE_FILES: Final = 128
"""Of which size and version are kept."""
MERGE_GAP_NBYTES: Final = 4096
"""Extents no further apart than this are read at once: a page costs less than a system call."""
REMOTE_GAP_NBYTES: Final = 65536
"""Behind a URL: a request costs as much as some hundred KiB, but they are sent side by side."""
ADVISED_NBYTES: Final = 1 << 20
"""Of several stretches those shorter than this are announced first, so that the disk works on all
at once: 256 of 8 KiB, not cached, took 5 ms instead of 20; cached, 0.2 ms of 1.8 are for it."""
SHARED_NBYTES: Final = 1 << 16
"""Stretches shorter than this are read into buffers they share."""
SHARED_BUFFER_NBYTES: Final = 1 << 19


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
    whole: Any = None
    members: list[int] = []
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        each = ranges[number]
        file, offset, nbytes = each
        if members and file == whole[0] and offset <= whole[1] + whole[2] + gap_nbytes:
            members.append(number)
            whole = FileRange(file, whole[1], max(whole[2], offset + nbytes - whole[1]))
            joined[-1] = whole, members
        else:
            whole, members = each, [number]
            joined.append((whole, members))
    return joined


def cut_joined(
    ranges: Sequence[FileRange[F]],
    joined: Sequence[JoinedRange[F]],
    buffers: Sequence[memoryview],
) -> list[memoryview]:
    """Return what was read of each range from what was read of those that they were joined to."""
    result: list[memoryview] = [memoryview(b"")] * len(ranges)
    for (whole, members), buffer in zip(joined, buffers, strict=True):
        for number in members:
            _, offset, nbytes = ranges[number]
            start = offset - whole[1]
            result[number] = buffer if len(members) == 1 else buffer[start : start + nbytes]
    return result


SourceBytes = OpenFile | RemoteFile
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


def _open_remote(url: URL) -> RemoteFile:
    try:
        path = url if url.is_looked_up else url.looked_up()
        if path.is_dir():
            raise StorageError(f"{path}: is a folder, expected a file; name the files in it")
        return RemoteFile(path)
    except FileNotFoundError as error:
        raise MissingFileError(f"{url}: no such file") from error


_cached_remote = lru_cache(maxsize=REMOTE_FILES)(_open_remote)


def cached_source_file(path: str) -> SourceBytes:
    """Return a source file as it was when it was looked into; opened once, if there is room."""
    if is_url(path):
        return _cached_remote(cast(URL, as_path(path)))
    return open_file(path)


def forget_source_files(below: str = "") -> None:
    """Forget what files were, those of a folder or all, so that a replaced one is seen."""
    forget_files([below] if below else None)
    _cached_remote.cache_clear()


def read_whole_files(paths: Sequence[str]) -> list[memoryview | None]:
    """Return the content of files of one folder, None for those that are not there.

    Not through the table of open files: of many thousands each is read once an epoch.
    """
    if paths and is_url(paths[0]):
        contents = read_objects([cast(URL, as_path(path)) for path in paths])
        return [each if each is None else memoryview(each) for each in contents]
    result: list[memoryview | None] = []
    for path in paths:
        try:
            opened = open_source_file(path)
        except MissingFileError:
            result.append(None)
            continue
        buffer = for_one_sample(opened.nbytes).data
        opened.fill(buffer, 0)
        result.append(buffer)
    return result


def read_extents(
    extents: Sequence[FileRange[Any]], opened: Callable[[Any], OpenFile] = open_file
) -> list[memoryview]:
    """Read extents, neighbours at once; ``opened`` returns files of this machine."""
    if not extents:
        return []
    is_remote = any(is_url(path) for path in {path for path, _, _ in extents})
    joined = join_ranges(extents, REMOTE_GAP_NBYTES if is_remote else MERGE_GAP_NBYTES)
    buffers = _buffers([nbytes for (_, _, nbytes), _ in joined])
    fill_extents([whole for whole, _ in joined], buffers, opened)
    return cut_joined(extents, joined, buffers)


def fill_extents(
    extents: Sequence[FileRange[Any]],
    buffers: Sequence[memoryview],
    opened: Callable[[Any], OpenFile] = open_file,
) -> None:
    """Fill a buffer from each extent."""
    paths = {path for path, _, _ in extents}
    files = {path: None if is_url(path) else opened(path) for path in paths}
    remote: list[tuple[URL, int, memoryview]] = []
    for path, start, nbytes in extents if len(extents) > 2 else ():  # of two it costs more
        if (file := files[path]) is not None and 0 < nbytes < ADVISED_NBYTES:
            file.announce(start, nbytes)
    for (path, start, _), buffer in zip(extents, buffers, strict=True):
        if (file := files[path]) is None:
            remote.append((cast(URL, as_path(path)), start, buffer))
        else:
            file.fill(buffer, start)
    if remote:
        fill_remote(remote)


def _buffers(sizes: Sequence[int]) -> list[memoryview]:
    """Return memory for what is read: a buffer for each short row would cost as much as reading."""
    short = sum(nbytes for nbytes in sizes if nbytes < SHARED_NBYTES)
    shared, used = memoryview(bytearray()), 0  # may be written: a stretch of no bytes is read, too
    buffers = []
    for nbytes in sizes:
        if nbytes >= SHARED_NBYTES:
            buffers.append(for_one_sample(nbytes).data)
            continue
        if used + nbytes > len(shared):
            # Not all in one: memory of this size is used again, larger comes fresh by page.
            shared, used = np.empty(min(short, SHARED_BUFFER_NBYTES), dtype=np.uint8).data, 0
        buffers.append(shared[used : used + nbytes])
        used, short = used + nbytes, short - nbytes
    return buffers
