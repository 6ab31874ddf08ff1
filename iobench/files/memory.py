"""Memory for what is large and short-lived."""

from __future__ import annotations

import itertools
import math
import mmap
import weakref
from collections import deque
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
MOST_IDLE_NBYTES = 256 << 20
"""What is kept for the next samples."""
BOUNDED_SHARE = 4
"""Of what `pages_used_again` allows that much is kept: the rest is for what is held."""
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
    """
    if nbytes < OWN_NBYTES:
        return np.empty(nbytes, dtype=np.uint8)
    return np.frombuffer(anonymous_pages(nbytes), dtype=np.uint8)


def anonymous_pages(nbytes: int) -> mmap.mmap:
    """Return pages of this process, large ones where there are any; a forked child gets copies."""
    # Python's default are shared pages, which Linux makes no large ones of.
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages: small ones do
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def for_one_sample(nbytes: int) -> NDArray[np.uint8]:
    """Return uninitialised bytes for what one sample is made of.

    Once nobody holds them they serve the next sample, of whichever thread. glibc gives what is
    freed at the end of its heap back to the system, so that each sample would be made in fresh
    pages: half of the time that reading numbers takes which lie in a file as they are.
    """
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


_limits: list[int] = []
"""Of those within `pages_used_again`."""


def is_bounded() -> bool:
    """Tell whether somebody is within `pages_used_again`: memory is counted then."""
    return bool(_limits)


@contextmanager
def pages_used_again(limit_nbytes: int) -> Iterator[None]:
    """Keep less for the next samples, within about this much for all that is made."""
    _limits.append(limit_nbytes)
    try:
        yield
    finally:
        _limits.remove(limit_nbytes)


class _LentMemory:
    """Memory that was lent for samples and that nobody holds any more, by length, of all threads.

    Arrays made of an array that is lent, and memoryviews of those, keep it alive, wherever they
    are. It comes back from wherever the last of them dies, in the middle of a garbage collection,
    too: so that takes no lock.
    """

    def __init__(self) -> None:
        self._idle: dict[int, deque[memoryview]] = {}
        self._lent: dict[int, weakref.ref[NDArray[Any]]] = {}
        self._numbers = itertools.count()

    @property
    def idle_nbytes(self) -> int:
        """Bytes that nobody holds."""
        return sum(length * len(idle) for length, idle in list(self._idle.items()))

    def array(self, nbytes: int) -> NDArray[np.uint8]:
        step = (1 << nbytes.bit_length() - 1) // ROUNDING
        length = -(-nbytes // step) * step
        bound = sum(_limits) // BOUNDED_SHARE
        most = min(MOST_IDLE_NBYTES, bound) if _limits else MOST_IDLE_NBYTES
        if length > most:
            return own_pages(nbytes)
        try:
            memory = self._idle[length].pop()
        except (KeyError, IndexError):
            memory = np.empty(length, dtype=np.uint8).data
        array, number = np.frombuffer(memory, np.uint8, nbytes), next(self._numbers)

        def returned(_: object) -> None:
            del self._lent[number]
            if self.idle_nbytes + length > most:
                self._idle.clear()  # of lengths that nobody may want any more
            self._idle.setdefault(length, deque()).append(memory)

        self._lent[number] = weakref.ref(array, returned)
        return array


_lent = _LentMemory()
