"""Reading objects by ranges: as a stream from front to back, and as extents, many at once."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from iobench.errors import StoreError
from iobench.stores.remote.objects import objects_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.files.ranges import FileRange
    from iobench.stores.remote.objects import Objects

__all__ = ["RangeReader", "fill_ranges", "read_ranges"]

AHEAD_NBYTES = 8 << 20
SMALL_NBYTES = 1 << 16


class RangeReader(io.RawIOBase):
    """An object as a stream of bytes.

    What is read from front to back is asked for in stretches that grow to 8 MiB, so that neither
    a header costs much nor a whole file many requests.
    """

    def __init__(self, objects: Objects, path: str, nbytes: int) -> None:
        super().__init__()
        self._objects = objects
        self._path = path
        self._nbytes = nbytes
        self._at = 0
        self._start = 0
        self._held = memoryview(b"")
        self._ahead = SMALL_NBYTES // 4

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def seekable(self) -> bool:
        """Return that it is."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        self._at = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        )
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return how many bytes, 0 at the end."""
        view = memoryview(buffer)
        done = 0
        while done < len(view):  # to the end of it: who reads a header takes less for damage
            if not self._start <= self._at < self._start + len(self._held):
                self._fetch(len(view) - done)
            begin = self._at - self._start
            some = self._held[begin : begin + len(view) - done]
            if not len(some):
                break
            view[done : done + len(some)] = some
            self._at += len(some)
            done += len(some)
        return done

    def _fetch(self, wanted: int) -> None:
        is_next = self._at == self._start + len(self._held)
        self._ahead = min(AHEAD_NBYTES, 4 * self._ahead) if is_next else SMALL_NBYTES
        end = min(self._nbytes, self._at + max(wanted, self._ahead))
        found = b""
        if end > self._at:
            (found,) = self._objects.ranges([self._path], [self._at], [end])
        self._start, self._held = self._at, memoryview(found)


def read_ranges(extents: Sequence[FileRange[Path]]) -> list[memoryview]:
    """Return the bytes of extents of one store, asked for at once.

    Raises
    ------
    StoreError
        If an object is missing or ends before an extent does.
    StorageError
        If the store of objects refuses.
    """
    there = [objects_at(extent.file.url) for extent in extents]  # type: ignore[attr-defined]
    wanted = [number for number, extent in enumerate(extents) if extent.nbytes]
    found = [memoryview(b"")] * len(extents)
    if not wanted:
        return found
    try:
        data = there[0][0].ranges(
            [there[number][1] for number in wanted],
            [extents[number].offset for number in wanted],
            [extents[number].end for number in wanted],
        )
    except FileNotFoundError as error:
        raise _missing(error) from error
    for number, one in zip(wanted, data, strict=True):
        extent = extents[number]
        if len(one) != extent.nbytes:
            raise _too_short(extent.file, extent.offset, extent.nbytes, len(one))
        found[number] = memoryview(one)
    return found


def fill_ranges(
    files: Sequence[Path],
    starts: Sequence[int],
    targets: Sequence[Sequence[memoryview]],
    *,
    in_flight: int,
) -> None:
    """Read stretches of objects to where their bytes shall be.

    Parameters
    ----------
    files : sequence of StoreAddress
        The object of each stretch; all of one store.
    starts : sequence of int
        Its first byte.
    targets : sequence of sequence of memoryview
        The memory it fills, piece after piece: as long as that is the stretch.
    in_flight : int
        Requests under way at once, at most.

    Raises
    ------
    StoreError
        If an object is missing or ends before a stretch does.
    StorageError
        If the store of objects refuses.
    """
    if not files:
        return
    there = [objects_at(file.url) for file in files]  # type: ignore[attr-defined]
    try:
        filled = there[0][0].fill([path for _, path in there], starts, targets, in_flight)
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
