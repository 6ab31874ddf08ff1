"""Groups of samples that no memory holds: decoded in bands, put aside, taken back sample by sample.

A band is a box of the dimensions that samples have, for those samples that share its chunks. Each
chunk is in one band, so that it is decoded once. A group that is held in memory is one band of all.
"""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.chunks.pieces import (
    JOB_NBYTES,
    IndexRun,
    PieceTarget,
    as_samples,
    empty_array,
    group_shape,
)
from iobench.files.memory import own_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.pieces import Piece, PiecedVariable
    from iobench.datasets.contract import Arrays, RunJobs
    from iobench.files.spill import SpillFile

BAND_NBYTES = 16 << 20
"""Enough for one band: more would leave the processor's cache for nothing."""
STRETCH_NBYTES = 64 << 10
"""But a band has, where memory allows, so much of each sample: a system call each to read."""
MOST_BANDS = 3
"""In memory at once: one is put aside, one is decoded, one begins where threads have no more."""
COPIED_NBYTES = 4 << 10
"""Shorter stretches are read together and copied to where they belong."""


class _Band(msgspec.Struct, frozen=True):
    """Some samples of a group, by ascending positions and runs of them, and a box of dimensions."""

    positions: NDArray[np.int64]
    runs: tuple[IndexRun, ...]
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample in it."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))


def spill_group(
    variables: Sequence[PiecedVariable],
    runs: Sequence[Sequence[IndexRun]],
    spill: SpillFile,
    run: RunJobs,
    *,
    in_flight_nbytes: int,
    bands_nbytes: int,
) -> SpilledGroup:
    """Decode the samples of a group, band by band, into a file; return what gives them back."""
    n_samples = sum(run.length for run in runs[0])
    n_bands = _n_bands(variables, bands_nbytes)
    most = bands_nbytes // n_bands
    group = SpilledGroup(variables, n_samples, spill)
    largest = max((variable.on_the_way_nbytes for variable in variables), default=1)
    gates = _Gates(
        threading.BoundedSemaphore(n_bands),
        threading.BoundedSemaphore(max(1, in_flight_nbytes // max(1, largest))),
    )
    run(_jobs(group, runs, most, gates))
    return group


def banded_nbytes(
    variables: Sequence[PiecedVariable], runs: Sequence[Sequence[IndexRun]], bands_nbytes: int
) -> int:
    """Return the bytes of bands that are in memory at once while a group is put aside."""
    n_bands = _n_bands(variables, bands_nbytes)
    sizes = [
        len(band.positions) * math.prod(band.shape) * np.dtype(variable.dtype).itemsize
        for variable, own in zip(variables, runs, strict=True)
        for band in _bands(variable, own, bands_nbytes // n_bands)
    ]
    return sum(sorted(sizes)[-n_bands:])


def _n_bands(variables: Sequence[PiecedVariable], bands_nbytes: int) -> int:
    unit = max((variable.unit_nbytes for variable in variables), default=1)
    return max(1, min(MOST_BANDS, bands_nbytes // max(1, unit)))


class _Gates(msgspec.Struct, frozen=True):
    """How many bands, and how many jobs, may be in memory at once."""

    bands: threading.BoundedSemaphore
    jobs: threading.BoundedSemaphore


def _jobs(
    group: SpilledGroup, runs: Sequence[Sequence[IndexRun]], most: int, gates: _Gates
) -> Iterator[Callable[[], None]]:
    for number, variable in enumerate(group.variables):
        for band in _bands(variable, runs[number], most):
            pieces = variable.pieces(band.runs, (band.start, band.stop))
            at_once = max(1, JOB_NBYTES // max(1, variable.piece_nbytes))
            batches = [pieces[at : at + at_once] for at in range(0, len(pieces), at_once)]
            if not batches:  # a dimension of no length
                continue
            gates.bands.acquire()
            filling = _Filling(group, number, band, len(batches), gates)
            yield from (partial(filling.put, batch) for batch in batches)
            del filling


class _Filling:
    """A band in memory, until its last job has put it aside."""

    def __init__(
        self, group: SpilledGroup, number: int, band: _Band, n_jobs: int, gates: _Gates
    ) -> None:
        self._group, self._number, self._band, self._gates = group, number, band, gates
        self._variable = group.variables[number]
        shape = (len(band.positions), *band.shape)
        self._array: NDArray[Any] | None = empty_array(shape, self._variable.dtype)
        self._target = PieceTarget(self._variable, self._array, band.runs, band.start)
        self._lock = threading.Lock()
        self._left, self._is_whole = n_jobs, True

    def put(self, pieces: Sequence[Piece]) -> None:
        """Decode pieces of the band; the last to end puts the band aside."""
        done = False
        try:
            with self._gates.jobs:
                stored = self._variable.read(pieces)
                nbytes = sum(buffer.nbytes for buffers in stored for buffer in buffers)
                for piece, buffers in zip(pieces, stored, strict=True):
                    self._variable.put(piece, buffers, self._target.parts(piece))
                    buffers.clear()
            self._group.count_read(nbytes)
            done = True
        finally:
            with self._lock:
                self._is_whole &= done
                self._left -= 1
                is_last = not self._left
            if is_last:
                self._end()

    def _end(self) -> None:
        array, self._array = self._array, None
        del self._target
        try:
            if self._is_whole and array is not None:
                self._group.put_aside(self._number, self._band, array)
        finally:
            del array
            self._gates.bands.release()


class SpilledGroup:
    """Samples of a group in a file, band by band."""

    def __init__(
        self, variables: Sequence[PiecedVariable], n_samples: int, spill: SpillFile
    ) -> None:
        self.variables = tuple(variables)
        self.read_nbytes = self.spilled_nbytes = 0
        self._spill = spill
        self._lock = threading.Lock()
        self._rows: list[dict[int, list[tuple[_Band, int]]]] = [{} for _ in variables]
        self._row_of = [np.zeros(n_samples, dtype=np.int64) for _ in variables]

    def count_read(self, nbytes: int) -> None:
        """Add what a job read."""
        with self._lock:
            self.read_nbytes += nbytes

    def put_aside(self, number: int, band: _Band, array: NDArray[Any]) -> None:
        """Write a band of a variable."""
        at = self._spill.write(array.reshape(-1).view(np.uint8).data)
        first = int(band.positions[0])
        with self._lock:
            self.spilled_nbytes += array.nbytes
            self._rows[number].setdefault(first, []).append((band, at))
            self._row_of[number][band.positions] = first

    def take(self, start: int, stop: int) -> Sequence[Arrays]:
        """Return the arrays of some samples, by their positions in the group."""
        found = [self._taken(number, start, stop) for number in range(len(self.variables))]
        return as_samples(self.variables, found, stop - start)

    def _taken(self, number: int, start: int, stop: int) -> NDArray[Any]:
        variable = self.variables[number]
        rows = self._rows[number]
        if variable.axis < 0:
            whole = empty_array((1, *variable.shape), variable.dtype)
            self._fill(whole, rows.get(0, ()), 0, 1)
            return whole[0, ...]
        array = empty_array(group_shape(variable, stop - start), variable.dtype)
        for row in np.unique(self._row_of[number][start:stop]).tolist():
            self._fill(array, rows.get(row, ()), start, stop)
        return array

    def _fill(
        self, array: NDArray[Any], bands: Sequence[tuple[_Band, int]], start: int, stop: int
    ) -> None:
        """Read the part of some bands that are of samples ``start`` to ``stop`` into an array."""
        for band, at in bands:
            first, last = np.searchsorted(band.positions, (start, stop)).tolist()
            positions = band.positions[first:last] - start
            box: tuple[Any, ...] = tuple(map(slice, band.start, band.stop))
            one = math.prod(band.shape) * array.itemsize
            at += first * one
            low, high = int(positions[0]), int(positions[-1]) + 1
            if len(positions) == high - low:
                inside: tuple[Any, ...] = (slice(low, high), *box, ...)
                stretches = _stretches(array[inside])
                if stretches is not None:
                    self._spill.read(stretches, at)
                    continue
            octets = own_pages(len(positions) * one)
            self._spill.read([octets.data], at)
            array[(positions, *box)] = octets.view(array.dtype).reshape(-1, *band.shape)


def _stretches(part: NDArray[Any]) -> list[memoryview] | None:
    """Return buffers that, one after the other, are a part of an array; None where all are short.

    Those of many are copied in one go instead.
    """
    inner, nbytes = part.ndim, part.itemsize
    while inner and (part.strides[inner - 1] == nbytes or part.shape[inner - 1] == 1):
        inner -= 1
        nbytes *= part.shape[inner]
    if nbytes < COPIED_NBYTES and inner:
        return None
    outer = np.ndindex(*part.shape[:inner])
    return [part[place].reshape(-1).view(np.uint8).data for place in outer]


def _bands(variable: PiecedVariable, runs: Sequence[IndexRun], most: int) -> list[_Band]:
    """Return the bands of a variable, of ``most`` bytes each unless one chunk is more."""
    itemsize = np.dtype(variable.dtype).itemsize
    rows = _rows(variable, runs)
    lengths = [n for axis, n in enumerate(variable.shape) if axis != variable.axis]
    steps = [n for axis, n in enumerate(variable.steps) if axis != variable.axis]
    whole = math.prod(lengths) * itemsize
    bands: list[_Band] = []
    waiting: list[tuple[int, int, int]] = []  # rows that are one band, as all of them fits
    n_waiting = 0
    for row in rows:
        n = sum(length for _, _, length in row)
        room = min(most, max(BAND_NBYTES, n * STRETCH_NBYTES))
        if waiting and (n_waiting + n) * whole > room:
            bands.append(_band(waiting, [0] * len(lengths), lengths))
            waiting, n_waiting = [], 0
        if n * whole <= room:
            waiting, n_waiting = waiting + row, n_waiting + n
            continue
        box = _box_shape(lengths, steps, room // max(1, n * itemsize))
        for place in np.ndindex(*(-(-n // b) for n, b in zip(lengths, box, strict=True))):
            start = [p * b for p, b in zip(place, box, strict=True)]
            stop = [min(s + b, n) for s, b, n in zip(start, box, lengths, strict=True)]
            bands.append(_band(row, start, stop))
    if waiting:
        bands.append(_band(waiting, [0] * len(lengths), lengths))
    return bands


def _rows(variable: PiecedVariable, runs: Sequence[IndexRun]) -> list[list[tuple[int, int, int]]]:
    """Return (position, index, length) of samples that share chunks, those of each row together."""
    if variable.axis < 0:
        return [[(0, 0, 1)]]
    found: dict[int, list[tuple[int, int, int]]] = {}
    for run in runs:
        index, end = run.index, run.index + run.length
        while index < end:
            row = index // variable.sharing
            stop = min(end, (row + 1) * variable.sharing)
            found.setdefault(row, []).append(
                (run.position + index - run.index, index, stop - index)
            )
            index = stop
    return list(found.values())


def _band(
    parts: Sequence[tuple[int, int, int]], start: Sequence[int], stop: Sequence[int]
) -> _Band:
    runs: list[IndexRun] = []
    at = 0
    for _, index, length in sorted(parts):
        if runs and runs[-1].index + runs[-1].length == index:
            runs[-1] = IndexRun(runs[-1].position, runs[-1].index, runs[-1].length + length)
        else:
            runs.append(IndexRun(at, index, length))
        at += length
    positions = [np.arange(first, first + length) for first, _, length in sorted(parts)]
    return _Band(np.concatenate(positions), tuple(runs), tuple(start), tuple(stop))


def _box_shape(lengths: Sequence[int], steps: Sequence[int], most: int) -> list[int]:
    """Return the largest box of whole steps with ``most`` numbers, longest along the last axis.

    At least one step along each.
    """
    box = [min(step, n) for step, n in zip(steps, lengths, strict=True)]
    for axis in reversed(range(len(lengths))):
        others = math.prod(box[:axis]) * math.prod(box[axis + 1 :])
        n_steps = -(-lengths[axis] // steps[axis])
        fitting = max(1, min(n_steps, most // max(1, others * steps[axis])))
        fitting = -(-n_steps // -(-n_steps // fitting))  # evenly
        box[axis] = min(fitting * steps[axis], lengths[axis])
        if fitting < n_steps:
            break
    return box
