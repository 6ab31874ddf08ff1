"""NetCDF variables in pieces, for samples that are made in groups."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.codec_chain import (
    INFLATED_NBYTES,
    decode_chunk,
    shuffled_chunk,
    shuffled_slices,
)
from iobench.datasets.extents import read_extents
from iobench.datasets.memory import own_pages
from iobench.datasets.netcdf.boxes import Box, box_array, box_extents
from iobench.datasets.netcdf.file import where_slab
from iobench.datasets.netcdf.slices import put_slices
from iobench.datasets.netcdf.storage import (
    PICK_NBYTES,
    Chunked,
    Contiguous,
    codecs_of,
    naming_chunk,
)
from iobench.datasets.packing import is_plain, unpack
from iobench.datasets.pieces import READ_NBYTES, IndexRun, Piece, PiecedVariable, PiecePart
from iobench.files.ranges import FileRange
from iobench.files.urls import range_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.datasets.netcdf.file import NetcdfFile, NetcdfVariable

__all__ = ["ChunkedNetcdf", "ContiguousNetcdf", "pieced_netcdf"]

SLICED_NBYTES = INFLATED_NBYTES
"""Chunks up to this are inflated whole: they stay in the cache, and slices cost some calls."""


def pieced_netcdf(file: NetcdfFile, name: str, dim: str) -> PiecedVariable:
    """Return a variable, whose storage is known, in pieces for samples along ``dim``."""
    variable = file.variables[name]
    if isinstance(variable.storage, Contiguous):
        return ContiguousNetcdf(file, variable, variable.storage, dim)
    if isinstance(variable.storage, Chunked):
        return ChunkedNetcdf(file, variable, variable.storage, dim)
    raise TypeError(f"{file.path}: variable {name!r} has no known extents")


class ChunkedNetcdf:
    """A variable in chunks."""

    def __init__(
        self, file: NetcdfFile, variable: NetcdfVariable, storage: Chunked, dim: str
    ) -> None:
        self._slab = where_slab(file, variable, dim=None, index=-1)
        self._storage = storage
        self._codecs = codecs_of(self._slab, storage)
        self._packing = variable.packing
        self._stored = np.dtype(variable.packing.stored)
        self.name, self.shape, self.dtype = variable.name, variable.shape, variable.packing.dtype
        self.axis = variable.dims.index(dim) if dim in variable.dims else -1
        self.sample_nbytes = _sample_nbytes(variable, self.axis)
        self.sharing = storage.chunk[self.axis] if self.axis >= 0 else np.iinfo(np.int64).max
        self.row_nbytes = self.sample_nbytes * (self.sharing if self.axis >= 0 else 1)
        self._as_stored = is_plain(self._packing) and self._stored == np.dtype(self.dtype)
        self.piece_nbytes = math.prod(storage.chunk) * self._stored.itemsize
        self.on_the_way_nbytes = self._on_the_way_nbytes()

    def _on_the_way_nbytes(self) -> int:
        """Return the memory for a chunk: as stored, and slices of it, or all of it some times."""
        n_stored = int(self._storage.nbytes.max(initial=0))
        sliced = self._codecs.is_sliced and not self._storage.masks.any()
        if self._as_stored and sliced:
            return n_stored + min(self.piece_nbytes, INFLATED_NBYTES)
        copies = self._codecs.n_copies - (self._as_stored and self._codecs.is_shuffled)
        per_number = 0 if self._as_stored else np.dtype(self.dtype).itemsize + 1
        return n_stored + self.piece_nbytes * copies + math.prod(self._storage.chunk) * per_number

    def pieces(self, runs: Sequence[IndexRun]) -> list[Piece]:
        """Return the chunks that hold these samples."""
        ranges: list[Any] = [range(n) for n in self._storage.offsets.shape]
        if self.axis >= 0:
            rows = [range(r.index, r.index + r.length) for r in runs]
            ranges[self.axis] = sorted({i // self.sharing for row in rows for i in row})
        return [self._piece(place) for place in itertools.product(*ranges)]

    def _piece(self, place: tuple[int, ...]) -> Piece:
        start = tuple(n * length for n, length in zip(place, self._storage.chunk, strict=True))
        ends = zip(start, self._storage.chunk, self.shape, strict=True)
        return Piece(place, start, tuple(min(a + length, end) for a, length, end in ends))

    def stored_nbytes(self, piece: Piece) -> int:
        """Return the size of the chunk in the file."""
        return int(self._storage.nbytes[piece.place])

    def read(self, pieces: Sequence[Piece]) -> list[list[memoryview]]:
        """Return the bytes of each chunk, filters applied."""
        offsets, nbytes = self._storage.offsets, self._storage.nbytes
        written = [piece.place for piece in pieces if offsets[piece.place] >= 0]
        extents = [FileRange(self._slab.file, int(offsets[at]), int(nbytes[at])) for at in written]
        found = iter(read_extents(extents, allocate=own_pages))
        return [[next(found)] if offsets[piece.place] >= 0 else [] for piece in pieces]

    def put(self, piece: Piece, stored: Sequence[memoryview], parts: Sequence[PiecePart]) -> None:
        """Undo a chunk's filters and put its numbers in their place.

        Raises
        ------
        FileFormatError
            If the chunk is damaged: names file, variable and chunk.
        """
        if not stored:
            fill = unpack(np.full(1, self._slab.fill, dtype=self._stored), self._packing)
            for part in parts:
                part.target[...] = fill[0]
            return
        with naming_chunk(self._slab, piece.place):
            self._put_decoded(stored[0], int(self._storage.masks[piece.place]), parts)

    def _put_decoded(self, stored: memoryview, mask: int, parts: Sequence[PiecePart]) -> None:
        if self._as_stored and self.piece_nbytes > SLICED_NBYTES:
            slices = shuffled_slices(stored, self._codecs, mask)
            if slices is not None:
                put_slices(slices, self._storage.chunk, parts)
                return
        if self._as_stored:
            shuffled = shuffled_chunk(stored, self._codecs, mask)
            if shuffled is not None:
                self._put_shuffled(shuffled, parts)
                return
        values = decode_chunk(stored, self._codecs, mask)
        for part in parts:
            part.target[...] = unpack(values[part.source], self._packing)

    def _put_shuffled(self, content: NDArray[np.uint8], parts: Sequence[PiecePart]) -> None:
        """Put byte 0 of all numbers, then byte 1 of all: unshuffled on the way, not before."""
        itemsize = self._stored.itemsize
        planes = content.reshape(itemsize, *self._storage.chunk)
        for part in parts:
            target: NDArray[Any] = part.target[..., None].view(np.uint8)
            for byte in range(itemsize):
                target[..., byte] = planes[(byte, *part.source)]


class ContiguousNetcdf:
    """A variable whose numbers lie in the file as they are."""

    def __init__(
        self, file: NetcdfFile, variable: NetcdfVariable, storage: Contiguous, dim: str
    ) -> None:
        self._file, self._variable, self._storage = range_file(file.path), variable, storage
        self._itemsize = np.dtype(variable.packing.stored).itemsize
        self.name, self.shape, self.dtype = variable.name, variable.shape, variable.packing.dtype
        self.axis = variable.dims.index(dim) if dim in variable.dims else -1
        self.sample_nbytes = _sample_nbytes(variable, self.axis)
        stretch = math.prod(self.shape[self.axis + 1 :]) * self._itemsize
        # Samples of short stretches are read with what lies between: other samples, all of them.
        apart = self.axis == 0 or stretch >= PICK_NBYTES
        length = 1 if self.axis < 0 else self.shape[self.axis]
        self.sharing = np.iinfo(np.int64).max if self.axis < 0 else 1 if apart else length
        self.row_nbytes = self.sample_nbytes * (1 if apart else length)
        plain = is_plain(variable.packing)
        per_number = self._itemsize + (0 if plain else np.dtype(self.dtype).itemsize + 1)
        numbers = min(math.prod(self.shape), READ_NBYTES // self._itemsize)
        self.piece_nbytes = numbers * self._itemsize
        self.on_the_way_nbytes = numbers * per_number

    def pieces(self, runs: Sequence[IndexRun]) -> list[Piece]:
        """Return the stretches, or rows of stretches, that hold these samples, some MiB each."""
        if 0 in self.shape:
            return []
        if self.axis < 0:
            return self._split((0,) * len(self.shape), self.shape)
        found = []
        for run in runs:
            start, stop = [0] * len(self.shape), list(self.shape)
            start[self.axis], stop[self.axis] = run.index, run.index + run.length
            found += self._split(tuple(start), tuple(stop))
        return found

    def _split(self, start: tuple[int, ...], stop: tuple[int, ...]) -> list[Piece]:
        """Cut a box along the first dimension into pieces of some MiB of the file."""
        if not start:
            return [Piece((), start, stop)]
        one = self._box(Piece((), start, (start[0] + 1, *stop[1:])))
        nbytes = sum(length for _, _, length in box_extents(one)) or 1
        step = max(1, READ_NBYTES // nbytes)
        return [
            Piece((), (begin, *start[1:]), (min(begin + step, stop[0]), *stop[1:]))
            for begin in range(start[0], stop[0], step)
        ]

    def _box(self, piece: Piece) -> Box:
        return Box(self._file, self._variable, self._storage, piece.start, piece.stop)

    def stored_nbytes(self, piece: Piece) -> int:
        """Return the bytes that are read for a piece, with what lies between short stretches."""
        return sum(length for _, _, length in box_extents(self._box(piece)))

    def read(self, pieces: Sequence[Piece]) -> list[list[memoryview]]:
        """Return the bytes of each piece."""
        extents = [box_extents(self._box(piece)) for piece in pieces]
        flat = [extent for some in extents for extent in some]
        found = iter(read_extents(flat, allocate=own_pages))
        return [[next(found) for _ in some] for some in extents]

    def put(self, piece: Piece, stored: Sequence[memoryview], parts: Sequence[PiecePart]) -> None:
        """Put the numbers of a piece in their place."""
        values: NDArray[Any] = box_array(self._box(piece), stored)
        for part in parts:
            part.target[...] = unpack(values[part.source], self._variable.packing)


def _sample_nbytes(variable: NetcdfVariable, axis: int) -> int:
    lengths = [n for number, n in enumerate(variable.shape) if number != axis]
    return math.prod(lengths) * np.dtype(variable.packing.dtype).itemsize
