"""JSON that somebody else wrote: read without waiting, without end and without a deep stack.

A file that is no file (a pipe, a device) would be waited for; one of any size would fill the
memory; lists in lists end Python's stack, here or where the values are used.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

MAX_NBYTES = 1 << 28
LARGEST_NBYTES = 1 << 40
"""Of files that grow with a run: the disk bounds them."""

MAX_DEPTH = 100
"""Lists and objects in each other; Python's own reader and writers stop at about 1,000."""


def open_regular(path: str | Path) -> int:
    """Return a descriptor of a file of this machine, for reading; of nothing that is waited for.

    Raises
    ------
    OSError
        If it cannot be opened, or is no regular file: a pipe, a device, a socket.
    """
    # Without O_NONBLOCK a pipe is opened once somebody writes to it. It means nothing to files.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is a pipe or device, not a file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_small_file(path: Path, *, limit: int = MAX_NBYTES) -> bytes:
    """Return all bytes of a file that is no longer than ``limit``, here or behind a URL.

    Raises
    ------
    OSError
        If it cannot be read, is no regular file or is longer.
    """
    if not isinstance(path, PurePath):  # an address, with the face of a path
        return path.read_bytes()
    with os.fdopen(open_regular(path), "rb") as stream:
        if (size := os.fstat(stream.fileno()).st_size) > limit:
            raise OSError(errno.EFBIG, f"has {size} bytes, more than {limit}", str(path))
        return stream.read(size)


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


_FINITE: Final[dict[str, Any]] = {"parse_constant": lambda _: None, "parse_float": _finite}


def parse_json(data: bytes | str, *, finite: bool = False) -> Any:
    """Return the values of a JSON text.

    With ``finite``, None stands for NaN and infinities, which are no JSON, and for numbers too
    large for a float: who counts with them knows nothing, and who passes them on writes no JSON.

    Raises
    ------
    ValueError
        If it is none, or has lists in lists beyond what any writer of ours or others makes.
    """
    try:
        values = json.loads(data, **(_FINITE if finite else {}))
    except RecursionError:
        raise ValueError("lists in lists without end") from None
    level: list[Any] = [values] if isinstance(values, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return values
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [each for part in inner for each in part if isinstance(each, dict | list)]
    raise ValueError(f"more than {MAX_DEPTH} lists in each other")


def read_json(path: Path, *, limit: int = MAX_NBYTES, finite: bool = False) -> Any:
    """Return the values of a JSON file; ``finite`` as for `parse_json`.

    Raises
    ------
    OSError
        As `read_small_file`.
    ValueError
        As `parse_json`, or where it is no UTF-8.
    """
    return parse_json(read_small_file(path, limit=limit), finite=finite)
