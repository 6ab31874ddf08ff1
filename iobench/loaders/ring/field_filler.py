"""Rows filled from extents that hold variables as memory has them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np

from iobench.files.open_files import FileSet
from iobench.loaders.ring.decoded import DecodedFiller
from iobench.loaders.ring.direct import AlignedReader, DirectReads
from iobench.loaders.ring.gather import MIN_RUN, ExtentGrid, MappedReads, find_grid
from iobench.loaders.ring.laps import Laps
from iobench.loaders.ring.probe_reads import GATHER, PREAD, choose_reads
from iobench.loaders.ring.read_ahead import ask_for, is_cached
from iobench.loaders.ring.reads import RowReads, gap_nbytes
from iobench.recording.kinds import Kind
from iobench.stores.rounding import unpack
from iobench.stores.varints import decode_varint_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.loaders.ring.checks import ExtentChecks
    from iobench.loaders.ring.contract import Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.probe_reads import ReadChoice
    from iobench.loaders.ring.reads import Reads
    from iobench.stores.extents import ExtentStore
    from iobench.stores.fields import FieldLayout

__all__ = ["FieldFiller", "StoreFiles"]

RETRY: Final = 16
"""Batches after which a store that was not in the page cache is looked at again."""


class ChoosingSource(Protocol):
    """What fillers of a store share."""

    checks: ExtentChecks | None
    direct: bool | Literal["auto"]

    def is_direct(self, files: FileSet, reader: AlignedReader) -> bool:
        """Return whether what is not cached is read around the page cache."""
        ...

    def chosen(self, filler: FieldFiller) -> ReadChoice:
        """Return how extents are to be read."""
        ...


class StoreFiles:
    """What all threads know of the files of a store.

    Attributes
    ----------
    files : FileSet
    """

    def __init__(self, store: ExtentStore) -> None:
        self.table = store.table
        self.files = store.files
        self._sizes = store.file_sizes
        self._direct: FileSet | None = None
        self._grids: list[ExtentGrid | None] | None = None

    @property
    def are_few(self) -> bool:
        """Whether mapping them all gains more than it costs."""
        return len(self.table.files) * MIN_RUN <= self.table.file.size

    def aligned(self) -> AlignedReader:
        """Return what reads them around the page cache, for one more thread."""
        if self._direct is None:
            self._direct = FileSet(self.table.files, self._sizes, os.O_DIRECT)
        return AlignedReader(self._direct)

    def grids(self, fields: FieldLayout) -> list[ExtentGrid | None]:
        """Return how the extents of each number lie; the first call looks at all of them."""
        if self._grids is None:
            sizes = [self._sizes[path] for path in self.table.files]
            self._grids = [
                find_grid(self.table, number, length, sizes)
                for number, length in enumerate(fields.lengths)
            ]
        return self._grids


@dataclass(slots=True)
class _ReadSet:
    """Ways to read that make up whole samples, and room they need for bytes between variables."""

    reads: list[Reads] = field(default_factory=list)
    gap_nbytes: dict[int, int] = field(default_factory=dict)


class FieldFiller:
    """Fills rows of variables that lie in the extents as memory has them.

    Parameters
    ----------
    source : ChoosingSource
        Whose filler it is.
    store : ExtentStore
        A local one.
    fields : FieldLayout
        Where variables lie.
    files : StoreFiles
        Of the source.
    """

    def __init__(
        self, source: ChoosingSource, store: ExtentStore, fields: FieldLayout, files: StoreFiles
    ) -> None:
        self._source = source
        self._fields = fields
        self._table = store.table
        self._shared = files
        self._files = files.files
        self._others = DecodedFiller(store, source.checks)
        self._packed = [v for v in store.manifest.spec if v.packed is not None and v.nbytes]
        # Of each variable that is varints, the bytes they take.
        self._varints = {
            part.name: part.nbytes
            for extent in fields.extents
            for part in extent
            if part.name in fields.varints
        }
        plain = {v.name for v in store.spec if v.nbytes} - {v.name for v in self._packed}
        plain -= self._varints.keys()
        self._plain = [name for name in store.spec.names if name in plain]
        self._lengths = np.array(fields.lengths, dtype=np.int64)
        self._around = {
            number: np.frombuffer(around, dtype=np.uint8)
            for number, around in enumerate(fields.around or ())
            if around
        }
        self._warm = self._cold = self._read_set((PREAD,) * len(fields.extents))
        self._direct: _ReadSet | None = None
        self._aligned = files.aligned() if source.direct else None
        if self._aligned is not None:
            reads = DirectReads(store.table, fields.extents, self._aligned, source.checks)
            self._direct = _ReadSet([reads], self._cold.gap_nbytes)
        self._n_until_retry = 0
        self._scratch: dict[object, NDArray[np.uint8]] = {}

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill ``rows``; see `Filler`."""
        if self._n_until_retry == 0:
            self._choose()
        self._n_until_retry -= 1
        laps = Laps(log)
        others = np.flatnonzero((self._table.length[samples] != self._lengths).any(axis=1))
        if others.size < len(samples):
            fitting = samples
            if others.size:  # laid out otherwise: one that fits is read in its place, for now
                fitting = samples.copy()
                fitting[others] = np.delete(samples, others)[0]
            self._fill(fitting, rows, laps)
        self._decode(others, samples, rows, laps)
        laps.emit()

    def measured(self) -> ReadChoice:
        """Return which way of reading is faster for each extent."""
        return choose_reads(
            self._table,
            self._fields.extents,
            [grid is not None for grid in self._shared.grids(self._fields)],
            self._files,
            lambda number, way: self._reader([number], way),
        )

    def _choose(self) -> None:
        choice = self._source.chosen(self)
        self._n_until_retry = -1 if choice.is_final else RETRY
        self._warm = self._read_set(choice.ways)

    def _read_set(self, ways: Sequence[str]) -> _ReadSet:
        made = _ReadSet()
        for way in sorted(set(ways)):
            numbers = [number for number, chosen in enumerate(ways) if chosen == way]
            made.reads.append(self._reader(numbers, way))
            for number in numbers:
                nbytes = gap_nbytes(self._fields.extents[number])
                if nbytes and (way != GATHER or number in self._around):
                    made.gap_nbytes[number] = nbytes
        return made

    def _reader(self, numbers: Sequence[int], way: str) -> Reads:
        extents = self._fields.extents
        checks = self._source.checks
        if way == GATHER:
            grids = self._shared.grids(self._fields)
            chosen = {}
            for number in numbers:
                grid = grids[number]
                assert grid is not None
                chosen[number] = grid, extents[number]
            return MappedReads(chosen, self._files, checks)
        parts = {number: extents[number] for number in numbers}
        return RowReads(self._table, parts, self._files, checks)

    def _fill(self, samples: NDArray[np.int64], rows: Rows, laps: Laps) -> None:
        count = len(samples)
        ways = self._warm
        if not is_cached(self._table, samples[[0, -1]], 0, self._files):
            ways = self._uncached(samples, laps)
        octets = {
            name: rows[name].reshape(-1).view(np.uint8).reshape(count, -1) for name in self._plain
        }
        coded = {v.name: v.nbytes for v in self._packed} | self._varints
        for name, nbytes in coded.items():
            octets[name] = self._room(name, count * nbytes).reshape(count, nbytes)
        gaps = {
            number: self._room(number, count * nbytes).reshape(count, nbytes)
            for number, nbytes in ways.gap_nbytes.items()
        }
        checks = self._source.checks
        expected = None if checks is None else checks.expected(samples, self._table, self._files)
        for reads in ways.reads:
            reads.read(samples, octets, gaps, laps, expected)
        for variable in self._packed:
            assert variable.packed is not None
            numbers = octets[variable.name].view(variable.dtype).reshape(count, *variable.shape)
            unpack(numbers, variable.packed, rows[variable.name])
            laps.end(Kind.DECODE, octets[variable.name].size)
        for name in self._varints:
            others = _undone(octets[name], rows[name])
            laps.end(Kind.DECODE, octets[name].size)
            self._decode(others, samples, rows, laps)
        for number, around in self._around.items():
            others = np.flatnonzero((gaps[number] != around).any(axis=1))
            self._decode(others, samples, rows, laps)

    def _uncached(self, samples: NDArray[np.int64], laps: Laps) -> _ReadSet:
        """Return how to read what is not in the page cache, and ask for it."""
        direct, aligned = self._direct, self._aligned
        if direct and aligned and self._source.is_direct(self._files, aligned):
            return direct
        ask_for(self._table, samples, self._files)
        laps.end(Kind.READ, 0)
        return self._cold

    def _decode(
        self, chosen: NDArray[np.intp], samples: NDArray[np.int64], rows: Rows, laps: Laps
    ) -> None:
        for row in chosen.tolist():
            self._others.fill_rows(slice(row, row + 1), samples, rows, laps)

    def _room(self, key: object, nbytes: int) -> NDArray[np.uint8]:
        """Return memory of this thread that is used again."""
        room = self._scratch.get(key)
        if room is None or room.size < nbytes:
            room = self._scratch[key] = np.empty(nbytes, dtype=np.uint8)
        return room[:nbytes]

    def close(self) -> None:
        """Let memory go."""
        self._scratch.clear()


def _undone(octets: NDArray[np.uint8], rows: NDArray[Any]) -> NDArray[np.intp]:
    """Decode varints to rows, and return those of which that cannot be done so simply."""
    count = len(rows)
    numbers, holds = decode_varint_rows(octets, rows.size // count)
    target = rows.reshape(count, -1)
    target[...] = numbers
    if target.itemsize < numbers.itemsize:
        holds &= (target == numbers).all(axis=1)
    return np.flatnonzero(~holds)
