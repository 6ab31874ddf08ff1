"""Samples made in groups: every piece of a variable is read and decoded once for all of them.

A piece is what cannot be decoded in part: a chunk, or a stretch of numbers that lie as they are.
"""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from iobench.chunks.group_plan import SharedDecoding
from iobench.files.memory import own_pages
from iobench.samples import StackedSamples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.datasets.contract import Arrays, RunJobs

FEW = 64
"""Indexes; of more NumPy sees sooner which follow each other."""

READ_NBYTES = 4 << 20
"""Pieces of about this many decoded bytes are read together: neighbours with one system call."""

UNBOUNDED = 1 << 62

JOB_NBYTES = 1 << 20
"""Smaller pieces are decoded several in one job."""

LINE_NBYTES = 64
"""Of a processor's cache."""

SHORT_NBYTES = 1 << 16
"""Samples of fewer bytes are copied side by side before they are written."""


class IndexRun(msgspec.Struct, frozen=True):
    """Samples of a group whose indexes follow each other."""

    position: int  # of the first in the group
    index: int  # of the first along the sample dimension
    length: int  # how many


def runs_of_each(
    variables: Sequence[PiecedVariable], indexes: Sequence[int] | NDArray[np.int64]
) -> list[list[IndexRun]]:
    """Return the runs that make up a group of samples, as each variable counts them."""
    given = np.asarray(indexes, dtype=np.int64)
    shared = consecutive_runs(indexes)
    own = [variable.places(given) for variable in variables]
    return [shared if each is given else consecutive_runs(each) for each in own]


def rows_of(runs: Sequence[IndexRun], sharing: int) -> list[int]:
    """Return the rows of pieces that samples have a part in, where so many share a row."""
    found: set[int] = set()
    for run in runs:
        last = run.index + run.length - 1
        found.update(range(run.index // sharing, last // sharing + 1))
    return sorted(found)


class RowSizes:
    """What the pieces of a variable take, row after row; each row is looked at once.

    Whoever looks for groups that fit a memory asks for the same rows again and again.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}

    def added_up(self, variable: PiecedVariable, runs: Sequence[IndexRun]) -> tuple[int, int]:
        """Return the bytes of the pieces of these samples, stored and decoded."""
        rows = rows_of(runs, variable.sharing) if variable.axis >= 0 else [0]
        sizes = [self._row(variable, row) for row in rows]
        return sum(stored for stored, _ in sizes), sum(decoded for _, decoded in sizes)

    def _row(self, variable: PiecedVariable, row: int) -> tuple[int, int]:
        found = self._known.get(row)
        if found is None:
            first = row * variable.sharing if variable.axis >= 0 else 0
            pieces = variable.pieces([IndexRun(0, first, 1)])
            itemsize = np.dtype(variable.dtype).itemsize
            decoded = sum(piece.size for piece in pieces) * itemsize
            found = self._known[row] = sum(map(variable.stored_nbytes, pieces)), decoded
        return found


def consecutive_runs(indexes: Sequence[int] | NDArray[np.int64]) -> list[IndexRun]:
    """Return the runs that make up a group of samples, in the order of the group."""
    if not len(indexes):
        return []
    first, count = int(indexes[0]), len(indexes)
    if count <= FEW and list(indexes) == [*range(first, first + count)]:
        return [IndexRun(0, first, count)]
    every = np.asarray(indexes, dtype=np.int64)
    starts = [0, *(np.flatnonzero(np.diff(every) != 1) + 1).tolist()]
    lengths = np.diff([*starts, every.size]).tolist()
    return list(map(IndexRun, starts, every[starts].tolist(), lengths))


class Piece(msgspec.Struct, frozen=True):
    """What is decoded as a whole."""

    place: tuple[int, ...]  # of its chunk in the grid of chunks; empty where there are no chunks
    start: tuple[int, ...]
    stop: tuple[int, ...]  # which part of the variable it holds, one entry per dimension

    @property
    def size(self) -> int:
        """How many numbers of the variable it holds."""
        return math.prod(stop - start for start, stop in zip(self.start, self.stop, strict=True))


class PiecePart(msgspec.Struct, frozen=True):
    """Where numbers of a piece go."""

    # which numbers of the piece; with the ellipsis one number stays an array
    source: tuple[Any, ...]
    target: NDArray[Any]  # the same part of the group's array, with the axes of the variable


OtherBox = tuple[tuple[int, ...], tuple[int, ...]]
"""Start and stop along each dimension but the sample's."""


class PiecedVariable(SharedDecoding, Protocol):
    """A variable of one file, in pieces."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole variable."""
        ...

    @property
    def dtype(self) -> str:
        """Of the numbers as samples have them."""
        ...

    @property
    def steps(self) -> tuple[int, ...]:
        """Where along each dimension pieces end: at multiples; of the sample's: `sharing`."""
        ...

    @property
    def piece_nbytes(self) -> int:
        """Bytes of the largest piece as stored numbers."""
        ...

    def places(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indexes of samples along the sample dimension, as runs of it count them.

        Another variable may count them otherwise: where samples are along several dimensions.
        """
        ...

    def pieces(self, runs: Sequence[IndexRun], box: OtherBox | None = None) -> list[Piece]:
        """Return the pieces that these samples need, each once.

        ``box`` is a start and a stop along each dimension but the sample's, at multiples of
        `steps` or at the end; by default all of them.
        """
        ...

    def stored_nbytes(self, piece: Piece) -> int:
        """Return the bytes a piece has in storage."""
        ...

    def group_nbytes(self, runs: Sequence[IndexRun]) -> tuple[int, int]:
        """Return the bytes of the pieces of these samples, stored and decoded."""
        ...

    def read(self, pieces: Sequence[Piece]) -> list[list[memoryview]]:
        """Return what is stored of each piece; nothing for one that was never written."""
        ...

    def put(self, piece: Piece, stored: Sequence[memoryview], parts: Sequence[PiecePart]) -> None:
        """Decode a piece and write its numbers, unpacked, where they go."""
        ...


GroupBytes = list[list[list[memoryview]]]
"""What is stored of each piece of each variable of a group, as far as it was read."""


class PiecedGroup:
    """A group of samples of one file."""

    def __init__(
        self,
        variables: Sequence[PiecedVariable],
        indexes: Sequence[int] | NDArray[np.int64],
        *,
        may_lie_apart: bool = False,
    ) -> None:
        self._variables = tuple(variables)
        self._may_lie_apart = may_lie_apart
        self._n_samples = len(indexes)
        self._runs = runs_of_each(variables, indexes)

    def read(self, most_nbytes: int | None = None) -> GroupBytes:
        """Return what is stored of the first pieces of each variable.

        No more of each is read here than its arrays will take, and no more than ``most_nbytes`` of
        all: the first piece that is decoded may touch all pages of an array. What is left (few
        samples of long chunks, or a memory that the arrays take) is read as it is decoded.
        """
        found: GroupBytes = []
        left = UNBOUNDED if most_nbytes is None else most_nbytes
        for variable, runs in zip(self._variables, self._runs, strict=True):
            allowed = min(left, _array_nbytes(variable, self._n_samples))
            stored, nbytes = self._read_variable(variable, runs, allowed)
            found.append(stored)
            left -= nbytes
        return found

    def _read_variable(
        self, variable: PiecedVariable, runs: Sequence[IndexRun], allowed: int
    ) -> tuple[list[list[memoryview]], int]:
        pieces = variable.pieces(runs)
        at_once = max(1, READ_NBYTES // max(1, variable.piece_nbytes))
        found: list[list[memoryview]] = []
        read = 0
        while len(found) < len(pieces) and read < allowed:
            batch = variable.read(pieces[len(found) : len(found) + at_once])
            found += batch
            read += sum(buffer.nbytes for buffers in batch for buffer in buffers)
        return found, read

    def decode(self, raw: GroupBytes, run: RunJobs, in_flight_nbytes: int) -> Sequence[Arrays]:
        """Return the arrays of each sample, in order; they are views of the group's."""
        arrays: list[NDArray[Any]] = []
        largest = max((variable.on_the_way_nbytes for variable in self._variables), default=1)
        gate = threading.BoundedSemaphore(max(1, in_flight_nbytes // max(1, largest)))
        run(self._jobs(raw, arrays, gate))
        raw.clear()
        return as_samples(self._variables, arrays, self._n_samples)

    def _jobs(
        self, raw: GroupBytes, arrays: list[NDArray[Any]], gate: threading.BoundedSemaphore
    ) -> Iterator[Callable[[], None]]:
        """Yield what fills the arrays of all variables; each is made when its turn comes.

        By then pages of the group before may be free, whose samples are being written.
        """
        batch: list[Callable[[], None]] = []
        nbytes = 0
        for variable, runs, stored in zip(self._variables, self._runs, raw, strict=True):
            array = (
                _samples_last(variable, self._n_samples)
                if self._may_lie_apart and _is_scattered(variable)
                else empty_array(group_shape(variable, self._n_samples), variable.dtype)
            )
            arrays.append(array)
            target = PieceTarget(variable, array, runs)
            for number, piece in enumerate(variable.pieces(runs)):
                if batch and nbytes + variable.piece_nbytes > JOB_NBYTES:
                    yield partial(_do_each, batch, gate)
                    batch, nbytes = [], 0
                batch.append(partial(_put, variable, target, stored, number, piece))
                nbytes += variable.piece_nbytes
        if batch:
            yield partial(_do_each, batch, gate)


def _do_each(batch: Sequence[Callable[[], None]], gate: threading.BoundedSemaphore) -> None:
    with gate:
        for each in batch:
            each()


def _put(
    variable: PiecedVariable,
    target: PieceTarget,
    stored: list[list[memoryview]],
    number: int,
    piece: Piece,
) -> None:
    """Decode a piece, and let go of its bytes; read it first where it is not among the first."""
    if number < len(stored):
        buffers, stored[number] = stored[number], []
    else:
        (buffers,) = variable.read([piece])
    variable.put(piece, buffers, target.parts(piece))


class PieceTarget:
    """The array of one variable for some samples, and which part of it a piece fills."""

    def __init__(
        self,
        variable: PiecedVariable,
        array: NDArray[Any],
        runs: Sequence[IndexRun],
        origin: Sequence[int] = (),
    ) -> None:
        self._axis = variable.axis
        self._origin = list(origin or [0] * (len(variable.shape) - (self._axis >= 0)))
        if self._axis >= 0:
            self._origin.insert(self._axis, 0)
        self._array = array if variable.axis < 0 else np.moveaxis(array, 0, variable.axis)
        self._runs = runs
        self._along: dict[tuple[int, int], list[tuple[slice, slice]]] = {}

    def parts(self, piece: Piece) -> list[PiecePart]:
        """Return where the numbers of a piece go."""
        ends = zip(piece.start, piece.stop, self._origin, strict=True)
        target = [slice(start - origin, stop - origin) for start, stop, origin in ends]
        source = [slice(0, each.stop - each.start) for each in target]
        if self._axis < 0:
            return [self._part(source, target)]
        parts = []
        for positions, indexes in self._overlaps(piece.start[self._axis], piece.stop[self._axis]):
            target[self._axis], source[self._axis] = positions, indexes
            parts.append(self._part(source, target))
        return parts

    def _part(self, source: Sequence[slice], target: Sequence[slice]) -> PiecePart:
        # With an ellipsis even one number is a view of the array.
        inside: tuple[Any, ...] = (*target, ...)
        return PiecePart((*source, ...), self._array[inside])

    def _overlaps(self, start: int, stop: int) -> list[tuple[slice, slice]]:
        """Return which positions in the group take which indexes of a piece, from its own on."""
        found = self._along.get((start, stop))
        if found is None:
            found = [
                (
                    slice(begin - run.index + run.position, end - run.index + run.position),
                    slice(begin - start, end - start),
                )
                for run in self._runs
                for begin, end in ((max(run.index, start), min(run.index + run.length, stop)),)
                if begin < end
            ]
            self._along[start, stop] = found
        return found


def as_samples(
    variables: Sequence[PiecedVariable], arrays: Sequence[NDArray[Any]], n_samples: int
) -> Sequence[Arrays]:
    """Return the samples of a group; one that lacks their dimension is the same in all."""
    named = list(zip(variables, arrays, strict=True))
    if all(variable.axis >= 0 for variable in variables):
        return StackedSamples({each.name: array for each, array in named}, n_samples)
    return [
        {each.name: array[i, ...] if each.axis >= 0 else array for each, array in named}
        for i in range(n_samples)
    ]


def group_shape(variable: PiecedVariable, n_samples: int) -> tuple[int, ...]:
    """Return the shape of a variable for some samples, which come first where it has them."""
    if variable.axis < 0:
        return variable.shape
    before, behind = variable.shape[: variable.axis], variable.shape[variable.axis + 1 :]
    return (n_samples, *before, *behind)


def empty_array(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Return an uninitialised array in pages of its own."""
    pages = own_pages(math.prod(shape) * np.dtype(dtype).itemsize)
    return pages.view(dtype).reshape(shape)


def _is_scattered(variable: PiecedVariable) -> bool:
    """Whether a piece has many short samples, and few numbers of each that follow each other."""
    itemsize = np.dtype(variable.dtype).itemsize
    run_nbytes = itemsize
    for axis in reversed(range(len(variable.shape))):
        if axis != variable.axis:
            run_nbytes *= min(variable.steps[axis], variable.shape[axis])
            if variable.steps[axis] < variable.shape[axis]:
                break
    return (
        variable.axis >= 0
        and run_nbytes < LINE_NBYTES <= variable.sharing * itemsize
        and variable.sample_nbytes < SHORT_NBYTES
    )


def _samples_last(variable: PiecedVariable, n_samples: int) -> NDArray[Any]:
    """Return an uninitialised array for some samples, which are its last axis in memory."""
    _, *lengths = group_shape(variable, n_samples)
    # Rows that are powers of two apart share a place in the processor's cache: they would be read
    # from memory again for each sample.
    pitch = n_samples + LINE_NBYTES // np.dtype(variable.dtype).itemsize
    return np.moveaxis(empty_array((*lengths, pitch), variable.dtype), -1, 0)[:n_samples]


def _array_nbytes(variable: PiecedVariable, n_samples: int) -> int:
    return variable.sample_nbytes * (n_samples if variable.axis >= 0 else 1)
