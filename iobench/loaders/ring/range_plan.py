"""Which ranges of a sample's extents are wanted, where their bytes go, and what that saves.

A part of a grid is one range of bytes where the cut dimension comes first, and as many as there
are channels where these do. A call, and more so a request to a store of objects, costs as much as
some bytes: ranges with less than that between them are read as one, what is between them with
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from iobench.files.ranges import FileRange, join_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.samples import SampleSpec, Variable
    from iobench.stores.fields import FieldLayout

CALL_NBYTES: Final = 32 << 10
"""What a call to ``preadv`` is worth, and the Python around it: some 1.5 us at 20 GB/s."""
REQUEST_NBYTES: Final = 512 << 10
"""What a request to a store of objects is worth: 1 ms of this process at 500 MB/s. How long it is
under way counts less, since others are meanwhile."""
VIEW_NBYTES: Final = 4 << 10
"""What a piece of memory to read to is worth: 0.2 us."""
MAX_PIECES: Final = 1 << 16
"""Of one sample; a plan with more is not made."""


@dataclass(frozen=True, slots=True)
class GridCut:
    """Which part of one variable: along which axis, from where to where."""

    variable: Variable
    axis: int
    low: int
    high: int

    @property
    def part(self) -> Variable:
        """What is left of the variable."""
        shape = list(self.variable.shape)
        shape[self.axis] = self.high - self.low
        channels = self.variable.channels
        if channels and self.variable.dims[self.axis] == "channel":
            channels = channels[self.low : self.high]
        return replace(self.variable, shape=tuple(shape), channels=channels)

    @property
    def n_ranges(self) -> int:
        """How many ranges of memory it is."""
        return math.prod(self.variable.shape[: self.axis])

    def along(self, nbytes: int) -> tuple[int, int, int]:
        """Return first byte, length and distance of its ranges, of a variable of ``nbytes``."""
        pitch = nbytes // self.n_ranges
        row = pitch // self.variable.shape[self.axis]
        return self.low * row, (self.high - self.low) * row, pitch


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
    """What is read of each sample.

    Parameters
    ----------
    ranges : tuple of ExtentRange
        In the order of extents, and of their bytes.
    part_nbytes : mapping of str to int
        Bytes of each variable, as stored, that are wanted.
    around_nbytes : mapping of int to int
        By extent: bytes around variables that are kept, to be compared.
    whole_nbytes : int
        Of a sample's extents.
    cost, whole_cost : int
        Of reading these ranges, and of reading all and copying the part, in bytes.
    """

    ranges: tuple[ExtentRange, ...]
    part_nbytes: Mapping[str, int]
    around_nbytes: Mapping[int, int]
    whole_nbytes: int
    cost: int
    whole_cost: int

    @property
    def nbytes(self) -> int:
        """Bytes read of a sample."""
        return sum(one.nbytes for one in self.ranges)

    @property
    def wanted_nbytes(self) -> int:
        """Bytes of a sample that are wanted, as stored."""
        return sum(self.part_nbytes.values())


def plan_of(
    layout: FieldLayout,
    spec: SampleSpec,
    cuts: Mapping[str, GridCut],
    call_nbytes: int,
    *,
    keeps_all: bool = False,
) -> RangePlan | None:
    """Return what is read of each sample; None where it is in too many pieces to think of.

    Parameters
    ----------
    layout : FieldLayout
        Where variables lie in the extents.
    spec : SampleSpec
        What a sample is, as stored.
    cuts : mapping of str to GridCut
        What is wanted of some variables; of the others all.
    call_nbytes : int
        What a call is worth: `CALL_NBYTES` or `REQUEST_NBYTES`.
    keeps_all : bool
        Keep all bytes around variables, as checksums of whole extents need them; each extent is
        then one range where nothing is cut.
    """
    if sum(cut.n_ranges for cut in cuts.values()) > MAX_PIECES:
        return None
    ranges: list[ExtentRange] = []
    around_nbytes: dict[int, int] = {}
    for number, parts in enumerate(layout.extents):
        is_kept = keeps_all or bool(layout.around and layout.around[number])
        found: list[tuple[int, RowPiece]] = []
        n_around = 0
        for part in parts:
            cut = cuts.get(part.name)
            if not part.name:
                if is_kept:
                    found.append((part.start, RowPiece("", n_around, part.nbytes)))
                    n_around += part.nbytes
            elif cut is None:
                found.append((part.start, RowPiece(part.name, 0, part.nbytes)))
            else:
                low, length, pitch = cut.along(part.nbytes)
                found += [
                    (part.start + low + row * pitch, RowPiece(part.name, row * length, length))
                    for row in range(cut.n_ranges)
                ]
        ranges += _joined(number, found, call_nbytes)
        if n_around:
            around_nbytes[number] = n_around
    part_nbytes = {
        variable.name: (cuts[variable.name].part if variable.name in cuts else variable).nbytes
        for variable in spec
    }
    whole_nbytes = sum(layout.lengths)
    n_views = sum(len(one.pieces) for one in ranges)
    return RangePlan(
        tuple(ranges),
        part_nbytes,
        around_nbytes,
        whole_nbytes,
        cost=sum(one.nbytes for one in ranges) + len(ranges) * call_nbytes + n_views * VIEW_NBYTES,
        whole_cost=whole_nbytes
        + len(layout.extents) * call_nbytes
        + sum(part_nbytes[name] for name in cuts),
    )


def _joined(extent: int, found: list[tuple[int, RowPiece]], call_nbytes: int) -> list[ExtentRange]:
    """Return pieces of an extent as ranges, those that lie near each other as one."""
    ranges = []
    places = [FileRange(extent, at, piece.nbytes) for at, piece in found]
    for whole, members in join_ranges(places, call_nbytes - 1):
        pieces: list[RowPiece] = []
        end = whole.offset
        for number in members:
            at, piece = found[number]
            if at > end:
                pieces.append(RowPiece(None, 0, at - end))
            pieces.append(piece)
            end = at + piece.nbytes
        ranges.append(ExtentRange(extent, whole.offset, whole.nbytes, tuple(pieces)))
    return ranges


def wanted_of(whole: NDArray[Any], cut: GridCut | None) -> NDArray[Any]:
    """Return of whole samples what is wanted, as a view."""
    if cut is None:
        return whole
    return whole[(slice(None),) * (cut.axis + 1) + (slice(cut.low, cut.high),)]
