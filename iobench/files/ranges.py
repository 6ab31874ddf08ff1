"""Ranges of bytes of files: those that lie near each other joined, and the loop that reads one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

F = TypeVar("F")
MAX_VIEWS: Final = 1024
"""What ``preadv`` takes at once (``IOV_MAX`` of Linux)."""


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


def join_ranges(
    ranges: Sequence[FileRange[F]], gap_nbytes: int, *, overlapping: bool = True
) -> list[JoinedRange[F]]:
    """Return ranges, by number, joined where they lie close together, in order of place."""
    joined: list[JoinedRange[F]] = []
    file: Any = None
    end = -1
    members: list[int] = []
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        next_file, offset, nbytes = ranges[number]
        if (
            members
            and next_file == file
            and offset <= end + gap_nbytes
            and (overlapping or offset >= end)
        ):
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


def read_into(descriptor: int, views: Sequence[memoryview], offset: int, end: int) -> int:
    """Read bytes ``offset`` to ``end`` of a file into memory, view after view; return how far."""
    while offset < end:
        count = os.preadv(descriptor, views[:MAX_VIEWS], offset)
        offset += count
        if count == 0:
            break
        if offset < end:
            _, views = cut_views(views, count)
    return offset


def cut_views(
    views: Sequence[memoryview], nbytes: int
) -> tuple[Sequence[memoryview], Sequence[memoryview]]:
    """Return the first bytes of views, and the others."""
    left = nbytes
    for number, view in enumerate(views):
        if left < len(view):
            return [*views[:number], view[:left]], [view[left:], *views[number + 1 :]]
        left -= len(view)
    return views, []
