"""Zarr arrays in pieces, for samples that are made in groups: a piece is a chunk."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.memory import own_pages
from iobench.datasets.packing import is_plain, unpack
from iobench.datasets.pieces import IndexRun, Piece, PiecePart
from iobench.datasets.zarr_arrays.chunks import chunk_nbytes, decode_stored_chunk, read_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets.zarr_arrays.arrays import ZarrVariable

__all__ = ["PiecedZarr"]


class PiecedZarr:
    """An array whose chunks are known, for samples along ``dim``."""

    def __init__(self, variable: ZarrVariable, dim: str) -> None:
        if variable.chunking is None:
            raise TypeError(f"{variable.store}: array {variable.name!r} has no known chunks")
        self._variable = variable
        self._codecs = variable.chunking.codecs
        self.name, self.shape, self.dtype = variable.name, variable.shape, variable.packing.dtype
        self.axis = variable.dims.index(dim) if dim in variable.dims else -1
        lengths = [n for number, n in enumerate(self.shape) if number != self.axis]
        self.sample_nbytes = math.prod(lengths) * np.dtype(self.dtype).itemsize
        self.sharing = self._codecs.shape[self.axis] if self.axis >= 0 else np.iinfo(np.int64).max
        self.row_nbytes = self.sample_nbytes * (self.sharing if self.axis >= 0 else 1)
        # A codec before another makes a copy of its own; more than two are not seen.
        copies = min(2, max(1, len(self._codecs.applied)))
        itemsize = np.dtype(variable.dtype).itemsize
        per_number = itemsize * (1 + copies)  # as stored, no larger than as numbers; and decoded
        if not is_plain(variable.packing):
            per_number += np.dtype(self.dtype).itemsize + 1
        self.piece_nbytes = math.prod(self._codecs.shape) * itemsize
        self.on_the_way_nbytes = math.prod(self._codecs.shape) * per_number

    def pieces(self, runs: Sequence[IndexRun]) -> list[Piece]:
        """Return the chunks that hold these samples."""
        chunk = self._codecs.shape
        counts = [-(-n // length) for n, length in zip(self.shape, chunk, strict=True)]
        ranges: list[Any] = [range(count) for count in counts]
        if self.axis >= 0:
            rows = [range(r.index, r.index + r.length) for r in runs]
            ranges[self.axis] = sorted({i // self.sharing for row in rows for i in row})
        return [self._piece(place) for place in itertools.product(*ranges)]

    def _piece(self, place: tuple[int, ...]) -> Piece:
        start = tuple(n * length for n, length in zip(place, self._codecs.shape, strict=True))
        ends = zip(start, self._codecs.shape, self.shape, strict=True)
        return Piece(place, start, tuple(min(a + length, end) for a, length, end in ends))

    def stored_nbytes(self, piece: Piece) -> int:
        """Return the size of the chunk in the store."""
        return chunk_nbytes(self._variable, piece.place)

    def read(self, pieces: Sequence[Piece]) -> list[list[memoryview]]:
        """Return the stored bytes of each chunk."""
        found = read_chunks(self._variable, [piece.place for piece in pieces], allocate=own_pages)
        return [[] if buffer is None else [buffer] for buffer in found]

    def put(self, piece: Piece, stored: Sequence[memoryview], parts: Sequence[PiecePart]) -> None:
        """Decode a chunk and put its numbers, unpacked, in their place.

        Raises
        ------
        FileFormatError
            If the chunk is damaged: names store, array and chunk.
        """
        packing = self._variable.packing
        if not stored:
            filled = np.full(1, self._variable.fill, dtype=self._variable.dtype)
            fill = unpack(filled.view(packing.stored), packing)
            for part in parts:
                part.target[...] = fill[0]
            return
        values = decode_stored_chunk(self._variable, piece.place, stored[0]).view(packing.stored)
        for part in parts:
            part.target[...] = unpack(values[part.source], packing)
