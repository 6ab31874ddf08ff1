"""How fast a store's own bytes come in, measured when a loader is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import psutil

from iobench.errors import StorageError, StoreError
from iobench.files.atomic import is_local
from iobench.files.ranges import FileRange
from iobench.loaders.ring.ahead_choice import MAX_NS, AheadChoice, choose_ahead, measure
from iobench.loaders.ring.buffers import MEMORY_SHARE, BatchLayout
from iobench.loaders.ring.object_reads import RANGE_NBYTES, RangeViews, fill_objects
from iobench.loaders.ring.read_ahead import PIECE_NBYTES, are_cached, ask_for_ranges
from iobench.loaders.ring.store_source import StoreSource
from iobench.loaders.ring.telling import innermost
from iobench.recording.clocks import now_ns
from iobench.stores.extents import ExtentStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.contract import BatchSource

N_PLACES: Final = 87
"""As many as all steps of a measurement take."""
N_LOOKED_AT: Final = 16
MAX_LOCAL_NS: Final = 30_000_000
"""When a local store is measured no further, since a loader shall begin within 50 ms; unless each
read takes milliseconds, as from a file system of a network."""


def ahead_of(
    source: BatchSource,
    batch_size: int,
    *,
    threads: int,
    depth: int,
    max_bytes: int | None = None,
    clock: Callable[[], int] = now_ns,
) -> AheadChoice | None:
    """Return how far ahead to fill batches from a store; None where the source has none.

    What is in the page cache is not measured. Else some 40 MB of the store are read, and less where
    more at once bring nothing, or time is over: some 30 ms for a local store, a second for a remote
    one. How many requests each thread may make is said to the store's source.
    """
    found = innermost(source)
    store = found.store if isinstance(found, StoreSource) else None
    if not isinstance(found, StoreSource) or not isinstance(store, ExtentStore) or not len(store):
        return None
    nbytes = int(np.median(store.table.length[0]))
    try:
        reads = _StoreReads(store, min(max(nbytes, 1), PIECE_NBYTES))
        max_ns = MAX_LOCAL_NS if is_local(store.path) else MAX_NS
        speeds = measure(reads, clock, max_ns) if reads.has_to_wait else None
    except (StoreError, StorageError):
        return None  # the first batch will tell
    sample_nbytes = int(store.table.length[0].sum())
    longest = PIECE_NBYTES if is_local(store.path) else RANGE_NBYTES[0]
    per_sample = max(store.table.n_per_sample, -(-sample_nbytes // longest))
    if max_bytes is None:
        max_bytes = int(psutil.virtual_memory().available * MEMORY_SHARE)
    choice = choose_ahead(
        speeds,
        batch_reads=batch_size * per_sample,
        buffer_nbytes=BatchLayout(source.spec, batch_size).nbytes,
        threads=threads,
        depth=depth,
        max_bytes=max_bytes,
    )
    if speeds is not None:
        found.in_flight = choice.in_flight
    return choice


class _StoreReads:
    """Ranges of a store, each read once; see `iobench.loaders.ring.ahead_choice.TimedReads`."""

    def __init__(self, store: ExtentStore, nbytes: int) -> None:
        self.nbytes = nbytes
        self._memory: list[memoryview] = []
        self._files: FileSet | None = None
        if is_local(store.path):
            self._files = store.files
        self._paths = store.table.files
        places = self._places(store)
        self.has_to_wait = bool(places) and not self._is_cached(places[:N_LOOKED_AT])
        if self._files is not None and self.has_to_wait:
            files = self._files
            places = [place for place in places if not are_cached([place], files)]
        self._left = places

    def _places(self, store: ExtentStore) -> list[tuple[int, int]]:
        """Return files and offsets of ranges, in random order, apart from each other."""
        random = np.random.default_rng(0)
        table = store.table
        places = []
        for sample in np.unique(random.integers(0, len(table), N_PLACES)).tolist():
            for file, offset, length in table.places(sample):
                ends = range(self.nbytes, length + 1, 2 * self.nbytes)
                places += [(file, offset + end - self.nbytes) for end in ends]
        random.shuffle(places)
        return places[:N_PLACES]

    def _is_cached(self, places: list[tuple[int, int]]) -> bool:
        """Return whether more than half of these places are in the page cache."""
        if self._files is None:
            return False
        files = self._files
        return 2 * sum(are_cached([place], files) for place in places) > len(places)

    def read(self, count: int) -> int:
        """Read so many ranges at once; return how many there were."""
        while len(self._memory) < count:
            self._memory.append(memoryview(bytearray(self.nbytes)))
        chosen, self._left = self._left[:count], self._left[count:]
        if not chosen:
            return 0
        if self._files is None:
            ranges = [
                RangeViews(FileRange(file, offset, self.nbytes), [view])
                for (file, offset), view in zip(chosen, self._memory, strict=False)
            ]
            fill_objects(self._paths, ranges, in_flight=count)
        else:
            _read_local(self._files, chosen, self._memory)
        return len(chosen)


def _read_local(
    files: FileSet, places: Sequence[tuple[int, int]], memory: Sequence[memoryview]
) -> None:
    """Have the system read ranges, as long as the memory for each, all at once; then read them."""
    nbytes = len(memory[0])
    file, start = (np.array(each, dtype=np.int64) for each in zip(*places, strict=True))
    ask_for_ranges(file, start, start + nbytes, files)
    for (number, offset), view in zip(places, memory, strict=False):
        files.opened(number).fill(view, offset)
