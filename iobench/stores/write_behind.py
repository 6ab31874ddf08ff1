"""Writing a long file without filling the page cache with it.

A conversion writes more than fits into memory and reads none of it back. Left to itself the kernel
takes a fresh page for every one that is written, until it has none and makes writers wait; fresh
pages are dear where the machine is a virtual one that gets its memory only when it is touched
(3.5 CPU seconds per GB instead of 0.4), and `fsync` has everything still to do in the end.
"""

from __future__ import annotations

import os
from contextlib import suppress

__all__ = ["WriteBehind"]

STEP_NBYTES = 1 << 20
"""As soon as this much is new, the kernel is told to write it."""
BEHIND_NBYTES = 8 << 20
"""What is this far behind has been written, as a rule, and is let go."""


class WriteBehind:
    """Has a file written to disk as it grows, and its pages used again.

    Advice only: what a file system makes of it changes nothing in the file.

    Parameters
    ----------
    fd : int
        Descriptor of the file, which is written from its beginning.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._end = self._told = 0

    def wrote(self, nbytes: int) -> None:
        """Take note of so many more bytes at the end."""
        self._end += nbytes
        if self._end - self._told < STEP_NBYTES or not hasattr(os, "posix_fadvise"):
            return
        # Linux begins to write pages that it is told are not needed, and drops those it has
        # written; the first call is for the new ones, the second one for the old ones.
        with suppress(OSError):
            self._advise(self._told, self._end)
            if self._end > BEHIND_NBYTES:
                self._advise(0, self._end - BEHIND_NBYTES)
        self._told = self._end

    def _advise(self, start: int, stop: int) -> None:
        os.posix_fadvise(self._fd, start, stop - start, os.POSIX_FADV_DONTNEED)
