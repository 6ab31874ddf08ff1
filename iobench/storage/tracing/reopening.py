"""Opening files once more that were open before tracing began: Darshan knows what it saw opened.

In a forked process it forgets them all, also those that its parent was traced while opening.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["follow", "reopen"]

DESCRIPTORS: Final = Path("/proc/self/fd")
AT_OPENING: Final = os.O_CREAT | os.O_EXCL | os.O_TRUNC

_followed: tuple[Path, ...] = ()
_asked = False


def follow(folders: Iterable[Path]) -> None:
    """Reopen what this process has open for reading below some folders, and what its forks inherit.

    No folders end that.
    """
    global _followed, _asked
    _followed = tuple(folder.resolve() for folder in folders)
    if _followed and not _asked:
        _asked = True
        os.register_at_fork(after_in_child=reopen)
    reopen()


def reopen() -> int:
    """Replace each such descriptor by a new one of the same file at the same place; count them.

    Does nothing while nothing is followed, and where there is no ``/proc``.
    """
    if not _followed:
        return 0
    try:
        numbers = [int(path.name) for path in DESCRIPTORS.iterdir()]
    except OSError:
        return 0
    return sum(_reopen(number) for number in numbers)


def _reopen(number: int) -> bool:
    link = DESCRIPTORS / str(number)
    with contextlib.suppress(OSError, ValueError):
        path = link.readlink()
        if not any(path.is_relative_to(folder) for folder in _followed):
            return False
        told = (Path("/proc/self/fdinfo") / str(number)).read_text("ascii")
        flags = int(told.partition("flags:")[2].split()[0], 8)
        before = os.fstat(number)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            return False
        again = os.open(path, flags & ~AT_OPENING)
        try:
            now = os.fstat(again)
            if (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino):
                return False  # something else has its name by now
            os.lseek(again, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(again, number, inheritable=os.get_inheritable(number))
        finally:
            os.close(again)
        return True
    return False
