"""Memory for what is large and short-lived."""

from __future__ import annotations

import mmap
import threading
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from iobench.cpus import cgroup_folders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = [
    "available_memory_nbytes",
    "for_one_sample",
    "from_heap",
    "is_bounded",
    "own_pages",
    "pages_used_again",
]

OWN_NBYTES = 1 << 20
"""Less than this comes from the heap: a page fault each would cost more than it gives back."""
ROUNDING = 8
"""Lengths are rounded up by an eighth at most, so that what is about as long fits."""


def available_memory_nbytes() -> int:
    """Return the bytes this process may still take, by the machine and by its cgroup v2.

    What a cgroup holds as cached files counts as taken there, as far as the kernel tells no better.
    """
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


def from_heap(nbytes: int) -> NDArray[np.uint8]:
    """Return uninitialised bytes, from where the next array will come when they are let go."""
    return np.empty(nbytes, dtype=np.uint8)


def own_pages(nbytes: int) -> NDArray[np.uint8]:
    """Return uninitialised bytes that the system has back as soon as nobody holds them.

    glibc maps large arrays as well, but only until the first is freed: from then on it serves
    sizes up to that, 32 MiB at most, from a heap that keeps what it got (mallopt(3),
    ``M_MMAP_THRESHOLD``). A conversion would hold what it read beside what it made of it.
    Within `pages_used_again` they serve the next who asks instead.
    """
    if nbytes < OWN_NBYTES:
        return from_heap(nbytes)
    return _spare.array(_rounded(nbytes))[:nbytes]


def for_one_sample(nbytes: int) -> NDArray[np.uint8]:
    """Return uninitialised bytes for what one sample is made of.

    Within `pages_used_again`, where memory is bounded, those of `own_pages`; a loader takes them
    from the heap, which has them ready for the next sample.
    """
    return own_pages(nbytes) if is_bounded() else from_heap(nbytes)


def is_bounded() -> bool:
    """Tell whether somebody is within `pages_used_again`: memory is counted then."""
    return _spare.is_in_use


@contextmanager
def pages_used_again(limit_nbytes: int) -> Iterator[None]:
    """Keep the pages that nobody holds any more for whoever asks for as many.

    A page that is new costs more time than what is written into it: it is cleared first. Threads
    may enter at once; what is kept goes when the last one leaves.

    Parameters
    ----------
    limit_nbytes : int
        What is kept and what is in use take no more than this together; nothing is kept where
        what is in use takes more alone. Limits of several add up.
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


def _mapped(length: int) -> mmap.mmap:
    # Python's default are shared pages, which Linux makes no large ones of.
    pages = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them: small pages do
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def _rounded(nbytes: int) -> int:
    step = (1 << nbytes.bit_length() - 1) // ROUNDING
    return -(-nbytes // step) * step
