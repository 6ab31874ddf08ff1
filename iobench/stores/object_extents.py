"""Extents of stores that are objects: their bytes, asked for at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.errors import StoreError
from iobench.files.remote_ranges import fetched, fill_views

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.files.ranges import FileRange

__all__ = ["fill_ranges", "read_ranges"]


def read_ranges(extents: Sequence[FileRange[Path]]) -> list[memoryview]:
    """Return the bytes of extents of one store, asked for at once.

    Raises
    ------
    StoreError
        If an object is missing or ends before an extent does.
    StorageError
        If the store of objects refuses.
    """
    try:
        found = fetched([(extent.file, extent.offset, extent.nbytes) for extent in extents])
    except FileNotFoundError as error:
        raise _missing(error) from error
    for extent, data in zip(extents, found, strict=True):
        if len(data) != extent.nbytes:
            raise _too_short(extent.file, extent.offset, extent.nbytes, len(data))
    return [memoryview(data) for data in found]


def fill_ranges(
    files: Sequence[Path],
    starts: Sequence[int],
    targets: Sequence[Sequence[memoryview]],
    *,
    in_flight: int,
) -> None:
    """Read ranges of objects to where their bytes shall be; the arguments are `fill_views`'s.

    Raises
    ------
    StoreError
        If an object is missing or ends before a range does.
    StorageError
        If the store of objects refuses.
    """
    try:
        filled = fill_views(files, starts, targets, in_flight=in_flight)
    except FileNotFoundError as error:
        raise _missing(error) from error
    for file, start, views, count in zip(files, starts, targets, filled, strict=True):
        if count != (expected := sum(map(len, views))):
            raise _too_short(file, start, expected, count)


def _missing(error: FileNotFoundError) -> StoreError:
    return StoreError(
        f"{error.filename} is missing, its store's manifest lists it; convert the store again"
    )


def _too_short(file: Path, start: int, expected: int, found: int) -> StoreError:
    return StoreError(
        f"{file}: the object ends at byte {start + found}, expected {expected} bytes from byte "
        f"{start}; convert the store again"
    )
