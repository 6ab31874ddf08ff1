"""Memory for what is large and short-lived."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["from_heap", "own_pages"]

OWN_NBYTES = 1 << 20
"""Less than this comes from the heap: a page fault each would cost more than it gives back."""


def from_heap(nbytes: int) -> NDArray[np.uint8]:
    """Return uninitialised bytes, from where the next array will come when they are let go."""
    return np.empty(nbytes, dtype=np.uint8)


def own_pages(nbytes: int) -> NDArray[np.uint8]:
    """Return bytes that the system has back as soon as nobody holds them.

    glibc maps large arrays as well, but only until the first is freed: from then on it serves
    sizes up to that, 32 MiB at most, from a heap that keeps what it got (mallopt(3),
    ``M_MMAP_THRESHOLD``). A conversion would hold what it read beside what it made of it.
    """
    if nbytes < OWN_NBYTES:
        return from_heap(nbytes)
    # Python's default are shared pages, which Linux makes no large ones of.
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them: small pages do
            pages.madvise(mmap.MADV_HUGEPAGE)
    found: NDArray[Any] = np.frombuffer(pages, dtype=np.uint8)
    return found
