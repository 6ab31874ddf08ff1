"""A lock that a forked child has anew, whoever held it at the fork."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ForkLock"]


class ForkLock:
    """A mutex for what a forked child uses again: reader threads may hold it as the loop forks.

    Those threads are not in the child, and would never let it go there. What it guards must be
    whole at every instant: a value that is there or not.
    """

    __slots__ = ("_lock", "_pid")

    def __init__(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            # A forked child begins with one thread, so nobody else is here.
            self._lock, self._pid = threading.Lock(), os.getpid()
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
