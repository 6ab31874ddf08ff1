"""Ranges of files behind URLs: many at once, each no longer than was asked for."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, cast

from iobench.errors import FileFormatError, MissingFileError
from iobench.files.objects import AT_ONCE, Objects, objects_at
from iobench.files.urls import as_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from iobench.files.urls import URL

__all__ = [
    "ends_early",
    "fetched",
    "fill_remote",
    "fill_views",
    "read_whole_remote",
    "remote_sizes",
]

AT_ONCE_NBYTES = 64 << 20
"""Of remote ranges this much is asked for at once, and then copied to where it goes."""
PART_NBYTES = 8 << 20
"""Longer ranges come in parts: one connection does not fill the line."""


def fill_views(
    files: Sequence[str | Path],
    starts: Sequence[int],
    targets: Sequence[Sequence[memoryview]],
    *,
    in_flight: int = AT_ONCE,
) -> list[int]:
    """Read ranges of remote files into memory that lies in pieces; return the bytes of each.

    Fewer than there is memory: the file ends there.

    Parameters
    ----------
    files : sequence of URL
        The file of each range.
    starts : sequence of int
        Its first byte.
    targets : sequence of sequence of memoryview
        The memory it fills, piece after piece: as long as that is the range.
    in_flight : int
        Requests under way at once, at most.

    Raises
    ------
    FileNotFoundError
        Naming a file that is not there.
    StorageError
        If one cannot be read.
    """
    lengths = [sum(map(len, views)) for views in targets]
    filled: list[int] = []
    while len(filled) < len(files):
        first = last = len(filled)
        nbytes = 0
        while last < len(files) and (last == first or nbytes + lengths[last] <= AT_ONCE_NBYTES):
            nbytes += lengths[last]
            last += 1
        wanted = zip(files[first:last], starts[first:last], lengths[first:last], strict=True)
        found = fetched(list(wanted), in_flight)
        for number, views in enumerate(targets[first:last]):
            filled.append(_scattered(found[number], views))
            found[number] = b""
    return filled


def fill_remote(wanted: Iterable[tuple[str, int, memoryview]]) -> None:
    """Fill buffers from (URL, offset), many at once.

    Raises
    ------
    FileFormatError
        If a file ends before.
    MissingFileError, StorageError
        If it is not there, or cannot be read.
    """
    parts = [
        (path, offset + start, buffer[start : start + PART_NBYTES])
        for path, offset, buffer in wanted
        for start in range(0, len(buffer), PART_NBYTES)
    ]
    try:
        filled = fill_views(
            [path for path, _, _ in parts],
            [start for _, start, _ in parts],
            [[buffer] for _, _, buffer in parts],
        )
    except FileNotFoundError as error:
        raise MissingFileError(f"{error.filename}: no such file any more") from error
    for (path, offset, buffer), count in zip(parts, filled, strict=True):
        if count < len(buffer):
            raise ends_early(str(path), len(buffer) - count, offset + len(buffer))


def fetched(wanted: Sequence[tuple[str | Path, int, int]], in_flight: int = AT_ONCE) -> list[bytes]:
    """Return ranges of remote files, (URL, offset, length), fewer bytes where they end."""
    found = [b""] * len(wanted)
    by_server: dict[Objects, list[tuple[int, str, int, int]]] = {}
    for number, (url, offset, nbytes) in enumerate(wanted):
        if nbytes:  # HTTP has no way to ask for nothing
            objects, inside = objects_at(cast("URL", as_path(url)))
            by_server.setdefault(objects, []).append((number, inside, offset, offset + nbytes))
    for objects, asked in by_server.items():
        numbers, paths, starts, ends = (list(column) for column in zip(*asked, strict=True))
        for number, content in zip(
            numbers, objects.ranges(paths, starts, ends, in_flight), strict=True
        ):
            found[number] = content
    return found


def read_whole_remote(
    paths: Sequence[str], allocate: Callable[[int], NDArray[np.uint8]]
) -> list[memoryview | None]:
    """Return the content of files behind URLs, None for those that are not there."""
    found: list[memoryview | None] = []
    for start in range(0, len(paths), AT_ONCE):
        there = [objects_at(cast("URL", as_path(path))) for path in paths[start : start + AT_ONCE]]
        for content in there[0][0].read_each([path for _, path in there]):
            if content is None:
                found.append(None)
                continue
            buffer = allocate(len(content)).data
            buffer[:] = content
            found.append(buffer)
    return found


@lru_cache(maxsize=32)
def remote_sizes(folder: URL) -> dict[str, int]:
    """Return the sizes of all files below a URL, by what leads there, as they were when asked."""
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*")}


def ends_early(path: str, missing: int, end: int) -> FileFormatError:
    """Return the error for a file that ends before ``end``."""
    return FileFormatError(
        f"{path}: ends {missing} bytes before offset {end}: it is cut short or has changed since "
        "it was indexed; fetch it again"
    )


def _scattered(data: bytes, views: Sequence[memoryview]) -> int:
    """Copy bytes to memory that lies in pieces; return how many."""
    done = 0
    for view in views:
        some = data[done : done + len(view)] if done or len(view) < len(data) else data
        view[: len(some)] = some
        done += len(some)
    return done
