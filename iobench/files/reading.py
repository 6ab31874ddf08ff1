"""The loop that reads a range of a file into memory that lies in one piece or many."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MAX_VIEWS", "read_into"]

MAX_VIEWS: Final = 1024
"""What ``preadv`` takes at once (``IOV_MAX`` of Linux)."""


def read_into(
    descriptor: int, views: Sequence[memoryview], offset: int, end: int, *, sector: int = 1
) -> int:
    """Read bytes ``offset`` to ``end`` of a file into memory, view after view.

    Parameters
    ----------
    descriptor : int
        Of the file; its position is not moved.
    views : sequence of memoryview
        Of at least ``end - offset`` bytes together.
    offset, end : int
        The first byte, and the one after the last.
    sector : int
        What the file system reads in multiples of (``O_DIRECT``): who gets less is at the end.

    Returns
    -------
    int
        Where reading ended: before ``end`` only where the file does.

    Raises
    ------
    OSError
        If the file system refuses.
    """
    while offset < end:
        count = os.preadv(descriptor, views[:MAX_VIEWS], offset)
        offset += count
        if count == 0 or count % sector:
            break
        if offset < end:
            views = _rest(views, count)
    return offset


def _rest(views: Sequence[memoryview], done: int) -> Sequence[memoryview]:
    """Return what is left of views after their first ``done`` bytes."""
    for number, view in enumerate(views):
        if done < len(view):
            return [view[done:], *views[number + 1 :]]
        done -= len(view)
    return []
