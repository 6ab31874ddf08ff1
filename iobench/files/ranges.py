"""Ranges of bytes of files, and those that lie near each other joined to one read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FileRange", "JoinedRange", "join_ranges"]

F = TypeVar("F")


class FileRange(NamedTuple, Generic[F]):
    """Bytes ``offset`` to ``offset + nbytes`` of a file.

    Parameters
    ----------
    file : str, Path or int
        Its path, or what addresses it elsewhere: a string of source files, of stores a ``Path``;
        or its number among some.
    offset : int
        The first byte.
    nbytes : int
        How many.
    """

    file: F
    offset: int
    nbytes: int

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
    """Return ranges, by number, joined where they lie close together, in order of place.

    Parameters
    ----------
    ranges : sequence of FileRange
        In any order, from any number of files.
    gap_nbytes : int
        Ranges no further apart are one, with what lies between.
    overlapping : bool
        Whether ranges that have bytes in common are one.
    """
    found: list[JoinedRange[F]] = []
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
            found.append((_whole(ranges, members, end), members))
        file, end, members = next_file, offset + nbytes, [number]
    if members:
        found.append((_whole(ranges, members, end), members))
    return found


def _whole(ranges: Sequence[FileRange[F]], members: Sequence[int], end: int) -> FileRange[F]:
    first = ranges[members[0]]
    return first if len(members) == 1 else FileRange(first[0], first[1], end - first[1])
