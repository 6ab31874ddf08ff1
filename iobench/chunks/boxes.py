"""Boxes of a stored variable: a range along each dimension, and the chunks and bytes it needs."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from iobench.chunks.chunked_variable import ChunkedVariable, Place, check_known
from iobench.files.memory import array_for_one_sample
from iobench.files.ranges import FileRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

PICK_NBYTES = 4096
"""Rows of a box shorter than this are read with what lies between them: fewer system calls cost
less than the bytes they save."""

SHARED_PAGES_NBYTES = 1 << 20
"""About so much of a contiguous variable is kept as one where samples share its pages."""


class Box(NamedTuple):
    """A range along each dimension of a stored variable."""

    file: str  # the file or store
    variable: ChunkedVariable  # with where its numbers lie in ``file``
    start: tuple[int, ...]
    stop: tuple[int, ...]  # one per dimension, not empty, inside the variable's shape
    # the sample dimensions, the slowest first; -1 of one that the variable lacks
    axes: tuple[int, ...] = ()
    of_all: bool = False  # whether the file is one that samples of all files need
    # whether the array lacks the sample dimensions, of which the box has one index each
    drops_axes: bool = False

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths along the dimensions of the variable."""
        return tuple(map(operator.sub, self.stop, self.start))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that is made of it."""
        return self.shape_of(self.lengths)

    def shape_of(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the array for the box's `lengths`, where they are at hand."""
        if not self.drops_axes:
            return lengths
        return tuple([length for axis, length in enumerate(lengths) if axis not in self.axes])

    @property
    def is_of_one(self) -> bool:
        """Whether no other sample needs it: the variable has all sample dimensions."""
        return bool(self.axes) and min(self.axes) >= 0


def index_box(file: str, variable: ChunkedVariable, axis: int = -1, index: int = -1) -> Box:
    """Return one index of a variable along ``axis``, its sample dimension; -1: all of it."""
    if axis >= 0:
        return indexes_box(file, variable, (axis,), (index,))
    check_known(file, variable)
    return Box(file, variable, (0,) * len(variable.shape), variable.shape)


def indexes_box(
    file: str, variable: ChunkedVariable, axes: tuple[int, ...], indexes: Sequence[int]
) -> Box:
    """Return one index of a variable along each of its sample dimensions; of axis -1 it lacks."""
    check_known(file, variable)
    start, stop = [0] * len(variable.shape), list(variable.shape)
    for axis, index in zip(axes, indexes, strict=True):
        if axis >= 0:
            start[axis], stop[axis] = index, index + 1
    return Box(file, variable, tuple(start), tuple(stop), axes, False, True)


def box_ranges(box: Box) -> list[FileRange[str]]:
    """Return the ranges of the file that a box needs, in C order: rows, or chunks that are there.

    A contiguous variable gives one range per row of the box, as few as its shape allows.
    """
    file, variable = box.file, box.variable
    if not variable.is_contiguous:
        places = places_touched(variable.chunk, box.start, box.stop)
        extents = (variable.range_at(file, place) for place in places)
        return [each for each in extents if each is not None]
    if variable.offset < 0:
        return []
    rows = _rows(variable.packing.stored, variable.shape, box.lengths)
    first = variable.offset + sum(map(operator.mul, box.start, rows.strides))
    return [FileRange(file, first + apart, nbytes) for apart, nbytes in rows.ranges]


def contiguous_array(box: Box, buffers: Sequence[memoryview]) -> NDArray[Any]:
    """Return a box's numbers as stored, from the bytes of its `box_ranges`."""
    stored = box.variable.packing.stored
    if not buffers:
        return np.full(box.shape, box.variable.fill, dtype=stored)
    lengths = box.lengths
    rows = _rows(stored, box.variable.shape, lengths)
    if rows.n_between == 1:
        # Joining takes a third less time than copying row by row.
        content = buffers[0] if len(buffers) == 1 else bytearray().join(buffers)
        return np.frombuffer(content, dtype=stored).reshape(box.shape_of(lengths))
    values = array_for_one_sample((len(buffers), rows.n_between, rows.length), np.uint8)
    for target, buffer in zip(values, buffers, strict=True):
        between = np.frombuffer(buffer, dtype=np.uint8)
        target[:] = np.lib.stride_tricks.as_strided(between, target.shape, (rows.distance, 1))
    return values.view(stored).reshape(box.shape_of(lengths))


class _Rows(NamedTuple):
    """Where the rows of a box lie, whichever variable of this shape it is of."""

    strides: tuple[int, ...]  # bytes between neighbours along each dimension
    # what is read: where each begins, from the first number of the box on, and its bytes
    ranges: tuple[tuple[int, int], ...]
    length: int
    distance: int  # of a row, and between the beginnings of neighbours, in bytes
    n_between: int  # how many rows each range holds, with what lies between them


@functools.lru_cache(maxsize=256)
def _rows(dtype: str, shape: Place, lengths: Place) -> _Rows:
    """Return where the rows of a box lie: found out once, not for each sample.

    A row is what lies together: all inner dimensions that the box spans whole, and its range
    along the next one. Rows lie evenly along the dimensions outside of that, as far as the box
    spans those whole, and along one more.
    """
    strides = [np.dtype(dtype).itemsize] * (len(shape) + 1)
    for axis in range(len(shape) - 1, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis]  # of the next outer dimension
    axis = len(shape)
    while axis > 0 and lengths[axis - 1] == shape[axis - 1]:
        axis -= 1
    row = max(axis - 1, 0)  # the dimension along which a row is a part
    length = strides[row + 1] * lengths[row] if shape else strides[0]
    even = row
    while even > 0 and (even == row or lengths[even] == shape[even]):
        even -= 1
    offsets = [0]
    for outer in range(even):
        steps = range(lengths[outer])
        offsets = [at + n * strides[outer + 1] for at in offsets for n in steps]
    count = math.prod(lengths[even:row])
    inner = tuple(strides[1:])
    if 0 in lengths:
        return _Rows(inner, (), length, strides[row], 1)
    if length < PICK_NBYTES:
        nbytes = (count - 1) * strides[row] + length
        return _Rows(inner, tuple((at, nbytes) for at in offsets), length, strides[row], count)
    each = tuple((at + n * strides[row], length) for at in offsets for n in range(count))
    return _Rows(inner, each, length, strides[row], 1)


def page_chunks(box: Box) -> ChunkedVariable | None:
    """Return a variable whose samples share pages as if it were in chunks; None of another one.

    A sample's numbers lie so close to others' that all are read: with them kept, once.
    """
    variable = box.variable
    if max(box.axes, default=-1) <= 0 or not box.drops_axes or variable.offset < 0:
        return None
    if not _shares_pages(variable.packing.stored, variable.shape, box.axes):
        return None
    return in_chunks(variable, box.axes)


@functools.lru_cache(maxsize=256)
def _shares_pages(dtype: str, shape: Place, axes: Place) -> bool:
    last = max(axes)
    length = math.prod(shape[last + 1 :]) * np.dtype(dtype).itemsize
    n_rows = math.prod(n for axis, n in enumerate(shape[:last]) if axis not in axes)
    return n_rows > 1 and 0 < length < PICK_NBYTES


@functools.lru_cache(maxsize=1024)
def in_chunks(variable: ChunkedVariable, axes: Place) -> ChunkedVariable:
    """Return contiguous numbers as chunks of some that lie together; the last ones are shorter.

    Short rows are read with what lies between: other samples along the last sample dimension.
    """
    shape, itemsize = variable.shape, np.dtype(variable.packing.stored).itemsize
    last = max(axes, default=-1)
    is_short = math.prod(shape[last + 1 :]) * itemsize < PICK_NBYTES
    whole = len(shape) and (last if is_short and last > 0 else last + 1)
    chunk = [1] * whole + list(shape[whole:])
    nbytes = math.prod(chunk) * itemsize
    for axis in reversed(range(whole)):
        chunk[axis] = max(1, min(shape[axis], SHARED_PAGES_NBYTES // max(1, nbytes)))
        nbytes *= chunk[axis]
        if chunk[axis] < shape[axis]:
            break
    offsets = np.array(variable.offset, dtype=np.int64)
    sizes = np.array(itemsize, dtype=np.int64)
    for axis, (length, n) in enumerate(zip(chunk, shape, strict=True)):
        along = np.arange(0, n, max(1, length))
        offsets = offsets[..., None] + along * math.prod(shape[axis + 1 :]) * itemsize
        sizes = sizes[..., None] * np.minimum(length, n - along)
    if variable.offset < 0:  # never written
        offsets[...] = -1
    return replace(
        variable, chunk=tuple(chunk), offset=-1, offsets=offsets, sizes=sizes, is_cut=True
    )


def places_touched(chunk: Place, start: Place, stop: Place) -> Iterator[Place]:
    """Yield the places of the chunks that hold a range along each dimension, in C order."""
    ends = zip(start, stop, chunk, strict=True)
    return itertools.product(*(range(a // length, -(-b // length)) for a, b, length in ends))


def join_chunks(
    chunk: Place,
    start: Place,
    stop: Place,
    chunk_at: Callable[[Place, NDArray[Any] | None], NDArray[Any] | None],
    *,
    dtype: str | np.dtype[Any],
    fill: Any,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return a range along each dimension of an array in chunks."""
    values = out
    if values is None:
        lengths = tuple(b - a for a, b in zip(start, stop, strict=True))
        values = array_for_one_sample(lengths, dtype)
    overlaps = []
    for a, b, length in zip(start, stop, chunk, strict=True):
        firsts = range(a // length * length, b, length)
        ends = [(first, max(first, a), min(first + length, b)) for first in firsts]
        overlaps.append([(slice(c - a, d - a), slice(c - n, d - n)) for n, c, d in ends])
    both = itertools.product(*overlaps)
    for place, pairs in zip(places_touched(chunk, start, stop), both, strict=True):
        target = values[tuple(pair[0] for pair in pairs) or ...]  # a number is an array, too
        decoded = chunk_at(place, target if fits(target, chunk, values.dtype) else None)
        if decoded is None:
            target[...] = fill
        elif decoded is not target:
            target[...] = decoded[tuple(pair[1] for pair in pairs)]
    return values


def fits(out: NDArray[Any] | None, shape: Place, dtype: str | np.dtype[Any]) -> bool:
    """Return whether an array of this shape and dtype can be made in ``out``."""
    return (
        out is not None
        and out.shape == shape
        and out.dtype == dtype
        and out.flags.c_contiguous
        and out.flags.writeable
    )


def tile_starts(length: int, size: int) -> list[int]:
    """Return where tiles of ``size`` begin along a dimension.

    The last one is moved back to end where the dimension does: nothing is lost, and all tiles are
    of one size; it then overlaps the one before.

    Examples
    --------
    >>> tile_starts(512, 256), tile_starts(600, 256)
    ([0, 256], [0, 256, 344])
    """
    starts = list(range(0, length - size + 1, size))
    if starts[-1] + size < length:
        starts.append(length - size)
    return starts
