"""A stored variable as samples take it: the chunks they need, and what of each goes where.

A sample lies at one index along each sample dimension that the variable has, and takes all of the
others. Numbers that lie as they are count as chunks without a codec, of about a mebibyte.
"""

from __future__ import annotations

import itertools
import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.chunks.boxes import fits, in_chunks, places_touched
from iobench.chunks.chunk_codecs import as_bytes
from iobench.chunks.chunked_variable import (
    ChunkedVariable,
    Place,
    chunk_range,
    decode_chunk,
    read_chunks,
)
from iobench.chunks.packing import is_plain, unpack
from iobench.files.ranges import fill_extents
from iobench.files.urls import URL, as_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Rows = slice | NDArray[np.intp]
    # Places of chunks that are decoded together, and which rows take what of them.
    Stack = tuple[Sequence[Place], Sequence[tuple[Rows, Sequence[Any]]]]

MOST_RUNS: Final = 64
"""Samples of a chunk in more runs than this are copied by their indexes."""
STACK_LENGTH: Final = 64
"""Numbers of a sample that lie in as many chunks are copied together: each by itself takes a line
of the cache."""
STACK_NBYTES: Final = 4 << 20
STACK_GAP: Final = 16
"""Numbers between chunks of a stack: 4 KiB apart they displace each other in the cache."""


class SampledVariable:
    """What the samples of one file take of a variable, which may have another name there."""

    def __init__(
        self, file: str, variable: ChunkedVariable, dims: Sequence[str], name: str = ""
    ) -> None:
        own = [(number, variable.dims.index(dim)) for number, dim in enumerate(dims)
               if dim in variable.dims]  # fmt: skip
        self.file, self.name = file, name or variable.name
        self.sample_dims = tuple(number for number, _ in own)  # those that the variable has
        self._axes = tuple(axis for _, axis in own)
        self._rest = tuple(a for a in range(len(variable.shape)) if a not in self._axes)
        cut = in_chunks(variable, self._axes) if variable.is_contiguous else None
        self.variable = cut or variable
        self._chunk = self.variable.chunk
        self.lengths = tuple(self._chunk[axis] for axis in self._axes)  # samples of a chunk
        self.shape = tuple(variable.shape[axis] for axis in self._rest)  # of a sample's array
        self.steps = tuple(max(1, self._chunk[axis]) for axis in self._rest)
        self.dtype = np.dtype(variable.packing.dtype)
        self._order = (*self._axes, *self._rest)
        self._in_file_order = tuple(np.argsort(self._order).tolist())
        self._is_plain = is_plain(variable.packing)
        # Chunks of one number of each of their samples are decoded side by side.
        last = max(self._rest, default=0)
        is_thin = last < max(self._axes, default=0) and set(self._chunk[: last + 1]) == {1}
        nbytes = max(1, math.prod(self._chunk) * self.dtype.itemsize)
        self._n_stacked = max(1, min(STACK_LENGTH, STACK_NBYTES // nbytes)) if is_thin else 1

    @property
    def sample_nbytes(self) -> int:
        """Bytes of the array of a sample."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def row_nbytes(self) -> int:
        """Bytes of the arrays of all samples that share chunks."""
        return self.sample_nbytes * math.prod(self.lengths)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes that decoding a chunk takes."""
        largest = math.prod(self._chunk) * self.dtype.itemsize
        sizes = self.variable.sizes
        stored = largest if sizes is None else int(sizes.max(initial=0))
        return 2 * largest * self._n_stacked + stored

    def chunk_rows(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the chunks of samples along their dimensions: (samples, dims)."""
        return indexes[:, self.sample_dims] // np.array(self.lengths, dtype=np.int64)

    def parts(self, indexes: NDArray[np.int64]) -> list[tuple[Place, NDArray[np.intp]]]:
        """Return the row of chunks that samples lie in, and which samples; each row once."""
        rows = self.chunk_rows(indexes)
        order, starts = row_groups(rows)
        result = rows[order[starts]].tolist()
        return list(zip(map(tuple, result), np.split(order, starts[1:]), strict=True))

    def places(self, start: Place, stop: Place) -> list[Place]:
        """Return the chunks that a box of a sample's array touches, as the row of them counts."""
        return list(places_touched(self.steps, start, stop))

    def stacks(self, start: Place, stop: Place) -> list[list[Place]]:
        """Return the same, those together that `put` takes at once."""
        places, n = self.places(start, stop), self._n_stacked
        if n == 1:
            return [[place] for place in places]
        rows = (list(row) for _, row in itertools.groupby(places, lambda place: place[:-1]))
        return [row[at : at + n] for row in rows for at in range(0, len(row), n)]

    def place(self, row: Place, inner: Place) -> Place:
        """Return the place of a chunk of a row in the grid of all."""
        result = [0] * len(self._order)
        for axis, number in zip(self._order, (*row, *inner), strict=True):
            result[axis] = number
        return tuple(result)

    def fill(
        self, job: Sequence[Stack], target: NDArray[Any], origin: Place
    ) -> tuple[list[Stack], int]:
        """Read numbers that lie as they are straight to their rows of ``target``.

        Return the stacks of chunks that have to be decoded or copied, and the bytes that were read.
        """
        left, extents, buffers = [], [], []
        for places, parts in job:
            view = self._in_place(self._rows(places, target, origin)[0], parts)
            extent = chunk_range(self.file, self.variable, places[0])
            if view is None or extent is None:
                left.append((places, parts))
                continue
            extents.append(extent)
            buffers.append(as_bytes(view).data)
        fill_extents(extents, buffers)
        return left, sum(map(len, buffers))

    def read(self, places: Sequence[Place]) -> list[memoryview | None]:
        """Return what is stored of some chunks; None of one that was never written."""
        return read_chunks([(self.file, self.variable, place) for place in places])

    def _index(self, row: Place) -> tuple[Any, ...]:
        """Return the index of a row in arrays of all chunks."""
        index: list[Any] = [slice(None)] * len(self._order)
        for axis, number in zip(self._axes, row, strict=True):
            index[axis] = number
        return tuple(index)

    def stored_nbytes(self, row: Place) -> int:
        """Return the bytes that a row of chunks has in storage."""
        if self.variable.sizes is not None:
            return int(np.maximum(self.variable.sizes[self._index(row)], 0).sum())
        n_chunks = len(self.places((0,) * len(self.shape), self.shape))
        return n_chunks * self._mean_nbytes

    @cached_property
    def _mean_nbytes(self) -> int:
        """Bytes of a chunk in storage, of those that lie in files of their folder in the mean."""
        variable = self.variable
        if variable.library:
            return variable.chunk_nbytes
        folder, keys = as_path(variable.folder), variable.keys
        if isinstance(folder, URL) and not folder.can_list and keys is not None:
            first = folder / keys.file_key((0,) * len(variable.shape))  # it stands for all
            nbytes = first.stat().st_size if first.is_file() else 0
            return nbytes // math.prod(keys.chunks_per_shard)
        nbytes = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
        lengths = zip(variable.shape, variable.chunk, strict=True)
        return nbytes // max(1, math.prod(-(-n // length) for n, length in lengths))

    def put(
        self,
        places: Sequence[Place],
        stored: Sequence[memoryview | None],
        target: NDArray[Any],
        origin: Place,
        parts: Sequence[tuple[Rows, Sequence[Any]]],
    ) -> None:
        """Decode a stack of chunks and copy what samples take to their rows of ``target``."""
        (rows, inner), packing = self._rows(places, target, origin), self.variable.packing
        if len(places) > 1:
            values = self._stacked(places, stored)
        elif stored[0] is None:
            fill = unpack(np.full(1, self.variable.fill, packing.stored), packing)[0]
            for which, _ in parts:
                rows[which] = fill
            return
        else:
            out = self._in_place(rows, parts)
            values = decode_chunk(self.file, self.variable, places[0], stored[0], out)
            if values is out:
                return
        values = values.transpose(self._order)
        for which, indexes in parts:
            some = values[(*indexes, *inner, ...)]
            rows[which] = some if self._is_plain else unpack(some, packing)

    def _rows(
        self, places: Sequence[Place], target: NDArray[Any], origin: Place
    ) -> tuple[NDArray[Any], list[slice]]:
        """Return where in all rows of ``target`` a stack of chunks lies, and what of it does."""
        starts = [places[0][axis] * self._chunk[axis] for axis in self._rest]
        stops = [
            min((places[-1][axis] + 1) * self._chunk[axis], length)
            for axis, length in zip(self._rest, self.shape, strict=True)
        ]
        box = [slice(a - o, b - o) for a, b, o in zip(starts, stops, origin, strict=True)]
        whole: tuple[Any, ...] = (slice(None), *box, ...)
        return target[whole], [slice(0, b - a) for a, b in zip(starts, stops, strict=True)]

    def _stacked(
        self, places: Sequence[Place], stored: Sequence[memoryview | None]
    ) -> NDArray[Any]:
        """Return chunks that follow each other along a dimension as one array."""
        size, n = math.prod(self._chunk), len(places)
        numbers = np.empty((n, size + STACK_GAP), self.variable.packing.stored)[:, :size]
        for place, content, own in zip(places, stored, numbers, strict=True):
            if content is None:
                own[...] = self.variable.fill
                continue
            piece = own.reshape(self._chunk)
            values = decode_chunk(self.file, self.variable, place, content, piece)
            if values is not piece:  # what is contiguous is shorter at the end
                piece[tuple(map(slice, values.shape))] = values
        last = max(self._rest)
        return numbers.reshape(*self._chunk[:last], n, *self._chunk[last + 1 :])

    def _in_place(
        self, rows: NDArray[Any], parts: Sequence[tuple[Rows, Sequence[Any]]]
    ) -> NDArray[Any] | None:
        """Return where a chunk is decoded straight to its rows; None where it has to be copied."""
        which, indexes = parts[0]
        if len(parts) > 1 or not self._is_plain or not isinstance(which, slice):
            return None
        if tuple(indexes) != tuple(slice(0, n) for n in self.lengths):
            return None
        view = rows[which]
        if not self._axes and len(view) == 1:
            view = view[0]
        elif self._axes:
            view = view.transpose(self._in_file_order)
        return view if fits(view, self._chunk, self.variable.packing.stored) else None


def row_groups(rows: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return an order in which equal rows follow each other, and where each of them begins."""
    order = np.arange(len(rows))
    if not rows.shape[1] or not len(rows):
        return order, order[:1]
    numbers = rows[:, 0]
    if rows.shape[1] > 1:
        shape = tuple((rows.max(axis=0) + 1).tolist())
        numbers = np.ravel_multi_index(tuple(rows.T), shape)
    steps = np.diff(numbers)
    if (steps < 0).any():
        order = np.argsort(numbers, kind="stable")
        steps = np.diff(numbers[order])
    return order, np.concatenate(([0], np.flatnonzero(steps) + 1))


def chunks_of_sample(
    variables: Sequence[SampledVariable], indexes: Sequence[int]
) -> list[tuple[SampledVariable, Place]]:
    """Return the chunks that a sample takes of each variable, by its index along each dimension."""
    at = np.array([indexes], dtype=np.int64)
    result = []
    for each in variables:
        row = tuple(each.chunk_rows(at)[0].tolist())
        zero = (0,) * len(each.shape)
        inner = each.places(zero, each.shape) or [zero]  # a variable without values has no chunks
        result += [(each, each.place(row, place)) for place in inner]
    return result


def runs(positions: NDArray[np.intp], indexes: NDArray[np.int64]) -> Iterator[Any]:
    """Yield rows of samples and their indexes in a chunk, (samples, dims), as slices if few."""
    if indexes.shape[1] > 1:
        yield positions, tuple(indexes.T)
        return
    is_next = np.diff(positions) == 1
    if indexes.shape[1]:
        is_next &= np.diff(indexes[:, 0]) == 1
    cuts = np.flatnonzero(~is_next) + 1
    if len(cuts) >= MOST_RUNS:
        yield positions, tuple(indexes.T)
        return
    for start, stop in itertools.pairwise([0, *cuts.tolist(), len(positions)]):
        rows = slice(int(positions[start]), int(positions[stop - 1]) + 1)
        if not indexes.shape[1]:
            yield rows, ()
            continue
        yield rows, (slice(int(indexes[start, 0]), int(indexes[stop - 1, 0]) + 1),)
