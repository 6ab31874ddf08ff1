"""Batches that somebody else asks for by sample numbers, in leased buffers as well."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.loaders.ring.buffers import BufferPool
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.store_source import StoreSource
from iobench.samples import StackedSamples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import BatchSource, Reader
    from iobench.samples import SampleSpec

DEPTH = 2
"""Buffers from the start: a loop holds this batch, and the last one until this one is there."""


class SourceSamples:
    """The samples of a source by number, as a map-style dataset; several are read side by side.

    Each thread, and each process after a fork, has its own reader; buffers are those of batches
    that nobody holds any more.
    """

    def __init__(self, source: BatchSource) -> None:
        self.spec: SampleSpec = source.spec
        self._source = source
        self._own = threading.local()
        self._pool: BufferPool | None = None
        self._largest = 0

    def __reduce__(self) -> tuple[type[SourceSamples], tuple[BatchSource]]:
        return (SourceSamples, (self._source,))

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        """Return a sample."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> StackedSamples:
        """Return these samples, each as a row of one array a variable."""
        samples = np.asarray(indices, dtype=np.int64).reshape(-1)
        count = len(self)
        outside = (samples < -count) | (samples >= count)
        if outside.any():
            number = int(samples[outside][0])
            if isinstance(self._source, StoreSource):
                self._source.store.extents(number)  # says so in its own words
            raise IndexError(f"no sample {number}, there are {count}")
        samples = np.where(samples < 0, samples + count, samples)
        pool = self._pool_for(len(samples))
        memory = pool.take_or_grow()
        key, arrays = pool.lend(memory, len(samples))
        if len(samples):
            self._reader().fill(samples, arrays, BatchLog())
        pool.hand_out(key)
        return StackedSamples(arrays, len(samples))

    def _pool_for(self, n_samples: int) -> BufferPool:
        pool = self._pool
        if pool is None or pool.pid != os.getpid() or n_samples > self._largest:
            self._largest = max(1, n_samples, self._largest)
            pool = self._pool = BufferPool(self._source.spec, self._largest, depth=DEPTH)
        return pool

    def _reader(self) -> Reader:
        own = self._own
        if getattr(own, "pid", None) != os.getpid():
            own.reader, own.pid = self._source.filler(), os.getpid()
        reader: Reader = own.reader
        return reader
