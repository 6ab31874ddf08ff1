"""Batches filled from a store: its extents read to where the batch wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from iobench.errors import StoreError
from iobench.loaders.ring.laps import Laps
from iobench.loaders.ring.reads import OpenFiles, RowReads, gap_nbytes
from iobench.recording import Kind
from iobench.stores import ExtentStore
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import Filler, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.reads import Octets
    from iobench.samples import SampleSpec
    from iobench.stores import FieldLayout, Store

__all__ = ["StoreSource"]


class _Reads(Protocol):
    """A way to fill rows from extents."""

    def read(
        self,
        samples: NDArray[np.int64],
        octets: Octets,
        gaps: Mapping[int, NDArray[np.uint8]],
        laps: Laps,
    ) -> None: ...


class StoreSource:
    """The samples of a store, for a ring; see `iobench.loaders.ring.BatchSource`.

    Parameters
    ----------
    store : Store
        An open store of any format.

    Attributes
    ----------
    spec : SampleSpec
        What a sample is.
    fields : FieldLayout or None
        Where variables lie in the store's extents; None where each sample has to be decoded.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.spec: SampleSpec = store.spec
        self.fields = _fields_of(store)

    def __len__(self) -> int:
        return len(self.store)

    def filler(self) -> Filler:
        """Return a filler for one more thread."""
        if self.fields is None or not isinstance(self.store, ExtentStore):
            return DecodedFiller(self.store)
        return FieldFiller(self.store, self.fields)


def _fields_of(store: Store) -> FieldLayout | None:
    is_local = hasattr(store.path, "__fspath__")
    return store.fields() if is_local and isinstance(store, ExtentStore) else None


class DecodedFiller:
    """Fills rows with samples decoded one after another, as the store does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill ``rows``; see `iobench.loaders.ring.Filler`."""
        laps = Laps(log)
        for row, sample in enumerate(samples.tolist()):
            self.fill_row(row, sample, rows, laps)
        laps.emit()

    def fill_row(self, row: int, sample: int, rows: Rows, laps: Laps) -> None:
        """Fill one row; raise StoreError naming the sample."""
        laps.start()
        try:
            raw = self._store.read(self._store.extents(sample))
            nbytes = sum(map(len, raw))
            laps.end(Kind.READ, nbytes)
            arrays = self._store.decode(raw)
            for name, values in rows.items():
                values[row, ...] = arrays[name]
        except StoreError as error:
            error.add_note(f"sample {sample}")
            raise
        laps.end(Kind.DECODE, nbytes)

    def close(self) -> None:
        """Nothing: the store's files are shared."""


class FieldFiller:
    """Fills rows of variables that lie in the extents as memory has them.

    Parameters
    ----------
    store : ExtentStore
        A local one.
    fields : FieldLayout
        Where variables lie.
    """

    def __init__(self, store: ExtentStore, fields: FieldLayout) -> None:
        self._fields = fields
        self._table = store.table
        self._others = DecodedFiller(store)
        nbytes = {store.path / file.name: file.nbytes for file in store.manifest.files}
        self._files = OpenFiles(store.table.files, nbytes)
        self._packed = {v.name: v for v in store.manifest.spec if v.packed is not None and v.nbytes}
        self._empty = {v.name for v in store.spec if not v.nbytes}
        self._gap_nbytes = {
            number: gap_nbytes(extent)
            for number, extent in enumerate(fields.extents)
            if gap_nbytes(extent)
        }
        self._around = {
            number: np.frombuffer(fields.around[number], dtype=np.uint8)
            for number in self._gap_nbytes
            if fields.around is not None
        }
        self._lengths = np.array(fields.lengths)
        self._reads: list[_Reads] = [
            RowReads(store.table, dict(enumerate(fields.extents)), self._files)
        ]
        self._scratch: dict[object, NDArray[np.uint8]] = {}

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Fill ``rows``; see `iobench.loaders.ring.Filler`."""
        laps = Laps(log)
        others = np.flatnonzero((self._table.length[samples] != self._lengths).any(axis=1))
        if others.size:
            # Laid out otherwise: each by itself, and the rest as if they were not there.
            usual = np.setdiff1d(np.arange(len(samples)), others)
            for row in usual.tolist():
                part = {name: values[row : row + 1] for name, values in rows.items()}
                self._fill(samples[row : row + 1], part, laps)
            for row in others.tolist():
                self._others.fill_row(row, int(samples[row]), rows, laps)
        else:
            self._fill(samples, rows, laps)
        laps.emit()

    def _fill(self, samples: NDArray[np.int64], rows: Rows, laps: Laps) -> None:
        count = len(samples)
        octets = {
            name: values.reshape(-1).view(np.uint8).reshape(count, -1)
            for name, values in rows.items()
            if name not in self._empty and name not in self._packed
        }
        for name, variable in self._packed.items():
            room = self._room(name, count * variable.nbytes)
            octets[name] = room.reshape(count, variable.nbytes)
        gaps = {
            number: self._room(number, count * nbytes).reshape(count, nbytes)
            for number, nbytes in self._gap_nbytes.items()
        }
        for reads in self._reads:
            reads.read(samples, octets, gaps, laps)
        for name, variable in self._packed.items():
            assert variable.packed is not None
            numbers = octets[name].view(variable.dtype).reshape(count, *variable.shape)
            unpack(numbers, variable.packed, rows[name])
            laps.end(Kind.DECODE, octets[name].size)
        for number, around in self._around.items():
            for row in np.flatnonzero((gaps[number] != around).any(axis=1)).tolist():
                self._others.fill_row(row, int(samples[row]), rows, laps)

    def _room(self, key: object, nbytes: int) -> NDArray[np.uint8]:
        """Return memory of this thread that is used again."""
        room = self._scratch.get(key)
        if room is None or room.size < nbytes:
            room = self._scratch[key] = np.empty(nbytes, dtype=np.uint8)
        return room[:nbytes]

    def close(self) -> None:
        """Close the files and let memory go."""
        self._files.close()
        self._scratch.clear()
