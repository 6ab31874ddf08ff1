"""Ranges of files behind URLs: many at once, each no longer than was asked for."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, cast

from iobench.errors import FileFormatError, MissingFileError
from iobench.files.objects import AT_ONCE, Objects, objects_at
from iobench.files.urls import URL, as_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

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

    Fewer than there is memory: the file ends there. Of a `URL` that was looked up it is the version
    that was there then.
    """
    filled = [0] * len(files)
    for objects, numbers, paths, etags in _by_server(files):
        counts = objects.fill(
            paths, [starts[n] for n in numbers], [targets[n] for n in numbers], in_flight, etags
        )
        for number, count in zip(numbers, counts, strict=True):
            filled[number] = count
    return filled


def fill_remote(wanted: Iterable[tuple[str, int, memoryview]]) -> None:
    """Fill buffers from (URL, offset), many at once."""
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
    asked = [number for number, (_, _, nbytes) in enumerate(wanted) if nbytes]
    for objects, chosen, paths, etags in _by_server([wanted[number][0] for number in asked]):
        numbers = [asked[place] for place in chosen]
        starts = [wanted[number][1] for number in numbers]
        ends = [wanted[number][1] + wanted[number][2] for number in numbers]
        contents = objects.ranges(paths, starts, ends, in_flight, etags)
        for number, content in zip(numbers, contents, strict=True):
            found[number] = content
    return found


def _by_server(
    files: Sequence[str | Path],
) -> Iterator[tuple[Objects, list[int], list[str], list[str]]]:
    """Yield the objects of each server, the numbers of the files there, paths and versions."""
    found: dict[Objects, tuple[list[int], list[str], list[str]]] = {}
    for number, file in enumerate(files):
        url = cast("URL", as_path(file))
        objects, path = objects_at(url)
        numbers, paths, etags = found.setdefault(objects, ([], [], []))
        numbers.append(number)
        paths.append(path)
        etags.append(url.etag)
    for objects, (numbers, paths, etags) in found.items():
        yield objects, numbers, paths, etags


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


def states_of(urls: Sequence[URL]) -> list[URL]:
    """Return those that are there, looked up side by side."""
    found = []
    for objects, numbers, paths, _ in _by_server(cast("Sequence[Path]", urls)):
        states = objects.stat_each(paths, may_hide=True)
        found += [
            URL(urls[number].with_secrets(), state)
            for number, state in zip(numbers, states, strict=True)
            if state is not None
        ]
    return found


def ends_early(path: str, missing: int, end: int) -> FileFormatError:
    """Return the error for a file that ends before ``end``."""
    return FileFormatError(
        f"{path}: ends {missing} bytes before offset {end}: it is cut short or has changed since "
        "it was indexed; fetch it again"
    )
