"""Stored variables in pieces, for samples that are made in groups."""

from __future__ import annotations

import itertools
import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.boxes import PICK_NBYTES, Box, box_ranges, contiguous_array
from iobench.chunks.chunk_reading import chunk_nbytes, read_chunks
from iobench.chunks.chunked_variable import ChunkedVariable, decode_chunk
from iobench.chunks.packing import is_plain, unpack
from iobench.chunks.pieces import (
    READ_NBYTES,
    IndexRun,
    Piece,
    PiecedVariable,
    PiecePart,
    RowSizes,
    rows_of,
)
from iobench.files.memory import own_pages
from iobench.files.source_ranges import read_extents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.chunks.pieces import OtherBox


def pieces_of(file: str, variable: ChunkedVariable, dim: str) -> PiecedVariable:
    """Return a variable, whose storage is known, in pieces for samples along ``dim``."""
    if variable.is_contiguous:
        return ContiguousPieces(file, variable, dim)
    return ChunkPieces(file, variable, dim)


class _Pieces:
    """What both kinds have in common."""

    def __init__(self, file: str, variable: ChunkedVariable, dim: str) -> None:
        self._file, self._variable, self._packing = file, variable, variable.packing
        self._stored = np.dtype(variable.packing.stored)
        self.name, self.shape, self.dtype = variable.name, variable.shape, variable.packing.dtype
        self.axis = variable.dims.index(dim) if dim in variable.dims else -1
        lengths = [n for number, n in enumerate(self.shape) if number != self.axis]
        self.sample_nbytes = math.prod(lengths) * np.dtype(self.dtype).itemsize
        self.steps = self.shape

    def places(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indexes of samples along the sample dimension: as they are numbered."""
        return indexes

    def _ends(self, box: OtherBox | None) -> tuple[list[int], list[int]]:
        """Return start and stop along each dimension: of a box of all but the sample's, or all."""
        if box is None:
            return [0] * len(self.shape), list(self.shape)
        start, stop = map(list, box)
        if self.axis >= 0:
            start.insert(self.axis, 0)
            stop.insert(self.axis, self.shape[self.axis])
        return start, stop

    @property
    def unit_nbytes(self) -> int:
        """Bytes of the least that is put aside: a piece, of the samples that share it."""
        lengths = [min(step, n) for step, n in zip(self.steps, self.shape, strict=True)]
        return math.prod(lengths) * np.dtype(self.dtype).itemsize


class ChunkPieces(_Pieces):
    """A variable in chunks: each is a piece."""

    def __init__(self, file: str, variable: ChunkedVariable, dim: str) -> None:
        super().__init__(file, variable, dim)
        self._chunk = variable.chunk
        self.sharing = self._chunk[self.axis] if self.axis >= 0 else np.iinfo(np.int64).max
        self.row_nbytes = self.sample_nbytes * (self.sharing if self.axis >= 0 else 1)
        self.steps = self._chunk
        self._as_stored = is_plain(self._packing) and self._stored == np.dtype(self.dtype)
        self.piece_nbytes = variable.chunk_nbytes
        self.on_the_way_nbytes = self._on_the_way_nbytes()
        self._sizes = RowSizes()

    def _on_the_way_nbytes(self) -> int:
        """Return the memory for a chunk: as stored, and all of it some times."""
        n_stored = self.piece_nbytes
        if self._variable.sizes is not None:
            n_stored = int(self._variable.sizes.max(initial=0))
        if self._variable.is_message:
            return n_stored + 2 * self.piece_nbytes  # ecCodes makes doubles
        per_number = 0 if self._as_stored else np.dtype(self.dtype).itemsize + 1
        copies_nbytes = self.piece_nbytes * min(2, len(self._variable.codecs))
        return n_stored + copies_nbytes + math.prod(self._chunk) * per_number

    def pieces(self, runs: Sequence[IndexRun], box: OtherBox | None = None) -> list[Piece]:
        """Return the chunks that hold these samples."""
        ends = zip(*self._ends(box), self._chunk, strict=True)
        ranges: list[Any] = [
            range(start // length, -(-stop // length)) for start, stop, length in ends
        ]
        if self.axis >= 0:
            ranges[self.axis] = rows_of(runs, self.sharing)
        return [self.piece_at(place) for place in itertools.product(*ranges)]

    def group_nbytes(self, runs: Sequence[IndexRun]) -> tuple[int, int]:
        """Return the bytes of the chunks of these samples, stored and decoded."""
        return self._sizes.added_up(self, runs)

    def piece_at(self, place: tuple[int, ...]) -> Piece:
        """Return the chunk at a place in the grid of chunks."""
        start = tuple(map(operator.mul, place, self._chunk))
        return Piece(
            place, start, tuple(map(min, map(operator.add, start, self._chunk), self.shape))
        )

    def stored_nbytes(self, piece: Piece) -> int:
        """Return the size of the chunk in storage."""
        return chunk_nbytes(self._file, self._variable, piece.place)

    def read(self, pieces: Sequence[Piece]) -> list[list[memoryview]]:
        """Return the stored bytes of each chunk."""
        wanted = [(self._file, self._variable, piece.place) for piece in pieces]
        found, _ = read_chunks(wanted, allocate=own_pages)
        return [[] if buffer is None else [buffer] for buffer in found]

    def put(self, piece: Piece, stored: Sequence[memoryview], parts: Sequence[PiecePart]) -> None:
        """Decode a chunk and put its numbers, unpacked, in their place."""
        if not stored:
            fill = np.full(1, self._variable.fill, dtype=self._stored)
            for part in parts:
                part.target[...] = unpack(fill, self._packing)[0]
            return
        out = None
        if self._as_stored and (len(parts) == 1 or self._variable.is_message):
            target = parts[0].target
            out = target if target.shape == self._chunk and target.flags.c_contiguous else None
        values = decode_chunk(self._file, self._variable, piece.place, stored[0], out)
        for part in parts:
            if part.target is not values:
                part.target[...] = unpack(values[part.source], self._packing)


class ContiguousPieces(_Pieces):
    """A variable whose numbers lie in the file as they are."""

    def __init__(self, file: str, variable: ChunkedVariable, dim: str) -> None:
        super().__init__(file, variable, dim)
        itemsize = self._stored.itemsize
        row = math.prod(self.shape[self.axis + 1 :]) * itemsize
        # Samples of short rows are read with what lies between: other samples, all of them.
        apart = self.axis == 0 or row >= PICK_NBYTES
        length = 1 if self.axis < 0 else self.shape[self.axis]
        self.sharing = np.iinfo(np.int64).max if self.axis < 0 else 1 if apart else length
        self.row_nbytes = self.sample_nbytes * (1 if apart else length)
        # What lies between short rows, all samples, is read once: along the dimensions before.
        inner = self.axis < 0 or apart
        self.steps = tuple(
            (1 if apart else length) if axis == self.axis else 1 if inner or axis < self.axis else n
            for axis, n in enumerate(self.shape)
        )
        per_number = itemsize
        if not is_plain(self._packing):
            per_number += np.dtype(self.dtype).itemsize + 1
        numbers = min(math.prod(self.shape), READ_NBYTES // itemsize)
        self.piece_nbytes = numbers * itemsize
        self.on_the_way_nbytes = numbers * per_number

    def pieces(self, runs: Sequence[IndexRun], box: OtherBox | None = None) -> list[Piece]:
        """Return the rows that hold these samples, some MiB each."""
        if 0 in self.shape:
            return []
        start, stop = self._ends(box)
        if self.axis < 0:
            return self._split(tuple(start), tuple(stop))
        found = []
        for run in runs:
            start[self.axis], stop[self.axis] = run.index, run.index + run.length
            found += self._split(tuple(start), tuple(stop))
        return found

    def _split(self, start: tuple[int, ...], stop: tuple[int, ...]) -> list[Piece]:
        """Cut a box along the first dimension into pieces of some MiB of the file."""
        if not start:
            return [Piece((), start, stop)]
        one = self._box(Piece((), start, (start[0] + 1, *stop[1:])))
        nbytes = sum(each.nbytes for each in box_ranges(one)) or 1
        step = max(1, READ_NBYTES // nbytes)
        return [
            Piece((), (begin, *start[1:]), (min(begin + step, stop[0]), *stop[1:]))
            for begin in range(start[0], stop[0], step)
        ]

    def _box(self, piece: Piece) -> Box:
        return Box(self._file, self._variable, piece.start, piece.stop)

    def stored_nbytes(self, piece: Piece) -> int:
        """Return the bytes that are read for a piece, with what lies between short rows."""
        return sum(each.nbytes for each in box_ranges(self._box(piece)))

    def group_nbytes(self, runs: Sequence[IndexRun]) -> tuple[int, int]:
        """Return the bytes that are read for these samples, and those of their numbers."""
        pieces = self.pieces(runs)
        n_numbers = sum(piece.size for piece in pieces)
        nbytes = n_numbers * np.dtype(self.dtype).itemsize
        return sum(map(self.stored_nbytes, pieces)), nbytes

    def read(self, pieces: Sequence[Piece]) -> list[list[memoryview]]:
        """Return the bytes of each piece."""
        ranges = [box_ranges(self._box(piece)) for piece in pieces]
        found = iter(read_extents(list(itertools.chain(*ranges)), allocate=own_pages))
        return [[next(found) for _ in some] for some in ranges]

    def put(self, piece: Piece, stored: Sequence[memoryview], parts: Sequence[PiecePart]) -> None:
        """Put the numbers of a piece in their place."""
        values: NDArray[Any] = contiguous_array(self._box(piece), stored)
        for part in parts:
            part.target[...] = unpack(values[part.source], self._packing)
