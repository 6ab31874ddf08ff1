"""Which ranges of a sample's extents are read, and where their bytes go.

A call, and more so a request to a store of objects, costs as much as some bytes: ranges with less
than that between them are read as one, what is between them with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.files.ranges import FileRange, join_ranges

if TYPE_CHECKING:
    from iobench.stores.fields import FieldLayout

CALL_NBYTES: Final = 32 << 10
"""What a call to ``preadv`` is worth, and the Python around it: some 1.5 us at 20 GB/s."""
REQUEST_NBYTES: Final = 512 << 10
"""What a request to a store of objects is worth: 1 ms of this process at 500 MB/s. How long it is
under way counts less, since others are meanwhile."""


@dataclass(frozen=True, slots=True)
class RowPiece:
    """Bytes that go to one place: byte ``at`` of a variable's row.

    Without a name (``""``) they are those around variables, which are compared; None: nobody wants
    them.
    """

    name: str | None
    at: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ExtentRange:
    """Bytes of an extent that are read together, and what they are made of, in order."""

    extent: int
    start: int
    nbytes: int
    pieces: tuple[RowPiece, ...]


@dataclass(frozen=True, slots=True)
class RangePlan:
    """What is read of each sample."""

    ranges: tuple[ExtentRange, ...]  # in the order of extents, and of their bytes
    # by extent: bytes around variables that are kept, to be compared
    around_nbytes: Mapping[int, int]


def plan_of(layout: FieldLayout, call_nbytes: int, *, keeps_all: bool = False) -> RangePlan:
    """Return what is read of each sample."""
    ranges: list[ExtentRange] = []
    around_nbytes: dict[int, int] = {}
    for number, parts in enumerate(layout.extents):
        is_kept = keeps_all or bool(layout.around and layout.around[number])
        parts_of: list[tuple[int, RowPiece]] = []
        n_around = 0
        for part in parts:
            if part.name:
                parts_of.append((part.start, RowPiece(part.name, 0, part.nbytes)))
            elif is_kept:
                parts_of.append((part.start, RowPiece("", n_around, part.nbytes)))
                n_around += part.nbytes
        ranges += _joined(number, parts_of, call_nbytes)
        if n_around:
            around_nbytes[number] = n_around
    return RangePlan(tuple(ranges), around_nbytes)


def _joined(
    extent: int, parts_of: list[tuple[int, RowPiece]], call_nbytes: int
) -> list[ExtentRange]:
    """Return pieces of an extent as ranges, those that lie near each other as one."""
    ranges = []
    places = [FileRange(extent, at, piece.nbytes) for at, piece in parts_of]
    for whole, members in join_ranges(places, call_nbytes - 1):
        pieces: list[RowPiece] = []
        end = whole.offset
        for number in members:
            at, piece = parts_of[number]
            if at > end:
                pieces.append(RowPiece(None, 0, at - end))
            pieces.append(piece)
            end = at + piece.nbytes
        ranges.append(ExtentRange(extent, whole.offset, whole.nbytes, tuple(pieces)))
    return ranges
