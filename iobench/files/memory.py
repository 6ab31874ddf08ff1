"""Memory for what is large and short-lived."""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.cpus import cgroup_folders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import DTypeLike, NDArray

OWN_NBYTES = 1 << 20
"""Less than this comes from the heap: a page fault each would cost more than it gives back."""
LENT_NBYTES = 1 << 16
"""Less than this for a sample comes from the heap, which has it ready."""
MOST_LENT_NBYTES = 64 << 20
"""What a thread keeps for its next sample, together with what is held of it."""
MEMORY_SHARE = 0.25
CEILING_NBYTES = 8 << 30
ROUNDING = 8
"""Lengths are rounded up by an eighth at most, so that what is about as long fits."""


def available_memory_nbytes() -> int:
    """Return the bytes this process may still take, by the machine and by its cgroup v2.

    What a cgroup holds as cached files counts as taken there, as far as the kernel tells no better.
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    for folder in cgroup_folders():
        try:
            limit = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
            stat = (folder / "memory.stat").read_text()
            counts = dict(line.split() for line in stat.splitlines())
            cached = int(counts.get("inactive_file", 0))
        except (OSError, ValueError):
            continue
        if limit.isdecimal():
            free = min(free, max(0, int(limit) - used + cached))
    return free


def shared_memory_nbytes() -> int:
    """Return what this process may take of the free memory for one purpose: a quarter, or 8 GiB."""
    return min(int(available_memory_nbytes() * MEMORY_SHARE), CEILING_NBYTES)


def own_pages(nbytes: int) -> NDArray[np.uint8]:
    """Return uninitialised bytes that the system has back as soon as nobody holds them.

    glibc maps large arrays as well, but only until the first is freed: from then on it serves
    sizes up to that, 32 MiB at most, from a heap that keeps what it got (mallopt(3),
    ``M_MMAP_THRESHOLD``). A conversion would hold what it read beside what it made of it.
    Within `pages_used_again` they serve the next who asks instead.
    """
    if nbytes < OWN_NBYTES:
        return np.empty(nbytes, dtype=np.uint8)
    return _spare.array(_rounded(nbytes))[:nbytes]


def for_one_sample(nbytes: int) -> NDArray[np.uint8]:
    """Return uninitialised bytes for what one sample is made of.

    Once nobody holds them they serve the next sample of the thread. glibc gives what is freed at
    the end of its heap back to the system, so that each sample would be made in fresh pages: half
    of the time that reading numbers takes which lie in a file as they are. Within
    `pages_used_again`, where memory is bounded, they are those of `own_pages`.
    """
    if is_bounded():
        return own_pages(nbytes)
    if nbytes < LENT_NBYTES:
        return np.empty(nbytes, dtype=np.uint8)
    return _lent.array(nbytes)


def array_for_one_sample(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised array in C order, in memory as of `for_one_sample`."""
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    if nbytes < LENT_NBYTES:
        return np.empty(shape, kind)
    return for_one_sample(nbytes).view(kind).reshape(shape)


def is_bounded() -> bool:
    """Tell whether somebody is within `pages_used_again`: memory is counted then."""
    return _spare.is_in_use


@contextmanager
def pages_used_again(limit_nbytes: int) -> Iterator[None]:
    """Keep the pages that nobody holds any more for whoever asks for as many.

    A page that is new costs more time than what is written into it: it is cleared first. Threads
    may enter at once; what is kept goes when the last one leaves.
    """
    _spare.enter(limit_nbytes)
    try:
        yield
    finally:
        _spare.leave(limit_nbytes)


class _SparePages:
    """Mapped pages by length, for whoever asks; all arrays of `own_pages` are made here."""

    def __init__(self) -> None:
        self._users = self._limit_nbytes = 0
        self._lock = threading.Lock()
        # Without a lock: pages come back whenever Python collects, even inside `array`.
        self._waiting: dict[int, list[mmap.mmap]] = {}
        self._held: dict[mmap.mmap, int] = {}

    @property
    def is_in_use(self) -> bool:
        return self._users > 0

    def enter(self, limit_nbytes: int) -> None:
        with self._lock:
            self._users += 1
            self._limit_nbytes += limit_nbytes

    def leave(self, limit_nbytes: int) -> None:
        with self._lock:
            self._users -= 1
            self._limit_nbytes -= limit_nbytes
        if not self._users:
            self._waiting.clear()

    def array(self, length: int) -> NDArray[np.uint8]:
        pages = self._taken(length)
        if pages is None:
            self._make_room(length)
            pages = _mapped(length)
        found: NDArray[Any] = np.frombuffer(pages, dtype=np.uint8)
        if self._users:
            self._held[pages] = length
            # Arrays made of this one, and memoryviews of those, keep it alive.
            weakref.finalize(found, self._come_back, pages).atexit = False
        return found

    def _come_back(self, pages: mmap.mmap) -> None:
        length = self._held.pop(pages)
        if self._users and self._room() >= length:
            self._waiting.setdefault(length, []).append(pages)

    def _taken(self, length: int) -> mmap.mmap | None:
        with suppress(KeyError, IndexError):
            return self._waiting[length].pop()
        return None

    def _room(self) -> int:
        kept = sum(length * len(pages) for length, pages in list(self._waiting.items()))
        return self._limit_nbytes - kept - sum(list(self._held.values()))

    def _make_room(self, nbytes: int) -> None:
        missing = nbytes - self._room()
        for length in list(self._waiting):
            while missing > 0 and self._taken(length) is not None:
                missing -= length


_spare = _SparePages()


class _LentMemory(threading.local):
    """Memory that one thread lent for samples, by length, each with the array made of it.

    Arrays made of that one, and memoryviews of those, keep it alive, in whichever thread.
    """

    def __init__(self) -> None:
        self._nbytes = 0
        self._by_length: dict[int, list[tuple[memoryview, weakref.ref[NDArray[Any]]]]] = {}

    def array(self, nbytes: int) -> NDArray[np.uint8]:
        length = _rounded(nbytes)
        of_length = self._by_length.setdefault(length, [])
        for number, (memory, last) in enumerate(of_length):
            if last() is None:
                found = np.frombuffer(memory, dtype=np.uint8, count=nbytes)
                of_length[number] = memory, weakref.ref(found)
                return found
        memory = np.empty(length, dtype=np.uint8).data
        found = np.frombuffer(memory, dtype=np.uint8, count=nbytes)
        if self._nbytes + length > MOST_LENT_NBYTES:  # what is held lives on with who holds it
            self._nbytes, of_length = 0, []
            self._by_length = {length: of_length}
        self._nbytes += length
        of_length.append((memory, weakref.ref(found)))
        return found


_lent = _LentMemory()


def _mapped(length: int) -> mmap.mmap:
    # Python's default are shared pages, which Linux makes no large ones of.
    pages = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages: small ones do
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def _rounded(nbytes: int) -> int:
    step = (1 << nbytes.bit_length() - 1) // ROUNDING
    return -(-nbytes // step) * step
