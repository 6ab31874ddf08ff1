"""Rows filled in place, from extents that hold variables as memory has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.loaders.ring.buffers import ScratchBytes
from iobench.loaders.ring.decode_reader import DecodeReader
from iobench.loaders.ring.gather import MappedReads
from iobench.loaders.ring.log import StageStopwatch
from iobench.loaders.ring.reads import ObjectReads, RowReads, ask_for, is_cached
from iobench.recording.kinds import Kind
from iobench.stores.extents import ExtentStore
from iobench.stores.rounding import unpack
from iobench.stores.varints import decode_varint_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.reads import Reads
    from iobench.loaders.ring.store_access import StoreAccess


class PlainReader:
    """Fills rows of variables that lie in the extents as memory has them.

    Samples that are laid out otherwise than the first one of the store are decoded whole.
    """

    def __init__(self, source: StoreAccess) -> None:
        store, layout = source.store, source.layout
        assert isinstance(store, ExtentStore)
        assert layout is not None
        self._files, self._checks, self._table = source.files, source.checks, store.table
        self._others = DecodeReader(source, of_whole=True)
        self._gap_nbytes = {
            number: nbytes
            for number, parts in enumerate(layout.extents)
            if (nbytes := sum(part.nbytes for part in parts if not part.name))
        }
        extents = dict(enumerate(layout.extents))
        if self._files is None:
            self._cold: Sequence[Reads] = [ObjectReads(self._table, extents)]
        else:
            self._cold = [RowReads(self._table, extents.copy(), self._files)]
        self._warm = self._cold
        # What lies at equal distances is taken from mappings where the page cache has it.
        grids = {} if self._files is None else dict(enumerate(source.grids()))
        gathered = {
            number: (grid, extents.pop(number))
            for number, grid in grids.items()
            if grid is not None
        }
        if gathered and self._files is not None:
            left = [RowReads(self._table, extents, self._files)] if extents else []
            self._warm = [MappedReads(gathered, self._files), *left]
        self._packed = [v for v in store.manifest.spec if v.packed is not None and v.nbytes]
        # Of each variable that is varints, the bytes they take.
        self._varints = {
            part.name: part.nbytes
            for extent in layout.extents
            for part in extent
            if part.name in layout.varints
        }
        self._stored = {v.name: v.nbytes for v in self._packed} | self._varints
        self._plain = [v.name for v in store.spec if v.nbytes and v.name not in self._stored]
        self._lengths = np.array(layout.lengths, dtype=np.int64)
        self._around = {
            number: np.frombuffer(around, dtype=np.uint8)
            for number, around in enumerate(layout.around or ())
            if around
        }
        self._scratch = ScratchBytes()

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill ``rows``; see `Reader`."""
        watch = StageStopwatch(log)
        others = np.flatnonzero((self._table.length[samples] != self._lengths).any(axis=1))
        if others.size < len(samples):
            fitting = samples
            if others.size:  # laid out otherwise: one that fits is read in its place, for now
                fitting = samples.copy()
                fitting[others] = np.delete(samples, others)[0]
            self._fill(fitting, rows, watch)
        self._decode(others, samples, rows, watch)
        watch.emit()

    def _fill(self, samples: NDArray[np.int64], rows: Rows, watch: StageStopwatch) -> None:
        count = len(samples)
        reads = self._chosen(samples, watch)
        row_bytes = {
            name: rows[name].reshape(-1).view(np.uint8).reshape(count, -1) for name in self._plain
        }
        for name, nbytes in self._stored.items():
            row_bytes[name] = self._scratch.take(name, count * nbytes).reshape(count, nbytes)
        gaps = {
            number: self._scratch.take(number, count * nbytes).reshape(count, nbytes)
            for number, nbytes in self._gap_nbytes.items()
        }
        checks = None if self._checks is None else self._checks.of(samples)
        for each in reads:
            each.read(samples, row_bytes, gaps, watch, checks)
        for variable in self._packed:
            assert variable.packed is not None
            row = rows[variable.name]
            numbers = row_bytes[variable.name].view(variable.dtype).reshape(row.shape)
            unpack(numbers, variable.packed, row)
            watch.end(Kind.DECODE, row_bytes[variable.name].size)
        for name in self._varints:
            others = _decode_varints(row_bytes[name], rows[name])
            watch.end(Kind.DECODE, row_bytes[name].size)
            self._decode(others, samples, rows, watch)
        for number, around in self._around.items():
            others = np.flatnonzero((gaps[number] != around).any(axis=1))
            self._decode(others, samples, rows, watch)

    def _chosen(self, samples: NDArray[np.int64], watch: StageStopwatch) -> Sequence[Reads]:
        """Return how to read the samples of a batch; ask for what is not in the page cache."""
        if self._files is None or is_cached(self._table, samples, self._files):
            return self._warm
        ask_for(self._table, samples, self._files)
        watch.end(Kind.READ, 0)
        return self._cold

    def _decode(
        self,
        chosen: NDArray[np.intp],
        samples: NDArray[np.int64],
        rows: Rows,
        watch: StageStopwatch,
    ) -> None:
        """Decode samples that are laid out otherwise."""
        for row in chosen.tolist():
            one = slice(row, row + 1)
            here = {name: values[one] for name, values in rows.items()}
            self._others.fill_rows(samples[one], here, watch)

    def close(self) -> None:
        """Let memory go."""
        self._scratch.clear()


def _decode_varints(row_bytes: NDArray[np.uint8], rows: NDArray[Any]) -> NDArray[np.intp]:
    """Decode varints to rows, and return those of which that cannot be done so simply."""
    count = len(rows)
    numbers, holds = decode_varint_rows(row_bytes, rows.size // count)
    target = rows.reshape(count, -1)
    target[...] = numbers
    if target.itemsize < numbers.itemsize:
        holds &= (target == numbers).all(axis=1)
    return np.flatnonzero(~holds)
