"""Stretches of files behind URLs: many at once, each no longer than was asked for."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from iobench.errors import FileFormatError, MissingFileError, StorageError
from iobench.remote import open_filesystem, remote_errors, shown_url
from iobench.remote_paths import RemotePath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ends_early", "fetched", "fill_remote", "read_whole_remote", "remote_sizes"]

AT_ONCE_NBYTES = 32 << 20
"""Of remote stretches this much is asked for at once, and then copied to where it goes."""
PART_NBYTES = 8 << 20
"""Longer stretches come in parts: one connection does not fill the line."""
AT_ONCE = 64
"""And this many of them: enough to hide what a request takes, and no burden to a server."""

_Wanted = tuple[str, int, memoryview]


def fill_remote(wanted: Iterable[_Wanted]) -> None:
    """Fill buffers from (URL, offset), many at once.

    Raises
    ------
    FileFormatError
        If a file ends before.
    MissingFileError, StorageError
        If it is not there, or cannot be read.
    """
    for group in _groups(wanted):
        contents = fetched([(path, offset, len(buffer)) for path, offset, buffer in group])
        for number, (path, offset, buffer) in enumerate(group):
            content, contents[number] = contents[number], b""
            if len(content) < len(buffer):
                end = offset + len(buffer)
                raise ends_early(shown_url(path), len(buffer) - len(content), end)
            buffer[:] = content


def _groups(wanted: Iterable[_Wanted]) -> Iterator[list[_Wanted]]:
    """Yield what is asked for at once: long stretches in parts, short ones together."""
    group: list[_Wanted] = []
    room = AT_ONCE_NBYTES
    for path, offset, buffer in wanted:
        for start in range(0, len(buffer), PART_NBYTES):
            part = buffer[start : start + PART_NBYTES]
            if group and (room < len(part) or len(group) == AT_ONCE):
                yield group
                group, room = [], AT_ONCE_NBYTES
            group.append((path, offset + start, part))
            room -= len(part)
    if group:
        yield group


def fetched(wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Return stretches of remote files, (URL, offset, length), fewer bytes where they end."""
    found = [b""] * len(wanted)
    by_base: dict[int, tuple[object, list[tuple[int, str, int, int]]]] = {}
    for number, (url, offset, nbytes) in enumerate(wanted):
        if nbytes == 0:
            continue  # HTTP has no way to ask for nothing
        filesystem, inside = open_filesystem(url)
        by_base.setdefault(id(filesystem), (filesystem, []))[1].append(
            (number, inside, offset, offset + nbytes)
        )
    for filesystem, asked in by_base.values():
        numbers, paths, starts, ends = (list(column) for column in zip(*asked, strict=True))
        url = wanted[numbers[0]][0]
        try:
            with remote_errors(url):
                contents = filesystem.cat_ranges(paths, starts, ends, on_error="raise")  # type: ignore[attr-defined]
        except FileNotFoundError as error:
            raise MissingFileError(f"{shown_url(url)}: no such file any more") from error
        for number, content in zip(numbers, contents, strict=True):
            path, _, nbytes = wanted[number]
            if len(content) > nbytes:
                raise StorageError(
                    f"{shown_url(path)}: asked for {nbytes} bytes, got {len(content)}: the server "
                    "hands out files only whole; copy the file here first"
                )
            found[number] = content
    return found


def read_whole_remote(
    paths: Sequence[str], allocate: Callable[[int], NDArray[np.uint8]]
) -> list[memoryview | None]:
    """Return the content of files behind URLs, None for those that are not there."""
    found: list[memoryview | None] = []
    for start in range(0, len(paths), AT_ONCE):
        some = list(paths[start : start + AT_ONCE])
        with remote_errors(some[0]):
            filesystem = open_filesystem(some[0])[0]
            inside = [open_filesystem(path)[1] for path in some]
            every = [None] * len(some)
            contents = filesystem.cat_ranges(inside, every, every, on_error="return")
            for number, content in enumerate(contents):
                if isinstance(content, FileNotFoundError):
                    found.append(None)
                    continue
                if isinstance(content, Exception):
                    raise content
                buffer = allocate(len(content)).data
                buffer[:] = content
                contents[number] = None
                found.append(buffer)
    return found


@lru_cache(maxsize=32)
def remote_sizes(folder: str) -> dict[str, int]:
    """Return the sizes of all files below a URL, as they were when it was first asked for."""
    return {str(path): path.stat().st_size for path in RemotePath(folder).rglob("*")}


def ends_early(path: str, missing: int, end: int) -> FileFormatError:
    """Return the error for a file that ends before ``end``."""
    return FileFormatError(
        f"{path}: ends {missing} bytes before offset {end}: it is cut short or has changed since "
        "it was indexed; fetch it again"
    )
