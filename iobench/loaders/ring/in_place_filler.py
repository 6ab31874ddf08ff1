"""Rows filled in place, from extents that hold variables as memory has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np

from iobench.files.open_files import FileSet
from iobench.loaders.ring.direct import AlignedReader, DirectReads
from iobench.loaders.ring.gather import MIN_RUN, ExtentGrid, MappedReads, find_grid
from iobench.loaders.ring.log import Laps
from iobench.loaders.ring.read_ahead import is_cached
from iobench.loaders.ring.read_choice import GATHER, choose_reads
from iobench.loaders.ring.reads import RowReads, SampleRanges
from iobench.recording.kinds import Kind
from iobench.stores.rounding import unpack
from iobench.stores.varints import decode_varint_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.loaders.ring.checks import ExtentChecks
    from iobench.loaders.ring.contract import Rows
    from iobench.loaders.ring.decode_filler import DecodeFiller
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.range_plan import RangePlan
    from iobench.loaders.ring.read_choice import ReadChoice
    from iobench.loaders.ring.reads import Reads
    from iobench.stores.extents import ExtentStore
    from iobench.stores.fields import FieldLayout

RETRY: Final = 16
"""Batches after which a store that was not in the page cache is looked at again."""


class ChoosingSource(Protocol):
    """What fillers of a store share."""

    direct: bool | Literal["auto"]

    def is_direct(self, files: FileSet, reader: AlignedReader) -> bool:
        """Return whether what is not cached is read around the page cache."""
        ...

    def chosen(self, reads: LocalReads) -> ReadChoice:
        """Return how extents are to be read."""
        ...


class StoreFiles:
    """What all threads know of the files of a store."""

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
class ReadSet:
    """Ways to read that make up whole rows, and room they need for bytes between variables."""

    reads: Sequence[Reads]
    gap_nbytes: Mapping[int, int]

    def choose(self, samples: NDArray[np.int64], laps: Laps) -> ReadSet:
        """Return itself: there is nothing to choose."""
        return self


class ChoosesReads(Protocol):
    """Says how to read the samples of a batch."""

    def choose(self, samples: NDArray[np.int64], laps: Laps) -> ReadSet:
        """Return how to read them, and have the system begin with it where that helps."""
        ...


class LocalReads:
    """Chooses how one thread reads samples of files of this machine."""

    def __init__(
        self,
        source: ChoosingSource,
        fields: FieldLayout,
        files: StoreFiles,
        plan: RangePlan,
    ) -> None:
        self._source = source
        self._fields = fields
        self._plan = plan
        self._table = files.table
        self._shared = files
        self._files = files.files
        ranges = SampleRanges(self._table, plan.ranges)
        rows = self._rows = RowReads(ranges, self._files)
        self._warm = self._cold = ReadSet([rows], plan.around_nbytes)
        self._direct: ReadSet | None = None
        self._aligned = files.aligned() if source.direct else None
        if self._aligned is not None:
            self._direct = ReadSet([DirectReads(ranges, self._aligned)], plan.around_nbytes)
        self._n_until_retry = 0

    def choose(self, samples: NDArray[np.int64], laps: Laps) -> ReadSet:
        """Return how to read the samples of a batch; asks for what is not in the page cache."""
        if self._n_until_retry == 0:
            choice = self._source.chosen(self)
            self._n_until_retry = -1 if choice.is_final else RETRY
            self._warm = self._read_set(choice.ways)
        self._n_until_retry -= 1
        if is_cached(self._table, samples[[0, -1]], 0, self._files):
            return self._warm
        direct, aligned = self._direct, self._aligned
        if direct and aligned and self._source.is_direct(self._files, aligned):
            return direct
        self._rows.ask(samples)
        laps.end(Kind.READ, 0)
        return self._cold

    def measured(self) -> ReadChoice:
        """Return which way of reading is faster for each extent."""
        return choose_reads(
            self._table,
            self._fields.extents,
            [grid is not None for grid in self._shared.grids(self._fields)],
            self._files,
            lambda number, way: self._reader([number], way),
        )

    def _read_set(self, ways: Sequence[str]) -> ReadSet:
        reads, gap_nbytes = [], {}
        around = self._fields.around
        for way in sorted(set(ways)):
            numbers = [number for number, chosen in enumerate(ways) if chosen == way]
            reads.append(self._reader(numbers, way))
            for number in numbers:
                nbytes = self._plan.around_nbytes.get(number)
                if nbytes and (way != GATHER or (around and around[number])):
                    gap_nbytes[number] = nbytes
        return ReadSet(reads, gap_nbytes)

    def _reader(self, numbers: Sequence[int], way: str) -> Reads:
        if way == GATHER:
            grids = self._shared.grids(self._fields)
            chosen = {}
            for number in numbers:
                grid = grids[number]
                assert grid is not None
                chosen[number] = grid, self._fields.extents[number]
            return MappedReads(chosen, self._files)
        ranges = [one for one in self._plan.ranges if one.extent in numbers]
        return RowReads(SampleRanges(self._table, ranges), self._files)


class InPlaceFiller:
    """Fills rows of variables that lie in the extents as memory has them.

    Samples that are laid out otherwise than the first one of the store are decoded whole.
    """

    def __init__(
        self,
        store: ExtentStore,
        fields: FieldLayout,
        ways: ChoosesReads,
        others: DecodeFiller,
        *,
        checks: ExtentChecks | None = None,
        files: FileSet | None = None,
    ) -> None:
        self._ways = ways
        self._others = others
        self._checks = checks
        self._files = files
        self._table = store.table
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
        self._scratch: dict[object, NDArray[np.uint8]] = {}

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill ``rows``; see `Filler`."""
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

    def _fill(self, samples: NDArray[np.int64], rows: Rows, laps: Laps) -> None:
        count = len(samples)
        ways = self._ways.choose(samples, laps)
        octets = {
            name: rows[name].reshape(-1).view(np.uint8).reshape(count, -1) for name in self._plain
        }
        stored = {v.name: v.nbytes for v in self._packed} | self._varints
        for name, nbytes in stored.items():
            octets[name] = self._room(name, count * nbytes).reshape(count, nbytes)
        gaps = {
            number: self._room(number, count * nbytes).reshape(count, nbytes)
            for number, nbytes in ways.gap_nbytes.items()
        }
        checks = None
        if self._checks is not None:
            checks = self._checks.of(samples, self._table, self._files)
        for reads in ways.reads:
            reads.read(samples, octets, gaps, laps, checks)
        for variable in self._packed:
            assert variable.packed is not None
            row = rows[variable.name]
            numbers = octets[variable.name].view(variable.dtype).reshape(row.shape)
            unpack(numbers, variable.packed, row)
            laps.end(Kind.DECODE, octets[variable.name].size)
        for name in self._varints:
            others = _undone(octets[name], rows[name])
            laps.end(Kind.DECODE, octets[name].size)
            self._decode(others, samples, rows, laps)
        for number, around in self._around.items():
            others = np.flatnonzero((gaps[number] != around).any(axis=1))
            self._decode(others, samples, rows, laps)

    def _decode(
        self, chosen: NDArray[np.intp], samples: NDArray[np.int64], rows: Rows, laps: Laps
    ) -> None:
        """Decode samples that are laid out otherwise."""
        for row in chosen.tolist():
            one = slice(row, row + 1)
            here = {name: values[one] for name, values in rows.items()}
            self._others.fill_rows(samples[one], here, laps)

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
