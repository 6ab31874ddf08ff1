"""Stored variables in pieces, for samples that are along several dimensions and made in groups.

A row of chunks holds some samples along each dimension. Such a variable is one along a single
dimension to whoever makes groups: its samples are numbered row after row, so that those that share
chunks follow each other. What a row has beyond the end of the variable are numbers that no sample
has.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.chunks.boxes import PICK_NBYTES, SHARED_PAGES_NBYTES
from iobench.chunks.chunk_pieces import ChunkPieces, pieces_of
from iobench.chunks.pieces import (
    IndexRun,
    OtherBox,
    Piece,
    PiecedVariable,
    PiecePart,
    RowSizes,
    rows_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import ChunkedVariable, Place


def grid_pieces_of(
    file: str, variable: ChunkedVariable, dims: Sequence[str], lengths: Sequence[int]
) -> PiecedVariable:
    """Return a variable, whose storage is known, in pieces for samples along ``dims``.

    Samples are numbered in C order, the last dimension fastest.
    """
    own = [dim for dim in dims if dim in variable.dims]
    if not own:
        return pieces_of(file, variable, dims[0])
    return GridPieces(file, _in_chunks(variable, own), dims, lengths)


class GridPiece(Piece, frozen=True):
    """A chunk; start and stop are of the samples that share it, then along other dimensions."""

    inner: Piece  # the chunk in the variable as it is stored

    @property
    def size(self) -> int:
        """How many numbers of the variable it holds."""
        return self.inner.size


class GridPieces:
    """A variable in chunks; `PiecedVariable` says what its members are."""

    axis = 0

    def __init__(
        self, file: str, variable: ChunkedVariable, dims: Sequence[str], lengths: Sequence[int]
    ) -> None:
        inner = self._inner = ChunkPieces(file, variable, "")
        chunk, shape = variable.chunk, variable.shape
        self._lengths = tuple(lengths)
        self._own = [n for n, dim in enumerate(dims) if dim in variable.dims]
        self._axes = [variable.dims.index(dims[n]) for n in self._own]
        self._rest = [n for n in range(len(shape)) if n not in self._axes]
        self._chunk = chunk
        self._row_shape = tuple(chunk[axis] for axis in self._axes)
        self._counts = tuple(-(-shape[axis] // chunk[axis]) for axis in self._axes)
        rest = tuple(shape[axis] for axis in self._rest)
        itemsize = np.dtype(inner.dtype).itemsize
        self.name, self.dtype = inner.name, inner.dtype
        self.sharing = math.prod(self._row_shape)
        self.shape = (math.prod(self._counts) * self.sharing, *rest)
        self.steps = (self.sharing, *(chunk[axis] for axis in self._rest))
        self.sample_nbytes = math.prod(rest) * itemsize
        self.row_nbytes = self.sample_nbytes * self.sharing
        self.piece_nbytes, self.on_the_way_nbytes = inner.piece_nbytes, inner.on_the_way_nbytes
        self._sizes = RowSizes()
        self.unit_nbytes = itemsize * math.prod(
            min(step, n) for step, n in zip(self.steps, self.shape, strict=True)
        )

    def places(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers by rows of chunks of samples that are numbered in C order."""
        every = np.unravel_index(indexes, self._lengths)
        own = [every[n] for n in self._own]
        rows = np.ravel_multi_index(
            tuple(at // n for at, n in zip(own, self._row_shape, strict=True)), self._counts
        )
        inside = np.ravel_multi_index(
            tuple(at % n for at, n in zip(own, self._row_shape, strict=True)), self._row_shape
        )
        found: NDArray[np.int64] = rows * self.sharing + inside
        return found

    def pieces(self, runs: Sequence[IndexRun], box: OtherBox | None = None) -> list[Piece]:
        """Return the chunks that hold these samples."""
        start, stop = box or ((0,) * len(self._rest), self.shape[1:])
        ends = zip(start, stop, self.steps[1:], strict=True)
        others = [range(a // length, -(-b // length)) for a, b, length in ends]
        rows = rows_of(runs, self.sharing)
        return [self._piece(row, place) for row in rows for place in itertools.product(*others)]

    def _piece(self, row: int, other: Place) -> GridPiece:
        place = [0] * len(self._chunk)
        for axis, at in zip(self._axes, np.unravel_index(row, self._counts), strict=True):
            place[axis] = int(at)
        for axis, number in zip(self._rest, other, strict=True):
            place[axis] = number
        inner = self._inner.piece_at(tuple(place))
        first = row * self.sharing
        return GridPiece(
            inner.place,
            (first, *(inner.start[axis] for axis in self._rest)),
            (first + self.sharing, *(inner.stop[axis] for axis in self._rest)),
            inner,
        )

    def stored_nbytes(self, piece: Piece) -> int:
        """Return the size of the chunk in storage."""
        return self._inner.stored_nbytes(_inner(piece))

    def group_nbytes(self, runs: Sequence[IndexRun]) -> tuple[int, int]:
        """Return the bytes of the chunks of these samples, stored and decoded."""
        return self._sizes.added_up(self, runs)

    def read(self, pieces: Sequence[Piece]) -> list[list[memoryview]]:
        """Return the stored bytes of each chunk."""
        return self._inner.read([_inner(piece) for piece in pieces])

    def put(self, piece: Piece, stored: Sequence[memoryview], parts: Sequence[PiecePart]) -> None:
        """Put the numbers of a chunk in their place."""
        inner = [box for part in parts for box in self._boxes(part)]
        self._inner.put(_inner(piece), stored, inner)

    def _boxes(self, part: PiecePart) -> Iterator[PiecePart]:
        """Yield samples that follow each other as boxes of the chunk."""
        along, *rest = part.source[:-1]
        for first, start, stop in _boxes(along.start, along.stop, self._row_shape):
            lengths = tuple(b - a for a, b in zip(start, stop, strict=True))
            at = first - along.start
            whole = part.target[at : at + math.prod(lengths)]
            step, *others = whole.strides
            inner = [math.prod(lengths[n + 1 :]) * step for n in range(len(lengths))]
            # The first axis taken apart: of that a view can always be had.
            target = np.lib.stride_tricks.as_strided(
                whole, (*lengths, *whole.shape[1:]), (*inner, *others)
            )
            source: list[Any] = [slice(None)] * len(self._chunk)
            order = [0] * len(self._chunk)
            for n, axis in enumerate(self._axes):
                source[axis], order[axis] = slice(start[n], stop[n]), n
            for n, axis in enumerate(self._rest):
                source[axis], order[axis] = rest[n], len(self._axes) + n
            yield PiecePart((*source, ...), target.transpose(order))


def _inner(piece: Piece) -> Piece:
    assert isinstance(piece, GridPiece)
    return piece.inner


def _boxes(first: int, last: int, shape: Place) -> Iterator[tuple[int, Place, Place]]:
    """Yield first place, start and stop of boxes that are a range of places in C order."""
    if len(shape) == 1:
        yield first, (first,), (last,)
        return
    inner = math.prod(shape[1:])
    while first < last:
        number = first // inner
        if first % inner or last - first < inner:  # the end of one along the first axis, or a part
            end = min(last, (number + 1) * inner)
            for at, start, stop in _boxes(first - number * inner, end - number * inner, shape[1:]):
                yield number * inner + at, (number, *start), (number + 1, *stop)
            first = end
        else:
            end = last // inner
            yield first, (number, *(0 for _ in shape[1:])), (end, *shape[1:])
            first = end * inner


def _in_chunks(variable: ChunkedVariable, dims: Sequence[str]) -> ChunkedVariable:
    """Return a variable in chunks; of numbers that lie as they are, what lies together."""
    shape = variable.shape
    if not variable.is_contiguous:
        return variable
    itemsize = np.dtype(variable.packing.stored).itemsize
    last = max(variable.dims.index(dim) for dim in dims)
    # Short rows are read with what lies between: other samples along the last dimension.
    is_short = math.prod(shape[last + 1 :]) * itemsize < PICK_NBYTES
    whole = last if is_short else last + 1
    chunk = [1] * whole + list(shape[whole:])
    nbytes = math.prod(chunk) * itemsize
    for axis in reversed(range(whole)):
        fitting = max(1, SHARED_PAGES_NBYTES // max(1, nbytes))
        # All of one size, since a chunk is decoded as a whole.
        fit = range(min(shape[axis], fitting), 0, -1)
        chunk[axis] = next((n for n in fit if not shape[axis] % n), 1)
        nbytes *= chunk[axis]
        if chunk[axis] < shape[axis]:
            break
    offsets = np.array(variable.offset, dtype=np.int64)
    for axis, (length, n) in enumerate(zip(chunk, shape, strict=True)):
        apart = math.prod(shape[axis + 1 :]) * itemsize
        offsets = offsets[..., None] + np.arange(0, n, length) * apart
    if variable.offset < 0:  # never written
        offsets[...] = -1
    sizes = np.full(offsets.shape, nbytes if variable.offset >= 0 else 0, dtype=np.int64)
    return replace(variable, chunk=tuple(chunk), offset=-1, offsets=offsets, sizes=sizes)
