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


class JoinedRange(NamedTuple, Generic[F]):
    """What is read at once: from the first byte of some ranges to their last.

    Parameters
    ----------
    range : FileRange
        All of it.
    members : list of int
        Which ranges it is made of, in order of place.
    """

    range: FileRange[F]
    members: list[int]


def join_ranges(
    ranges: Sequence[FileRange[F]], gap_nbytes: int, *, overlapping: bool = True
) -> list[JoinedRange[F]]:
    """Return ranges, by number, joined where they lie close together, in order of place.

    Parameters
    ----------
    ranges : sequence of FileRange
        In any order, from any number of files; plain tuples do.
    gap_nbytes : int
        Ranges no further apart are one, with what lies between.
    overlapping : bool
        Whether ranges that have bytes in common are one.
    """
    found: list[JoinedRange[F]] = []
    file: Any = None
    start, end = 0, -1
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
            found.append(JoinedRange(FileRange(file, start, end - start), members))
        file, start, end, members = next_file, offset, offset + nbytes, [number]
    if members:
        found.append(JoinedRange(FileRange(file, start, end - start), members))
    return found
