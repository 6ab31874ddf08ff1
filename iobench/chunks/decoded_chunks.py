"""Decoded chunks that samples share: each is read and decoded once while it is kept.

All threads of a process share them. Which are kept follows the order of the pass where a loader
told it: the chunk whose next use is farthest goes first (Belady), and one that would be needed
later than all that are kept is not kept at all. Without an order the one unused for longest goes.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iobench.files.memory import is_bounded, shared_memory_nbytes
from iobench.sizes import parse_nbytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

CHUNK_CACHE: Final = "IOBENCH_CHUNK_CACHE"
"""Environment variable: what decoded chunks may take on this machine, e.g. ``2GiB``; 0: nothing."""

BUNDLE_NBYTES: Final = 1 << 20
"""Neighbours of chunks that are smaller by far are kept as one bundle of about this size: looking
one up, and copying from it, costs microseconds of Python, which netCDF4's own cache does not."""
BUNDLES_KEPT: Final = 32
"""But where little is kept, so many bundles are: they come and go as a whole."""

IN_FLIGHT: Final = 1024
"""Samples that may be under way in the threads of a process."""

Stored = Sequence[memoryview | None]
"""The bytes of the chunks of a bundle as stored; None of one that was never written."""
Decode = Callable[[tuple[int, ...], Stored, "NDArray[Any] | None"], "NDArray[Any] | None"]
"""Makes the numbers of the bundle at a place from its bytes, where it is told if that can be."""


class ChunkRow(NamedTuple):
    """Chunks of a variable that the same samples need."""

    file: int  # number of the file or store; -1: samples of all need it
    variable: str
    # how many indexes along each sample dimension a chunk holds; 0: the variable lacks it
    lengths: tuple[int, ...]
    # place in the grid of chunks along these dimensions; 0 where there is none
    numbers: tuple[int, ...]
    # shape of what is kept as one, of neighbours where chunks are small; empty: each chunk is
    bundle: tuple[int, ...] = ()


Neighbours = tuple[int, tuple[int, ...]]
"""Samples that share their largest chunks: the number of their file, the place of the chunks."""
ChunkKey = tuple[ChunkRow, tuple[int, ...]]
"""A chunk, or bundle of them: its row, and its place in the grid of such."""


_lock = threading.Lock()
"""Of all caches of the process, which share one bound; held for microseconds."""
_n_sharing = 1
_caches: weakref.WeakSet[DecodedChunks] = weakref.WeakSet()


def share_chunk_cache(n_processes: int) -> None:
    """Let this process keep one of so many shares: each loading process has chunks of its own."""
    global _n_sharing
    _n_sharing = max(1, n_processes)


def chunk_cache_nbytes() -> int:
    """Return what decoded chunks may take in this process."""
    text = os.environ.get(CHUNK_CACHE, "").strip()
    if text:
        whole = 0 if text == "0" else parse_nbytes(CHUNK_CACHE, text)
    else:
        whole = shared_memory_nbytes()
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    n_ranks = max(1, int(ranks) if ranks.isdecimal() else 1)
    data = sys.modules.get("torch.utils.data")
    worker = None if data is None else data.get_worker_info()  # of the DataLoader that this is of
    n_workers = 1 if worker is None else int(worker.num_workers)
    return whole // (max(_n_sharing, n_workers) * n_ranks)


def forget_decoded(*, in_child: bool = False) -> None:
    """Drop all chunks of the process, so that a replaced file is seen."""
    global _lock
    if in_child:
        _lock = threading.Lock()
    with _lock:
        for cache in _caches:
            cache.reset()


os.register_at_fork(after_in_child=functools.partial(forget_decoded, in_child=True))


class _Claim(threading.Event):
    """Chunks that one thread reads: others that want them wait for it."""

    failed = False


class DecodedChunk:
    """A chunk, or a bundle of them, on its way from storage, or decoded."""

    __slots__ = (
        "__weakref__", "_cache", "_is_decoded", "_lock", "_stored", "_values", "claim",
        "is_absent", "key", "n_chunks",
    )  # fmt: skip

    def __init__(self, key: ChunkKey, cache: weakref.ref[DecodedChunks], claim: _Claim) -> None:
        self.key = key
        self._cache = cache  # weakly: else it would live, and count, until garbage is collected
        self.claim = claim
        self._lock = threading.Lock()
        self._stored: Stored = ()
        self.n_chunks, self.is_absent = 0, False
        self._values: NDArray[Any] | None = None
        self._is_decoded = False

    @property
    def nbytes(self) -> int:
        """Of its numbers; 0 before they are decoded, and where it was never written."""
        return 0 if self._values is None else self._values.nbytes

    def put(self, stored: Stored) -> list[memoryview]:
        """Take what was read for it, and return what there was."""
        present = [content for content in stored if content is not None]
        self._stored, self.n_chunks = stored, len(present)
        self.is_absent = len(present) < len(stored)
        return present

    def values(self, decode: Decode, out: NDArray[Any] | None = None) -> NDArray[Any] | None:
        """Return its numbers as stored, None if never written; whoever is first decodes it.

        Not to be written, unless they are ``out``, as where no copy would be kept.
        """
        stored = self._stored  # first: whoever decodes it meanwhile lets go of them
        if self._is_decoded:
            return self._values
        if out is not None:
            cache = self._cache()
            if cache is None or cache.is_passing(self.key[0], out.nbytes):
                return decode(self.key[1], stored, out)
        with self._lock:  # whoever holds it waits for nobody
            if not self._is_decoded:
                if (cache := self._cache()) is not None:
                    cache.drop_for(self.key[0])
                values = decode(self.key[1], stored, None)
                if values is not None:
                    values.flags.writeable = False
                self._values, self._is_decoded, self._stored = values, True, ()
                if cache is not None and cache.keep(self) and values is not None:
                    content = next((each for each in stored if each is not None), memoryview(b""))
                    is_part = memoryview(content.obj).nbytes > content.nbytes
                    if is_part and np.may_share_memory(values, np.frombuffer(content, np.uint8)):
                        self._values = values.copy()  # keeps no bytes of what was read beside it
                        self._values.flags.writeable = False
            return self._values


class SampleOrder:
    """Samples in the order in which a pass asks for them; tells when chunks are needed next."""

    def __init__(self, addresses: NDArray[np.int64]) -> None:
        self._addresses = addresses  # (samples, 1 + dims): file and index along each dimension
        self._rows: dict[tuple[int, ...], tuple[NDArray[np.int64], NDArray[np.int64], Any]] = {}
        self._requested = np.zeros(len(addresses), dtype=np.bool_)
        self._front = self._lag = 0

    @property
    def now(self) -> int:
        """The place up to which all samples were asked for, as far as it is known."""
        return self._front - self._lag

    def followed_by(self, addresses: NDArray[np.int64]) -> SampleOrder:
        """Return the order with others behind it, without what is long past."""
        past = max(0, self.now - IN_FLIGHT)
        order = SampleOrder(np.concatenate([self._addresses[past:], addresses]))
        order._requested[: len(self._requested) - past] = self._requested[past:]
        order._front, order._lag = self._front - past, self._lag
        return order

    def ask(self, file: int, indexes: tuple[int, ...]) -> bool:
        """Note that a sample is asked for, and tell whether it was to come, about now."""
        for place in self._places(file, (1,) * len(indexes), indexes).tolist():
            if place >= self.now - IN_FLIGHT and not self._requested[place]:
                self._requested[place] = True
                self._front = max(self._front, place)
                self._lag = max(self._lag, self._front - place)
                return True
        return False

    def next_use(self, row: ChunkRow) -> int:
        """Return the place at which a row is needed next."""
        if row.file < 0:
            return self.now + 1
        places = self._places(row.file, row.lengths, row.numbers)
        first = int(np.searchsorted(places, self.now, side="right"))
        following = places[first : first + IN_FLIGHT]
        left = following[~self._requested[following]]  # a batch is asked for by chunk
        if len(left):
            return int(left[0])
        end = len(self._addresses)  # needed again in the next pass, which may be as this one
        return end + (int(places[0]) if len(places) else end)

    def _places(
        self, file: int, lengths: tuple[int, ...], numbers: tuple[int, ...]
    ) -> NDArray[np.int64]:
        """Return the places of the samples that need a row of chunks, ascending."""
        keys, order, shape = self._rows.get(lengths) or self._grouped(lengths)
        key = 0
        for count, number in zip(shape, (file, *numbers), strict=False):
            if number >= count:
                return order[:0]
            key = key * count + number
        start, stop = keys.searchsorted((key, key + 1))
        return order[start:stop]

    def _grouped(
        self, lengths: tuple[int, ...]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], Any]:
        """Return the samples by row of chunks of these lengths: rows, ascending, and places."""
        each = self._addresses.max(axis=0, initial=0) + 1  # where a variable lacks a dimension
        each[0] = 1
        for axis, length in enumerate(lengths, 1):
            each[axis] = length or each[axis]
        rows = self._addresses // each
        shape = (rows.max(axis=0, initial=0) + 1).tolist()
        keys = np.ravel_multi_index(tuple(rows.T), shape).astype(np.int64)
        order = np.argsort(keys, kind="stable").astype(np.int64)
        grouped = self._rows[lengths] = keys[order], order, shape
        return grouped


class _Held(threading.local):
    """The chunks of the last sample that a thread asked for."""

    def __init__(self) -> None:
        self.chunks: list[DecodedChunk] = []


class DecodedChunks:
    """The decoded chunks of one source of samples. Pickled or forked it is empty again.

    At any time each chunk is read and decoded by one thread at most; others wait for it.
    ``lengths`` are those of the `ChunkRow` that serves most samples. ``has_repeats`` says whether
    the order said last asks for a sample twice: windows overlap.
    """

    def __init__(self, lengths: tuple[int, ...] = (1,)) -> None:
        self._self, self._lengths = weakref.ref(self), lengths
        self._order: SampleOrder | None = None
        self._held = _Held()
        self.has_repeats = False
        self.reset()
        with _lock:  # readers iterate over the set
            _caches.add(self)

    def __reduce__(self) -> tuple[type[DecodedChunks], tuple[tuple[int, ...]]]:
        return DecodedChunks, (self._lengths,)

    def reset(self) -> None:
        """Hold nothing, as if nobody had used it."""
        self.nbytes = 0
        self._rows: dict[ChunkRow, dict[tuple[int, ...], DecodedChunk]] = {}
        self._uses: dict[ChunkRow, int] = {}
        self._farthest: list[tuple[int, ChunkRow]] = []
        self._making = weakref.WeakValueDictionary[ChunkKey, DecodedChunk]()
        self._limit: int | None = None
        self._clock = 0
        self._ready: set[Neighbours] = set()  # whose chunks are kept
        self._begun: set[Neighbours] = set()  # of which a thread makes its first sample

    def expect(self, addresses: Sequence[Any], *, follows: bool) -> None:
        """Say in which order samples will be asked for; ``follows``: behind those said before.

        An address begins with the number of a file and the index along each sample dimension, or is
        the index in the only file.
        """
        width = 1 + len(self._lengths)
        rows = np.array(self._samples(addresses), dtype=np.int64).reshape(-1, width)
        shape = tuple((rows.max(axis=0, initial=0) + 1).tolist())
        self.has_repeats = len(np.unique(np.ravel_multi_index(tuple(rows.T), shape))) < len(rows)
        with _lock:
            before = self._order if follows else None
            order = SampleOrder(rows) if before is None else before.followed_by(rows)
            self._order, known = order, list(self._rows)
        uses = {row: order.next_use(row) for row in known}  # others read meanwhile
        with _lock:
            if self._order is order:
                self._sort_uses({n: uses.get(n) or self._next_use(n) for n in self._rows})

    def _samples(self, addresses: Sequence[Any]) -> list[tuple[int, ...]]:
        width = 1 + len(self._lengths)
        return [each[:width] if isinstance(each, tuple) else (0, each) for each in addresses]

    def by_chunk(self, addresses: Sequence[Any]) -> Iterator[int]:
        """Yield the positions of a batch's samples, neighbours together.

        Those whose chunks are kept come first, those whose chunks another thread decodes last:
        threads decode chunks side by side, and use them all while they are kept.
        """
        samples, groups = self._samples(addresses), dict[Neighbours, list[int]]()
        order = sorted(range(len(samples)), key=samples.__getitem__)
        if max(self._lengths, default=1) == 1:  # nothing is shared
            yield from order
            return
        for position in order:
            file, *indexes = samples[position]
            along = zip(indexes, self._lengths, strict=True)
            numbers = tuple([index // n if n else 0 for index, n in along])
            groups.setdefault((file, numbers), []).append(position)
        while groups:
            with _lock:
                free = (each for each in groups if each not in self._begun)
                ready = (each for each in groups if each in self._ready)
                group = next(itertools.chain(ready, free, groups))
                self._begun.add(group)
            try:
                positions = iter(groups.pop(group))
                yield next(positions)
            finally:
                self._begun.discard(group)
            yield from positions

    def _sort_uses(self, uses: dict[ChunkRow, int]) -> None:
        """Find anew which row is needed last, without what is outdated."""
        self._uses, self._farthest = {}, []
        for row, use in uses.items():
            self._note_use(row, use)

    def take(
        self,
        keys: Sequence[ChunkKey],
        sample: tuple[int, ...],
        read: Callable[[list[ChunkKey]], Sequence[Stored]],
    ) -> tuple[list[DecodedChunk], list[memoryview]]:
        """Return chunks, and what was read of them here: of those that are kept nothing is read."""
        own: list[memoryview] = []
        held = self._held
        held.chunks = [each for each in held.chunks if each.key in keys]
        with _lock:
            if self._order is not None and not self._order.ask(sample[0], sample[1:]):
                # Somebody goes another way: what was said of the order is worth nothing any more.
                self._order = None
        while True:
            claim, chunks, mine = _Claim(), [], []
            with _lock:
                for row in {row for row, _ in keys}:
                    self._clock += 1
                    if row in self._rows:
                        self._note_use(row, self._next_use(row))
                if len(self._farthest) > 4 * len(self._rows) + 64:
                    self._sort_uses(self._uses)
                for key in keys:
                    chunk = self._rows.get(key[0], {}).get(key[1]) or self._making.get(key)
                    if chunk is None or chunk.claim.failed:
                        chunk = self._making[key] = DecodedChunk(key, self._self, claim)
                        mine.append(chunk)
                    chunks.append(chunk)
            if mine:
                try:
                    contents = read([chunk.key for chunk in mine])
                    for chunk, stored in zip(mine, contents, strict=True):
                        own += chunk.put(stored)
                except BaseException:
                    claim.failed = True
                    raise
                finally:
                    claim.set()
            claims = {chunk.claim for chunk in chunks}
            for each in claims:
                each.wait()
            if not any(each.failed for each in claims):
                # For the next sample of a batch, which comes by chunk, where there is no room.
                held.chunks = chunks if self._order is not None else []
                return chunks, own
            # Whoever read them for us could not: then we try, and say why not.

    def _note_use(self, row: ChunkRow, use: int) -> None:
        self._uses[row] = use
        heapq.heappush(self._farthest, (-use, row))

    def _next_use(self, row: ChunkRow) -> int:
        return -self._clock if self._order is None else self._order.next_use(row)

    @property
    def _limit_nbytes(self) -> int:
        if self._limit is None:
            self._limit = chunk_cache_nbytes()
        return self._limit

    def bundle_nbytes(self) -> int:
        """Return how many bytes of numbers chunks may have that are kept as one."""
        return min(BUNDLE_NBYTES, self._limit_nbytes // BUNDLES_KEPT)

    def _bound_nbytes(self) -> int:
        """Return what it may hold beside the others; nothing where a conversion counts memory."""
        limit = 0 if is_bounded() else self._limit_nbytes
        return limit - sum(each.nbytes for each in _caches if each is not self)

    def keep(self, chunk: DecodedChunk) -> bool:
        """Keep a chunk that was decoded, if there is room or others are needed later; tell so."""
        with _lock:
            row, place = chunk.key
            if self._making.get(chunk.key) is not chunk:
                return False  # dropped meanwhile
            use, bound = self._next_use(row), self._bound_nbytes()
            while self.nbytes + chunk.nbytes > bound:
                victim = self._victim(row, use)
                if victim is None:
                    if self._order is None:
                        del self._making[chunk.key]
                    return False  # else others find it as long as somebody holds it
                self._drop(victim)
            del self._making[chunk.key]
            self._rows.setdefault(row, {})[place] = chunk
            if row.lengths == self._lengths:
                self._ready.add((row.file, row.numbers))
            if self._uses.get(row) != use:
                self._note_use(row, use)
            self.nbytes += chunk.nbytes
            return True

    def drop_for(self, row: ChunkRow) -> None:
        """Drop what a chunk of a row will take the place of, so that memory has not both."""
        with _lock:
            if 2 * self.nbytes <= (bound := self._bound_nbytes()):
                return  # a chunk as large as any fits
            if (victim := self._victim(row, self._next_use(row))) is not None:
                chunk = next(iter(self._rows[victim].values()))
                if self.nbytes + chunk.nbytes > bound:
                    self._drop(victim)

    def _drop(self, row: ChunkRow) -> None:
        chunks = self._rows[row]
        self.nbytes -= chunks.popitem()[1].nbytes
        self._ready.discard((row.file, row.numbers))
        if not chunks:
            del self._rows[row], self._uses[row]

    def is_passing(self, row: ChunkRow, nbytes: int) -> bool:
        """Return whether chunks of a row serve one sample once, and so many bytes are not kept."""
        if self.has_repeats or row.file < 0 or set(row.lengths) != {1}:
            return False
        with _lock:
            is_full = self.nbytes + nbytes > self._bound_nbytes()
            return is_full and self._victim(row, self._next_use(row)) is None

    def _victim(self, row: ChunkRow, use: int) -> ChunkRow | None:
        """Return what is needed last, if it is later than a row is."""
        while self._farthest:
            farthest, victim = self._farthest[0]
            if victim in self._rows and self._uses[victim] == -farthest:
                return None if victim == row or -farthest <= use else victim
            heapq.heappop(self._farthest)
        return None


class DecodeCounts(NamedTuple):
    """What a thread decoded: bytes of whole chunks, bytes of them that samples took.

    ``n_hits`` chunks were there decoded already, or in the making; ``n_decoded`` were decoded.
    """

    decoded_nbytes: int
    used_nbytes: int
    n_hits: int
    n_decoded: int


class _Counting(threading.local):
    decoded_nbytes = used_nbytes = n_needed = n_decoded = 0


_counting = _Counting()


def take_decode_counts() -> DecodeCounts | None:
    """Return what this thread decoded since the last call; None where it used no chunk."""
    mine = _counting
    n_hits = max(0, mine.n_needed - mine.n_decoded)
    counts = DecodeCounts(mine.decoded_nbytes, mine.used_nbytes, n_hits, mine.n_decoded)
    vars(mine).clear()
    return counts if counts.used_nbytes or counts.decoded_nbytes else None


def count_decoded(nbytes: int, n_chunks: int = 1) -> None:
    """Count bytes of chunks that this thread decoded, as stored numbers."""
    _counting.n_decoded += n_chunks
    _counting.decoded_nbytes += nbytes


def count_used(nbytes: int, n_chunks: int) -> None:
    """Count bytes that a sample took of so many chunks, as stored numbers."""
    _counting.n_needed += n_chunks
    _counting.used_nbytes += nbytes
