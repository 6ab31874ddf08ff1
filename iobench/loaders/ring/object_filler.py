"""Rows decoded from objects elsewhere: the extents of a batch asked for together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import StoreError
from iobench.files.ranges import FileRange
from iobench.loaders.ring.carriers import RangeViews
from iobench.loaders.ring.laps import Laps
from iobench.recording.kinds import Kind
from iobench.stores.checksums import crc32c
from iobench.stores.rounding import unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.loaders.ring.carriers import Carrier
    from iobench.loaders.ring.checks import ExtentChecks
    from iobench.loaders.ring.contract import Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.stores.extents import ExtentStore

__all__ = ["ObjectFiller"]


class ObjectFiller:
    """Fills rows by decoding extents that were read to memory of the thread, used again.

    Parameters
    ----------
    store : ExtentStore
        A remote one, whose extents are no plain numbers.
    carrier : Carrier
        Brings them; the filler closes it.
    checks : ExtentChecks, optional
        Compares what was read.
    """

    def __init__(
        self, store: ExtentStore, carrier: Carrier, checks: ExtentChecks | None = None
    ) -> None:
        self._store = store
        self._carrier = carrier
        self._checks = checks
        self._decoder = store.row_decoder
        self._packed = {v.name: v for v in store.manifest.spec if v.packed is not None}
        self._numbers = {v.name: np.empty(v.shape, v.dtype) for v in self._packed.values()}
        self._raw = np.empty(0, dtype=np.uint8)

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Read all extents of a batch, then decode one after the other to its place."""
        laps = Laps(log)
        laps.start()
        table = self._store.table
        lengths = table.length[samples]
        ends = np.cumsum(lengths.reshape(-1))
        if not ends.size:
            return
        nbytes = int(ends[-1])
        if self._raw.size < nbytes:
            self._raw = np.empty(nbytes, dtype=np.uint8)
        memory = self._raw.data
        views = [
            memory[end - length : end]
            for end, length in zip(ends.tolist(), lengths.reshape(-1).tolist(), strict=True)
        ]
        files, offsets = table.file[samples].reshape(-1), table.offset[samples].reshape(-1)
        ranges = [
            RangeViews(FileRange(file, offset, len(view)), [view])
            for file, offset, view in zip(files.tolist(), offsets.tolist(), views, strict=True)
            if len(view)
        ]
        laps.end(Kind.READ, self._carrier.fill(ranges))
        n_extents = table.n_per_sample
        if self._checks is not None:
            expected = self._checks.expected(samples, None, None)
            for place, view in enumerate(views):
                row, number = divmod(place, n_extents)
                if crc32c(view) != expected[row, number]:
                    self._checks.fail(int(samples[row]), number)
            laps.end(Kind.VERIFY, nbytes)
        for row, sample in enumerate(samples.tolist()):
            one = {name: values[row, ...] for name, values in rows.items()}
            try:
                self._decode(views[row * n_extents : (row + 1) * n_extents], one)
            except StoreError as error:
                raise StoreError(f"{self._store.path}: sample {sample}: {error}") from error
        laps.end(Kind.DECODE, nbytes)
        laps.emit()

    def _decode(self, raw: list[memoryview], row: dict[str, NDArray[Any]]) -> None:
        """Decode a sample to its row."""
        if self._decoder is None:
            arrays = self._store.decode(raw)
            for name, values in row.items():
                values[...] = arrays[name]
            return
        stored = {**row, **self._numbers}
        for number, data in enumerate(raw):
            self._decoder.decode_into(number, data, stored)
        for name, variable in self._packed.items():
            assert variable.packed is not None
            unpack(self._numbers[name], variable.packed, row[name])

    def close(self) -> None:
        """Let memory go."""
        self._carrier.close()
        self._raw = np.empty(0, dtype=np.uint8)
